"""Tasks other than streams: what a step of each method costs, and cosines between per-sample gradients."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from driftproof.adapter import Adapter
from driftproof.analyses import GradientCosine, SampleGradients, measure_costs
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.health_log import benchmark_guards
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.runner import RunContext, RunSettings
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row
from driftproof.methods.by_name import build_method
from driftproof.network import tf32_mode
from driftproof.streams import Prefetcher
from driftproof.validation import check_choice

__all__ = ["ALL_DOMAINS", "run_costs", "run_gradients"]

ALL_DOMAINS = "all"
"""Domain of the row of gradients that pools all domains."""

_TIMING_OPTIONS = ("trials", "warm_up")
_PREPARED_BATCHES = 4


def run_costs(context: RunContext) -> None:
    """Measure what one step of each method costs.

    The methods take turns, so that their ratios are comparable even on a busy machine. Published methods run without a
    guard, so no step pays for the passes that measure health. Memory is counted by
    `driftproof.analyses.count_memory`, and measured where the device keeps count. Each row is one method.

    The spec's `method` lists the methods. Its `options` hold `trials` and `warm_up`, and options of methods: `tent.lr`
    also applies to `tent+crowd`, `tent+crowd.margin` only to that.
    """
    spec, resources, settings = context.spec, context.resources, context.settings
    if context.run.length:
        return
    names, options, monitor = spec.method.split(","), dict(spec.options), ResourceMonitor(settings.device)
    known = {prefix for name in names for prefix in _prefixes(name)}
    for option in options:
        if option.partition(".")[0] not in known:
            check_choice("option of costs", option, _TIMING_OPTIONS)
    model = resources.model(spec).to(settings.device)
    images = next(iter(resources.stream(spec, 1, context.report))).images.to(settings.device)
    context.run.write_spec(spec, {"image": str(tuple(images.shape[1:])), "batch": str(len(images))})
    adapters = {}
    for index, name in enumerate(names):
        context.report(f"preparing {name}", index, len(names))
        adapters[name] = _build_adapter(spec, name, model, resources, settings)
    context.report("timing", 0)
    trials, warm_up = (int(options.get(name) or 0) for name in _TIMING_OPTIONS)
    costs = measure_costs(adapters, model, images, trials=trials, warm_up=warm_up)
    context.append([{"round": 1, "domain": name} | row for name, row in costs.items()], monitor, settings.step)


def _prefixes(name: str) -> set[str]:
    return {name, name.partition("+")[0]}


def _build_adapter(spec: Spec, name: str, model: nn.Module, resources: LocalFiles, settings: RunSettings) -> Adapter:
    options = {key.partition(".")[2]: value for key, value in spec.options if key.partition(".")[0] in _prefixes(name)}
    keywords = {**options, "seed": spec.seed, **settings.step, "guard": benchmark_guards(name, options)}
    adapter = build_method(name, model, keywords)
    if not adapter.prepared:  # on a few images: how well it is prepared does not change what a step costs
        adapter.prepare(list(itertools.islice(resources.source(spec, settings.device), _PREPARED_BATCHES)))
    return adapter


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
