"""The demo, from the command line."""

import json
import sys
from dataclasses import replace

import polars as pl
import pytest
import torch

from driftproof.bench import Results, load
from driftproof.bench.local_files import LocalFiles
from driftproof.cli import main
from driftproof.data import digits
from driftproof.paper import suite


def files_of(folder):
    return LocalFiles(folder, folder / "five_layers_digits-0.safetensors")


def run_demo(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["demo", *map(str, arguments)])
    return caught.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One round of the demo, with two of its fifteen corruptions."""
    folder = tmp_path_factory.mktemp("demo") / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["driftproof.bench.demo"], "CORRUPTIONS", ("frost", "contrast"))
        patch.setattr("driftproof.training.digits._EPOCHS", 6)
        assert run_demo("--out", folder, "--rounds", 1) == 0
        yield folder


def test_demo_measures_every_run_of_its_suite(folder):
    results = Results(folder)
    assert set(results.runs) == set(suite("demo").specs())
    assert all(results.rounds(spec) == 1 for spec in results.runs)
    assert "Frost textures are procedural, not photographs." in (folder / "report.html").read_text()


def test_second_demo_shows_stored_results(folder, capsys):
    before = {path: path.read_bytes() for path in folder.glob("cells/*/*.jsonl")}
    assert run_demo("--out", folder, "--rounds", 1) == 0
    assert {path: path.read_bytes() for path in folder.glob("cells/*/*.jsonl")} == before
    shown = capsys.readouterr().out
    errors = load(folder).filter(measure="error").group_by("method").agg(pl.col("value").mean())
    for method, error in errors.rows():
        (line,) = (line for line in shown.splitlines() if line.split()[:1] == [method])
        assert float(line.split()[1]) == pytest.approx(error, abs=0.0051)
    assert f"Report: {folder / 'report.html'}" in shown.replace("\n", "")


def test_another_network_is_refused_in_the_same_folder(folder, capsys, monkeypatch):
    monkeypatch.setattr("driftproof.training.digits._EPOCHS", 1)
    assert run_demo("--out", folder, "--rounds", 1, "--seed", 1) == 2
    assert "were made differently: weights five_layers digits-c was" in " ".join(capsys.readouterr().err.split())


def test_network_classifies_clean_digits(folder):
    (spec, *_) = Results(folder).runs
    images = digits()
    with torch.no_grad():
        predicted = files_of(folder).model(spec)(images.batch(range(len(images))).float() / 255).argmax(1)
    assert (predicted == images.labels).float().mean() > 0.97


def test_stream_severity_does_not_depend_on_earlier_streams(folder):
    (spec, *_) = Results(folder).runs
    harsh, mild = replace(spec, domains=("fog",)), replace(spec, domains=("fog",), severity=1)
    digits_bench, fresh = files_of(folder), files_of(folder)
    after_another = [next(iter(digits_bench.stream(one, 1))).images for one in (harsh, mild)][-1]
    assert torch.equal(after_another, next(iter(fresh.stream(mild, 1))).images)
    assert not torch.equal(after_another, next(iter(fresh.stream(harsh, 1))).images)


def test_batches_are_half_unknown(folder):
    results = Results(folder)
    (spec, *_) = results.runs
    first = next(iter(files_of(folder).stream(spec, 1)))
    assert (first.num_known, len(first.labels)) == (50, 100)
    known, unknown = len(digits()), round(50 * (len(digits()) % 50) / 50) + 50 * (len(digits()) // 50)
    assert set(load(folder).filter(measure="samples")["value"]) == {known + unknown}
    fingerprints = json.loads((folder / "folder.json").read_text())
    (images,) = (text for name, text in fingerprints.items() if name.startswith("images digits-c "))
    assert images.startswith(f"{known} images")
