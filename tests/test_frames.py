"""Data frames hold exactly what the rows hold, from results folders and archives alike."""

import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import driftproof.bench
from driftproof.bench import Spec, Store, load, load_histograms, load_runs
from driftproof.bench.archive import write_archive, write_frames
from driftproof.bench.frames import HEALTH_STATES, Frames, tabulate_runs
from driftproof.errors import InputError, MissingPackageError
from rows_on_disk import visits_of, write_rows

DOMAINS = ("fog", "frost", "snow")
MACHINE = {"device": "cuda", "hardware": "some card", "threads": 2, "torch": "2.11", "channels_last": True}
ABOUT = ("run", "method", "model", "stream", "unknown", "setting", "task")
COLUMNS = [*ABOUT, "round", "domain", "seed", "measure", "value", "count"]
SPECS = [
    Spec("tent", "x-c", "net", "other-c", options=(("lr", 0.1),), domains=DOMAINS, limit=40, seed=3),
    Spec("source", "x-c", "net", domains=DOMAINS[:2]),
    Spec("tent,eata", "x-c", "net", domains=("fog",), measures=(), task="costs"),
]


def make_row(draw, round, domain):
    numbers = {"batches": draw.randrange(1, 9), "error": 100 * draw.random(), "precision": draw.random(), "iou": None}
    lists = {"histogram/x": [draw.randrange(9) for _ in range(4)], "cosines": [[draw.random(), None], [1, 0.5]]}
    counts = {"counts": {"error": draw.randrange(99), "precision": 7}}
    return {"round": round, "domain": domain, **numbers, "health": draw.choice(HEALTH_STATES), **lists, **counts}


def write_run(folder, spec, visits):
    """Write a run with so many visits and return its rows."""
    draw, places = random.Random(spec.name), visits_of(spec, *divmod(visits, len(spec.domains)))
    rows = [make_row(draw, *place) for place in places]
    machines = [MACHINE | {"engine": "eager" if index < 2 else "graph"} for index in range(visits)]
    costs = [{"seconds": draw.random(), "peak_memory": draw.randrange(2**40)} for _ in rows]
    conditions = [cost | machine for cost, machine in zip(costs, machines, strict=True)]
    write_rows(folder, spec, rows, conditions, {"scope": "norm_affine()"})
    return rows


@pytest.fixture
def folder(tmp_path):
    Store(tmp_path / "store").update_metadata({"limit": None})
    for spec, visits in zip(SPECS, (8, 3, 1), strict=True):
        write_run(tmp_path / "store", spec, visits)
    return tmp_path / "store"


def numbers_by_hand(folder):
    """Yield the rows of the tidy table, read line by line."""
    for home in sorted((folder / "cells").iterdir()):
        spec = Spec.from_data(json.loads((home / "spec.json").read_text())["spec"])
        lines = [(home / name).read_text().splitlines() for name in ("rows.jsonl", "conditions.jsonl")]
        for row, condition in zip(*(map(json.loads, each) for each in lines), strict=True):
            values = {key: value for key, value in row.items() if key not in ("round", "domain", "counts")}
            values |= {key: condition[key] for key in ("seconds", "peak_memory")}
            values["step/milliseconds"] = 1000 * condition["seconds"] / row["batches"]
            for measure, value in values.items():
                if not isinstance(value, list):
                    value = HEALTH_STATES.index(value) if isinstance(value, str) else value
                    count = row["batches"] if measure == "step/milliseconds" else row["counts"].get(measure)
                    about = (spec.method, spec.model, spec.images, spec.unknown, spec.setting, spec.task)
                    yield (spec.name, *about, row["round"], row["domain"], spec.seed, measure, value, count)


def test_every_number_is_one_row(folder):
    frame = load(folder)
    assert frame.columns == COLUMNS
    assert frame.rows() == list(numbers_by_hand(folder))
    kinds = {"round": pl.Int64, "seed": pl.Int64, "value": pl.Float64, "count": pl.Int64}
    assert dict(frame.schema) == {name: kinds.get(name, pl.String) for name in COLUMNS}


def test_runs_and_histograms(folder):
    runs = {row["run"]: row for row in load_runs(folder).rows(named=True)}
    lists = load_histograms(folder)
    for spec in SPECS:
        run, row = Store(folder).run(spec), runs[spec.name]
        assert Spec.from_data(json.loads(row["spec"])) == spec
        assert (row["stream"], row["unknown"], row["limit"]) == (spec.images, spec.unknown, spec.limit)
        assert (json.loads(row["options"]), row["domains"]) == (dict(spec.options), list(spec.domains))
        assert json.loads(row["protocol"]) == run.protocol
        assert row["seconds"] == pytest.approx(sum(each["seconds"] for each in run.conditions))
        assert row["peak_memory"] == max(each["peak_memory"] for each in run.conditions)
        stretches = [each for each in json.loads(row["conditions"]) for _ in range(each["rows"])]
        for stretch, condition in zip(stretches, run.conditions, strict=True):
            assert all(stretch[key] == condition[key] for key in ("engine", *MACHINE))
        found = lists.filter(run=spec.name).select("domain", "measure", "bins").rows()
        flat = [(each["domain"], each["histogram/x"], [*itertools.chain(*each["cosines"])]) for each in run.rows]
        assert found[::2] == [(domain, "histogram/x", bins) for domain, bins, _ in flat]
        assert found[1::2] == [(domain, "cosines", cosines) for domain, _, cosines in flat]
    assert [runs[spec.name]["visits"] for spec in SPECS] == [8, 3, 1]
    assert [runs[spec.name]["rounds"] for spec in SPECS] == [2, 1, 1]


def test_archive_gives_same_frames_except_middle_histograms(folder, tmp_path):
    write_run(folder, replace(SPECS[0], seed=4), 3 * 4 + 1)
    write_archive([folder], tmp_path / "archive")
    assert_frame_equal(load(tmp_path / "archive"), load(folder))
    assert_frame_equal(load_runs(tmp_path / "archive").drop("folder"), load_runs(folder).drop("folder"))
    last = dict(load_runs(folder).select("run", "rounds").rows())
    kept = [row for row in load_histograms(folder).rows() if row[0].startswith("costs") or row[1] in (1, last[row[0]])]
    assert load_histograms(tmp_path / "archive").rows() == kept
    assert 0 < len(kept) < len(load_histograms(folder))


def test_longest_of_several_runs_counts(folder, tmp_path):
    longer = write_run(tmp_path / "more", SPECS[0], 9)
    write_run(tmp_path / "more", SPECS[1], 2)
    write_run(tmp_path / "more", replace(SPECS[1], seed=1), 2)
    write_archive([tmp_path / "more"], tmp_path / "archive")
    for more in ("more", "archive"):
        runs = load_runs(folder, tmp_path / more)
        assert sorted(runs["visits"]) == [1, 2, 3, 9]
        assert runs["run"].is_sorted()
        errors = load(folder, tmp_path / more).filter(run=SPECS[0].name, measure="error")["value"]
        assert errors.to_list() == [row["error"] for row in longer]


def test_folder_without_results_suggests_subfolders(folder, tmp_path):
    for name in ("b", "a"):
        write_archive([folder], tmp_path / "results" / name)
    with pytest.raises(InputError, match=r"there are none\. Choose one of its subfolders .*results/a, .*results/b\."):
        load(tmp_path / "results")
    with pytest.raises(InputError, match=r"there are none\. Run `driftproof bench run` first."):
        load_runs(folder, tmp_path / "nowhere")


def test_reading_without_polars_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.delitem(sys.modules, "driftproof.bench.frames")
    with pytest.raises(MissingPackageError, match=r"needs polars. Install it .*'driftproof\[report\]'"):
        driftproof.bench.load("anywhere")
    with pytest.raises(AttributeError, match="lod"):
        driftproof.bench.lod  # noqa: B018


LOAD_AND_FILL = r"""
import re, sys, time
from pathlib import Path
from driftproof.bench import Results, load
from driftproof.bench.tables import Table, TableEntry
begun = time.perf_counter()
assert load(sys.argv[1]).height == int(sys.argv[2])
results = Results(sys.argv[1])
for metric in ("error", "m3"):
    entries = tuple(TableEntry(spec.name, "x", (spec,), metric, 30) for spec in results.runs)
    (filled,) = results.tables([Table("t", "T", entries)])
    assert filled.frame["ours"].is_between(0, 1).all()
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())  # getrusage counts the parent's too
print(time.perf_counter() - begun, int(peak[1]) / 2**20)
"""


@pytest.mark.parametrize("rounds", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_thousand_runs_load_and_fill_tables_fast_and_small(tmp_path, rounds):
    visits, measures = 3 * rounds, ["error", *(f"m{i}" for i in range(9))]
    tried = [(("lr", rate),) for rate in range(1000)]
    specs = [Spec("tent", "x", "y", "z", options=options, domains=DOMAINS) for options in tried]
    nothing = {"rows": (), "conditions": (), "protocol": {"scope": "norm_affine()"}}
    empty = tabulate_runs([SimpleNamespace(spec=spec, **nothing) for spec in specs], "")
    runs = empty.runs.sort("run").with_columns(visits=pl.lit(visits, pl.Int64), rounds=pl.lit(rounds, pl.Int64))
    table = runs.select("run")
    for name, values in {"round": range(1, rounds + 1), "domain": DOMAINS, "measure": measures}.items():
        table = table.join(pl.DataFrame({name: values}), how="cross")
    value = (pl.int_range(pl.len()) * 7919 % 10_000) / 10_000
    table = table.with_columns(value=value, count=pl.lit(10_000, dtype=pl.Int64))
    write_frames(tmp_path, Frames(runs, table.lazy(), empty.histograms))
    command = [sys.executable, "-c", LOAD_AND_FILL, str(tmp_path), str(1000 * visits * len(measures))]
    seconds, gibibytes = map(float, subprocess.check_output(command, text=True).split())
    assert seconds < 15
    assert gibibytes < 1
