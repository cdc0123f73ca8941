"""The public names, the documentation and the imports of the package."""

import ast
import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tomllib
from PIL import Image

import driftproof as dp
from cases import batches, source_data
from driftproof.bench import load, load_runs
from driftproof.cli import main
from networks import build

ROOT = Path(__file__).parents[1]
DESCRIPTORS = (property, functools.cached_property, classmethod, staticmethod)


def test_public_names_are_exactly_these():
    selections = "ConfidenceAbove ConfidenceDifference EntropyBelow EntropyWeight NonRedundant"
    classes = f"EMA Adapter Alarm Event Health Problem Record StepResult {selections}"
    functions = "adapt bn_adapt check conjugate cotta eata ent gce source swr tent ttn"
    functions += " asr cmf come deyo lame memo norm_ema paf_kip rdumb roid rotta sar sentinel sotta stamp t3a ttaug"
    choices = "after detectors gradients guards losses memories outputs regularizers scopes selection statistics"
    modules = f"augment errors methods monitor scores testing {choices}"
    expected = f"{classes} {functions} {modules}".split()
    assert sorted(dp.__all__) == sorted(expected)
    assert all(hasattr(dp, name) for name in dp.__all__)


def test_version_is_the_same_everywhere(capsys):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert dp.__version__ == declared
    assert f"## {declared}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {declared}" in (ROOT / "CITATION.cff").read_text()
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"driftproof {declared}\n"


def test_extras_that_are_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "Dockerfile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = {name for group in re.findall(r"(?:driftproof|'\.)\[([\w,]+)\]", text) for name in group.split(",")}
    assert {"data", "demo", "export", "monitor", "ray", "report", "serve", "video"} <= named
    assert named - set(extras) == set()
    readme = (ROOT / "README.md").read_text()
    assert [extra for extra in extras if extra not in ("test", "docs") and f"[{extra}]" not in readme] == []


def test_source_imports_nothing_newer_than_python_3_10():
    newer = {
        "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack",
                   "assert_never", "assert_type", "dataclass_transform", "override", "reveal_type"},
        "enum": {"StrEnum", "ReprEnum", "verify"},
        "contextlib": {"chdir"},
        "datetime": {"UTC"},
        "itertools": {"batched"},
        "tomllib": set(),
    }  # fmt: skip
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))):
            if isinstance(node, ast.ImportFrom) and node.module in newer:
                names = {alias.name for alias in node.names}
                found += (
                    [f"{path.name}: {node.module}"] if node.module == "tomllib" or names & newer[node.module] else []
                )
            elif isinstance(node, ast.Import) and any(alias.name == "tomllib" for alias in node.names):
                found.append(f"{path.name}: tomllib")
    assert found == []


def test_command_without_arguments_prints_help(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "Open-set test-time adaptation" in capsys.readouterr().out


def run_script(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_imports_nothing_else():
    script = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import driftproof
print(driftproof.__version__, sorted(set(driftproof.__all__) - set(dir(driftproof))))
after = {name.partition(".")[0] for name in sys.modules}
print(sorted(name for name in after - before if name not in sys.stdlib_module_names))
"""
    assert run_script(script) == f"{dp.__version__} []\n['driftproof']"


def test_core_imports_only_torch_and_safetensors_and_public_names_do_not_depend_on_import_order():
    """Both in one process, since each has to import torch."""
    script = """
import importlib, sys
import torch, safetensors.torch
before = {name.partition(".")[0] for name in sys.modules}
from driftproof import *
after = {name.partition(".")[0] for name in sys.modules}
print(sorted(name for name in after - before if name not in sys.stdlib_module_names))
import driftproof

def kinds():
    import driftproof
    return {name: type(getattr(driftproof, name)).__name__ for name in driftproof.__all__}

expected = kinds()
for name in ("problems", "scores", "methods.source"):
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "driftproof"]:
        del sys.modules[loaded]
    importlib.import_module(f"driftproof.{name}")
    if kinds() != expected:
        print(name)
print(expected["check"], expected["source"], expected["scores"], expected["errors"])
# A machine that only runs benchmarks needs no data-frame library.
sys.modules |= dict.fromkeys(["polars", "altair", "great_tables", "jinja2"])
import driftproof.bench.execute
from driftproof.cli.suites import find_suite
find_suite("openset")
"""
    assert run_script(script) == "['driftproof']\nfunction function module module"


def test_no_function_or_class_shares_its_name_with_a_module():
    """Importing the module would replace the function or class."""
    files = {module.name for module in pkgutil.iter_modules(dp.__path__)}
    assert [name for name in dp.__all__ if name in files and not inspect.ismodule(getattr(dp, name))] == []


def test_unknown_name_raises_attribute_error():
    assert not hasattr(dp, "tentt")
    with pytest.raises(AttributeError, match="'driftproof' has no attribute 'tentt'"):
        dp.tentt  # noqa: B018


def code_blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def write_camvid(root):
    """Write two frames per split, each with pedestrian and void pixels."""
    for split in ("train", "val", "test"):
        for place in range(2):
            frame = np.random.default_rng(place).integers(256, size=(36, 48, 3), dtype=np.uint8)
            labels = np.arange(36 * 48, dtype=np.uint8).reshape(36, 48) % 5
            labels[:6], labels[-6:] = 9, 11
            for folder, pixels in {split: frame, f"{split}annot": labels}.items():
                (root / "CamVid" / folder).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(root / "CamVid" / folder / f"{place}.png")
    return root


@pytest.fixture
def my_project(monkeypatch, tmp_path):
    """The module `my_project` that the documentation imports."""
    project = types.ModuleType("my_project")
    project.model = build("wide_resnet")
    project.stream = batches(3)
    project.source_loader = source_data()
    project.segmenter = build("segmentation")
    project.drive = batches(3, size=2)
    project.source_scenes = source_data(segmentation=True)
    project.data = write_camvid(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "my_project", project)


PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
REFERENCE = [*sorted((ROOT / "docs").glob("reference/*.md")), *sorted((ROOT / "docs").glob("methods/*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_of_documentation_run(page, tmp_path, monkeypatch, my_project, request):
    monkeypatch.chdir(tmp_path)
    for block in code_blocks(ROOT / page):
        if "import timm" in block:
            request.getfixturevalue("timm")
        exec(compile(block, page, "exec"), {})


def test_example_project_has_what_the_examples_import(tmp_path, monkeypatch):
    """The file of the home page, with a network that is not trained."""
    (text,) = re.findall(
        r'^```python title="my_project.py"\n(.*?)^```', (ROOT / "docs/index.md").read_text(), re.M | re.S
    )
    network = importlib.import_module("driftproof.demo.network")
    monkeypatch.setattr(network, "train_network", lambda *_: network.build_network())
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    exec(compile(text, "my_project.py", "exec"), names)
    docs = "".join((ROOT / page).read_text() for page in PAGES)
    imported = {
        name
        for line in re.findall(r"^from my_project import (.*?)(?:  #.*)?$", docs, re.M)
        for name in line.split(", ")
    }
    assert imported - set(names) == {"data"}
    assert set(re.findall(r"my_project:(\w+)", docs)) <= set(names)
    assert len(list((tmp_path / "photos").glob("*/*.png"))) == 400


def test_documentation_builds(tmp_path):
    """A broken link or a missing name is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"DRIFTPROOF_DOCS_SEARCH": "false"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    names = (page.relative_to(ROOT / "docs").with_suffix("") for page in REFERENCE)
    pages = "".join((tmp_path / "site" / name / "index.html").read_text() for name in names)
    shown = set(re.findall(r'id="(driftproof[^"]*)"', pages))
    # mkdocstrings silently leaves out a function in a file of its own name.
    missing = [place for place, homes in iter_public_objects() if not shown & homes]
    assert missing == []


def iter_public_objects():
    """Yield every function, class and method that is public or in a documented module, with the names of its entry."""
    text = "\n".join(page.read_text() for page in REFERENCE)
    named = re.findall(r"^::: (driftproof\.\w+)$", text, flags=re.MULTILINE)
    public = [f"driftproof.{name}" for name in dp.__all__ if inspect.ismodule(getattr(dp, name))]
    for module_name in dict.fromkeys(["driftproof", *public, *named]):
        module = getattr(dp, module_name.partition(".")[2], None) or importlib.import_module(module_name)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                package = thing.__module__.rpartition(".")[0]
                homes = {f"{home}.{name}" for home in (module.__name__, thing.__module__, package)}
                yield f"{module.__name__}.{name}", homes
                for member in iter_methods(thing) if inspect.isclass(thing) else ():
                    yield f"{module.__name__}.{name}.{member}", {f"{home}.{member}" for home in homes}


def iter_methods(cls):
    """Yield the names of the documented methods and properties that a class defines itself."""
    for name, member in vars(cls).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, DESCRIPTORS)) and member.__doc__:
            yield name


def test_documented_thresholds_are_those_of_the_code():
    page = (ROOT / "docs" / "safety.md").read_text()
    assert all(f"`{guard}`" in page for guard in (dp.guards.RollBack(), dp.guards.Reset(), dp.guards.FallBack()))
    for state, row in re.findall(r'^\| `"(collapsed|drifting)"` \| (.*) \|$', page, flags=re.MULTILINE):
        alone, together, ratio, alone_too = map(float, re.findall(r"(?:above|below) ([\d.]+)", row))
        at_limit = [{"disagreement": alone, "mean_entropy_ratio": ratio}, {"disagreement": together}]
        beyond = [
            {"disagreement": alone + 0.001},
            {"disagreement": together + 0.001, "mean_entropy_ratio": ratio - 0.001},
        ]
        if state == "collapsed":
            at_limit.append({"statistics_gap": alone_too})
            beyond.append({"statistics_gap": alone_too + 0.001})
        else:
            at_limit.append({"mean_entropy": alone_too, "kept": 1.0})
            beyond.append({"mean_entropy": alone_too - 0.001, "kept": 1.0})
        assert [dp.Health(**indicators).state == state for indicators in at_limit] == [False] * 3
        assert [dp.Health(**indicators).state == state for indicators in beyond] == [True] * 3


def test_readme_quotes_the_leaderboard_and_the_speed():
    readme = " ".join((ROOT / "README.md").read_text().split())
    table = (
        (ROOT / "docs" / "leaderboard.md").read_text().partition("### CIFAR-10-C, round 1\n")[2].partition("\nNot")[0]
    )
    rows = [[cell.strip("* ") for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    adapt = next(float(row[2]) for row in rows if row[0] == "adapt")
    assert f"([leaderboard](docs/leaderboard.md)) | {adapt:.1f} %" in readme
    assert f"**{len(dp.methods.__all__)} methods behind one call**" in readme
    ratios = (ROOT / "results" / "speed" / "limits" / "ratios.md").read_text()
    page = (ROOT / "docs" / "speed.md").read_text().partition("results/speed/limits")[2].partition("Health costs")[0]
    quoted = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(quoted) == 13
    assert all(line in ratios for line in quoted)
    (ratio,) = re.findall(r"^\| tf32: tent\+crowd, captured / plain loop \| ([\d.]+) \|", ratios, flags=re.MULTILINE)
    assert f"([speed](docs/speed.md)) | {ratio} |" in readme
    claims = (ROOT / "docs" / "reproducing.md").read_text().partition("<!-- results:claims -->")[2]
    verdicts = [line.split("|")[2] for line in claims.partition("<!-- /results -->")[0].splitlines()[4:] if "|" in line]
    assert [sum(word in verdict for verdict in verdicts) for word in ("does not hold", " cases")] == [3, 3]
    assert "three do not hold in our runs, and three hold in most cases only" in readme


def test_readme_names_the_versions_that_were_installed():
    rows = json.loads((ROOT / "results" / "packages" / "packages.json").read_text())["rows"]
    tried = {tuple(".".join(row[name].split(".")[:2]) for name in ("python", "torch")) for row in rows}
    assert tried == {("3.10", "2.6"), ("3.12", "2.13"), ("3.13", "2.13")}
    assert len({row["package"].rpartition(".")[2] for row in rows}) == 2
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "with Python 3.10 and torch 2.6, and with Python 3.12 and 3.13 and torch 2.13." in readme


def test_documents_quote_the_times_of_the_archives():
    page = (ROOT / "docs" / "reproducing.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d+) \| ([\d.]+) \|$", page, flags=re.MULTILINE)
    assert [name for name, *_ in rows] == ["classification", "tiny", "camvid"]
    for name, runs, hours in rows:
        seconds = load(ROOT / "results" / name).filter(measure="seconds")
        assert (seconds["run"].n_unique(), f"{seconds['value'].sum() / 3600:.1f}") == (int(runs), hours)
        assert load_runs(ROOT / "results" / name)["hardware"].unique().to_list() == ["NVIDIA H200"]
        if name == "classification":
            run = seconds.filter(method="tent+crowd", stream="cifar10-c", setting="open")
            assert f"took {run['value'].sum() / 3600:.1f} hours" in " ".join(page.split())


def test_pictures_show_the_rows():
    """The lines of the README's picture, recomputed; texts may be set otherwise by other fonts."""
    pictures = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))
    results = ROOT / "results"
    frame = pictures["round_errors"](results / "classification", results / "sentinel" / "earlier-default")
    lines = re.compile(r'role="graphics-symbol"[^>]*aria-roledescription="line mark"[^>]*d="([^"]+)"')
    drawn = lines.findall((ROOT / "docs" / "images" / "rounds.svg").read_text())
    assert len(drawn) == frame["label"].n_unique() == 5
    for label, path in zip(pictures["NAMES"].values(), drawn, strict=True):
        heights = [float(point.partition(",")[2]) for point in re.split("[ML]", path)[1:]]
        errors = frame.filter(label=label)["value"].to_list()
        assert heights == pytest.approx([3 * (100 - error) for error in errors], abs=0.01)


def test_documents_quote_the_measured_safety():
    safety = " ".join((ROOT / "docs" / "safety.md").read_text().split())
    networks = json.loads((ROOT / "results" / "safety" / "safety.json").read_text())["networks"]
    rows = [row for rows in networks.values() for row in rows.values()]
    lost = max(row["source"] - row["adapt"] for row in rows)
    by_command = max(row["source"] - row["command"] for row in rows if row.get("command") is not None)
    assert not any(row["failures"] for row in rows)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"([table](results/safety/safety.md)) | {len(rows)} of {len(rows)}; the worst is {lost:.1f} points" in readme
    assert f"In {len(rows)} of {len(rows)} rows ({len(networks['small'])} streams, two networks)" in safety
    assert f"the worst is {lost:.1f} below, clean images with the small network" in safety
    assert f"measured in two rows of each network, is at most {by_command:.1f} below" in safety
    one, ordered = networks["wrn40_2"]["clean, batches of 1"], networks["wrn40_2"]["clean, sorted by class"]
    assert f"falls to {one['plain']:.1f} % accuracy on single images and to {ordered['plain']:.0f} %" in safety
    assert f"where `dp.adapt` keeps {ordered['adapt']:.0f} %" in safety
    guards = json.loads((ROOT / "results" / "guards" / "guards.json").read_text())
    (verdict,) = guards["verdicts"].values()
    assert (verdict["collapsed"], verdict["rescued"], verdict["healthy"], verdict["false alarms"]) == (20, 20, 20, 0)
    assert "Of twenty runs that collapse, all twenty end" in safety
    (above,) = [
        line["final"] - line["source"] for line in guards["with guards"] if line["final"] > line["source"] + 0.1
    ]
    assert f"one ends {above:.1f} above it" in safety
    assert f"In {verdict['healthy batches']:,} batches of twenty healthy runs there is no false alarm" in safety


def test_example_prints_how_to_start_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["data_parallel.py"])
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(ROOT / "examples" / "data_parallel.py"), run_name="__main__")
    assert "torchrun --nproc-per-node 2" in capsys.readouterr().err


def test_errors_share_one_base_class():
    for name in dp.errors.__all__:
        assert issubclass(getattr(dp.errors, name), dp.errors.DriftproofError)
