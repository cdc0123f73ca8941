"""Cosines between per-sample gradients of wrong and right samples, on the source network."""

import math
from typing import Any

import torch
from torch import Tensor

from driftproof.analyses import GradientCosine, SampleGradients
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.runner import RunContext
from driftproof.bench.store import Row
from driftproof.network import tf32_mode
from driftproof.streams import Prefetcher
from driftproof.validation import check_choice

__all__ = ["ALL_DOMAINS", "run_gradients"]

ALL_DOMAINS = "all"
"""Domain of the row that pools all domains."""


def run_gradients(context: RunContext) -> None:
    """Measure mean cosines between per-sample gradients, for each domain and for all domains pooled.

    A row's `sizes` and `cosines` are matrices by label and prediction. `right` is the mean of the diagonal of
    `cosines`, `wrong` the mean of the rest. The spec's options are the `layer`, and whether samples are `mixing` behind
    it. Precision is always fp32.
    """
    spec, resources, device = context.spec, context.resources, context.settings.device
    if context.run.length:
        return
    options: dict[str, Any] = dict(spec.options)
    for option in options:
        check_choice("option of gradients", option, ("layer", "mixing"))
    monitor, model = ResourceMonitor(device), resources.model(spec).to(device)
    sample_gradients = SampleGradients(model, options["layer"], mixing=options["mixing"])
    described = {name: str(value) for name, value in options.items()}
    context.run.write_spec(spec, {"statistics": "Batch()", "loss": "Entropy()", **described})
    stream = resources.stream(spec, 1, context.report)
    found: dict[str, GradientCosine] = {}
    for done, batch in enumerate(Prefetcher(stream, device=device), start=1):
        with tf32_mode("fp32"):
            gradients, logits = sample_gradients(batch.images)
        known = (gradients[batch.known], batch.labels[batch.known], logits.argmax(dim=1)[batch.known])
        for domain in (batch.domain, ALL_DOMAINS):
            found.setdefault(domain, GradientCosine(logits.shape[1], device=device)).update(*known)
        context.report("differentiating", done, len(stream))
    rows = [{"round": 1, "domain": domain} | _measure(cosine) for domain, cosine in found.items()]
    context.append(rows, monitor, {"engine": "eager", "precision": "fp32", "channels_last": False})


def _measure(cosine: GradientCosine) -> Row:
    cosines = cosine.compute()
    diagonal = torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    return {
        "right": _to_json(cosines[diagonal].nanmean()),
        "wrong": _to_json(cosines[~diagonal].nanmean()),
        "sizes": cosine.sizes.tolist(),
        "cosines": [[_to_json(value) for value in row] for row in cosines.cpu()],
    }


def _to_json(value: Tensor) -> float | None:
    """Return the number; None for NaN, which JSON does not have."""
    return None if math.isnan(value) else float(value)
