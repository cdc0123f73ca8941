"""Description of one benchmark run, as plain data."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from typing_extensions import Self

from driftproof.errors import ConfigurationError, StateError
from driftproof.methods.by_name import Option
from driftproof.validation import check_choice

__all__ = ["Option", "Spec", "differences", "distinguishing_fields"]

_MAX_LISTED_DOMAINS = 5


@dataclass(frozen=True)
class Spec:
    """One method on one stream.

    Equal specs are the same run, whichever table shows it. The number of rounds is not part of a spec.

    Attributes:
        method: Such as `tent+crowd`, or a function of yours: `my_package.methods:cautious`. The `costs` task takes
            several, separated by commas.
        images: Streamed dataset, such as `cifar10-c`, a function of yours, or the name of a folder.
        model: Network, such as `wrn40_2`, or a function of yours.
        unknown: Dataset of unknown images, such as `svhn-c`, or as `images`; None for a closed stream.
        options: Hyper-parameters of the method as (name, value), sorted by name.
        domains: Corruptions or domains of one round, in order.
        batch_size: Images per batch, known and unknown together.
        limit: Number of images to take from each domain; None for all.
        measures: Names of metrics, see `driftproof.bench.metrics.METRICS`.
        task: `stream` runs the method over the stream; `costs` and `gradients` are analyses.
        code: Functions of yours that the run uses, each with a hash of its module's source text, sorted by name.
        unknown_share: Share of unknown images in a batch of an open stream.
        unknown_mixing: Whether every batch has that share (`even`), or batches are drawn from all images (`random`).
        label_shift: Concentration of the Dirichlet distribution by which classes come in bursts, such as 0.1; None for
            the order of the dataset. See `streams.LabelShifted`.

    Examples:
        >>> Spec("tent", "cifar10-c", "wrn40_2", options=(("lr", 0.001),), domains=("fog",)).name
        'tent-cifar10-c-closed-89ee15066987'
    """

    method: str
    images: str
    model: str
    unknown: str | None = None
    options: tuple[tuple[str, Option], ...] = ()
    domains: tuple[str, ...] = ()
    severity: int = 5
    batch_size: int = 200
    limit: int | None = None
    seed: int = 0
    measures: tuple[str, ...] = ("error", "selection")
    task: str = "stream"
    code: tuple[tuple[str, str], ...] = ()
    unknown_share: float = 0.5
    unknown_mixing: str = "even"
    label_shift: float | None = None

    def __post_init__(self) -> None:
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise ConfigurationError(f"Expected `domains` to name each domain once, but got {self.domains}.")
        for name, count in {"batch_size": self.batch_size, "limit": self.limit}.items():
            if count is not None and count < 1:
                raise ConfigurationError(f"Expected `{name}` to be at least 1, but got {count}.")
        if list(self.options) != sorted(dict(self.options).items()):
            raise ConfigurationError(f"Expected `options` once each and in order, but got {self.options}.")

    @property
    def setting(self) -> str:
        """`open` if the stream mixes in unknown images, else `closed`."""
        return "closed" if self.unknown is None else "open"

    @property
    def digest(self) -> str:
        """Hash of all fields, 12 hexadecimal digits."""
        text = json.dumps(_normalize_numbers(self.as_data()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """Name of the run on disk: readable, and unique through the digest."""
        method = self.method if "," not in self.method else self.task
        return re.sub(r"[^\w.+-]", "_", "-".join((method, self.images, self.setting, self.digest)))

    def with_options(self, **options: Option) -> Self:
        """Return a copy with some hyper-parameters set."""
        return replace(self, options=tuple(sorted((dict(self.options) | options).items())))

    def as_data(self) -> dict[str, Any]:
        """Return the fields as JSON types; later ones only where set, so that older specs keep their digest."""
        lists = {"domains": list(self.domains), "measures": list(self.measures)}
        data = asdict(self) | lists | {"options": dict(self.options), "code": dict(self.code)}
        unset: dict[str, Any] = {"code": {}, "unknown_share": 0.5, "unknown_mixing": "even", "label_shift": None}
        return {name: value for name, value in data.items() if name not in unset or value != unset[name]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Build a spec from what `as_data` returned."""
        try:
            if not isinstance(data, Mapping):
                raise TypeError(f"got {data!r}.")
            known = [field.name for field in fields(cls)]
            names = [check_choice("field of a spec", name, known) for name in data]
            return cls(**{name: _parse_field(name, data[name]) for name in names})
        except (TypeError, ValueError) as error:
            raise StateError(f"Expected the fields of a spec, but {error}") from error


_FIELD_TYPES = {
    **dict.fromkeys(("severity", "batch_size", "seed"), int),
    "unknown": str | None,
    "limit": int | None,
    "unknown_share": float,
    "label_shift": float | None,
}
"""Types of the scalar fields that are not strings."""


def _parse_field(name: str, value: Any) -> Any:  # noqa: ANN401  # whatever a file may hold
    """Convert a field from JSON; raise a TypeError if it has the wrong type."""
    if name in ("domains", "measures"):
        fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        value = tuple(value) if fits else value
    elif name in ("options", "code"):
        fits = isinstance(value, dict) and all(isinstance(option, Option) for option in value.values())
        value = tuple(sorted(value.items())) if fits else value
    else:
        fits = isinstance(value, _FIELD_TYPES.get(name, str))
    if not fits:
        raise TypeError(f"`{name}` is {value!r}.")
    return value


def _normalize_numbers(value: Any) -> Any:  # noqa: ANN401  # whatever `as_data` holds
    """Convert whole floats and booleans to int: equal specs, such as with 1 and 1.0, then have one digest."""
    if isinstance(value, dict):
        return {key: _normalize_numbers(inner) for key, inner in value.items()}
    is_whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if is_whole else value


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """List what differs between two descriptions, one line each."""
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return [f"{key} was {theirs.get(key)!r} and is {ours.get(key)!r} here" for key in keys]


def distinguishing_fields(spec: Spec, others: Iterable[Spec]) -> list[str]:
    """Describe the fields in which a stream differs from others with the same images and network."""
    rivals = [other for other in others if (other.images, other.model) == (spec.images, spec.model)]
    texts = {
        "batch_size": f"batches of {spec.batch_size}",
        "severity": f"severity {spec.severity}",
        "limit": "every image" if spec.limit is None else f"the first {spec.limit} images of each domain",
        "unknown_share": f"{spec.unknown_share:.0%} unknown images",
        "unknown_mixing": f"{spec.unknown_mixing} mixing",
        "domains": _describe_domains(spec.domains, [rival.domains for rival in rivals]),
    }
    return [text for name, text in texts.items() if len({getattr(rival, name) for rival in [spec, *rivals]}) > 1]


def _describe_domains(domains: Sequence[str], others: Iterable[Sequence[str]]) -> str:
    """All domains if they are few; otherwise the first and the last, unless others share these."""
    ends = len(domains), domains[0], domains[-1]
    is_ambiguous = any(other != domains and (len(other), other[0], other[-1]) == ends for other in others)
    is_short = len(domains) <= _MAX_LISTED_DOMAINS
    return ", ".join(domains) if is_ambiguous or is_short else "{} domains from {} to {}".format(*ends)
