"""Time and memory of one step of each method: memory also by a formula, all methods in one run."""

from torch import nn

from driftproof.adapter import Adapter
from driftproof.analyses import measure_costs
from driftproof.bench.environment import ResourceMonitor
from driftproof.bench.health_log import benchmark_guards
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.runner import RunContext, RunSettings
from driftproof.bench.spec import Spec
from driftproof.methods.by_name import build_method
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
    spec, resources, settings = context.spec, context.resources, context.settings
    if context.run.length:
        return
    names, options, monitor = spec.method.split(","), dict(spec.options), ResourceMonitor(settings.device)
    known = {prefix for name in names for prefix in _prefixes(name)}
    for option in options:
        if option.partition(".")[0] not in known:
            check_choice("option of costs", option, _TASK_OPTIONS)
    model = resources.model(spec).to(settings.device)
    images = next(iter(resources.stream(spec, 1, context.report))).images.to(settings.device)
    context.run.write_spec(spec, {"image": str(tuple(images.shape[1:])), "batch": str(len(images))})
    adapters = {}
    for index, name in enumerate(names):
        context.report(f"preparing {name}", index, len(names))
        adapters[name] = _build_adapter(spec, name, model, resources, settings)
    context.report("timing", 0)
    trials, warm_up = (int(options.get(name) or 0) for name in _TASK_OPTIONS)
    costs = measure_costs(adapters, model, images, trials=trials, warm_up=warm_up)
    context.append([{"round": 1, "domain": name} | row for name, row in costs.items()], monitor, settings.step)


def _prefixes(name: str) -> set[str]:
    return {name, name.partition("+")[0]}


def _build_adapter(spec: Spec, name: str, model: nn.Module, resources: LocalFiles, settings: RunSettings) -> Adapter:
    options = {key.partition(".")[2]: value for key, value in spec.options if key.partition(".")[0] in _prefixes(name)}
    keywords = {**options, "seed": spec.seed, **settings.step, "guard": benchmark_guards(name, options)}
    adapter = build_method(name, model, keywords)
    if not adapter.prepared:
        adapter.prepare(resources.source(spec, settings.device))
    return adapter
