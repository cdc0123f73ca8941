"""Pages that scripts in benchmarks/ wrote follow from the archived rows and times."""

import dataclasses
import itertools
import json
import math
import runpy
import statistics
import sys
from pathlib import Path

import polars as pl
import pytest

from driftproof.bench import Results, Spec
from driftproof.corruptions import CORRUPTIONS
from driftproof.paper import SUITES
from test_results import write_run

ROOT = Path(__file__).parents[1]
SPEED = ROOT / "results" / "speed"
STATELESS = ("source", "bn_adapt")


def read_archive(folder):
    """Return specs by run, and a function from run, round and measure to the numbers, without the library."""
    runs = pl.read_parquet(folder / "runs.parquet", columns=["run", "spec"])
    table = pl.read_parquet(folder / "measures.parquet").group_by("run", "round", "measure").agg("value")
    values = {tuple(key): numbers for *key, numbers in table.iter_rows()}
    return {run: json.loads(spec) for run, spec in runs.iter_rows()}, values


def round_means(archive, run, measure="error"):
    """Return the mean over domains of each complete round."""
    specs, values = archive
    rounds = [
        values.get((run, round, measure), [])
        for round in itertools.takewhile(lambda r: (run, r, measure) in values, itertools.count(1))
    ]
    return [statistics.fmean(each) for each in rounds if len(each) == len(specs[run]["domains"]) and None not in each]


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/runs.parquet")), ids=lambda path: path.parent.name)
def test_table_numbers_follow_from_archived_rows(folder):
    archive, results, compared = read_archive(folder.parent), Results(folder.parent), 0
    for filled in results.tables(table for make in SUITES.values() for table in make().tables):
        for entry in filled.table.entries:
            value = filled.values[entry.row, entry.column]
            if entry.domain is None and value.ours is not None:
                rounds = [round_means(archive, run.name, entry.metric) for run in value.runs]
                means = [each[min(value.round, len(each)) - 1] for each in rounds]
                assert value.ours == pytest.approx(statistics.fmean(means), abs=1e-9)
                stateful = [
                    len(each) for each, run in zip(rounds, value.runs, strict=True) if run.method not in STATELESS
                ]
                assert value.round == min([entry.round, *stateful])
                compared += 1
    assert compared or folder.parent.name in ("gradients", "camvid-rates")


@pytest.mark.parametrize(
    ("page", "folders", "at_most"),
    [
        ("precision", ["speed/fp32", "classification", "speed/bf16", "speed/bf16-compile"], 0.3),
        ("precision-short", ["speed/short-fp32", "speed/short-bf16", "speed/short-bf16-graph"], math.inf),
    ],
)
def test_precision_pages_follow_from_archived_rows(page, folders, at_most):
    archives = [read_archive(ROOT / "results" / folder) for folder in folders]
    (run,) = archives[-1][0]
    means = [round_means(archive, run)[:10] for archive in archives]
    lines = [line.strip("| ").split(" | ") for line in (SPEED / f"{page}.md").read_text().splitlines()]
    shown = [[float(number) for number in line[1:]] for line in lines if line[0].startswith("round")]
    assert shown == [pytest.approx(each, abs=0.0051) for each in zip(*means, strict=True)]
    gaps = [[b - a for a, b in zip(*two, strict=True)] for two in itertools.combinations(means, 2)]
    told = [[float(number) for number in line[2:]] for line in lines if len(line) == 4 and line[2][0] in "+-"]
    told = told[-len(gaps) :]
    assert told == [pytest.approx([statistics.fmean(each), max(map(abs, each))], abs=0.0051) for each in gaps]
    rejected = [100 * statistics.fmean(round_means(archive, run, "rejected")[:10]) for archive in archives]
    (shares,) = (line[1:] for line in lines if line[0] == "rejected, mean")
    assert list(map(float, shares)) == pytest.approx(rejected, abs=0.0051)
    assert len(shown) == 10
    assert all(abs(over_all) <= 0.3 and in_one_round <= at_most for over_all, in_one_round in told)


@pytest.mark.parametrize(
    ("page", "folder", "round"),
    [("first", "first-rounds", 1), ("open", "bf16-first", 1), ("before", "before", 1), ("later", "defaults", 5)],
)
def test_repeated_rounds_follow_from_archived_rows(page, folder, round):
    pair = read_archive(SPEED / folder), read_archive(ROOT / "results" / "classification")
    numbers = [[round_means(archive, run)[round - 1] for archive in pair] for run in pair[0][0]]
    lines = [line.strip("| ").split(" | ") for line in (SPEED / f"precision-{page}.md").read_text().splitlines()]
    shown = [[float(cell.split()[0]) for cell in line[1:3]] for line in lines if " on " in line[0]]
    assert sorted(shown) == [pytest.approx(each, abs=0.0051) for each in sorted(numbers)]


@pytest.mark.parametrize("images", ["cifar10-c", "cifar100-c"])
def test_tent_scores_match_collapse_to_one_class(images, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    format_page = runpy.run_path(str(ROOT / "benchmarks" / "collapsed.py"))["format_page"]
    folder = ROOT / "results" / "collapsed"
    found = json.loads((folder / f"{images}.json").read_text())
    assert (folder / f"{images}.md").read_text() == format_page(found["classes"], found["protocol"])
    archive = read_archive(ROOT / "results" / "classification")
    facts = {
        run: (spec["method"], spec["images"], spec["seed"], bool(spec["unknown"])) for run, spec in archive[0].items()
    }
    (tent,) = (run for run, fact in facts.items() if fact == ("tent", images, 0, True))
    names = [f"{protocol}/{kind}" for protocol in ("including", "excluding") for kind in ("auroc", "fpr")]
    ends = [round_means(archive, tent, f"confidence_difference/{name}")[49] for name in names]
    gaps = [
        max(abs(scores[name] - end) for name, end in zip(names, ends, strict=True))
        for scores in found["classes"].values()
    ]
    assert min(gaps) < 3  # points: computed on a fifth of the images and in another precision


@pytest.mark.parametrize(("name", "method"), [*itertools.product(["cifar10", "cifar100"], ["source", "bn_adapt"])])
def test_table_of_corruption_errors(name, method):
    folder = ROOT / "results" / "corruptions"
    errors = json.loads((folder / f"{name}.json").read_text())["errors"][method]
    lines = (folder / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {name}, {method} |"))
    values = [errors[corruption] for corruption in CORRUPTIONS]
    shown = [float(cell) for cell in line.strip("| ").split(" | ")[1:]]
    assert shown == pytest.approx([errors["clean"], sum(values) / 15, *values], abs=0.051)


def test_speed_ratios_follow_from_the_times():
    found = json.loads((SPEED / "gpu.json").read_text())
    crowd, loop = "graph tent+crowd", "plain loop"
    pairs = {
        "tf32: tent+crowd, captured / plain loop": (f"tf32 {crowd}", loop),
        "bf16: tent+crowd, captured / plain loop": (f"bf16 {crowd}", loop),
        "tf32: tent+crowd / tent, both captured": (f"tf32 {crowd}", "tf32 graph tent"),
        "tf32: peak memory, tent+crowd, captured / plain loop": (f"tf32 {crowd}", loop),
        "tf32: tent with Blend(0.5) / tent, both captured": ("tf32 graph tent, Blend(0.5)", "tf32 graph tent"),
        "WRN-40-2, eager: tent / by hand": ("eager tent", loop),
        "WRN-40-2, eager: tent+crowd / by hand": ("eager tent+crowd", f"{loop}, tent+crowd"),
        "ResNet-50, eager: tent / by hand": ("ResNet-50, eager tent", f"ResNet-50, {loop}"),
        "ResNet-50, eager: tent+crowd / by hand": ("ResNet-50, eager tent+crowd", f"ResNet-50, {loop}, tent+crowd"),
    }
    rows = [line.split("|")[1:4] for line in (SPEED / "ratios.md").read_text().splitlines() if line.count("|") == 4][2:]
    missed = []
    for name, ratio, limit in rows:
        title = name.strip().replace("recorded", "captured")  # older measurements say so
        one, other = pairs.pop(title)
        kind = found["peak" if "peak memory" in title else "ms"]
        assert float(ratio) == pytest.approx(kind[one] / kind[other], abs=6e-4)
        missed += [title] if float(ratio) > float(limit) else []
    # The one limit that the archived run misses, and that the page says it misses.
    assert set(missed) <= {"WRN-40-2, eager: tent / by hand", "WRN-40-2, eager: tent+crowd / by hand"}
    assert not missed or "The\nWRN-40-2 does not" in (ROOT / "docs/speed.md").read_text()
    assert not any(one in found["ms"] and other in found["ms"] for one, other in pairs.values()), "all are shown"


def test_scene_ratios_follow_from_times_and_engines_select_the_same():
    for name in ("graph", "channels-last", "eager"):
        found = json.loads((SPEED / f"scenes-{name}.json").read_text())
        fastest = min((row for row in found["ms"] if row != "tent"), key=found["ms"].get)
        ratios = [found[kind][fastest] / found[kind]["tent"] for kind in ("ms", "peak")]
        assert list(found["ratios"].values()) == pytest.approx(ratios)
        assert name != "graph" or all(found["ratios"][which] <= most for which, most in found["limits"].items())
    for precision in ("tf32", "bf16"):
        for each in json.loads((SPEED / f"agreement-{precision}.json").read_text())["rounds"]:
            assert each["graph"] == each["eager"]
            assert each["graph"]["masks agree %"] == 100


def test_archives_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file()) < 8 * 2**20


def compare_precisions(monkeypatch, capsys, *words):
    script = str(ROOT / "benchmarks" / "precision.py")
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    return ended.value.code, capsys.readouterr().out


def test_precision_page_titles_are_unique(tmp_path, monkeypatch, capsys):
    spec = Spec("tent", "cifar10-c", "wrn40_2", unknown="svhn-c", options=(("lr", 0.1),), domains=("fog", "snow"))
    others = {
        "lr=0.2": {"options": (("lr", 0.2),)},
        "seed=1": {"seed": 1},
        "network=wrn28_10": {"model": "wrn28_10"},
        "unknown=lsun-c": {"unknown": "lsun-c"},
        "batches of 64": {"batch_size": 64},
        "fog, frost": {"domains": ("fog", "frost")},
    }
    for words, changed in others.items():
        for name, precision, error in (("a", "fp32", 10.0), ("b", "bf16", 50.0)):
            home = tmp_path / words / name
            write_run(home, dataclasses.replace(spec, **changed), [[error] * 2] * 2, precisions=(precision,))
            for same in (spec, dataclasses.replace(spec, method="ent")):
                write_run(home, same, [[10.0] * 2] * 2, precisions=(precision,))
        code, page = compare_precisions(monkeypatch, capsys, tmp_path / words / "a", tmp_path / words / "b")
        assert code == 1, "forty points in one of the runs"
        titles = [line.partition(";")[0] for line in page.splitlines() if " on cifar10-c" in line]
        assert len(set(titles)) == len(titles) == 3
        assert "ent on cifar10-c, open" in titles, "no longer title is needed"
        assert any(title.startswith("tent on ") and title.endswith(f", {words}") for title in titles)


def test_precision_of_a_round_is_that_of_its_rows_and_needs_a_common_one(tmp_path, monkeypatch, capsys):
    spec = Spec("tent", "cifar10-c", "wrn40_2", domains=("fog", "snow"))
    for name in ("a", "b"):
        write_run(tmp_path / "begun" / name, spec, [[10.0]])
        write_run(tmp_path / "begun" / name, dataclasses.replace(spec, task="costs"), [[10.0, 10.0]])
    none = "Expected two or more folders that share a complete round of a run.\n"
    assert compare_precisions(monkeypatch, capsys, tmp_path / "begun/a", tmp_path / "begun/b") == (2, none)
    write_run(tmp_path / "a", spec, [[10.0] * 2] * 3, precisions=("fp32", "fp32", "fp32", "tf32", "tf32", "tf32"))
    write_run(tmp_path / "b", spec, [[10.0] * 2] * 3, precisions=("bf16",))
    for round, words in ((None, "fp32, then tf32 (eager)"), (1, "fp32"), (2, "fp32, then tf32"), (3, "tf32")):
        options = () if round is None else ("--round", round)
        _, page = compare_precisions(monkeypatch, capsys, tmp_path / "a", tmp_path / "b", *options)
        head = next(line for line in page.splitlines() if line.startswith("| |"))
        assert head.split(" | ")[1] == (words if round is None else f"a: {words}")
