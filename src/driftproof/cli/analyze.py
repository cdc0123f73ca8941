"""`driftproof analyze`: looking into what adaptation does."""

from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.analyze_scenes import scenes_command
from driftproof.cli.device import Device, resolve_device
from driftproof.cli.figures import curves_command, gradients_command, scores_command, selection_command
from driftproof.cli.model import ClassCount, ModelName, Weights, load_model
from driftproof.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from driftproof.adapter import Adapter

__all__ = ["analyze_commands"]

analyze_commands = typer.Typer(help="Look into what adaptation does, and what it costs.", no_args_is_help=True)


analyze_commands.command("selection")(selection_command)
analyze_commands.command("scores")(scores_command)
analyze_commands.command("gradients")(gradients_command)
analyze_commands.command("curves")(curves_command)


@analyze_commands.callback()
def _options() -> None:
    """Look into what adaptation does, and what it costs."""


analyze_commands.command("scenes")(scenes_command)


@analyze_commands.command("costs")
def costs_command(
    model: ModelName = None,
    weights: Weights = None,
    classes: ClassCount = None,
    methods: Annotated[str, typer.Option(help="Which, separated by commas.")] = "ent,swr,tent,eata,tent+crowd",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 200,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the images.")] = 32,
    trials: Annotated[int, typer.Option(min=1, help="How often each method is timed.")] = 20,
    warm_up: Annotated[int, typer.Option(min=0, help="How often each runs before that.")] = 3,
    engine: Annotated[str, typer.Option(help="How a step runs: eager, compile or graph.")] = "eager",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Count and measure what one step of each method costs on a model; the methods take turns, on random images.

    Counted memory is TinyTL's, from the network's shapes alone, and the same on any device. The peak is what the device
    really took; a CPU keeps no count of that.
    """
    import torch

    from driftproof.bench.costs import measure_costs
    from driftproof.bench.methods import parse_method

    names = [name.strip() for name in methods.split(",")]
    for name in names:
        parse_method(name)
    where = resolve_device(device)
    images = torch.rand(batch_size, 3, size, size, generator=torch.Generator().manual_seed(0)).to(where)
    network = load_model(model, weights, classes).to(where)
    network.eval()
    adapters = {name: _build_prepared(name, network, images, engine) for name in names}
    costs = measure_costs(adapters, network, images, trials=trials, warm_up=warm_up)
    if as_json:
        print_json(costs)
        return
    print_table(("method", "counted MiB", "peak MiB", "ms, median", "ms, mean"), map(_row, costs.items()))


def _row(item: tuple[str, dict[str, float | None]]) -> tuple[str, ...]:
    name, found = item
    mebibytes = (found["memory"], found["peak"] and found["peak"] / 2**20)
    return (name, *map(_format_number, (*mebibytes, found["median_milliseconds"], found["milliseconds"])))


def _build_prepared(name: str, model: "nn.Module", images: "Tensor", engine: str) -> "Adapter":
    import torch

    from driftproof.bench.methods import build_method

    with torch.no_grad():
        labels = model(images).argmax(1)
    # Prototypes are of feature vectors, which a network for scenes has none of.
    dense = {"prototypes": False} if labels.ndim > 1 and name.partition("+")[0] == "swr" else {}
    adapter = build_method(name, model, {"engine": engine, **dense})
    if not adapter.prepared:
        # What a step costs does not depend on what was learned from the source data.
        adapter.prepare([(images, labels)])
    return adapter


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
