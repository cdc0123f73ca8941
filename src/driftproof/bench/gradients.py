"""How the gradients of wrong samples agree with those of right ones, on a network that has not moved."""

import math
from typing import Any

import torch
from torch import Tensor

from driftproof.analyses import GradientAgreement, SampleGradients
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.runner import ProgressEvent, RunSettings, ProgressCallback, ResourceProvider, stage_progress
from driftproof.bench.spec import Spec
from driftproof.bench.store import Run, Row
from driftproof.network import tf32_mode
from driftproof.streams import Prefetched
from driftproof.validation import check_choice

__all__ = ["ALL_DOMAINS", "run_gradients"]

ALL_DOMAINS = "all"
"""The domain of the row that all domains are pooled in."""

_OF_THE_TASK = ("layer", "mixing")
_AS_RUN = {"engine": "eager", "precision": "fp32", "channels_last": False}


def run_gradients(spec: Spec, cell: Run, workbench: ResourceProvider, rounds: int, settings: RunSettings, told: ProgressCallback) -> None:
    """Measure, for each domain and for all together, the mean cosine between samples' gradients, group by group.

    A row's `sizes` and `cosines` are matrices by label and prediction; `right` is the mean of the diagonal, `wrong` of
    the rest.

    Args:
        spec: The cell; its options name the `layer`, and say whether samples are `mixing` behind it.
        cell: Its place, held by the caller.
        workbench: Where model and images come from.
        rounds: Plays no role.
        settings: Where to run it; always in full precision.
        told: Hears how it goes.
    """
    if cell.length:
        return
    options: dict[str, Any] = dict(spec.options)
    for option in options:
        check_choice("option of gradients", option, _OF_THE_TASK)
    watch, model = ResourceMonitor(settings.device), workbench.model(spec).to(settings.device)
    gradients_of = SampleGradients(model, options["layer"], mixing=options["mixing"])
    cell.write_spec(spec, {"statistics": "Batch()", "loss": "Entropy()", **{name: str(options[name]) for name in options}})
    stream = workbench.stream(spec, 1, stage_progress(spec, told))
    found: dict[str, GradientAgreement] = {}
    for done, batch in enumerate(Prefetched(stream, device=settings.device), start=1):
        with tf32_mode("fp32"):
            gradients, logits = gradients_of(batch.images)
        seen = (gradients[batch.known], batch.labels[batch.known], logits.argmax(dim=1)[batch.known])
        for domain in (batch.domain, ALL_DOMAINS):
            found.setdefault(domain, GradientAgreement(logits.shape[1], device=settings.device)).add(*seen)
        told(ProgressEvent(spec, "differentiating", done, len(stream)))
    rows = [_row(domain, agreement) for domain, agreement in found.items()]
    cell.append(rows, [watch.measure(len(rows)) | _AS_RUN] * len(rows))
    for row in rows:
        told(ProgressEvent(spec, "measured", len(stream), len(stream), row))


def _row(domain: str, agreement: GradientAgreement) -> Row:
    cosines = agreement.cosines()
    off_diagonal = ~torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    return {
        "round": 1,
        "domain": domain,
        "right": _mean(cosines.diagonal()),
        "wrong": _mean(cosines[off_diagonal]),
        "sizes": agreement.sizes.tolist(),
        "cosines": [[None if math.isnan(value) else value for value in row] for row in cosines.tolist()],
    }


def _mean(values: Tensor) -> float | None:
    mean = float(values.nanmean())
    return None if math.isnan(mean) else mean
