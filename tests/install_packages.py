"""Install every package in a folder in new environments and run the README's example there.

    python tests/install_packages.py dist [--python python3.10 python3.13] [--torch 2.6.0] [--out results/packages]

torch has the version of constraints.txt, or those of --torch; everything else is the newest that fits, as a user would
get. What the wheel has to hold besides Python files is looked for in the installed package. `make packages` runs this.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA_FILES = ("demo/recorded.json", "demo/images/*.webp", "demo/templates/*", "report/templates/*", "serve/page/*.html")
"""Patterns that have to match something in the installed package."""

LOOK = """
import sys
from pathlib import Path
import driftproof
home = Path(driftproof.__file__).parent
missing = [pattern for pattern in sys.argv[1:] if not list(home.glob(pattern))]
sys.exit(f"Missing in the installed package: {missing}" if missing else 0)
"""

VERSIONS = "import platform, torch; print(platform.python_version(), torch.__version__)"


def find_example() -> str:
    """Return the first Python block of the README."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)[0]


def find_torch() -> str:
    """Return the pinned version of torch."""
    return re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)[0]


def check_packages(packages: list[Path], python: str, torch: str) -> Iterator[dict[str, str]]:
    """Install packages one after the other in a new environment, run the example there, and yield what was used."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        inside, work = f"{folder}/venv/bin/python", Path(folder, "work")
        work.mkdir()
        for package in packages:
            started = time.monotonic()
            subprocess.run([inside, "-m", "pip", "uninstall", "--quiet", "--yes", "driftproof"], check=True)
            requirements = [f"torch=={torch}", str(package.resolve())]
            subprocess.run([inside, "-m", "pip", "install", "--quiet", *requirements], check=True)
            installed = time.monotonic()
            subprocess.run([inside, "-c", LOOK, *DATA_FILES], check=True, cwd=work)
            said, program = {}, f"{folder}/venv/bin/driftproof"
            for name, command in {
                "versions": [inside, "-c", VERSIONS],
                "example": [inside, "-c", find_example()],
                "command": [program, "--version"],
                "help": [program, "adapt", "--help"],
            }.items():
                output = subprocess.run(command, check=True, cwd=work, capture_output=True, text=True).stdout
                said[name] = output.splitlines()[-1]
            row = dict(zip(("python", "torch"), said["versions"].split(), strict=True))
            times = {"install, s": f"{installed - started:.0f}", "smoke test, s": f"{time.monotonic() - installed:.0f}"}
            row = {"package": package.name} | row | {"example": said["example"]} | times
            print(*row.values(), sep=" | ", flush=True)
            yield row


def write_rows(folder: Path, rows: list[dict[str, str]]) -> None:
    """Write what was installed with what, as JSON and as a table; rows of other versions stay."""
    folder.mkdir(parents=True, exist_ok=True)
    path, tried = folder / "packages.json", {tuple(list(row.values())[:3]) for row in rows}
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [*(row for row in before if tuple(list(row.values())[:3]) not in tried), *rows]
    rows.sort(key=lambda row: ([int(part) for part in row["python"].split(".")], row["torch"], row["package"]))
    path.write_text(
        json.dumps({"machine": f"{platform.system()}, {platform.machine()}", "rows": rows}, indent=2) + "\n"
    )
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    about = "The README's example ran with each; its last line is shown. The sdist is installed after the wheel."
    (folder / "packages.md").write_text(
        f"# Where the packages install\n\n{about}\n\n{text}\n\n{f'{platform.system()}, {platform.machine()}'}\n"
    )


def main() -> None:
    """Check all packages of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--torch", nargs="+", default=[find_torch()])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    packages = sorted((*options.folder.glob("*.whl"), *options.folder.glob("*.tar.gz")))
    if not packages:
        sys.exit(f"Expected packages in {options.folder}, but found none. `make packages` builds them.")
    rows = []
    for torch in options.torch:
        for python in options.python:
            for row in check_packages(packages, python, torch):
                rows.append(row)
                if options.out:
                    write_rows(options.out, rows)


if __name__ == "__main__":
    main()
