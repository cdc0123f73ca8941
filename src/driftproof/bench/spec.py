"""What one cell of a results table measures: data, nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from typing_extensions import Self

from driftproof.errors import ConfigurationError, StateError
from driftproof.validation import check_choice

__all__ = ["Option", "Spec", "differences"]

Option = str | int | float | bool | None


@dataclass(frozen=True)
class Spec:
    """A method on a stream. Equal specs are the same cell, whichever table shows it and however many rounds it has run.

    Attributes:
        method: For example `tent+crowd`; a task that compares methods takes several, separated by commas.
        images: The set that is streamed, such as `cifar10-c`.
        model: The network, such as `wrn40_2`.
        unknown: The set of unknown images, such as `svhn-c`; None for a closed stream.
        options: Hyper-parameters of the method, by name, in alphabetical order.
        domains: What the images go through in one round, in order.
        severity: Of the corruptions.
        batch_size: Images per batch, known and unknown together.
        limit: Only the first so many images of each domain.
        seed: Of every random choice.
        measures: What is measured.
        task: What is done: `stream` runs the method over the stream.

    Examples:
        >>> spec = Spec("tent", "cifar10-c", "wrn40_2", options=(("lr", 0.001),), domains=("fog",))
        >>> spec.name
        'tent-cifar10-c-closed-89ee15066987'
        >>> Spec.from_data(spec.as_data()) == spec
        True
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
        """`open` where unknown images are among the known, else `closed`."""
        return "closed" if self.unknown is None else "open"

    @property
    def digest(self) -> str:
        """A hash of every field."""
        text = json.dumps(_alike(self.as_data()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """What the cell is called on disk: readable, and unique by the digest."""
        method = self.method if "," not in self.method else self.task
        return "-".join((method, self.images, self.setting, self.digest))

    def with_options(self, **options: Option) -> Self:
        """The same with some hyper-parameters set."""
        return replace(self, options=tuple(sorted((dict(self.options) | options).items())))

    def as_data(self) -> dict[str, Any]:
        """The fields as JSON knows them."""
        return asdict(self) | {
            "options": dict(self.options),
            "domains": list(self.domains),
            "measures": list(self.measures),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The spec that `as_data` described."""
        known = [field.name for field in fields(cls)]
        try:
            if not isinstance(data, Mapping):
                raise TypeError(f"got {data!r}.")
            return cls(**{check_choice("field of a spec", name, known): _field(name, data[name]) for name in data})
        except (TypeError, ValueError) as error:
            raise StateError(f"Expected the fields of a spec, but {error}") from error


_KINDS: dict[str, Any] = {
    "unknown": str | None,
    "severity": int,
    "batch_size": int,
    "limit": int | None,
    "seed": int,
}
"""Of the fields that are not words."""


def _field(name: str, value: Any) -> Any:  # noqa: ANN401  # whatever a file may hold
    """A field from what JSON knows, refused if it is of another kind."""
    if name in ("domains", "measures"):
        fits = isinstance(value, list) and all(isinstance(word, str) for word in value)
        value = tuple(value) if fits else value
    elif name == "options":
        fits = isinstance(value, dict) and all(isinstance(option, Option) for option in value.values())
        value = tuple(sorted(value.items())) if fits else value
    else:
        fits = isinstance(value, _KINDS.get(name, str))
    if not fits:
        raise TypeError(f"`{name}` is {value!r}.")
    return value


def _alike(value: Any) -> Any:  # noqa: ANN401  # whatever `as_data` holds
    """Numbers that are equal, such as 1 and 1.0, written alike, so that equal specs have one name."""
    if isinstance(value, dict):
        return {key: _alike(inner) for key, inner in value.items()}
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else value


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions, one line each."""
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return [f"{key} was {theirs.get(key)!r} and is {ours.get(key)!r} here" for key in keys]
