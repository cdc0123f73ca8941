"""Selection by two groups of a novelty score: known samples attract, unknown ones repel (UniEnt)."""

from typing import Literal

import torch
from torch import Tensor, nn

from driftproof.components import Step
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.scores import NoveltyScore, make_novelty
from driftproof.selection.base import SampleWeights, Selection
from driftproof.two_groups import TwoGroups, fit_mixture, fit_otsu
from driftproof.validation import check_choice

__all__ = ["Split"]

SplitRule = Literal["mixture", "otsu", "unweighted_otsu"]
_RULES = ("mixture", "otsu", "unweighted_otsu")
_FEW = 48
"""How much farther apart the groups of few scores are by chance, times their number."""


class Split(Selection):
    """Split samples into two groups by a novelty score; the loss of the familiar ones is minimized, the rest maximized.

    UniEnt weights samples by 1 or 0 and averages over each group. UniEnt+ (`soft=True`) weights them by the probability
    π of being known, the others by 1 − π, and averages over the batch. Pair it with `mean_entropy`, α₁ (0.5 here). A
    method's own filter stays and decides within the known group, and so do selections joined with `&`.

    Open choices taken: α₂ = 0.5, since the authors give no default. Where the scores do not form two groups, nothing
    repels: otherwise half of the samples of a stream without unknown ones is pushed away. Samples below Otsu's cut
    attract all the same: a stream of mostly unknown samples has one group too.

    Args:
        score: The novelty score to split by, a name (see `driftproof.scores`) or a component. The frozen network's
            cosine to the classifier is UniEnt's; pixels need a score of logits, such as "entropy".
        rule: "mixture" fits two Gaussians; "otsu" cuts where the variance within groups is smallest, the exact 2-means
            split; "unweighted_otsu" does not weight the two variances by the groups' sizes.
        soft: Weight by probabilities (UniEnt+); only with "mixture".
        repel: α₂, the weight of the unknown samples.
        window: Split the last so many scores, those of the batch among them; None is the batch alone. Nothing repels
            until so many have come.
        min_separation: Nothing repels if the means of n scores' groups are closer than this + 48/n standard deviations,
            √(mean variance). None is 2 for a mixture and 2.75 for a cut, where the scores of one Gaussian pass about
            once in 20 times, whatever n; 0 is no guard.

    Reference:
        Gao et al., "Unified Entropy Optimization for Open-Set Test-Time Adaptation", CVPR 2024.
    """

    mean_entropy = 0.5
    keeps_filter = True
    recent: Tensor | None
    count: Tensor | None

    def __init__(
        self,
        score: str | NoveltyScore = "cosine",
        rule: SplitRule = "mixture",
        *,
        soft: bool = False,
        repel: float = 0.5,
        window: int | None = None,
        min_separation: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("rule", rule, _RULES)
        if soft and rule != "mixture":
            raise ConfigurationError(f'Expected `rule` to be "mixture" with `soft=True`, but got {rule!r}.')
        for name, value, least in (("repel", repel, 0), ("min_separation", min_separation, 0), ("window", window, 2)):
            if value is not None and not value >= least:
                raise ConfigurationError(f"Expected `{name}` to be at least {least}, but got {value}.")
        self.score = make_novelty(score) if isinstance(score, str) else score
        self.rule, self.soft, self.repel = rule, soft, repel
        self.window, self.min_separation = window, _separation(rule) if min_separation is None else min_separation
        self.register_buffer("recent", None)
        self.register_buffer("count", None)

    @property
    def needs_features(self) -> bool:  # type: ignore[override]  # a class attribute for other components
        """Whether the score reads features."""
        return self.score.needs_features

    @property
    def needs_source_features(self) -> bool:  # type: ignore[override]
        """Whether the score reads the frozen network's features."""
        return self.score.needs_source_features

    @property
    def average_over(self) -> Literal["selected", "batch"]:  # type: ignore[override]
        """The batch with probabilities, and else each group."""
        return "batch" if self.soft else "selected"

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget all scores."""
        self.recent = self.count = None

    def weights(self, step: Step) -> Tensor | SampleWeights:
        """One and `repel` in the two groups, or the probabilities of them."""
        with torch.no_grad():
            scores = self.score(step)
            groups, are_two = self._fit(step.distributed.gather_rows(scores).flatten())
            known = groups.is_below_cut(scores).to(step.weights.dtype)
            if self.rule == "mixture":
                probability = groups.first_probability(scores)
                known = torch.where(are_two, probability if self.soft else probability >= 0.5, known)
            return SampleWeights(known, self.repel * (are_two * (1 - known))) if self.repel else known

    def on_batch(self, step: Step) -> None:
        """Keep the scores of the batch."""
        if self.window is None:
            return
        scores = step.distributed.gather_rows(self.score(step)).flatten()[-self.window :]
        recent = scores.new_zeros(self.window) if self.recent is None else self.recent
        count = torch.zeros_like(step.index) if self.count is None else self.count
        self.recent = torch.cat([recent.to(scores.dtype), scores])[-self.window :]
        self.count = (count + len(scores)).clamp(max=self.window)

    def _fit(self, scores: Tensor) -> tuple[TwoGroups, Tensor]:
        """Fit the groups to the scores of the batch and older ones; also return whether there are two."""
        pool, filled, is_full = scores, torch.ones_like(scores), torch.ones_like(scores[0], dtype=torch.bool)
        if self.window is not None and self.window > len(scores):
            missing = self.window - len(scores)
            if self.recent is None or self.count is None:
                is_full = torch.zeros_like(is_full)
            else:
                age = torch.arange(missing, 0, -1, device=scores.device)
                pool = torch.cat([self.recent[-missing:].to(scores.dtype), scores])
                filled = torch.cat([(age <= self.count).to(scores.dtype), filled])
                is_full = self.count >= missing
        if self.rule == "mixture":
            groups = fit_mixture(pool, filled)
        else:
            groups = fit_otsu(pool, filled, by_size=self.rule == "otsu")
        if self.min_separation == 0:
            return groups, is_full
        return groups, is_full & (groups.separation >= self.min_separation + _FEW / filled.sum())


def _separation(rule: SplitRule) -> float:
    return 2.0 if rule == "mixture" else 2.75
