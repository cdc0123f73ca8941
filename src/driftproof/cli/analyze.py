"""`driftproof analyze`: figures, scenes and costs."""

from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.analyze_scenes import scenes_command
from driftproof.cli.device import Device, move_model, resolve_device
from driftproof.cli.figures import (
    curves_command,
    figures_command,
    gradients_command,
    scores_command,
    selection_command,
)
from driftproof.cli.model import Classes, ModelName, Weights, load_model
from driftproof.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from driftproof.adapter import Adapter

__all__ = ["analyze_commands"]

analyze_commands = typer.Typer(help="Analyze what adaptation does and what it costs.", no_args_is_help=True)


analyze_commands.command("selection")(selection_command)
analyze_commands.command("scores")(scores_command)
analyze_commands.command("gradients")(gradients_command)
analyze_commands.command("curves")(curves_command)
analyze_commands.command("figures")(figures_command)


@analyze_commands.callback()
def _options() -> None:
    """Analyze what adaptation does and what it costs."""


analyze_commands.command("scenes")(scenes_command)


@analyze_commands.command("costs")
def costs_command(
    model: ModelName = None,
    weights: Weights = None,
    classes: Classes = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "ent,swr,tent,eata,tent+crowd",
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per step.")] = 200,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the images.")] = 32,
    trials: Annotated[int, typer.Option(min=1, help="Number of timed steps per method.")] = 20,
    warm_up: Annotated[int, typer.Option(min=0, help="Number of untimed steps before.")] = 3,
    engine: Annotated[str, typer.Option(help="Engine of the steps: auto, eager, compile or graph.")] = "auto",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure memory and time of one step of each method, on random images.

    The methods are timed in turn. Counted memory follows TinyTL: it is computed from the shapes of the network and does
    not depend on the device. The peak is measured on the device; it is not available on a CPU.
    """
    import torch

    from driftproof.analyses import measure_costs
    from driftproof.methods.by_name import parse_method

    names = [name.strip() for name in methods.split(",")]
    for name in names:
        parse_method(name)
    target = resolve_device(device)
    images = torch.rand(batch_size, 3, size, size, generator=torch.Generator().manual_seed(0)).to(target)
    network = move_model(load_model(model, weights, classes), target)
    network.eval()
    adapters = {name: _build_prepared(name, network, images, engine) for name in names}
    costs = measure_costs(adapters, network, images, trials=trials, warm_up=warm_up)
    if as_json:
        print_json(costs)
        return
    print_table(("method", "counted MiB", "peak MiB", "ms, median", "ms, mean"), map(_row, costs.items()))


def _row(item: tuple[str, dict[str, float | None]]) -> tuple[str, ...]:
    name, costs = item
    mebibytes = (costs["memory"], costs["peak"] and costs["peak"] / 2**20)
    return (name, *map(_format_number, (*mebibytes, costs["median_milliseconds"], costs["milliseconds"])))


def _build_prepared(name: str, model: "nn.Module", images: "Tensor", engine: str) -> "Adapter":
    import torch

    from driftproof.methods.by_name import build_method

    with torch.no_grad():
        labels = model(images).argmax(1)
    # Prototypes need one feature vector per image, which segmentation networks do not have.
    dense = {"prototypes": False} if labels.ndim > 1 and name.partition("+")[0] == "swr" else {}
    adapter = build_method(name, model, {"engine": engine, **dense})
    if not adapter.prepared:
        # The cost of a step does not depend on the data the adapter is prepared on.
        adapter.prepare([(images, labels)])
    return adapter


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
