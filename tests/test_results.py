"""The tables in the repository are made of the rows beside them."""

import json
from pathlib import Path

import pytest

from driftproof.corruptions import CORRUPTIONS

FOLDER = Path(__file__).parents[1] / "results" / "corruptions"


@pytest.mark.parametrize("method", ["source", "bn_adapt"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_table_of_corruption_errors(name, method):
    errors = json.loads((FOLDER / f"{name}.json").read_text())["errors"][method]
    (line,) = (
        line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| {name}, {method} |")
    )
    shown = [float(cell) for cell in line.strip("| ").split(" | ")[1:]]
    values = [errors[corruption] for corruption in CORRUPTIONS]
    assert shown == pytest.approx([errors["clean"], sum(values) / 15, *values], abs=0.051)
