"""A benchmark of methods, models and data of the user's own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn
from typing_extensions import Self

from driftproof.adapter import Adapter
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.plan import RunFilter
from driftproof.bench.spec import Option, Spec
from driftproof.bench.tables import Suite, Table, TableEntry
from driftproof.errors import ConfigurationError, InputError
from driftproof.files import read_text
from driftproof.methods.by_name import METHODS
from driftproof.named import hash_sources, is_own, name_of
from driftproof.optional import require
from driftproof.streams.datasets import DATASETS, default_domains
from driftproof.validation import check_choice

__all__ = ["Benchmark"]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Which methods run on which model and images.

    A function of yours is given as itself or by name, `my_package.module:function`. It has to be importable, also from
    the current folder, because other processes import it by its name.

    Attributes:
        methods: Methods, such as `tent+crowd`; or functions that take the model and keywords and return an `Adapter`.
        model: A network, such as `wrn40_2`; or a function without arguments that returns an `nn.Module`, which takes
            RGB images in 0..1.
        images: A dataset, such as `cifar10-c`; a function, see `driftproof.streams.datasets.find_dataset`; or a folder
            with one sub-folder per class, whose images are corrupted.
        unknown: The same for images of classes the model does not know; None for a closed stream.
        weights: File of weights, safetensors or a torch state dict, or for a network of the library a folder of them.
        source: Labeled training images, for methods that need them: a folder per class, or a function without
            arguments.
        domains: Domains of one round, in order; None for the `DOMAINS` next to the function, or for fifteen
            corruptions.
        severity: Severity of the corruptions, from 1 to 5; given to the function as well.
        batch_size: Images per batch, known and unknown together.
        limit: Number of images to take from each domain; None for all.
        rounds: How often the domains are gone through.
        seeds: One run for each; all but 0 shuffle the images.
        options: Hyper-parameters by method.
        measures: Names of metrics.
        size: Side of the squares that images of folders are resized to; None keeps their size.
        data: Folder with the library's datasets; corrupted versions are kept in it.
        frost: Folder of frost photos; None looks for the `imagecorruptions-imaug` package.
        procedural_frost: Whether to use procedural frost instead of photos.
        title: What it shows.
    """

    methods: Sequence[str | Callable[..., Adapter]]
    model: str | Callable[[], nn.Module]
    images: str | Path | Callable[..., Any]
    unknown: str | Path | Callable[..., Any] | None = None
    weights: str | Path | None = None
    source: str | Path | Callable[[], Any] | None = None
    domains: Sequence[str] | None = None
    severity: int = 5
    batch_size: int = 200
    limit: int | None = None
    rounds: int = 1
    seeds: Sequence[int] = (0,)
    options: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    measures: Sequence[str] = ("error", "selection")
    size: int | None = None
    data: str | Path = "data"
    frost: str | Path | None = None
    procedural_frost: bool = False
    title: str = "Own benchmark"

    @classmethod
    def from_data(cls, data: Mapping[str, Any], origin: str) -> Self:
        """Build a benchmark from plain values, such as those of a TOML file; `origin` is named in errors."""
        for name in data:
            check_choice(f"entry of {origin}", name, [each.name for each in fields(cls)])
        missing = [name for name in ("methods", "model", "images") if name not in data]
        if missing:
            raise ConfigurationError(f"Expected {' and '.join(missing)} in {origin}, but got none.")
        for name, kinds in _KINDS.items():
            if name in data and not isinstance(data[name], kinds):
                kind = {int: "a whole number", Mapping: "options by method"}.get(kinds, "a list")
                raise ConfigurationError(f"Expected `{name}` in {origin} to be {kind}, but got {data[name]!r}.")
        return cls(**data)

    def suite(self, name: str = "own") -> Suite:
        """Return the runs and a table of their errors after the last round."""
        specs = {method: self._spec(method) for method in dict.fromkeys(map(self._method_name, self.methods))}
        known = {*specs, *(method.partition("+")[0] for method in specs)}
        for method in self.options:
            check_choice("method of the benchmark", self._method_name(method), known)
        entries = tuple(TableEntry(method, "error", (spec,), round=self.rounds) for method, spec in specs.items())
        return Suite(name, self.title, (Table(name, self.title, entries),), self.rounds)

    def run_filter(self) -> RunFilter:
        """Return what is not part of the specs of `suite`."""
        return RunFilter(rounds=self.rounds, limit=self.limit, seeds=self.seeds)

    def files(self, device: str = "cpu") -> LocalFiles:
        """Return what provides model, stream and source data."""
        paths = [Path(each) for each in (self.images, self.unknown) if isinstance(each, str | Path) and _is_path(each)]
        folders = {_folder_name(path): path for path in paths}
        if len(folders) < len(set(paths)):
            raise ConfigurationError(f"Expected folders of different names, but got {' and '.join(map(str, paths))}.")
        source = self.source if self.source is None or isinstance(self.source, Path) else name_of(self.source)
        weights, frost = (None if each is None else Path(each) for each in (self.weights, self.frost))
        return LocalFiles(
            Path(self.data), weights, frost, self.procedural_frost, device, folders=folders,
            source_images=None if source is None else str(source),
            size=None if self.size is None else (self.size, self.size),
        )  # fmt: skip

    def _spec(self, method: str) -> Spec:
        images, unknown = _image_name(self.images), None if self.unknown is None else _image_name(self.unknown)
        model = name_of(self.model)
        novelty: dict[str, Option] = {} if is_own(method) else {"novelty": "default"}  # as functions of the user's have
        options = {**novelty, **self.options.get(method.partition("+")[0], {}), **self.options.get(method, {})}
        spec = Spec(
            method, images, model, unknown, severity=self.severity, batch_size=self.batch_size,
            domains=tuple(default_domains(images) if self.domains is None else self.domains),
            measures=tuple(self.measures), code=hash_sources(method, model, images, unknown),
        )  # fmt: skip
        return spec.with_options(**options)

    @staticmethod
    def _method_name(method: str | Callable[..., Adapter]) -> str:
        return next((name for name, known in METHODS.items() if known is method), None) or name_of(method)


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("methods", "domains", "seeds", "measures"), (list, tuple)),
    **dict.fromkeys(("severity", "batch_size", "rounds"), int),
    "options": Mapping,
}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a suite: the attributes of `Benchmark` as TOML."""
    toml = require("tomllib" if sys.version_info >= (3, 11) else "tomli", "Reading a suite", "tomli")
    try:
        data: dict[str, Any] = toml.loads(read_text(path))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"Expected a suite in {path}, but it cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"Expected {path} to be TOML, but it is not: {error}.") from error
    return data


def _image_name(images: str | Path | Callable[..., Any]) -> str:
    if isinstance(images, str | Path):
        return _folder_name(Path(images)) if _is_path(images) else str(images)
    return name_of(images)


def _is_path(name: str | Path) -> bool:
    """Whether the name is a folder, not a dataset or a function."""
    is_name = isinstance(name, str) and (name in DATASETS or is_own(name))
    return isinstance(name, Path) or (not is_name and ("/" in name or Path(name).is_dir()))


def _folder_name(path: Path) -> str:
    return path.absolute().name
