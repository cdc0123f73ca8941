"""Go through the images of a run, write rows as they come, and keep what is needed to go on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from driftproof.cli.images import LoadedBatch, check_sizes, load_batches
from driftproof.cli.predict import RowMaker, predict, predicted_classes
from driftproof.cli.prediction_rows import Row, RowFile
from driftproof.cli.run_folder import Checkpoint, Plan, RunFolder, Stage
from driftproof.cli.run_summary import RunSummary
from driftproof.errors import DriftproofError, ForwardError, InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from driftproof.adapter import Adapter
    from driftproof.cli.stop_signals import StopRequest
    from driftproof.data.images import Size
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
        checkpoint: Where to go on; None to begin.

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
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.adapter, self.plan, self.folder, self.rows, self.maker = adapter, plan, folder, rows, maker
        self.summary = RunSummary() if checkpoint is None else RunSummary.from_json(checkpoint.summary)
        self.num_batches = 0 if checkpoint is None else checkpoint.batches
        self.num_images = 0
        self._waiting: list[Row] = []
        self._failures: list[ForwardError | InputError] = []

    def run(self, batch_size: int, size: "Size", save_every: int, stop: "StopRequest", progress: "Progress") -> bool:
        """Go through the images; returns whether all are done.

        Args:
            batch_size: Number of images per batch.
            size: As in `driftproof.data.FileSet`.
            save_every: Save the state after so many batches.
            stop: Ends the run after the batch in flight; the state is saved then.
            progress: Shows the progress, and images without a prediction.
        """
        try:
            return self._run(batch_size, size, save_every, stop, progress)
        except BaseException as error:
            if isinstance(error, DriftproofError) and not self.rows.length:  # the same command would fail again
                self.folder.clear()
            else:
                progress.console.print("The rows so far are written. Go on with the same command and `--resume`.")
            raise

    def _run(self, batch_size: int, size: "Size", save_every: int, stop: "StopRequest", progress: "Progress") -> bool:
        order = self.plan.order
        self.num_images = min(self.num_batches * batch_size, len(order))
        if not self.rows.length:
            self.folder.begin(self.plan)
            self.save()
        task = progress.add_task("adapting", total=len(order), completed=self.num_images)
        for batch in load_batches(self.plan.paths, order[self.num_images :], batch_size=batch_size, size=size):
            self._step(batch, order[self.num_images : self.num_images + batch_size], progress)
            self.num_batches += 1
            self.num_images = min(self.num_batches * batch_size, len(order))
            progress.update(task, completed=self.num_images)
            stops = stop.number is not None and self.num_images < len(order)
            if (stops or self.num_batches % save_every == 0) and not self._waiting:
                self.save()
            if stops:
                return False
        if self._failures and not self.summary.batches:
            raise self._failures[0]
        self._write_waiting()
        self.save("predicted")
        return True

    def save(self, stage: Stage = "running") -> None:
        """Save the state and how far the run has come."""
        try:
            self.folder.save(self.adapter, self._checkpoint(stage), self.rows.path)
        except OSError as error:
            error.filename = error.filename or str(self.folder.path)  # a full disk names no file
            raise

    def mark_complete(self) -> None:
        """Note that nothing is left to do."""
        self.folder.mark(self._checkpoint("complete"))

    def _checkpoint(self, stage: Stage) -> Checkpoint:
        return Checkpoint(self.num_batches, self.rows.length, self.summary.to_json(), stage)

    def _step(self, batch: LoadedBatch, indices: Sequence[int], progress: "Progress") -> None:
        """Predict a batch and write its rows, in the order of `indices`."""
        if not self.summary.batches:
            check_sizes(batch)
        errors, rows = dict(batch.unreadable), dict[int, Row]()
        if batch.pixels is not None:
            try:
                result = predict(self.adapter, batch.pixels)
            except (ForwardError, InputError) as error:  # the adapter is as it was before the batch
                self._note_failure(error)
                errors |= dict.fromkeys(batch.indices, str(error))
            else:
                rows = self._make_rows(batch.indices, result)
        for message in dict.fromkeys(errors.values()):
            progress.console.print(Text(message), soft_wrap=True)
        rows |= {index: self.maker.error_row(index, message) for index, message in errors.items()}
        self.summary.unpredicted += len(errors)
        self._waiting += [rows[index] for index in indices]
        if self.summary.batches or not self._failures:
            self._write_waiting()

    def _make_rows(self, indices: tuple[int, ...], result: "StepResult") -> dict[int, Row]:
        logits, record = result
        rows = self.maker.rows(indices, logits, record)
        known = self.maker.labels
        truth = None if known is None else [known.values[index] for index in indices]
        self.summary.add(record, predicted_classes(logits), truth)
        alarm = list(self.rows.columns).index("alarm")
        self.summary.alarms += sum(row[alarm] is True for row in rows)
        return dict(zip(indices, rows, strict=True))

    def _note_failure(self, error: ForwardError | InputError) -> None:
        self._failures.append(error)
        if len(self._failures) >= _MAX_FAILED and not self.summary.batches:
            raise self._failures[0]

    def _write_waiting(self) -> None:
        if self._waiting:
            self.rows.append(self._waiting)
            self._waiting = []
