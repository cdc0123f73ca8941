"""Suites by name: those of the library, and TOML files of the user's."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftproof.cli.completion import SUITES
from driftproof.errors import ConfigurationError
from driftproof.validation import check_choice

if TYPE_CHECKING:
    from driftproof.bench.tables import Suite

__all__ = ["SuiteNames", "find_suite", "is_toml", "new_command", "suite_builders"]

SuiteNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SUITE]…",
        help="Suites from `driftproof bench list`, or a file of `driftproof bench new`.",
        autocompletion=lambda: list(SUITES),
    ),
]

_TEMPLATE = """\
# A suite of your own. Run it with `driftproof bench run {name} --out results`.
# A function is written as `module:function`; modules are looked for in the current folder first.

title = "My method against tent+crowd"

# Names from `driftproof bench list`, and functions `(model, **options) -> driftproof.Adapter`.
methods = ["source", "tent+crowd", "my_methods:cautious"]

# A network's name, or a function `() -> torch.nn.Module` whose module takes RGB images in 0..1.
model = "my_nets:build"
# weights = "net.safetensors"   # safetensors or a torch state dict; leave out if the function returns a trained model

# A folder with one sub-folder per class (its images are corrupted), a data set's name, or a function
# `(domain, severity) -> (images, labels)`: uint8 (N, H, W, 3) or (N, 3, H, W), or floats in 0..1.
images = "photos/known"
unknown = "photos/unknown"      # images of classes that the model does not know; leave out for a closed stream
# source = "photos/train"       # labeled training images, for methods that need them: a folder, or a function
# size = 32                     # resize the images of folders to squares of this side

# Fifteen corruptions by default; next to a function, `DOMAINS = (…)` in its module.
domains = ["gaussian_noise", "motion_blur", "fog", "contrast"]
severity = 5                    # of the corruptions, 1 to 5
batch_size = 100                # known and unknown images together
# limit = 500                   # only so many images of each domain
rounds = 2                      # how often the domains are gone through
seeds = [0]                     # one run each; all but 0 shuffle the images

[options]                       # hyper-parameters by method
"tent+crowd" = {{ lr = 0.001 }}
# "my_methods:cautious" = {{ lr = 0.0005 }}
"""


def is_toml(word: str) -> bool:
    """Whether an argument is a file of `bench new`."""
    return word.endswith(".toml")


def find_suite(word: str) -> "Suite":
    """Return a suite of the library by name, or the one that a TOML file describes.

    Examples:
        >>> find_suite("table2").rounds
        1
    """
    from driftproof.bench import Benchmark
    from driftproof.bench.benchmark import read_toml

    if is_toml(word):
        return Benchmark.from_data(read_toml(Path(word)), word).suite(Path(word).stem)
    builders = suite_builders()
    return builders[check_choice("suite", word, builders)]()


def suite_builders() -> "dict[str, Callable[[], Suite]]":
    """Return how to make each suite of the library, by name."""
    from driftproof import leaderboard, paper

    return {**paper.SUITES, **leaderboard.SUITES, **leaderboard.SENTINEL_SUITES}


def new_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Output file, such as my_suite.toml.")],
) -> None:
    """Write a suite to fill in: methods, model and images of your own."""
    if not is_toml(path.name):
        raise ConfigurationError(f"Expected a file that ends in .toml, but got {path}.")
    with path.open("x", encoding="utf-8") as file:
        file.write(_TEMPLATE.format(name=path.name))
    typer.echo(f"{path}: fill it in, then run `driftproof bench run {path} --out results`.", err=True)
