"""Archives hold the same results as the folders they were made from."""

import json
import math
import shutil
from dataclasses import replace
from random import Random

import pytest

from driftproof.bench import Results, Spec, Store
from driftproof.bench.archive import unpack, write_archive
from driftproof.bench.executors import run_locally
from driftproof.cli import main
from driftproof.errors import InputError, StateError
from driftproof.paper import suite
from driftproof.report import write_report
from small_bench import AT_ONCE, SmallBench, fast_runs, ignore, small_jobs

DOMAINS = ("fog", "snow", "frost")
CONDITIONS = {"device": "cuda", "hardware": "some card", "threads": 2, "torch": "2.11", "engine": "graph"}
HISTOGRAM = "histogram/confidence/correct"


def make_row(random, round, domain):
    shares = {name: random.random() for name in ("precision", "recall", "npv", "rejected")}
    counts = {HISTOGRAM: [random.randrange(9) for _ in range(4)]}
    return {
        "round": round,
        "domain": domain,
        "batches": 50,
        "error": random.randrange(10_000) / 100,
        **shares,
        **counts,
    }


def write_run(folder, spec, rounds, extra_rows=0):
    random, run = Random(spec.name), Store(folder).run(spec)
    run.folder.mkdir(parents=True)
    run.write_spec(spec, {"loss": "Entropy()", "output": "before"})
    visits = [(round + 1, domain) for round in range(rounds + 1) for domain in spec.domains]
    rows = [make_row(random, *visit) for visit in visits[: rounds * len(spec.domains) + extra_rows]]
    facts = [CONDITIONS | {"seconds": random.random(), "peak_memory": random.randrange(2**30)} for _ in rows]
    run.append(rows, [fact | ({"engine": "eager"} if place < 2 else {}) for place, fact in enumerate(facts)])
    return rows


@pytest.fixture(autouse=True, scope="module")
def fast():
    with fast_runs():
        yield


SPECS = [Spec(method, "x", "y", domains=DOMAINS) for method in ("tent", "tent+crowd")]


@pytest.fixture
def folder(tmp_path):
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": {"a": "b"}})
    for spec in SPECS:
        write_run(tmp_path / "store", spec, 3, extra_rows=2)
    write_run(tmp_path / "store", Spec("tent", "x", "y", domains=("fog",), task="costs"), 1)
    return tmp_path / "store"


def test_archive_keeps_everything_except_digits_and_most_histograms(folder, tmp_path):
    write_archive([folder], tmp_path / "archive")
    before, after = Results(folder), Results(tmp_path / "archive")
    assert after.metadata == before.metadata
    assert set(after.runs) == set(before.runs)
    for spec, run in before.runs.items():
        archived = after.runs[spec]
        assert (archived.spec, archived.protocol) == (spec, run.protocol)
        assert after.rounds(spec) == before.rounds(spec)
        assert len(archived.rows) == len(run.rows)
        kept_rounds = {1, before.rounds(spec)}
        for ours, theirs in zip(archived.rows, run.rows, strict=True):
            assert ours.pop(HISTOGRAM) == (theirs[HISTOGRAM] if theirs["round"] in kept_rounds else None)
            assert ours == pytest.approx({key: value for key, value in theirs.items() if key != HISTOGRAM}, abs=1e-5)
        for ours, theirs in zip(archived.conditions, run.conditions, strict=True):
            assert ours["seconds"] == pytest.approx(theirs["seconds"], abs=0.006)
            same = [row["peak_memory"] for row in run.conditions if row["engine"] == theirs["engine"]]
            assert ours["peak_memory"] == max(same)
            assert {key: ours[key] for key in CONDITIONS} == {key: theirs[key] for key in CONDITIONS}


def test_archive_is_small_and_deterministic(tmp_path):
    spec = next(suite("table1").specs())
    write_run(tmp_path / "store", spec, 50)
    for name in ("one", "two"):
        write_archive([tmp_path / "store"], tmp_path / name)
    write_archive([tmp_path / "one"], tmp_path / "again")
    first, second, again = ((tmp_path / name / "cells.jsonl").read_bytes() for name in ("one", "two", "again"))
    assert first == second == again
    assert len(first) < 60_000, "750 rows"


def test_longest_of_several_runs_is_archived(folder, tmp_path):
    write_run(tmp_path / "more", SPECS[0], 5)
    write_run(tmp_path / "more", SPECS[1], 1)
    write_archive([folder, tmp_path / "more"], tmp_path / "archive")
    rounds = Results(tmp_path / "archive").rounds
    assert (rounds(SPECS[0]), rounds(SPECS[1])) == (5, 3)
    assert bench_command("export", folder, tmp_path / "more", tmp_path / "other") == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "archive")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def bench_command(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["bench", *map(str, arguments)])
    return caught.value.code


def test_contradicting_results_are_not_merged(folder, tmp_path):
    write_run(tmp_path / "other", SPECS[0], 1)
    Store(tmp_path / "other").update_metadata({"replaced": {}})
    with pytest.raises(StateError, match=r"replaced was \{'a': 'b'\} and is \{\} here. Write a separate archive"):
        write_archive([folder, tmp_path / "other"], tmp_path / "archive")
    with pytest.raises(InputError, match="is a results folder"):
        write_archive([folder], folder)
    with pytest.raises(InputError, match="there are none"):
        write_archive([tmp_path / "nowhere"], tmp_path / "archive")
    with pytest.raises(InputError, match=r"results in .*nowhere, but there are none"):
        write_archive([folder, tmp_path / "nowhere"], tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_archive_is_refused_as_results_folder(folder, tmp_path):
    write_archive([folder], tmp_path / "archive")
    with pytest.raises(StateError, match=r"archive is an archive\. Choose another folder"):
        Store(tmp_path / "archive").update_metadata(Results(folder).metadata)


def test_damaged_archive_is_refused(folder, tmp_path):
    write_archive([folder], tmp_path / "archive")
    path = tmp_path / "archive" / "cells.jsonl"
    whole = path.read_text()
    for damaged in (whole[:-9], "[]\n", "{}\n", json.dumps(json.loads(whole.splitlines()[0]) | {"count": "x"})):
        path.write_text(damaged)
        with pytest.raises(StateError, match=r"one run on each line of .*cells.jsonl"):
            Results(tmp_path / "archive")


def test_folder_without_results_suggests_subfolders(folder, tmp_path):
    for name in ("b", "a"):
        write_archive([folder], tmp_path / "results" / name)
    (tmp_path / "results" / "notes").mkdir()
    with pytest.raises(
        InputError, match=r"but there are none\. Choose one of its subfolders with results: .*results/a, .*results/b\."
    ):
        Results(tmp_path / "results")
    with pytest.raises(InputError, match=r"but there are none. Run `driftproof bench run` first."):
        Results(tmp_path / "results" / "notes")


def test_tables_and_reports_from_archive_equal_those_from_folder(tmp_path, capsys):
    for spec in suite("table2").specs():
        if spec.images == "cifar10-c" and spec.method in ("tent", "tent+crowd"):
            write_run(tmp_path / "store", spec, 2)
            write_run(tmp_path / "store", replace(spec, seed=1), 1)
    write_archive([tmp_path / "store"], tmp_path / "archive")
    outputs = []
    for name in ("store", "archive"):
        assert bench_command("compare", tmp_path / name) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    before, after = (Results(tmp_path / name).tables() for name in ("store", "archive"))
    for ours, theirs in zip(after, before, strict=True):
        for place, value in theirs.values.items():
            if value.ours is not None:
                assert math.isclose(ours.values[place].ours, value.ours, abs_tol=1e-5)
    assert write_report(Results(tmp_path / "archive"), tmp_path / "report").exists()


LEARNING_METHODS = ("tent+crowd", "eata", "swr")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Two rounds: in one go, and the second from an archive of the first."""
    root = tmp_path_factory.mktemp("resumed")
    once, twice = (small_jobs(rounds, methods=LEARNING_METHODS) for rounds in (1, 2))
    run_locally(twice, root / "at once", SmallBench(), AT_ONCE, ignore)
    run_locally(once, root / "first", SmallBench(), AT_ONCE, ignore)
    Store(root / "first").update_metadata({"limit": None})
    write_archive([root / "first"], root / "archive", snapshots=True)
    unpack(root / "archive", root / "unpacked")
    run_locally(twice, root / "unpacked", SmallBench(), AT_ONCE, ignore)
    return root, [job.spec for job in twice]


def test_run_resumed_from_archive_equals_uninterrupted_run(resumed):
    root, specs = resumed
    at_once, unpacked, archive = Store(root / "at once"), Store(root / "unpacked"), Results(root / "archive")
    for spec in specs:
        count, rows = len(archive.runs[spec].rows), unpacked.run(spec).rows
        assert count == len(DOMAINS)
        assert rows[:count] == archive.runs[spec].rows
        assert rows[count:] == at_once.run(spec).rows[count:]
        assert unpacked.run(spec).protocol == at_once.run(spec).protocol
    assert unpacked.metadata == {"limit": None}


def test_snapshots_are_copied_between_archives_only_on_request(resumed, tmp_path):
    root, specs = resumed
    kept = {path.name: path.read_bytes() for path in (root / "archive" / "snapshots").iterdir()}
    assert sorted(kept) == sorted(f"{spec.name}-{len(DOMAINS)}.safetensors" for spec in specs)
    archive = tmp_path / "archive"
    write_archive([root / "archive"], archive, snapshots=True)
    assert {path.name: path.read_bytes() for path in (archive / "snapshots").iterdir()} == kept
    write_archive([archive, root / "unpacked"], archive, snapshots=True)
    longer = [f"{spec.name}-{2 * len(DOMAINS)}.safetensors" for spec in specs]
    assert sorted(path.name for path in (archive / "snapshots").iterdir()) == sorted(longer), "only of the longest runs"
    write_archive([archive], archive)
    assert not list((archive / "snapshots").iterdir())
    write_archive([archive, root / "unpacked"], archive, snapshots=True)
    assert len(list((archive / "snapshots").iterdir())) == len(specs), "of equally long runs, the one with a snapshot"
    assert [len(run.rows) for run in Results(archive).runs.values()] == [2 * len(DOMAINS)] * len(specs)


def test_archive_keeps_last_snapshot_that_rows_reach(resumed, tmp_path):
    root, specs = resumed
    shutil.copytree(root / "first", tmp_path / "store")
    run = Store(tmp_path / "store").run(specs[0])
    ahead = run.folder / "snapshot-99.safetensors"  # a process died before it wrote the rows of this snapshot
    shutil.copyfile(run.snapshot_path(len(DOMAINS)), ahead)
    write_archive([tmp_path / "store"], tmp_path / "archive", snapshots=True)
    assert not list((tmp_path / "archive").glob("snapshots/*-99.safetensors"))
    assert (tmp_path / "archive" / "snapshots" / f"{specs[0].name}-{len(DOMAINS)}.safetensors").exists()


def test_unpack_needs_snapshots_and_a_new_folder(resumed, folder, tmp_path):
    root, _ = resumed
    write_archive([folder], tmp_path / "archive", snapshots=True)
    for invalid in (tmp_path / "archive", root / "first", tmp_path / "nowhere"):
        with pytest.raises(InputError, match="Expected an archive with snapshots"):
            unpack(invalid, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
    before = [run.rows for run in Store(root / "unpacked").runs()]
    with pytest.raises(InputError, match="already exists"):
        unpack(root / "archive", root / "unpacked")
    assert [run.rows for run in Store(root / "unpacked").runs()] == before


def test_interrupted_unpack_starts_over(resumed, tmp_path, monkeypatch):
    root, specs = resumed
    unpack(root / "archive", tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr("driftproof.bench.store.Run.write_spec", lambda *_: raise_(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            unpack(root / "archive", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    (tmp_path / "again").mkdir()
    unpack(root / "archive", tmp_path / "again")
    for spec in specs:
        rows = [Store(tmp_path / name).run(spec).rows for name in ("whole", "again")]
        assert rows[0] == rows[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "whole"]


def raise_(error):
    raise error


def test_command_line_exports_and_unpacks_snapshots(resumed, tmp_path, capsys):
    root, specs = resumed
    assert bench_command("export", root / "first", tmp_path / "archive", "--snapshots") == 0
    assert bench_command("unpack", tmp_path / "archive", tmp_path / "unpacked") == 0
    assert "driftproof bench run … --out" in " ".join(capsys.readouterr().err.split())
    assert {run.spec for run in Store(tmp_path / "unpacked").runs()} == set(specs)
