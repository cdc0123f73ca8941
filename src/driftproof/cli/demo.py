"""`driftproof demo`: a model meets a changing world, on photographs that come with the package."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from driftproof.cli.options import MAX_SEED

__all__ = ["demo_command"]

_LINES = """\
  adapter = dp.adapt(model)
  for images in stream:
      logits, record = adapter.step(images)"""
_WIDTH = 34  # of what stands left of the bars, so that these do not move


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the network and of the streams.")] = 0,
) -> None:
    """Train a small network on photographs of garments, then let the world change.

    Shows the error before and after, what the network has never seen, and streams that destroy a naive adapter. Takes
    about a minute and writes a page with pictures.
    """
    from driftproof.cli.progress import progress_bar
    from driftproof.demo.garments import load_garments
    from driftproof.demo.network import train_network
    from driftproof.demo.page import hostile_table, world_table, write_demo_page
    from driftproof.demo.streams import WATCHED, run_hostile, run_world
    from driftproof.report.tables import frame_table

    garments = load_garments()
    with progress_bar(bar_width=20) as progress:

        def advance(name: str) -> Callable[[float, str], None]:
            task = progress.add_task(f"{name:{_WIDTH}}", total=100)

            def update(share: float, note: str) -> None:
                text = note if note and share < 1 else name
                progress.update(task, completed=round(100 * share), description=f"{text:{_WIDTH}}")

            return update

        model = train_network(garments.train, garments.train_labels, seed=seed, progress=advance("train a network"))
        world = run_world(model, garments, seed=seed, progress=advance("let the world change"))
        hostile = run_hostile(model, garments, seed=seed, progress=advance("try hostile streams"))
    console, table = Console(), world_table(world)
    page = write_demo_page(world, hostile, out / "demo.html", seed=seed)
    title = "The world changes: error in % on known garments, fifteen corruptions one after the other"
    console.print(frame_table(table, title=title))
    console.print(
        f"Never seen: of the {WATCHED} least familiar images of each batch, {world.bags:.0f} % are bags, which the "
        f"network was not trained on. A fifth of all images are. Health at the end: {world.health}.\n"
    )
    title = "Streams that destroy a naive adapter: accuracy in % on clean garments"
    console.print(frame_table(hostile_table(hostile), title=title))
    console.print(f"What did it:\n\n{_LINES}\n", highlight=False)
    typer.echo(f"Pictures and curves: {page}")
