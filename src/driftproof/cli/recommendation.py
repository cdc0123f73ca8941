"""Which method `driftproof try` recommends, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SIGNIFICANCE", "Outcome", "Recommendation", "format_p", "paired_test", "recommend"]

SIGNIFICANCE = 0.05
"""Largest probability of recommending a method that is no better than the model as it is."""

_SAME = 0.995
"""Methods that agree with the model as it is on more images than this change nothing."""

_SAFE = "adapt"
"""The method to prefer where another is no better."""


@dataclass(frozen=True)
class Outcome:
    """What a method did on the images.

    Attributes:
        method: Name of the method.
        correct: Whether each labeled image was predicted right; empty without labels.
        agreement: Share of images with the same predicted class as the model as it is.
        state: State of health at the end; None where nothing measures it.
        actions: How many batches a guard acted on.
        batches: Number of batches.
    """

    method: str
    correct: tuple[bool, ...] = ()
    agreement: float = 1.0
    state: str | None = None
    actions: int = 0
    batches: int = 1

    @property
    def accuracy(self) -> float:
        """Share of labeled images that were predicted right."""
        return sum(self.correct) / len(self.correct)

    @property
    def healthy(self) -> bool:
        """Whether the method ended healthy."""
        return self.state in (None, "healthy")


@dataclass(frozen=True)
class Recommendation:
    """The recommended method and the reason, in one or two sentences."""

    method: str
    reason: str


def paired_test(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Return the probability of a gain at least this large if neither method is better: McNemar's exact test.

    Args:
        before: Whether each image was predicted right by the one method.
        after: Whether it was by the other.

    Examples:
        >>> paired_test([False] * 5 + [True] * 95, [True] * 100)
        0.03125
    """
    gained = sum(new and not old for old, new in zip(before, after, strict=True))
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    changed = gained + lost
    largest = math.lgamma(changed + 1) - changed * math.log(2)
    terms = (largest - math.lgamma(k + 1) - math.lgamma(changed - k + 1) for k in range(gained, changed + 1))
    return min(1.0, round(math.fsum(map(math.exp, terms)), 12))


def recommend(source: Outcome, candidates: Sequence[Outcome]) -> Recommendation:
    """Choose a method.

    With labels: of the methods that ended healthy and are better than the model as it is by a paired test, the most
    accurate; `adapt` instead if that is no better than `adapt` by the same test. The significance level is shared among
    the candidates. Without labels: `adapt` if it ended healthy and changes predictions, else the first other method
    that does, but none whose guards acted on more than half of the batches. If no method remains, the model as it is.

    Args:
        source: The outcome of the model as it is.
        candidates: The outcomes of the other methods.
    """
    return _by_accuracy(source, candidates) if source.correct else _by_health(source, candidates)


def _by_accuracy(source: Outcome, candidates: Sequence[Outcome]) -> Recommendation:
    level = SIGNIFICANCE / max(1, len(candidates))
    better = [each for each in candidates if paired_test(source.correct, each.correct) < level]
    healthy = sorted((each for each in better if each.healthy), key=lambda each: each.accuracy, reverse=True)
    labeled = f"{len(source.correct)} labeled images"
    if not better:
        reason = f"On these {labeled} no method is better than the model as it is ({source.accuracy:.1%}) beyond noise."
        leading = max(candidates, key=lambda each: each.accuracy, default=source)
        if leading.accuracy > source.accuracy:
            reason += f" {leading.method} reaches {leading.accuracy:.1%}: label more images to know if that is chance."
        return Recommendation(source.method, reason)
    if not healthy:
        return Recommendation(
            source.method,
            f"{better[0].method} is better than the model as it is ({source.accuracy:.1%}) but ended "
            f"{better[0].state}, so it would get worse on a longer stream.",
        )
    best = healthy[0]
    safe = next((each for each in healthy if each.method == _SAFE), best)
    chosen = best if paired_test(safe.correct, best.correct) < level else safe
    p = paired_test(source.correct, chosen.correct)
    reason = (
        f"It is right on {chosen.accuracy:.1%} of {labeled}, the model as it is on {source.accuracy:.1%} "
        f"(paired test: p {format_p(p, sign=True)})."
    )
    if chosen is not best:
        reason += f" {best.method} ({best.accuracy:.1%}) is not better beyond noise, and {chosen.method} has guards."
    return Recommendation(chosen.method, reason)


def _by_health(source: Outcome, candidates: Sequence[Outcome]) -> Recommendation:
    advice = "Label about two hundred images and pass `--labels` to know more."
    changing = [each for each in candidates if each.agreement <= _SAME]
    if not changing:
        return Recommendation(source.method, "The methods predict what the model as it is predicts: nothing to gain.")
    usable = [each for each in changing if each.healthy and 2 * each.actions <= each.batches]
    if not usable:
        return Recommendation(source.method, f"No method that changes predictions ended healthy here. {advice}")
    chosen = next((each for each in usable if each.method == _SAFE), usable[0])
    return Recommendation(
        chosen.method,
        f"It ended healthy and changes {1 - chosen.agreement:.1%} of the predictions; without labels nobody can say "
        f"whether for the better. {advice}",
    )


def format_p(p: float, *, sign: bool = False) -> str:
    """Format a probability.

    Args:
        p: The probability.
        sign: Whether to put an equals sign before a number.

    Examples:
        >>> format_p(0.00002), format_p(0.5), format_p(0.5, sign=True)
        ('< 0.001', '0.500', '= 0.500')
    """
    return "< 0.001" if p < 0.001 else f"{'= ' if sign else ''}{p:.3f}"
