"""Archives against the results folders they were made of."""

import json
import math
import shutil
from dataclasses import replace
from random import Random

import pytest

from driftproof.bench import Results, Spec, Store, suite
from driftproof.bench.archive import unpack, write_archive
from driftproof.bench.executors import run_locally
from driftproof.cli import main
from driftproof.errors import InputError, StateError
from driftproof.report import write_report
from small_bench import AT_ONCE, SmallBench, ignore, small_jobs

DOMAINS = ("fog", "snow", "frost")
CONDITIONS = {"device": "cuda", "hardware": "some card", "threads": 2, "torch": "2.11", "engine": "graph"}
HISTOGRAM = "histogram/confidence/correct"


def row_of(random, round, domain):
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


def put(folder, spec, rounds, begun=0):
    random, cell = Random(spec.name), Store(folder).run(spec)
    cell.folder.mkdir(parents=True)
    cell.write_spec(spec, {"loss": "Entropy()", "output": "before"})
    visits = [(round + 1, domain) for round in range(rounds + 1) for domain in spec.domains]
    rows = [row_of(random, *visit) for visit in visits[: rounds * len(spec.domains) + begun]]
    facts = [CONDITIONS | {"seconds": random.random(), "peak_memory": random.randrange(2**30)} for _ in rows]
    cell.append(rows, [fact | ({"engine": "eager"} if place < 2 else {}) for place, fact in enumerate(facts)])
    return rows


SPECS = [Spec(method, "x", "y", domains=DOMAINS) for method in ("tent", "tent+crowd")]


@pytest.fixture
def folder(tmp_path):
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": {"a": "b"}})
    for spec in SPECS:
        put(tmp_path / "store", spec, 3, begun=2)
    put(tmp_path / "store", Spec("tent", "x", "y", domains=("fog",), task="costs"), 1)
    return tmp_path / "store"


def test_everything_measured_is_read_back_but_for_digits_and_most_histograms(folder, tmp_path):
    write_archive([folder], tmp_path / "kept")
    before, after = Results(folder), Results(tmp_path / "kept")
    assert after.metadata == before.metadata
    assert set(after.runs) == set(before.runs)
    for spec, cell in before.runs.items():
        kept = after.runs[spec]
        assert (kept.spec, kept.protocol) == (spec, cell.protocol)
        assert after.rounds(spec) == before.rounds(spec)
        assert len(kept.rows) == len(cell.rows)
        stays = {1, before.rounds(spec)}
        for ours, theirs in zip(kept.rows, cell.rows, strict=True):
            assert ours.pop(HISTOGRAM) == (theirs[HISTOGRAM] if theirs["round"] in stays else None)
            assert ours == pytest.approx({key: value for key, value in theirs.items() if key != HISTOGRAM}, abs=1e-5)
        for ours, theirs in zip(kept.conditions, cell.conditions, strict=True):
            assert ours["seconds"] == pytest.approx(theirs["seconds"], abs=0.006)
            same = [row["peak_memory"] for row in cell.conditions if row["engine"] == theirs["engine"]]
            assert ours["peak_memory"] == max(same)
            assert {key: ours[key] for key in CONDITIONS} == {key: theirs[key] for key in CONDITIONS}


def test_an_archive_is_small_and_the_same_bytes_each_time(tmp_path):
    spec = next(suite("table1").specs())
    put(tmp_path / "store", spec, 50)
    for name in ("one", "two"):
        write_archive([tmp_path / "store"], tmp_path / name)
    write_archive([tmp_path / "one"], tmp_path / "again")
    first, second, again = ((tmp_path / name / "cells.jsonl").read_bytes() for name in ("one", "two", "again"))
    assert first == second == again
    assert len(first) < 60_000, "a cell of 750 rows"


def test_of_a_cell_in_several_folders_the_longest_is_kept(folder, tmp_path):
    put(tmp_path / "more", SPECS[0], 5)
    put(tmp_path / "more", SPECS[1], 1)
    write_archive([folder, tmp_path / "more"], tmp_path / "kept")
    rounds = Results(tmp_path / "kept").rounds
    assert (rounds(SPECS[0]), rounds(SPECS[1])) == (5, 3)
    assert main_status("export", folder, tmp_path / "more", tmp_path / "other") == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "kept")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def main_status(*words):
    with pytest.raises(SystemExit) as ending:
        main(["bench", *map(str, words)])
    return ending.value.code


def test_results_that_were_made_differently_stay_apart(folder, tmp_path):
    put(tmp_path / "other", SPECS[0], 1)
    Store(tmp_path / "other").update_metadata({"replaced": {}})
    with pytest.raises(StateError, match=r"replaced was \{'a': 'b'\} and is \{\} here. Archive them apart"):
        write_archive([folder, tmp_path / "other"], tmp_path / "kept")
    with pytest.raises(InputError, match="holds results to go on from"):
        write_archive([folder], folder)
    with pytest.raises(InputError, match="there are none"):
        write_archive([tmp_path / "nowhere"], tmp_path / "kept")
    with pytest.raises(InputError, match=r"results in .*nowhere, but there are none"):
        write_archive([folder, tmp_path / "nowhere"], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_nothing_is_measured_in_an_archive_where_nobody_would_find_it(folder, tmp_path):
    write_archive([folder], tmp_path / "kept")
    with pytest.raises(StateError, match=r"kept is an archive\. Choose another folder"):
        Store(tmp_path / "kept").update_metadata(Results(folder).metadata)


def test_a_damaged_archive_is_named(folder, tmp_path):
    write_archive([folder], tmp_path / "kept")
    path = tmp_path / "kept" / "cells.jsonl"
    whole = path.read_text()
    for damaged in (whole[:-9], "[]\n", "{}\n", json.dumps(json.loads(whole.splitlines()[0]) | {"count": "x"})):
        path.write_text(damaged)
        with pytest.raises(StateError, match=r"one cell on each line of .*cells.jsonl"):
            Results(tmp_path / "kept")


def test_a_folder_of_archives_is_told_from_one_without_results(folder, tmp_path):
    for name in ("b", "a"):
        write_archive([folder], tmp_path / "results" / name)
    (tmp_path / "results" / "notes").mkdir()
    with pytest.raises(
        InputError, match=r"but there are none; there are in .*results/a, .*results/b, to be read one at"
    ):
        Results(tmp_path / "results")
    with pytest.raises(InputError, match=r"but there are none. Run `driftproof bench run` first."):
        Results(tmp_path / "results" / "notes")


def test_tables_and_reports_come_from_an_archive_as_from_the_folder(tmp_path, capsys):
    for spec in suite("table2").specs():
        if spec.images == "cifar10-c" and spec.method in ("tent", "tent+crowd"):
            put(tmp_path / "store", spec, 2)
            put(tmp_path / "store", replace(spec, seed=1), 1)
    write_archive([tmp_path / "store"], tmp_path / "kept")
    said = []
    for name in ("store", "kept"):
        assert main_status("compare", tmp_path / name) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    before, after = (Results(tmp_path / name).tables() for name in ("store", "kept"))
    for ours, theirs in zip(after, before, strict=True):
        for place, value in theirs.values.items():
            if value.ours is not None:
                assert math.isclose(ours.values[place].ours, value.ours, abs_tol=1e-5)
    assert write_report(Results(tmp_path / "kept"), tmp_path / "report").exists()


METHODS_THAT_LEARN = ("tent", "tent+crowd", "eata", "swr")


@pytest.fixture(scope="module")
def gone_on_with(tmp_path_factory):
    """Two rounds: at once, and the second from an archive of the first."""
    root = tmp_path_factory.mktemp("gone on")
    once, twice = (small_jobs(rounds, methods=METHODS_THAT_LEARN) for rounds in (1, 2))
    run_locally(twice, root / "at once", SmallBench(), AT_ONCE, ignore)
    run_locally(once, root / "first", SmallBench(), AT_ONCE, ignore)
    Store(root / "first").update_metadata({"limit": None})
    write_archive([root / "first"], root / "archive", snapshots=True)
    unpack(root / "archive", root / "unpacked")
    run_locally(twice, root / "unpacked", SmallBench(), AT_ONCE, ignore)
    return root, [job.spec for job in twice]


def test_what_is_gone_on_with_from_an_archive_ends_as_if_it_had_never_been_one(gone_on_with):
    root, specs = gone_on_with
    at_once, unpacked, archive = Store(root / "at once"), Store(root / "unpacked"), Results(root / "archive")
    for spec in specs:
        count, rows = len(archive.runs[spec].rows), unpacked.run(spec).rows
        assert count == len(DOMAINS)
        assert rows[:count] == archive.runs[spec].rows
        assert rows[count:] == at_once.run(spec).rows[count:]
        assert unpacked.run(spec).protocol == at_once.run(spec).protocol
    assert unpacked.metadata == {"limit": None}


def test_snapshots_travel_from_archive_to_archive_and_go_when_they_are_not_asked_for(gone_on_with, tmp_path):
    root, specs = gone_on_with
    kept = {path.name: path.read_bytes() for path in (root / "archive" / "snapshots").iterdir()}
    assert sorted(kept) == sorted(f"{spec.name}-{len(DOMAINS)}.safetensors" for spec in specs)
    archive = tmp_path / "archive"
    write_archive([root / "archive"], archive, snapshots=True)
    assert {path.name: path.read_bytes() for path in (archive / "snapshots").iterdir()} == kept
    write_archive([archive, root / "unpacked"], archive, snapshots=True)
    longer = [f"{spec.name}-{2 * len(DOMAINS)}.safetensors" for spec in specs]
    assert sorted(path.name for path in (archive / "snapshots").iterdir()) == sorted(longer), "of the longest alone"
    write_archive([archive], archive)
    assert not list((archive / "snapshots").iterdir())
    write_archive([archive, root / "unpacked"], archive, snapshots=True)
    assert len(list((archive / "snapshots").iterdir())) == len(specs), (
        "of two as long, the one that can be gone on with"
    )
    assert [len(cell.rows) for cell in Results(archive).runs.values()] == [2 * len(DOMAINS)] * len(specs)


def test_an_archive_keeps_the_last_snapshot_that_its_rows_reach(gone_on_with, tmp_path):
    root, specs = gone_on_with
    shutil.copytree(root / "first", tmp_path / "store")
    cell = Store(tmp_path / "store").run(specs[0])
    ahead = cell.folder / "snapshot-99.safetensors"  # a process died before it wrote the rows that lead up to it
    shutil.copyfile(cell.snapshot(len(DOMAINS)), ahead)
    write_archive([tmp_path / "store"], tmp_path / "archive", snapshots=True)
    assert not list((tmp_path / "archive").glob("snapshots/*-99.safetensors"))
    assert (tmp_path / "archive" / "snapshots" / f"{specs[0].name}-{len(DOMAINS)}.safetensors").exists()


def test_only_what_can_be_gone_on_with_is_unpacked_and_only_into_a_new_folder(gone_on_with, folder, tmp_path):
    root, _ = gone_on_with
    write_archive([folder], tmp_path / "archive", snapshots=True)
    for nothing in (tmp_path / "archive", root / "first", tmp_path / "nowhere"):
        with pytest.raises(InputError, match="Expected an archive with snapshots"):
            unpack(nothing, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()
    before = [cell.rows for cell in Store(root / "unpacked").runs()]
    with pytest.raises(InputError, match="is there already"):
        unpack(root / "archive", root / "unpacked")
    assert [cell.rows for cell in Store(root / "unpacked").runs()] == before


def test_what_was_unpacked_in_part_is_unpacked_anew(gone_on_with, tmp_path, monkeypatch):
    root, specs = gone_on_with
    unpack(root / "archive", tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr("driftproof.bench.store.Run.begin", lambda *_: raise_(OSError("no space left")))
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


def test_the_command_line_exports_snapshots_and_unpacks_them(gone_on_with, tmp_path, capsys):
    root, specs = gone_on_with
    assert main_status("export", root / "first", tmp_path / "archive", "--snapshots") == 0
    assert main_status("unpack", tmp_path / "archive", tmp_path / "unpacked") == 0
    assert "driftproof bench run … --out" in " ".join(capsys.readouterr().err.split())
    assert {cell.spec for cell in Store(tmp_path / "unpacked").runs()} == set(specs)
