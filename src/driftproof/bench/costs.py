"""Time and memory of one step of each method: memory also by a formula, all methods in one run."""

from torch import nn

from driftproof.adapter import Adapter
from driftproof.analyses import measure_costs
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.methods import benchmark_guards, build_method
from driftproof.bench.runner import ResourceProvider, RunContext, RunSettings
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row
from driftproof.validation import check_choice

__all__ = ["run_costs"]

_TASK_OPTIONS = ("trials", "warm_up")


def run_costs(context: RunContext) -> None:
    """Measure what one step of each method costs.

    The methods take turns, so that their ratios are comparable even on a busy machine. Published methods run without a
    guard, so no step pays for the passes that measure health. Memory is counted by
    `driftproof.analyses.count_memory`, and measured where the device keeps count. Each row is one method.

    The spec's `method` lists the methods. Its `options` hold `trials` and `warm_up`, and options of methods: `tent.lr`
    also applies to `tent+crowd`, `tent+crowd.margin` only to that.
    """
    spec, run, resources, settings = context.spec, context.run, context.resources, context.settings
    if run.length:
        return
    names, options, monitor = spec.method.split(","), dict(spec.options), ResourceMonitor(settings.device)
    for option in options:
        if option.partition(".")[0] not in {*names, *map(_base, names)}:
            check_choice("option of costs", option, _TASK_OPTIONS)
    model = resources.model(spec).to(settings.device)
    images = next(iter(resources.stream(spec, 1, context.report))).images.to(settings.device)
    run.write_spec(spec, {"image": str(tuple(images.shape[1:])), "batch": str(len(images))})
    trials, warm_up = (int(options.get(name) or 0) for name in _TASK_OPTIONS)
    adapters = {}
    for index, name in enumerate(names):
        context.report(f"preparing {name}", index, len(names))
        adapters[name] = _build_adapter(spec, name, model, resources, settings)
    context.report("timing", 0)
    rows: list[Row] = [
        {"round": 1, "domain": name} | costs
        for name, costs in measure_costs(adapters, model, images, trials=trials, warm_up=warm_up).items()
    ]
    run.append(rows, [monitor.measure(len(rows)) | settings.step] * len(rows))
    for row in rows:
        context.report("measured", len(rows), len(rows), row)


def _base(name: str) -> str:
    return name.partition("+")[0]


def _build_adapter(
    spec: Spec, name: str, model: nn.Module, resources: ResourceProvider, settings: RunSettings
) -> Adapter:
    prefixes = {_base(name), name}
    options = {key.partition(".")[2]: value for key, value in spec.options if key.partition(".")[0] in prefixes}
    guards = {"guard": benchmark_guards(name, options)}
    adapter = build_method(name, model, {**options, "seed": spec.seed, **settings.step, **guards})
    if not adapter.prepared:
        adapter.prepare(resources.source(spec, settings.device))
    return adapter
