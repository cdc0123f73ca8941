"""Run the notebooks of this folder and store what each cell prints.

python run.py [NAME.ipynb …]

A notebook is plain Python in cells, so that it needs no Jupyter to be checked. Cells of a notebook share their names.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_notebook(path: Path) -> dict[str, Any]:
    """Run the cells in an empty folder and return the notebook with their output."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, cell in enumerate(code, start=1):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
                text = printed.getvalue().splitlines(keepends=True)
                cell["execution_count"] = number
                cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
        finally:
            os.chdir(before)
    return notebook


def main() -> None:
    """Run all notebooks, or those that are named."""
    for path in [HERE / name for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        notebook = run_notebook(path)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells")


if __name__ == "__main__":
    # torchvision, which timm imports, may have been built for another torch.
    sys.path.insert(0, str(HERE.parent / "interop"))
    importlib.import_module("common").import_torchvision()
    main()
