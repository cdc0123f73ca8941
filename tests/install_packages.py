"""Install every package in a folder in a new environment and run the README's example there.

    python tests/install_packages.py dist [--python python3.13]

torch has the version of constraints.txt, everything else the newest that fits, as a user would get. What the wheel
has to hold besides Python files is looked for in the installed package. `make packages` runs this.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
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


def find_example() -> str:
    """Return the first Python block of the README."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)[0]


def find_torch() -> str:
    """Return the pinned requirement of torch."""
    return re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)[0]


def check_package(package: Path, python: str) -> None:
    """Install a package in a new environment and run the example in an empty folder."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        inside, work = f"{folder}/venv/bin/python", Path(folder, "work")
        work.mkdir()
        for requirement in (find_torch(), str(package.resolve())):
            subprocess.run([inside, "-m", "pip", "install", "--quiet", requirement], check=True)
        subprocess.run([inside, "-c", LOOK, *DATA_FILES], check=True, cwd=work)
        for command in ([inside, "-c", find_example()], [f"{folder}/venv/bin/driftproof", "--version"]):
            output = subprocess.run(command, check=True, cwd=work, capture_output=True, text=True).stdout
            print(output.splitlines()[-1])
    print(f"{package.name} works with {python}: {time.monotonic() - started:.0f} s")


def main() -> None:
    """Check all packages of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    packages = sorted((*options.folder.glob("*.whl"), *options.folder.glob("*.tar.gz")))
    if not packages:
        sys.exit(f"Expected packages in {options.folder}, but found none. `make packages` builds them.")
    for package in packages:
        check_package(package, options.python)


if __name__ == "__main__":
    main()
