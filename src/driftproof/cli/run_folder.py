"""The folder that keeps what an unfinished run needs to go on."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driftproof.cli.journal import Journal
from driftproof.cli.run_files import make_damage_error, read_json, write_json
from driftproof.cli.snapshots import Checkpoint, Snapshots
from driftproof.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm

__all__ = ["Plan", "RunFolder", "check_outputs_unused", "describe_options"]

_CHANGEABLE = {
    *("out", "report", "device", "save_every", "keep", "resume", "force", "idle", "settle"),
    *("log", "event_log", "webhook", "prometheus", "opentelemetry", "tensorboard", "live"),
}
"""Options that may differ when a run is resumed."""


@dataclass(frozen=True)
class Plan:
    """What a run goes through, fixed at its start.

    Attributes:
        settings: Options of the command, by name.
        paths: The images; empty for images that arrive.
        order: Their positions, in the order to go through.
    """

    settings: dict[str, str]
    paths: list[Path]
    order: list[int]


class RunFolder:
    """The folder beside a row file that holds the plan, the states and the journal of a run.

    It is removed once the run is complete.

    Args:
        out: The row file.

    Attributes:
        path: The folder.
        rows: Where rows go that are turned into Parquet at the end.
        snapshots: The states.
        journal: The batches of images that arrive.
    """

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f"{out.name}.run")
        self.rows = self.path / "rows.jsonl"
        self.snapshots = Snapshots(self.path)
        self.journal = Journal(self.path / "batches.jsonl")
        self._plan = self.path / "plan.json"

    @property
    def has_begun(self) -> bool:
        """Whether a run has begun and is not complete."""
        return self._plan.is_file() or self.snapshots.exist

    @property
    def is_complete(self) -> bool:
        """Whether a run had nothing left to do but to remove this folder."""
        with suppress(StateError):  # an older state may be whole
            return self.snapshots.exist and self.snapshots.read().stage == "complete"
        return False

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
        write_json(self._plan, {"settings": plan.settings} | images)

    def read_plan(self, settings: Mapping[str, str]) -> Plan:
        """Return the plan; raise `ConfigurationError` if the options are not those it was made with."""
        content = read_json(self._plan)
        try:
            plan = Plan(dict(content["settings"]), [Path(path) for path in content["paths"]], list(content["order"]))
        except (KeyError, TypeError, ValueError) as error:
            raise make_damage_error(self._plan) from error
        for name, value in settings.items():
            if (old := plan.settings.get(name, "None")) != value:  # an option that came later had its default
                raise ConfigurationError(
                    f"Expected the options of the run to resume, but `{name}` was {old} and is {value}. "
                    "Pass the same options, or `--force` to start anew."
                )
        return plan

    def save(
        self, adapter: "Adapter", checkpoint: Checkpoint, rows: Path, keep: int = 1, alarm: "Alarm | None" = None
    ) -> None:
        """Keep the state of the adapter and its alarm and how far the run has come, in `keep` snapshots."""
        with suppress(FileNotFoundError), rows.open("rb") as file:  # rows first: the checkpoint counts on them
            os.fsync(file.fileno())
        oldest = self.snapshots.save(adapter, checkpoint, keep, alarm)
        if self.journal.path.is_file():
            self.journal.prune(oldest)

    def clear(self) -> None:
        """Remove all that runs keep here, the checkpoint last."""
        for pattern in (
            "plan.json",
            "rows.jsonl",
            "sorted.*",
            "state-*",
            "batches.jsonl",
            ".*.part",
            "checkpoint.json",
        ):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)


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
