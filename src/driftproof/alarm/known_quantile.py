"""Follow the upper quantile of the scores of known images in a stream with unknown ones."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from driftproof.errors import StateError

__all__ = ["GATE", "LINES", "USUAL", "KnownQuantile", "low_score", "normal_scores"]

_LOW = 0.02
"""The share of scores that counts as low. Unknown images hardly ever score so low, known ones of any domain do."""

LINES = {"trained on": (1.24, 0.55, 0.28, 0.01), "new": (0.32, 0.86, 0.45, 0.14), "stream": (-0.05, 0.92, 0.89, 0.11)}
"""What known images score at most at a standard normal z, where low scores have shifted by s: a + b z + (c − d z) s.

By what the calibration is: images that the network was trained on, other source images, or the beginning of a stream. A
network knows the images it was trained on better than new ones, so compared with them all new images look novel, most
of all hard ones. `benchmarks/alarm_lines.py` fits the lines under the held-out corruptions and pairs of them.
"""

USUAL, GATE = 0.05, (1.0, 2.5)
"""A share of known images, and how many times as many scores have to be above its bound for the bound to count.

It counts in part from the first on and fully from the second on, since some shifts alone make it twice as many.
`benchmarks/alarm_lines.py` chooses the two under the held-out corruptions.
"""

_EARLIER = "Load an earlier state."

_BEYOND = 2.33
"""Median normal score from which on the calibration says nothing: most scores exceed 99 % of its."""


class KnownQuantile:
    """Estimates, batch by batch, the score that a share `rate` of the known images exceeds.

    Scores become normal scores, their ranks in the calibration. Unknown images raise the upper quantiles of a stream,
    and so does a shift, which raises the low scores as well. So the estimate is the upper quantile of the latest
    scores, but at most what the shift of the low ones, their 2 % quantile, explains. The more scores exceed this bound,
    the more it counts: fully from 2.5 times as many on as known images should, and not at all where most scores are
    beyond the calibration's. A batch distributed unlike the latest scores starts the window anew.

    Args:
        rate: Share of known images above the quantile.
        window: Number of latest scores to keep.
        calibration: Scores of known images; None takes the first `window` scores of the stream.
        trained_on: Whether the network was trained on the images of the calibration.
    """

    def __init__(
        self, rate: float, window: int, calibration: Tensor | None = None, *, trained_on: bool = False
    ) -> None:
        self.rate = rate
        self.window = window
        self.trained_on = trained_on
        self._line = LINES["stream" if calibration is None else "trained on" if trained_on else "new"]
        self._calibration = None if calibration is None else _finite_scores(calibration).sort().values
        self._latest = torch.empty(0, dtype=torch.float64)
        if self._calibration is not None:
            self._latest = _draw_evenly(self._calibration, window)

    def update(self, scores: Tensor) -> None:
        """Add the scores of a batch to the window; scores that are not finite are left out.

        Args:
            scores: (N,) for samples, or (N, H, W) for pixels, of which a fifth of a window is drawn evenly.
        """
        scores = _finite_scores(_draw_evenly(scores.flatten(), self.window if scores.ndim == 1 else self.window // 5))
        if _differ(self._latest, scores):
            self._latest = scores[:0]
        self._latest = torch.cat([self._latest, scores])[-self.window :]
        if self._calibration is None and len(self._latest) == self.window:
            self._calibration = self._latest.sort().values

    @property
    def num_missing(self) -> int:
        """How many scores are missing until the stream's beginning is the calibration; 0 if there is one."""
        return self.window - len(self._latest) if self._calibration is None else 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return what `load_state_dict` needs to continue exactly, as copies, and the options it compares."""
        state = {
            "rate": torch.tensor(self.rate, dtype=torch.float64),
            "window": torch.tensor(self.window),
            "trained_on": torch.tensor(self.trained_on),
            "latest": self._latest.clone(),
        }
        return state if self._calibration is None else state | {"calibration": self._calibration.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict` of the same options; any other raises `StateError` and changes nothing."""
        own = self.state_dict()
        if set(state) | {"calibration"} != set(own) | {"calibration"}:
            raise StateError(
                f"Expected the state of an alarm whose threshold follows the stream, with {', '.join(own)}, "
                f"but got {', '.join(state) or 'an empty one'}. Save it with such an alarm."
            )
        for name in ("rate", "window", "trained_on"):
            _check_option(name, state[name], own[name])
        latest = _check_scores("latest", state["latest"])
        calibration = _check_scores("calibration", state["calibration"]) if "calibration" in state else None
        if len(latest) > self.window:
            raise StateError(f"Expected at most {self.window} latest scores, but got {len(latest)}. {_EARLIER}")
        if calibration is not None and (len(calibration) == 0 or bool((calibration.diff() < 0).any())):
            raise StateError(f"Expected the sorted scores of a calibration, but got others. {_EARLIER}")
        self._latest, self._calibration = latest, calibration

    def compute(self) -> float:
        """Return the smallest score of the window that at most a share `rate` of its known images exceeds."""
        if len(self._latest) == 0:
            return math.inf
        scores = self._latest.sort().values
        share = self.rate if self._calibration is None else self._find_share_above(scores, self._calibration)
        return float(scores[max(len(scores) - 1 - int(share * len(scores) + 1e-9), 0)])

    def _find_share_above(self, scores: Tensor, calibration: Tensor) -> float:
        """The share of sorted scores that are above the quantile of the known ones."""
        normal = normal_scores(scores, calibration)
        if float(normal.median()) > _BEYOND:
            return self.rate
        shift = low_score(normal) - normal_scores(low_score(calibration), calibration)
        excess = float((normal > self._bound(USUAL, shift)).double().mean()) / USUAL
        trust = min(1.0, max(0.0, (excess - GATE[0]) / (GATE[1] - GATE[0])))
        of_all = normal[len(normal) - 1 - int(self.rate * len(normal) + 1e-9)]
        limit = torch.lerp(of_all, torch.minimum(of_all, self._bound(self.rate, shift)), trust)
        return max(self.rate, float((normal > limit).double().mean()))

    def _bound(self, rate: float, shift: Tensor) -> Tensor:
        """The normal score that at most a share `rate` of the known images exceeds."""
        z = -torch.special.ndtri(torch.tensor(rate, dtype=torch.float64))
        base, slope, rise, narrows = self._line
        bound: Tensor = base + slope * z + (rise - narrows * z) * shift
        return bound


def _check_option(name: str, given: object, own: Tensor) -> None:
    is_same = isinstance(given, Tensor) and (given.dtype, given.shape) == (own.dtype, own.shape) and given.cpu() == own
    if not is_same:
        found = given.tolist() if isinstance(given, Tensor) else given
        raise StateError(
            f"Expected the state of an alarm with {name} {own.item()}, but got {found}. Use the same options."
        )


def _check_scores(name: str, given: object) -> Tensor:
    is_whole = isinstance(given, Tensor) and given.dtype == torch.float64 and given.ndim == 1
    if not isinstance(given, Tensor) or not is_whole or not bool(given.isfinite().all()):
        raise StateError(f"Expected `{name}` to hold finite scores in double precision, but it does not. {_EARLIER}")
    return given.detach().to("cpu", copy=True)


def _finite_scores(scores: Tensor) -> Tensor:
    scores = scores.detach().flatten().to("cpu", torch.float64)
    return scores[scores.isfinite()]


def _draw_evenly(scores: Tensor, most: int) -> Tensor:
    if len(scores) <= most:
        return scores
    index = torch.linspace(0, len(scores) - 1, max(1, most), dtype=torch.float64)
    return scores[index.round().long().to(scores.device)]


def low_score(scores: Tensor) -> Tensor:
    """Return the 2 % quantile of sorted scores."""
    return scores[round(_LOW * (len(scores) - 1))]


def normal_scores(scores: Tensor, calibration: Tensor) -> Tensor:
    """Return the normal scores of the ranks that scores have in a sorted calibration."""
    ranks = torch.searchsorted(calibration, scores) + torch.searchsorted(calibration, scores, right=True)
    normal: Tensor = torch.special.ndtri((ranks + 1).double() / (2 * len(calibration) + 2))
    return normal


def _differ(first: Tensor, second: Tensor) -> bool:
    """Whether a Kolmogorov-Smirnov test tells two samples apart, at a level of 0.001."""
    if min(len(first), len(second)) < 50:
        return False
    values = torch.cat([first, second])
    shares = [torch.searchsorted(part.sort().values, values, right=True) / len(part) for part in (first, second)]
    limit = 1.95 * math.sqrt(1 / len(first) + 1 / len(second))
    return float((shares[0] - shares[1]).abs().max()) > limit
