"""States of a run: the newest few, and the last healthy one."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from driftproof.cli.guard_memory import read_guards, write_guards
from driftproof.cli.run_files import make_damage_error, read_json, write_json
from driftproof.errors import StateError

if TYPE_CHECKING:
    from driftproof.adapter import Adapter
    from driftproof.alarm import Alarm

__all__ = ["Checkpoint", "Snapshots", "Stage"]

Stage = Literal["running", "predicted", "complete"]


@dataclass(frozen=True)
class Checkpoint:
    """How far a run has come.

    Attributes:
        batches: Number of batches that are done.
        images: Number of images that are done.
        length: Length of the row file in bytes.
        summary: Counts so far, as `RunSummary.to_json` returns them.
        stage: "running"; "predicted" once all rows are written; "complete" once nothing is left to do.
        healthy: Number of batches of the last healthy snapshot; None if there is none.
    """

    batches: int
    images: int
    length: int
    summary: dict[str, Any]
    stage: Stage = "running"
    healthy: int | None = None


class Snapshots:
    """States of an adapter in a folder, each with the checkpoint it belongs to.

    `state-00000040.safetensors` is the state after 40 batches, `.guards` what guards remember, `.json` its checkpoint.
    `checkpoint.json` is that of the newest one; it is replaced last and atomically, so that it always names a whole
    state. The last healthy state stays when newer ones replace the others.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest = folder / "checkpoint.json"

    @property
    def exist(self) -> bool:
        """Whether there is one."""
        return self._newest.is_file()

    def read(self) -> Checkpoint:
        """Return the newest checkpoint."""
        return _read_checkpoint(self._newest)

    def save(self, adapter: "Adapter", checkpoint: Checkpoint, keep: int, alarm: "Alarm | None" = None) -> int:
        """Keep the state that belongs to a checkpoint, and at most `keep`; returns how many images the oldest one has.

        Args:
            adapter: The adapter.
            checkpoint: How far the run has come.
            keep: How many states to keep, besides the last healthy one.
            alarm: The alarm, whose memory of the stream is part of the state.
        """
        state = self._path(checkpoint.batches)
        adapter.save(state, alarm=alarm)
        write_guards(adapter, state.with_suffix(".guards"))
        write_json(state.with_suffix(".json"), asdict(checkpoint))
        self.mark(checkpoint)
        kept = sorted(number for number in self._numbers() if number <= checkpoint.batches)[-keep:]
        for number in self._numbers():
            if number not in kept and number != checkpoint.healthy:
                for file in self._folder.glob(f"{self._path(number).stem}.*"):
                    file.unlink(missing_ok=True)
        with suppress(StateError, OSError):
            return _read_checkpoint(self._path(kept[0]).with_suffix(".json")).images
        return 0

    def mark(self, checkpoint: Checkpoint) -> None:
        """Keep how far the run has come; the state is as before."""
        write_json(self._newest, asdict(checkpoint))

    def load(self, adapter: "Adapter", alarm: "Alarm | None" = None) -> tuple[Checkpoint, bool]:
        """Load the newest whole state; returns its checkpoint, and whether something newer is damaged."""
        errors: list[StateError | FileNotFoundError] = []
        for checkpoint in self._candidates(errors):
            state = self._path(checkpoint.batches)
            try:
                adapter.load(state, alarm=alarm)
                read_guards(adapter, state.with_suffix(".guards"))
            except (StateError, FileNotFoundError) as error:
                errors.append(error)
            else:
                return checkpoint, bool(errors)
        raise errors[0]

    def _candidates(self, errors: list[StateError | FileNotFoundError]) -> Iterator[Checkpoint]:
        tried: set[int] = set()
        files = [self._path(number).with_suffix(".json") for number in sorted(self._numbers(), reverse=True)]
        for file in (self._newest, *files):
            try:
                checkpoint = _read_checkpoint(file)
            except (StateError, FileNotFoundError) as error:
                errors.append(error)
                continue
            if checkpoint.batches not in tried:
                tried.add(checkpoint.batches)
                yield checkpoint

    def _numbers(self) -> set[int]:
        names = (file.name.removeprefix("state-").partition(".")[0] for file in self._folder.glob("state-*"))
        return {int(name) for name in names if name.isdecimal()}

    def _path(self, batches: int) -> Path:
        return self._folder / f"state-{batches:08}.safetensors"


def _read_checkpoint(path: Path) -> Checkpoint:
    try:
        return Checkpoint(**read_json(path))
    except TypeError as error:
        raise make_damage_error(path) from error
