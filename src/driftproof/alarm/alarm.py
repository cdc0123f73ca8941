"""Detect novel samples and image regions by thresholding novelty scores."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from driftproof.alarm.known_quantile import KnownQuantile
from driftproof.alarm.regions import Connectivity, label_regions
from driftproof.errors import ConfigurationError, InputError, StateError
from driftproof.scores import make_novelty

__all__ = ["Alarm", "Event"]


@dataclass(frozen=True)
class Event:
    """A sample or image region with novelty above the threshold of an `Alarm`.

    Attributes:
        sample: Index of the image in the batch.
        novelty: Largest novelty in the sample or region.
        area: Number of pixels in the region; None for a whole sample.
        box: Bounding box (top, left, bottom, right), the last two exclusive; None for a whole sample.
    """

    sample: int
    novelty: float
    area: int | None = None
    box: tuple[int, int, int, int] | None = None


class Alarm:
    """Returns an event for each sample, or connected pixel region, with novelty above a threshold.

    Args:
        threshold: Novelty above this is an event. For the confidence difference, 0 flags exactly the samples that
            `ConfidenceDifference()` rejects.
        score: Name of the novelty score, such as "msp", or its smallest and largest value. A threshold outside this
            range is an error. None checks nothing.
        min_area: Ignore regions of fewer pixels.
        connectivity: 4 connects pixels that share an edge, 8 also those that share a corner.

    Examples:
        >>> alarm = Alarm(threshold=0.5, score="msp")
        >>> alarm(torch.tensor([0.25, 0.75]))
        [Event(sample=1, novelty=0.75, area=None, box=None)]
        >>> alarm
        Alarm(threshold=0.5, score='msp')
    """

    def __init__(
        self,
        threshold: float,
        *,
        score: str | tuple[float, float] | None = None,
        min_area: int = 1,
        connectivity: Connectivity = 4,
    ) -> None:
        if min_area < 1:
            raise ConfigurationError(f"Expected `min_area` to be at least 1, but got {min_area}.")
        if math.isnan(threshold):
            raise ConfigurationError("Expected `threshold` to be a number, but got NaN. No novelty exceeds NaN.")
        if connectivity not in (4, 8):
            raise ConfigurationError(f"Expected `connectivity` to be 4 or 8, but got {connectivity!r}.")
        low, high = _find_bounds(score)
        if not low <= threshold <= high:
            raise ConfigurationError(
                f"Expected `threshold` to be in {low:g}..{high:g}, the range of the score, but got {threshold:g}. "
                "Choose one in the range, or use `Alarm.from_false_alarm_rate`."
            )
        self.threshold = threshold
        self.score = score
        self.min_area = min_area
        self.connectivity: Connectivity = connectivity
        self._tracked: KnownQuantile | None = None

    @classmethod
    def from_false_alarm_rate(
        cls,
        rate: float,
        calibration: Tensor | None = None,
        *,
        trained_on: bool = False,
        track: bool = True,
        window: int | None = None,
        score: str | tuple[float, float] | None = None,
        min_area: int = 1,
        connectivity: Connectivity = 4,
    ) -> "Alarm":
        """Return an alarm that flags about a share `rate` of the images, or pixels, of known classes.

        The threshold follows the stream: every call updates it from the latest scores before it flags. It is their
        upper quantile, but at most what a shift explains (see `KnownQuantile`). Without a calibration the first
        `window` scores count as known, so the stream should begin with images of known classes. If many of the first
        may be unknown, and both networks normalize with batch statistics, calibrate on images that the network was
        trained on and set `trained_on`; with any others up to three times too many are flagged. With `dp.adapt` and
        `dp.source` prefer the stream: networks that use training's statistics are too sure of clean images. The rate
        does not hold for the score of `dp.sentinel`, which is learned in the stream. It was measured with one network:
        count how many known images are flagged under a shift before you rely on it.

        Args:
            rate: Share of known images to flag, above 0 and below 1.
            calibration: Novelty of source images, of any shape, computed as in the stream; None takes the beginning
                of the stream.
            trained_on: Whether the network was trained on the images of the calibration: it knows them better than new
                ones.
            track: Whether the threshold follows the stream; otherwise it stays at the calibration's quantile.
            window: Number of latest scores to keep; None keeps 2,000, or 20 / `rate` if that is more.
            score: As in `Alarm`.
            min_area: As in `Alarm`.
            connectivity: As in `Alarm`.

        Examples:
            >>> alarm = Alarm.from_false_alarm_rate(0.1, torch.arange(100.0))
            >>> alarm
            Alarm(threshold=89, rate=0.1, window=2000)
            >>> len(alarm(torch.arange(100.0)))
            10
        """
        if not (isinstance(rate, (int, float)) and 0.0 < rate < 1.0):
            raise ConfigurationError(f"Expected `rate` to be a number above 0 and below 1, but got {rate!r}.")
        window = max(2000, math.ceil(20 / rate)) if window is None else window
        if window * rate < 1:
            raise ConfigurationError(
                f"Expected `window` to be at least 1 / `rate`, {math.ceil(1 / rate)}, but got {window}."
            )
        if calibration is None and not track:
            raise ConfigurationError("Expected `calibration` or `track=True`, but got neither. Pass source novelty.")
        low, high = _find_bounds(score)
        if calibration is not None:
            _check_calibration(calibration, low, high)
        tracked = KnownQuantile(rate, window, calibration, trained_on=trained_on)
        alarm = cls(_find_threshold(tracked, score), score=score, min_area=min_area, connectivity=connectivity)
        alarm._tracked = tracked if track else None
        return alarm

    @property
    def rate(self) -> float | None:
        """The share of known images to flag; None if the threshold is fixed."""
        return None if self._tracked is None else self._tracked.rate

    @property
    def num_missing(self) -> int:
        """How many scores of the stream are missing until known images can be told from unknown ones.

        Until then a share `rate` of all images is flagged. It is 0 after the first `window` scores, with a calibration,
        and if the threshold is fixed.
        """
        return 0 if self._tracked is None else self._tracked.num_missing

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the alarm remembers of the stream, as copies; nothing if the threshold is fixed.

        `adapter.save(path, alarm=alarm)` writes it with the adapter's state.

        Examples:
            >>> alarm, same = (Alarm.from_false_alarm_rate(0.1, torch.rand(100)) for _ in range(2))
            >>> same.load_state_dict(alarm.state_dict())
            >>> alarm(scores := torch.rand(100)) == same(scores)
            True
        """
        return {} if self._tracked is None else self._tracked.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly from the `state_dict` of an alarm with the same rate and window.

        Any other state raises `StateError`, and the alarm stays as it is.
        """
        if self._tracked is not None:
            self._tracked.load_state_dict(state)
            self.threshold = _find_threshold(self._tracked, self.score)
        elif state:
            raise StateError(
                "Expected the state of an alarm with a fixed threshold, which is empty, but got one with a rate. "
                "Use `Alarm.from_false_alarm_rate`."
            )

    def __call__(self, novelty: Tensor) -> list[Event]:
        """Return the events in the novelty of a batch, such as `adapter.last.novelty`.

        Args:
            novelty: (N,) for samples, or (N, H, W) for pixels.
        """
        if novelty.ndim not in (1, 3):
            raise InputError(f"Expected novelty of shape (N,) or (N, H, W), but got {tuple(novelty.shape)}.")
        if self._tracked is not None:
            self._tracked.update(novelty)
            self.threshold = _find_threshold(self._tracked, self.score)
        if novelty.ndim == 1:
            flagged = (novelty > self.threshold).nonzero().flatten()
            return [
                Event(sample, value) for sample, value in zip(flagged.tolist(), novelty[flagged].tolist(), strict=True)
            ]
        return self._find_regions(novelty)

    def __repr__(self) -> str:
        shown = [f"threshold={self.threshold:.4g}"]
        if self._tracked is not None:
            shown += [f"rate={self._tracked.rate:g}", f"window={self._tracked.window}"]
        shown += [f"score={self.score!r}"] * (self.score is not None)
        shown += [f"min_area={self.min_area}"] * (self.min_area != 1)
        shown += [f"connectivity={self.connectivity}"] * (self.connectivity != 4)
        return f"Alarm({', '.join(shown)})"

    def _find_regions(self, novelty: Tensor) -> list[Event]:
        labels = label_regions(novelty > self.threshold, connectivity=self.connectivity)
        coordinates = (labels >= 0).nonzero()
        _, region, areas = torch.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
        index = region.unsqueeze(1).expand(-1, 3)
        empty = coordinates.new_zeros(len(areas), 3)
        first = empty.scatter_reduce(0, index, coordinates, "amin", include_self=False)
        last = empty.scatter_reduce(0, index, coordinates, "amax", include_self=False)
        peak = novelty.new_zeros(len(areas)).scatter_reduce_(
            0, region, novelty[labels >= 0], "amax", include_self=False
        )
        columns = (peak.tolist(), areas.tolist(), first.tolist(), (last + 1).tolist())
        return [
            Event(sample, value, area, (top, left, bottom, right))
            for value, area, (sample, top, left), (_, bottom, right) in zip(*columns, strict=True)
            if area >= self.min_area
        ]


def _find_threshold(tracked: KnownQuantile, score: str | tuple[float, float] | None) -> float:
    threshold = tracked.compute()
    return _find_bounds(score)[1] if math.isinf(threshold) else threshold  # there are no scores so far


def _find_bounds(score: str | tuple[float, float] | None) -> tuple[float, float]:
    if score is None:
        return -math.inf, math.inf
    return make_novelty(score).bounds if isinstance(score, str) else score


def _check_calibration(novelty: Tensor, low: float, high: float) -> None:
    if novelty.numel() == 0:
        raise InputError("Expected the novelty of at least one sample, but got none.")
    if not novelty.isfinite().all():
        raise InputError("Expected novelty without NaN or Inf, but got some. Leave out skipped batches.")
    smallest, largest = float(novelty.min()), float(novelty.max())
    if smallest < low or largest > high:
        raise InputError(
            f"Expected novelty in {low:g}..{high:g}, the range of the score, but got {smallest:g}..{largest:g}. "
            "Name the score that was computed."
        )
