"""The notebooks of examples: their cells run, and what they show is stored."""

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_stores_what_its_cells_print(path):
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "`make notebooks`"
    assert all(cell["outputs"] for cell in code if "print(" in "".join(cell["source"]))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, timm):
    pytest.importorskip("starlette")
    notebook = runpy.run_path(str(FOLDER / "run.py"))["run_notebook"](path)
    stored = json.loads(path.read_text())
    assert [len(cell.get("outputs", ())) for cell in notebook["cells"]] == [
        len(cell.get("outputs", ())) for cell in stored["cells"]
    ]
