"""The folder that keeps what an unfinished run needs to go on."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from driftproof.cli.guard_memory import read_guards, write_guards
from driftproof.errors import ConfigurationError, StateError
from driftproof.files import atomic_write

if TYPE_CHECKING:
    from driftproof.adapter import Adapter

__all__ = ["Checkpoint", "Plan", "RunFolder", "check_outputs_unused", "describe_options"]

Stage = Literal["running", "predicted", "complete"]

_CHANGEABLE = {"out", "report", "device", "save_every", "resume", "force"}
"""Options that may differ when a run is resumed."""


@dataclass(frozen=True)
class Plan:
    """What a run goes through, fixed at its start.

    Attributes:
        settings: Options of the command, by name.
        paths: The images.
        order: Their positions, in the order to go through.
    """

    settings: dict[str, str]
    paths: list[Path]
    order: list[int]


@dataclass(frozen=True)
class Checkpoint:
    """How far a run has come.

    Attributes:
        batches: Number of batches that are done.
        length: Length of the row file in bytes.
        summary: Counts so far, as `RunSummary.to_json` returns them.
        stage: "running"; "predicted" once all rows are written; "complete" once nothing is left to do.
    """

    batches: int
    length: int
    summary: dict[str, Any]
    stage: Stage = "running"


class RunFolder:
    """The folder beside a row file that holds the plan, the checkpoint and the state of a run.

    The checkpoint is replaced last and atomically, so that it always names a whole state. It is removed with the
    folder once the run is complete.

    Args:
        out: The row file.

    Attributes:
        path: The folder.
        rows: Where rows go that are turned into Parquet at the end.
    """

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f"{out.name}.run")
        self.rows = self.path / "rows.jsonl"
        self._plan, self._checkpoint = self.path / "plan.json", self.path / "checkpoint.json"

    @property
    def has_checkpoint(self) -> bool:
        """Whether a run can go on from here."""
        return self._checkpoint.is_file()

    @property
    def has_begun(self) -> bool:
        """Whether a run has begun and is not complete."""
        return self._plan.is_file() or self.has_checkpoint

    @property
    def is_complete(self) -> bool:
        """Whether a run had nothing left to do but to remove this folder."""
        return self.has_checkpoint and self.read_checkpoint().stage == "complete"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; raise `ConfigurationError` if another process does."""
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            with lock:
                yield
        except Timeout as error:
            raise ConfigurationError(
                f"Expected no other run to use {self.path}, but one does. Wait for it, or choose another `--out`."
            ) from error
        finally:
            if not self.has_begun and not lock.is_locked:
                with suppress(OSError):  # other files, or another process, may be in it
                    Path(lock.lock_file).unlink(missing_ok=True)
                    self.path.rmdir()

    def begin(self, plan: Plan) -> None:
        """Forget an earlier run and keep the plan of a new one."""
        self.clear()
        images = {"paths": list(map(str, plan.paths)), "order": plan.order}
        _write_json(self._plan, {"settings": plan.settings} | images)

    def read_plan(self, settings: Mapping[str, str]) -> Plan:
        """Return the plan; raise `ConfigurationError` if the options are not those it was made with."""
        content = _read_json(self._plan)
        try:
            plan = Plan(dict(content["settings"]), [Path(path) for path in content["paths"]], list(content["order"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._plan) from error
        for name, value in settings.items():
            if (old := plan.settings.get(name)) != value:
                raise ConfigurationError(
                    f"Expected the options of the run to resume, but `{name}` was {old} and is {value}. "
                    "Pass the same options, or `--force` to start anew."
                )
        return plan

    def save(self, adapter: "Adapter", checkpoint: Checkpoint, rows: Path) -> None:
        """Keep the state of the adapter and how far the run has come."""
        with suppress(FileNotFoundError), rows.open("rb") as file:  # rows first: the checkpoint counts on them
            os.fsync(file.fileno())
        state = self._state(checkpoint)
        adapter.save(state)
        write_guards(adapter, state.with_suffix(".guards"))
        self.mark(checkpoint)
        for old in self.path.glob("state-*"):
            if old.stem != state.stem:
                old.unlink()

    def mark(self, checkpoint: Checkpoint) -> None:
        """Keep how far the run has come; the state is as before."""
        _write_json(self._checkpoint, asdict(checkpoint))

    def load(self, adapter: "Adapter", checkpoint: Checkpoint) -> None:
        """Load the state that belongs to a checkpoint."""
        state = self._state(checkpoint)
        adapter.load(state)
        read_guards(adapter, state.with_suffix(".guards"))

    def read_checkpoint(self) -> Checkpoint:
        """Return how far the run has come."""
        try:
            return Checkpoint(**_read_json(self._checkpoint))
        except TypeError as error:
            raise _damaged(self._checkpoint) from error

    def clear(self) -> None:
        """Remove all that runs keep here, the checkpoint last."""
        for pattern in ("plan.json", "rows.jsonl", "sorted.*", "state-*", ".*.part"):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)
        self._checkpoint.unlink(missing_ok=True)

    def _state(self, checkpoint: Checkpoint) -> Path:
        return self.path / f"state-{checkpoint.batches:08}.safetensors"


def check_outputs_unused(out: Path, folder: RunFolder, *, resume: bool, force: bool) -> None:
    """Raise `ConfigurationError` if a run would replace rows that nobody asked to replace."""
    if resume and force:
        raise ConfigurationError(
            "Expected `--resume` or `--force`, but got both. The one goes on, the other starts anew."
        )
    if resume or force:
        return
    if folder.has_begun:
        raise ConfigurationError(
            f"Expected a new `--out`, but {out} belongs to a run that is not finished. "
            "Pass `--resume` to go on, or `--force` to start anew."
        )
    if out.exists():
        raise ConfigurationError(f"Expected a new `--out`, but {out} exists. Pass `--force` to replace it.")


def describe_options(values: Mapping[str, object]) -> dict[str, str]:
    """Return the options that a run must be resumed with, as text, and the folder it was started in."""
    fixed = {name: value for name, value in values.items() if name not in _CHANGEABLE}
    options = {f"--{name.replace('_', '-')}": _format_value(value) for name, value in fixed.items()}
    return options | {"current folder": str(Path.cwd())}


def _format_value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(content))


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(content, dict):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> StateError:
    return StateError(f"Expected {path} to be what a run left, but it is damaged. Start anew with `--force`.")
