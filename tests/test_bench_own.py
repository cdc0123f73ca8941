"""Methods, models and images of a user's own, from a folder outside the package."""

import re
import runpy
import shlex
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import driftproof as dp
from driftproof import bench
from driftproof.bench import Benchmark, Store
from driftproof.bench.plan import RunFilter, plan_runs
from driftproof.bench.spec import Spec
from driftproof.cli.suites import find_suite
from driftproof.errors import ConfigurationError, ExecutionError, InputError, ModelError, StateError
from driftproof.models import save_checkpoint
from driftproof.named import hash_sources, load_named, name_of
from driftproof.streams.datasets import find_dataset
from networks import CLASSES, build
from rows_on_disk import run_command

SOURCES = {
    "my_methods": """
import driftproof as dp

def cautious(model, *, lr=0.001, **options):
    return dp.tent(model, lr=lr, select=dp.ConfidenceDifference(), **options)

def short(model, *, lr=0.001):
    return dp.tent(model, lr=lr)

def raising(model, **options):
    raise RuntimeError("no luck")

class Exploding(dp.selection.Selection):
    def weights(self, step):
        raise IndexError("out of range")

def late(model, **options):
    return dp.tent(model, select=Exploding(), **options)

def wrong(model, **options):
    return model
""",
    "my_nets": """
import torch
from networks import build as small

def build():
    return small("wide_resnet")

def nan():
    model = build()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model

def probabilities():
    return torch.nn.Sequential(build(), torch.nn.Softmax(dim=1))

def random():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 8), torch.nn.BatchNorm2d(5), torch.nn.Flatten())
""",
    "my_data": """
import numpy as np

DOMAINS = ("day", "night")

def stream(domain, severity):
    images = np.random.default_rng(len(domain)).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)
    return images // (1 if domain == "day" else severity), np.arange(8) % 5

def unknown(domain, severity):
    return np.random.default_rng(9).random((5, 3, 8, 8))

def missing(domain, severity):
    return np.load("nowhere.npy")

def too_many(domain, severity):
    images, _ = stream(domain, severity)
    return images, np.arange(8)
""",
}

PROJECT = {"model": "my_nets:build", "images": "my_data:stream", "unknown": "my_data:unknown", "batch_size": 8}
WORDS = ("--model", "my_nets:build", "--images", "my_data:stream", "--unknown", "my_data:unknown", "--batch-size", 8)


def write_project(folder, changed=()):
    for name, text in (SOURCES | dict(changed)).items():
        sys.modules.pop(name, None)
        (folder / f"{name}.py").parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A folder with the user's modules, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "300")
    write_project(tmp_path)
    yield tmp_path
    for name in SOURCES:
        sys.modules.pop(name, None)


run = partial(run_command, "bench", "run")


def rows_by_method(folder):
    return {run.spec.method: run.rows for run in Store(folder).runs()}


def test_command_and_function_make_the_same_runs(project):
    methods = ["tent+crowd", "my_methods:cautious"]
    assert run("--methods", ",".join(methods), *WORDS, "--rounds", 2, "--out", "words") == 0
    mine = {name: load_named(value) for name, value in PROJECT.items() if name != "batch_size"}
    cautious = load_named("my_methods:cautious")
    folder = bench.run(methods=["tent+crowd", cautious], **mine, batch_size=8, rounds=2, out="functions")
    assert rows_by_method(folder) == rows_by_method("words")
    theirs, own = (rows_by_method("words")[method] for method in methods)
    assert theirs == own, "the same method under another name"
    assert [(row["round"], row["domain"], row["samples"]) for row in own] == [
        (round, domain, 16) for round in (1, 2) for domain in ("day", "night")
    ]
    for name, command in {"words": "driftproof bench run --methods", "functions": "driftproof.bench.run("}.items():
        (entry,) = Store(name).metadata["commands"]
        assert entry["command"].startswith(command)
        assert "my_methods:cautious" in entry["command"]
        assert (entry["driftproof"], entry["torch"]) == (dp.__version__, torch.__version__)
    assert run("--methods", ",".join(methods), *WORDS, "--rounds", 2, "--out", "words") == 0
    assert len(Store("words").metadata["commands"]) == 1, "resuming is the same command"


def write_folder(root, classes, count=5):
    for label in range(classes):
        (root / f"class {label}").mkdir(parents=True)
        for index in range(count):
            pixels = np.random.default_rng(10 * label + index).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"class {label}" / f"{index}.png")


def test_folders_become_a_corrupted_stream(project):
    write_folder(project / "known", CLASSES)
    write_folder(project / "strange", 2)
    save_checkpoint("net.safetensors", build("wide_resnet"), {})
    folders = ("--model", "my_nets:build", "--weights", "net.safetensors", "--images", "known", "--unknown", "strange")
    words = ("--methods", "source,eata", "--domains", "fog,contrast", "--batch-size", 10, "--source", "known")
    assert run(*folders, *words, "--option", "eata.fisher_samples=10", "--out", "out") == 0
    runs = {run.spec.method: run for run in Store("out").runs()}
    spec = runs["source"].spec
    assert (spec.images, spec.unknown) == ("known", "strange")
    assert dict(runs["eata"].spec.options) == {"fisher_samples": 10, "novelty": "default"}
    given = {"model": "my_nets:build", "images": "known", "unknown": Path("strange"), "domains": ["fog"]}
    files = Benchmark(methods=["source"], **given).files()
    batches = list(files.stream(spec, 1))
    assert [batch.known.tolist() for batch in batches] == [[True] * 5 + [False] * 5] * (2 * CLASSES)
    clean = dp.data.folder(Path("known"))
    foggy = dp.corruptions.corrupt(clean.batch(range(len(clean))), "fog", 5, dataset="known") / 255
    seen = torch.cat([batch.images[batch.known] for batch in batches if batch.domain == "fog"])
    order = [(foggy == image).flatten(1).all(dim=1).nonzero().item() for image in seen]
    assert sorted(order) == list(range(len(clean))) != order, "shuffled, since classes are stored one after the other"
    labels = torch.cat([batch.labels[batch.known] for batch in batches if batch.domain == "fog"])
    assert torch.equal(labels, clean.labels[order])
    assert run(*folders, *words, "--limit", 3, "--out", "few") == 0
    assert {row["samples"] for rows in rows_by_method("few").values() for row in rows} == {6}


def test_changed_source_is_a_new_run_and_says_so(project, capsys):
    words = ("--methods", "source,my_methods:cautious", *WORDS, "--out", "out")
    assert run(*words) == 0
    before = {run.spec: run.rows for run in Store("out").runs()}
    write_project(project, {"my_methods": SOURCES["my_methods"].replace("lr=0.001", "lr=0.1")})
    capsys.readouterr()
    assert run(*words) == 0
    assert "The source of my_methods:cautious has changed: its runs start anew" in capsys.readouterr().err
    after = {run.spec: run.rows for run in Store("out").runs()}
    (new,) = set(after) - set(before)
    assert new.method == "my_methods:cautious"
    assert {spec: after[spec] for spec in before} == before
    assert run(*words) == 0
    assert "changed" not in capsys.readouterr().err
    hashes, importing = {hash_sources("my_methods:cautious")}, "import torch, helpers.rates\n" + SOURCES["my_methods"]
    helpers = {"helpers/__init__": "", "helpers/rates": "from . import more", "helpers/more": ""}
    for changed in ("my_methods", "helpers/rates", "helpers/more"):
        helpers[changed] = helpers.get(changed, importing) + "\nRATE = 1\n"
        write_project(project, helpers)
        hashes.add(hash_sources("my_methods:cautious"))
    assert len(hashes) == 4, "what a method imports from its folder is part of it"
    plain = Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",))
    assert "code" not in plain.as_data(), "archived specs keep their digests"
    assert Spec.from_data(new.as_data()) == new != plain


def test_failed_cells_are_named_and_the_others_go_on(capsys):
    methods = ["my_methods:raising", "my_methods:late", "my_methods:wrong", "my_methods:cautios", "tnet", "my_method:x"]
    assert run("--methods", ",".join([*methods, "my_methods:short"]), *WORDS, "--out", "out") == 1
    output = capsys.readouterr().err
    lines = [" ".join(line.split()) for line in output.splitlines()]
    reasons = [
        "Expected calling my_methods:raising to work, but it raised RuntimeError: no luck (",
        "IndexError: out of range",
        "Expected my_methods:wrong to return a driftproof.Adapter, but it returned a",
        "Expected a known name in my_methods, but got 'cautios'. Did you mean cautious?",
        "Expected a known method, but got 'tnet'. Did you mean tent?",
        "but my_method does not exist. Run the command in the folder that holds it",
    ]
    for method, reason in zip(methods, reasons, strict=True):
        assert any(line.startswith(f"{method} my_data") and reason in line for line in lines), output
    assert lines[-1] == "error: 6 of 7 runs failed; the others are done."
    assert len(rows_by_method("out")["my_methods:short"]) == 2
    words = ("--methods", "my_methods:short,source", "--option", "my_methods:short.rate=1")
    assert run(*words, *WORDS, "--out", "out") == 1
    assert "Expected a known option of my_methods:short, but got 'rate'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"model": "my_nets:nan"}, ModelError, "Expected my_nets:nan to answer .* The model returns NaN or Inf"),
        ({"model": "my_nets:probabilities"}, ModelError, "returns probabilities, not logits"),
        ({"model": "wrn40"}, ConfigurationError, "Did you mean wrn40_2"),
        ({"images": "my_data:missing", "domains": ["fog"]}, InputError, r"FileNotFoundError.*nowhere.*my_data.py:\d+"),
        ({"images": "my_data:too_many"}, InputError, r"labels of my_data:too_many in 0\.\.4.* but got 7"),
        ({"unknown": "my_data:strem"}, ConfigurationError, "Did you mean stream"),
        ({"weights": "nowhere.pt"}, InputError, "Expected nowhere.pt to be a file of weights for my_nets:build"),
        ({"methods": ["eata"]}, InputError, "Expected source images for my_data:stream, since eata is prepared"),
    ],
)  # fmt: skip
def test_unusable_model_or_data_is_a_named_error_of_the_cell(changed, error, message):
    with pytest.raises(ExecutionError, match=message) as caught:
        bench.run(**({"methods": ["tent"], **PROJECT} | changed), out="out")
    assert [type(reason) for reason in caught.value.failures.values()] == [error]


def test_suite_is_a_file_to_fill_in(project, capsys):
    assert [run_command("bench", "new", "my_suite.toml") for _ in range(2)] == [0, 2]
    suite = find_suite("my_suite.toml")
    assert [spec.method for spec in suite.specs()] == ["source", "tent+crowd", "my_methods:cautious"]
    assert {(spec.images, spec.unknown, spec.severity) for spec in suite.specs()} == {("known", "unknown", 5)}
    write_folder(project / "photos" / "known", CLASSES)
    write_folder(project / "photos" / "unknown", 1)
    assert run("my_suite.toml", "--domains", "fog", "--batch-size", 10, "--out", "out") == 0
    methods = ("source", "tent+crowd", "my_methods:cautious")
    assert {name: len(rows) for name, rows in rows_by_method("out").items()} == dict.fromkeys(methods, 2)
    Path("bad.toml").write_text('methods = ["tent"]\nmodle = "x"\n')
    for words, message in {
        ("bad.toml",): "Expected a known entry of bad.toml, but got 'modle'. Did you mean model?",
        ("nowhere.toml",): "Expected a suite in nowhere.toml",
        ("--methods", "tent"): "Expected model and images in the options, or a suite, but got none.",
        ("table1", "--model", "x"): "Expected `--model` without a suite of the library only.",
        (*WORDS, "--task", "costs"): "Expected `--task` with a suite of the library only.",
    }.items():
        assert run(*words) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_own_method_runs_on_every_stream_of_a_suite_and_the_stream_is_what_the_function_returns():
    suite = find_suite("table2")
    jobs = plan_runs(suite, RunFilter(methods=["tent", "my_methods:cautious"], images=["cifar10-c"]))
    assert [(job.spec.method, job.spec.setting) for job in jobs] == [
        ("tent", "closed"), ("tent", "open"), ("my_methods:cautious", "closed"), ("my_methods:cautious", "open"),
    ]  # fmt: skip
    assert {job.spec.code for job in jobs[2:]} == {hash_sources("my_methods:cautious")}
    assert jobs[0].spec in set(suite.specs())
    benchmark = Benchmark(**PROJECT, methods=["source"])
    (spec,) = benchmark.suite().specs()
    batches = list(benchmark.files().stream(spec, 1))
    known = torch.cat([batch.images[batch.known] for batch in batches if batch.domain == "night"])
    images, labels = load_named("my_data:stream")("night", 5)
    assert torch.equal(known, torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
    assert torch.cat([batch.labels[batch.known] for batch in batches]).tolist() == [*labels, *labels]
    unknown = torch.from_numpy(load_named("my_data:unknown")("day", 5)[:4])
    assert torch.allclose(batches[0].images[~batches[0].known], unknown.float(), atol=0.5 / 255 + 1e-6)


def test_functions_without_a_name_and_domains_and_models_that_differ_at_every_call_are_refused():
    with pytest.raises(ConfigurationError, match="other processes can import by its name"):
        name_of(lambda model: model)
    with pytest.raises(ConfigurationError, match=r"Define `DOMAINS = \(…\)` in my_nets"):
        Benchmark(**PROJECT | {"images": "my_nets:build"}, methods=["tent"]).suite()
    with pytest.raises(ConfigurationError, match="Did you mean tent"):
        Benchmark(**PROJECT, methods=["tent"], options={"tnet": {"lr": 1}}).suite()
    assert name_of(dp.tent) == "driftproof.methods.tent:tent"
    assert find_dataset("my_data:stream").images(Path(), "day", 1).name == "my_data:stream('day', 1)"
    random = {**PROJECT, "methods": ["source"], "model": "my_nets:random"}
    bench.run(**random, out="out")
    with pytest.raises(StateError, match=r"weights my_nets:random \w+ my_data:stream \w+ was .* and is .* here"):
        bench.run(**random, out="out", rounds=2)


SHORTER = {
    "zip(digits.images,": "zip(digits.images[:150],",
    "range(10)": "range(2)",
    "rounds=5": "rounds=1, limit=20",
    '["gaussian_noise", "motion_blur", "fog", "contrast", "pixelate"]': '["contrast"]',
}


def test_page_can_be_followed_word_by_word(project, capsys, monkeypatch):
    """Write the files of docs/benchmarking.md and run its commands, on fewer images."""
    page = (Path(__file__).parents[1] / "docs" / "benchmarking.md").read_text()
    for name, text in re.findall(r'^```python title="(\S+)"\n(.*?)^```', page, flags=re.DOTALL | re.MULTILINE):
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        (project / name).write_text(text)
        sys.modules.pop(Path(name).stem, None)
    monkeypatch.syspath_prepend(project)
    blocks = re.findall(r"^```bash\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert lines.pop(0) == "pip install 'driftproof[demo]'"
    for program, *words in map(shlex.split, lines):
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
            continue
        assert program == "driftproof"
        fewer = ("--limit", 20) if "run" in words else ()
        fewer += ("--rounds", 1, "--domains", "contrast") if "--rounds" in words else ()
        assert run_command(*words, *fewer) == 0
    before = rows_by_method("results")
    assert set(before) == {"source", "tent+crowd", "my_methods:cautious"}
    assert [row["domain"] for row in rows_by_method("evening")["source"]] == ["noon", "dusk", "night"]
    assert "my_methods:cautious" in (project / "results" / "report.html").read_text()
    capsys.readouterr()
    for script in ("look.py", "draw.py", "run.py"):
        runpy.run_path(script)
    assert "my_methods:cautious" in capsys.readouterr().out
    assert len(Store("results").metadata["commands"]) == 2
    after = rows_by_method("results")
    assert after["my_methods:cautious"] == before["my_methods:cautious"], "the same run, found again"
