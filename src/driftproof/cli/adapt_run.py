"""Go through the images of a run, write rows as they come, and keep what is needed to go on."""

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from rich.text import Text

from driftproof.cli.images import LoadedBatch, check_sizes
from driftproof.cli.predict import RowMaker, predict, predicted_classes
from driftproof.cli.prediction_rows import Row, RowFile
from driftproof.cli.run_folder import Plan, RunFolder
from driftproof.cli.run_summary import RunSummary
from driftproof.cli.snapshots import Checkpoint, Stage
from driftproof.errors import DriftproofError, ForwardError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from driftproof.adapter import Adapter
    from driftproof.alarm import Event
    from driftproof.cli.stop_signals import StopRequest
    from driftproof.monitor import Monitor
    from driftproof.record import StepResult

__all__ = ["AdaptRun"]

_MAX_FAILED = 3


class AdaptRun:
    """A run of an adapter over images that can be interrupted and resumed.

    Rows of batches on which the model failed wait for the first prediction. If there is none in three such batches,
    the model or its options are wrong, and nothing is written.

    Args:
        adapter: The adapter, in the state of the checkpoint.
        plan: The images and their order.
        folder: Keeps the state.
        rows: The row file, as long as at the checkpoint.
        maker: Makes the rows.
        monitor: Gets the record of each batch.
        checkpoint: Where to go on; None to begin.
        keep: How many states to keep.

    Attributes:
        summary: Counts so far.
        num_batches: Number of batches that are done.
        num_images: Number of images that are done.
    """

    def __init__(
        self,
        adapter: "Adapter",
        plan: Plan,
        folder: RunFolder,
        rows: RowFile,
        maker: RowMaker,
        monitor: "Monitor",
        checkpoint: Checkpoint | None = None,
        keep: int = 1,
    ) -> None:
        self.adapter, self.plan, self.folder, self.rows, self.maker = adapter, plan, folder, rows, maker
        self.monitor, self.keep = monitor, keep
        self.summary = RunSummary() if checkpoint is None else RunSummary.from_json(checkpoint.summary)
        self.num_batches = 0 if checkpoint is None else checkpoint.batches
        self.num_images = 0 if checkpoint is None else checkpoint.images
        self._healthy = None if checkpoint is None else checkpoint.healthy
        self._is_new = checkpoint is None
        self._waiting: list[Row] = []
        self._failures: list[ForwardError | InputError] = []

    @property
    def total(self) -> int | None:
        """Number of images; None for images that arrive."""
        return len(self.plan.paths) or None

    def run(self, batches: Iterable[LoadedBatch], save_every: int, stop: "StopRequest", progress: "Progress") -> bool:
        """Go through the batches; returns whether all are done.

        Args:
            batches: The batches that follow those that are done.
            save_every: Save the state after so many batches.
            stop: Ends the run after the batch in flight; the state is saved then.
            progress: Shows the progress, and images without a prediction.
        """
        try:
            if self._is_new:
                self.folder.begin(self.plan)
                self.save()
            steps = iter(batches)
            with closing(steps) if isinstance(steps, Generator) else nullcontext():
                is_done = self._run(steps, save_every, stop, progress)
            if not is_done and not self._waiting:  # after closing: images that arrived are kept first
                self.save()
            return is_done
        except BaseException as error:
            if isinstance(error, DriftproofError) and not self.rows.length:  # the same command would fail again
                self.folder.clear()
            else:
                progress.console.print("The rows so far are written. Go on with the same command and `--resume`.")
            raise

    def _run(self, batches: Iterable[LoadedBatch], save_every: int, stop: "StopRequest", progress: "Progress") -> bool:
        task = progress.add_task("adapting", total=self.total, completed=self.num_images)
        for batch in batches:
            self._step(batch, progress)
            self.num_batches += 1
            self.num_images += len(batch.names)
            progress.update(task, completed=self.num_images)
            if stop.number is not None and self.num_images != self.total:
                return False
            if self.num_batches % save_every == 0 and not self._waiting:
                self.save()
        if stop.number is not None and self.num_images != self.total:
            return False
        if self._failures and not self.summary.batches:
            raise self._failures[0]
        self._write_waiting()
        self.save("predicted")
        return True

    def save(self, stage: Stage = "running") -> None:
        """Save the state and how far the run has come."""
        if self.summary.health is not None and self.summary.health.state == "healthy":
            self._healthy = self.num_batches
        try:
            self.folder.save(self.adapter, self._checkpoint(stage), self.rows.path, self.keep, self.maker.alarm)
        except OSError as error:
            error.filename = error.filename or str(self.folder.path)  # a full disk names no file
            raise

    def mark_complete(self) -> None:
        """Note that nothing is left to do."""
        self.folder.snapshots.mark(self._checkpoint("complete"))

    def _checkpoint(self, stage: Stage) -> Checkpoint:
        summary = self.summary.to_json()
        return Checkpoint(self.num_batches, self.num_images, self.rows.length, summary, stage, self._healthy)

    def _step(self, batch: LoadedBatch, progress: "Progress") -> None:
        """Predict a batch and write its rows."""
        if not self.summary.batches and self.total is not None:
            check_sizes(batch)
        errors, rows = dict(batch.unreadable), dict[int, Row]()
        result, alarms, started = None, list["Event"](), time.perf_counter()
        images = {index: batch.names[index] for index in batch.indices}
        if batch.pixels is not None:
            try:
                result = predict(self.adapter, batch.pixels)
            except (ForwardError, InputError) as error:  # the adapter is as it was before the batch
                self._note_failure(error)
                errors |= dict.fromkeys(batch.indices, str(error))
            else:
                alarms = self.maker.find_alarms(result.record)
                rows = self._make_rows(images, result, alarms)
        seconds = time.perf_counter() - started
        for message in dict.fromkeys(errors.values()):
            progress.console.print(Text(message), soft_wrap=True)
        rows |= {index: self.maker.error_row(index, batch.names[index], text) for index, text in errors.items()}
        self.summary.unpredicted += len(errors)
        self._waiting += [rows[index] for index in batch.names]
        if self.summary.batches or not self._failures:
            self._write_waiting()
        logits, record = (None, None) if result is None else result
        self.monitor(
            record,
            alarms,
            logits=logits,
            names=list(images.values()),
            errors=list(errors.values()),
            seconds=seconds,
        )

    def _make_rows(self, images: Mapping[int, str], result: "StepResult", alarms: "Sequence[Event]") -> dict[int, Row]:
        logits, record = result
        rows = self.maker.rows(images, logits, record, alarms)
        known = self.maker.labels
        truth = None if known is None else [known.values[index] for index in images]
        self.summary.add(record, predicted_classes(logits), truth)
        self.summary.alarms += len(alarms)
        return dict(zip(images, rows, strict=True))

    def _note_failure(self, error: ForwardError | InputError) -> None:
        self._failures.append(error)
        if len(self._failures) >= _MAX_FAILED and not self.summary.batches:
            raise self._failures[0]

    def _write_waiting(self) -> None:
        if self._waiting:
            self.rows.append(self._waiting)
            self._waiting = []
