"""All novelty scores that `novelty.py` compares, computed in one step."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from driftproof import Adapter, scores
from driftproof.components import Step
from driftproof.network import Network
from driftproof.predictions import log_probabilities
from driftproof.scores import NoveltyScore

__all__ = ["CENTERED", "SINGLE", "AllScores", "PixelScores", "watch_features"]

_LOGIT_SCORES = {"msp": scores.msp, "energy": scores.energy, "max_logit": scores.max_logit, "entropy": scores.entropy}
_NAMES = (*_LOGIT_SCORES, "cosine", "cosine_entropy")
CENTERED = "centered_cosine_entropy"
SINGLE = (CENTERED, "confidence_difference", *(f"{of}{name}" for of in ("", "adapted_") for name in _NAMES))
"""Scores that look at one thing; the other ones combine several. Those without a prefix are the frozen network's."""

_STANDARDIZED_SUMS = (
    ("energy", "cosine"),
    ("entropy", "cosine"),
    ("energy", "adapted_energy"),
    ("cosine", "adapted_cosine"),
    ("energy", "cosine", "adapted_energy", "adapted_cosine"),
    ("energy", "confidence_difference"),
)


class AllScores(NoveltyScore):
    """Every score of a batch, (N, S), in the order of `names`."""

    needs_features = True
    needs_source_features = True

    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._centered = scores.CenteredCosineEntropy()

    def on_batch(self, step: Step) -> None:
        """Remember the batch."""
        self._centered.on_batch(step)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Forget the stream."""
        self._centered.reset_state(network, parameters)

    def forward(self, step: Step) -> Tensor:
        """Return all scores; a method that learns nothing has one network and gets one pass."""
        found = {"confidence_difference": torch.zeros_like(step.weights)}
        adapted = self._scores_of(step, step.logits, adapted=True)
        if step.at_source is True:
            frozen_logits, frozen = step.logits, adapted
        else:
            frozen_logits, frozen = step.source_logits, self._scores_of(step, step.source_logits, adapted=False)
            found["confidence_difference"] = 0 - step.confidence_change
        found |= frozen | {f"adapted_{name}": value for name, value in adapted.items()}
        found |= _combine_networks(step.logits, frozen_logits) | _combine_scores(found, step.classes)
        if step.logits.ndim == 2:
            found = {CENTERED: self._centered(step), **found}
        type(self).names = tuple(found)
        return torch.stack(list(found.values()), dim=-1)

    def _scores_of(self, step: Step, logits: Tensor, *, adapted: bool) -> dict[str, Tensor]:
        network = step.network if adapted else step.source
        rows = network.find_classifier()[1].weight
        assert isinstance(rows, Tensor)
        features = step.features if adapted else step.source_features
        pair = features.detach(), rows.detach()
        found = {"cosine": scores.cosine(*pair), "cosine_entropy": scores.cosine_entropy(*pair)}
        return _from_logits(logits) | found


class PixelScores(AllScores):
    """Every score of every pixel, (N, H, W, S)."""

    needs_features = False
    needs_source_features = False

    def _scores_of(self, step: Step, logits: Tensor, *, adapted: bool) -> dict[str, Tensor]:
        model = (step.network if adapted else step.source).model
        features, rows = _WATCHED[id(model)]
        similarity = torch.einsum("nd...,cd->nc...", normalize(features[0].float()), normalize(rows.detach().float()))
        coarse = torch.stack([1 - similarity.amax(dim=1), scores.entropy(7 * similarity)], dim=1)
        fine = interpolate(coarse, size=logits.shape[2:], mode="bilinear", align_corners=True)
        return _from_logits(logits) | dict(zip(("cosine", "cosine_entropy"), fine.unbind(dim=1), strict=True))


_WATCHED: dict[int, tuple[dict[int, Tensor], Tensor]] = {}
"""By model: the last input of its classifier, and the classifier's rows."""


def watch_features(adapter: Adapter) -> None:
    """Keep what enters the 1 × 1 convolution that is the last layer of both networks."""
    for network in (adapter.state.network, adapter.state.source):
        layer = [module for module in network.model.modules() if isinstance(module, nn.Conv2d)][-1]
        features: dict[int, Tensor] = {}

        def keep(_: nn.Module, inputs: tuple[Any, ...], kept: dict[int, Tensor] = features) -> None:
            kept[0] = inputs[0].detach()

        layer.register_forward_pre_hook(keep)
        _WATCHED[id(network.model)] = features, layer.weight.flatten(start_dim=1)


def _from_logits(logits: Tensor) -> dict[str, Tensor]:
    return {name: score(logits.detach()) for name, score in _LOGIT_SCORES.items()}


def _combine_networks(logits: Tensor, source_logits: Tensor) -> dict[str, Tensor]:
    """Scores of both networks together."""
    joint = (log_probabilities(logits.detach()) + log_probabilities(source_logits)) / 2
    return {
        "1 − max √(frozen · adapted probability)": 1 - joint.amax(dim=1).exp(),
        "energy of the mean logits": scores.energy((logits.detach() + source_logits) / 2),
        "entropy of the mean log-probabilities": scores.entropy(joint),
    }


def _combine_scores(found: Mapping[str, Tensor], classes: int) -> dict[str, Tensor]:
    """Combinations of single scores; `a + b` is the sum of scores standardized over the batch."""
    combined = {
        "energy · cosine": found["energy"] * (1 - found["cosine"]),
        "msp and cosine, plain sum": found["msp"] + found["cosine"],
        "entropy / ln C and cosine, plain sum": found["entropy"] / math.log(classes) + found["cosine"],
    }
    for names in _STANDARDIZED_SUMS:
        combined[" + ".join(names)] = sum(
            (_standardize(found[name]) for name in names[1:]), _standardize(found[names[0]])
        )
    ranks = [found[name].flatten().argsort().argsort().float().view_as(found[name]) for name in ("energy", "cosine")]
    return combined | {"mean rank of energy and cosine": sum(ranks[1:], ranks[0]) / len(ranks)}


def _standardize(score: Tensor) -> Tensor:
    return (score - score.mean()) / score.std().clamp(min=1e-6)
