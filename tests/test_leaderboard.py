"""The open-set suites, and the leaderboard page made from their rows."""

import argparse
import dataclasses
import importlib
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import driftproof as dp
from driftproof.analyses import measure_costs
from driftproof.bench import Results, Store, runner
from driftproof.bench.archive import write_archive
from driftproof.bench.local_files import LocalFiles
from driftproof.corruptions import CORRUPTIONS
from driftproof.data import ArraySet
from driftproof.leaderboard import SUITES
from driftproof.leaderboard.page import render_page
from driftproof.leaderboard.suites import make_run
from driftproof.methods.by_name import accepted_options, method_names
from driftproof.streams import Domain
from networks import build
from rows_on_disk import run_command, visits_of, write_rows

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
leaderboard = importlib.import_module("leaderboard")

SPECS = {name: list(build().specs()) for name, build in SUITES.items() if name != "openset_costs"}
ALL = {spec.method for spec in SPECS["openset"]}


def test_every_method_and_option_of_the_suites_exists():
    for spec in {spec for specs in SPECS.values() for spec in specs}:
        assert spec.method in method_names()
        assert {name for name, _ in spec.options} <= set(accepted_options(spec.method))


def test_suites_cover_streams_shares_batch_sizes_and_rounds():
    assert {(spec.images, spec.unknown) for spec in SPECS["openset"]} == {
        (images, unknown) for images in ("cifar10-c", "cifar100-c") for unknown in (None, "svhn-c")
    }
    assert len(SPECS["openset"]) == 4 * len(ALL) == 4 * 30
    assert set(SPECS["openset_long"]) < set(SPECS["openset"]), "goes on from there"
    assert {spec.unknown_share for spec in SPECS["openset_shares"] if spec.unknown} == {0.1, 0.5, 0.9}
    assert {spec.unknown for spec in SPECS["openset_near"]} == {None, "cifar100-c"}
    assert {spec.batch_size for spec in SPECS["openset_small"]} == {16}
    assert {(spec.batch_size, spec.unknown) for spec in SPECS["openset_single"]} == {(1, None)}
    for name, make in SUITES.items():
        assert make().rounds == max(entry.round for table in make().tables for entry in table.entries), name
    for spec in (spec for specs in SPECS.values() for spec in specs):
        assert (spec.model, spec.domains[:5], spec.severity, spec.seed) == ("wrn40_2", CORRUPTIONS[:5], 5, 0)
        assert len(spec.domains) == 15 or spec in SPECS["paf_kip_parts"]


def test_costs_of_every_method_come_from_the_run_that_times_it():
    (table,) = SUITES["openset_costs"]().tables
    assert {entry.domain for entry in table.entries} == ALL
    for entry in table.entries:
        (run,) = entry.specs
        assert run.task == "costs"
        assert entry.domain in run.method.split(",")
    runs = {spec for entry in table.entries for spec in entry.specs}
    assert sum(len(run.method.split(",")) for run in runs) == len(ALL), "each method is timed once"
    images, model = torch.rand(4, 3, 8, 8), build("wide_resnet")
    (row,) = measure_costs({"tent": dp.tent(model)}, model, images, trials=1, warm_up=1).values()
    assert {entry.metric for entry in table.entries} <= row.keys()


def test_rows_of_ablations_differ_from_the_method_in_what_they_name():
    for name, base in (
        ("paf_kip_parts", {"paf_kip"}),
        ("openset_anchors", {"tent", "tent+unient", "tent+unient_plus"}),
    ):
        *_, table = SUITES[name]().tables
        runs = {entry.row: entry.specs[0] for entry in table.entries}
        assert base == {spec.method for spec in runs.values()}
        assert len(set(runs.values())) == len(runs), "every row is a run of its own"
        plain = {method: next(iter(spec for row, spec in runs.items() if row == method)) for method in base}
        assert set(plain.values()) < set(SPECS["openset"]), "the unchanged method is the leaderboard's run"
        for row, spec in runs.items():
            fields = {key for key, value in spec.as_data().items() if plain[spec.method].as_data().get(key) != value}
            assert fields <= {"options", "unknown_mixing"}, row


def test_precision_of_a_spec_replaces_the_command_s(monkeypatch):
    given = []
    monkeypatch.setattr(runner, "build_method", lambda name, model, options: given.append(options["precision"]))
    for options in ({}, {"precision": "fp32"}):
        spec = make_run("tent", "cifar10-c", **options)
        runner._build_adapter(spec, None, runner.RunSettings(precision="bf16"))
    assert given == ["bf16", "fp32"]


def test_novelty_of_a_spec_may_be_left_to_the_method(monkeypatch):
    given = []
    monkeypatch.setattr(runner, "build_method", lambda name, model, options: given.append(options.get("novelty")))
    for options in ({"novelty": "own"}, {"novelty": "energy"}, {}):
        runner._build_adapter(make_run("bn_adapt", "cifar10-c").with_options(**options), None, runner.RunSettings())
    assert given == [None, "energy", "paper"]


def test_share_of_unknown_images_reaches_the_stream(monkeypatch, tmp_path):
    images = ArraySet(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), torch.arange(40) % 10, name="black")
    monkeypatch.setattr(LocalFiles, "_domains", lambda *_: [Domain("fog", images)])
    for share, unknown in {0.5: 10, 0.1: 2, 0.9: 18}.items():
        spec = make_run("tent", "cifar10-c", unknown="svhn-c", unknown_share=share, batch_size=20)
        assert int((~next(iter(LocalFiles(tmp_path).stream(spec, rounds=1))).known).sum()) == unknown
    spec = make_run("tent", "cifar10-c", unknown="svhn-c", unknown_mixing="random", batch_size=20)
    assert LocalFiles(tmp_path).stream(spec, rounds=1).mixing == "random"


def test_label_shift_of_a_spec_reaches_the_stream(monkeypatch, tmp_path):
    images = ArraySet(torch.zeros(400, 3, 8, 8, dtype=torch.uint8), torch.arange(400) % 10, name="black")
    monkeypatch.setattr(LocalFiles, "_domains", lambda *_: [Domain("fog", images)])
    classes = {}
    for shift in (None, 0.1):
        spec = make_run("tent", "cifar10-c", label_shift=shift, batch_size=20)
        classes[shift] = [len(batch.labels.unique()) for batch in LocalFiles(tmp_path).stream(spec, rounds=1)]
    assert max(classes[0.1]) < min(classes[None]) == 10


def write(folder, spec, rounds, error, seconds=2.0, limit=None, *, scores=True):
    spec = dataclasses.replace(spec, limit=limit)
    names = ("energy/auroc", "novelty/fpr", "h_score", "oscr")
    rows = [
        {"round": round, "domain": domain, "batches": 100, "error": error + round}
        | ({"novelty/auroc": 100 - error - round} if scores else {})
        | dict.fromkeys(names if spec.unknown and scores else (), 50.0)
        for round, domain in visits_of(spec, rounds)
    ]
    conditions = [{"seconds": seconds, "peak_memory": 3 * 2**20, "device": "cuda", "hardware": "a card"} for _ in rows]
    write_rows(folder, spec, rows, conditions, {"scope": "norm_affine()"})
    Store(folder).update_metadata({"limit": limit, "replaced": {}})


def section(page, title):
    (found,) = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL)
    return found


def table_of(page, title):
    lines = [line.strip("|").split("|") for line in section(page, title).splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_page_shows_what_was_run_and_how_to_run_the_rest(tmp_path):
    runs = {unknown: make_run("tent", "cifar10-c", unknown=unknown) for unknown in (None, "svhn-c")}
    crowd = make_run("tent+crowd", "cifar10-c", unknown="svhn-c")
    write(tmp_path / "a", runs[None], 5, 20.0)
    write(tmp_path / "b", runs["svhn-c"], 3, 30.0)
    write(tmp_path / "b", crowd, 2, 10.0)
    for seed, error in ((1, 12.0), (2, 14.0)):
        write(tmp_path / "c", dataclasses.replace(crowd, seed=seed), 2, error)
    write(tmp_path / "few", make_run("source", "cifar10-c", unknown=None, batch_size=1), 1, 40.0, limit=50)
    write(tmp_path / "few", crowd, 5, 1.0, limit=50)
    write_archive([tmp_path / name for name in "abc"], tmp_path / "merged")
    assert (
        run_command("bench", "leaderboard", tmp_path / "merged", tmp_path / "few", "--out", tmp_path / "page.md") == 0
    )
    page = (tmp_path / "page.md").read_text()

    first = table_of(page, "CIFAR-10-C, round 1")
    assert list(first) == ["tent+crowd", "tent"], "ranked by the error among unknown images"
    assert {name: text.replace("**", "") for name, text in first["tent"].items()} == {
        "Error (closed)": "21.00", "Error (open)": "31.00", "AUROC": "69.00", "AUROC by energy": "50.00",
        "FPR@95": "50.00", "H-score": "50.00", "OSCR": "50.00",
    }  # fmt: skip
    assert first["tent+crowd"]["Error (open)"] == "**13.00** ±2.00", "three seeds"
    assert first["tent+crowd"]["Error (closed)"] == "not run"
    fifth = table_of(page, "CIFAR-10-C, round 5")
    assert (fifth["tent"]["Error (closed)"], fifth["tent"]["Error (open)"]) == ("25.00", "33.00 @3")
    assert fifth["tent+crowd"]["Error (open)"] == "14.00 ±2.00 @2", "whole streams count before parts of them"
    assert "|" not in section(page, "CIFAR-10-C by the share of unknown images, round 1"), "no row has half of it"
    single = section(page, "CIFAR-10-C in batches of one, round 1")
    assert "41.00 *" in single
    assert "on the first 50 images" in single
    assert "--limit 50" in single

    commands = re.findall(
        r"driftproof bench run (\w+) --methods (\S+) .*--rounds (\d+)", section(page, "CIFAR-10-C, round 5")
    )
    assert [(suite, set(methods.split(",")), rounds) for suite, methods, rounds in commands] == [("openset", ALL, "5")]
    seconds = 2 * 15 * (5 + 3 + 2 + 2 + 2 + 1 + 5)
    assert f"all 7 runs add up to {seconds // 60} min {seconds % 60} s on a card" in page


def test_suites_on_a_part_of_the_images_show_runs_on_that_part(tmp_path):
    run = make_run("adapt", "cifar10-c", unknown="svhn-c")
    write(tmp_path / "all", run, 1, 10.0)
    write(tmp_path / "all", make_run("tent", "cifar10-c", unknown="svhn-c"), 1, 40.0)
    write(tmp_path / "all", make_run("roid", "cifar10-c", unknown="svhn-c"), 1, 9.0)
    for seed, error in enumerate((20.0, 22.0, 24.0)):
        write(tmp_path / "part", dataclasses.replace(run, seed=seed), 1, error, limit=2000)
    for method, limit in (("cotta", 500), ("stamp", 2000)):
        write(tmp_path / f"first-{limit}", make_run(method, "cifar10-c", unknown="svhn-c"), 1, 30.0, limit=limit)
    page = render_page([Results(tmp_path / name) for name in ("all", "part", "first-500", "first-2000")])
    first = table_of(page, "CIFAR-10-C, round 1")
    assert first["adapt"]["Error (open)"] == "11.00"
    assert list(first) == ["roid", "adapt", "tent", "cotta", "stamp"], "whole streams first"
    seeds = section(page, "CIFAR-10-C, round 1, three seeds")
    assert list(table_of(page, "CIFAR-10-C, round 1, three seeds")) == ["adapt"]
    assert "Not run, not to the end, or without scores: sentinel, paf_kip, roid, cmf, swr+crowd." in seeds
    fewer = render_page([Results(tmp_path / "all")])
    assert "every method" in section(fewer, "CIFAR-10-C, round 1, three seeds"), "one seed is not three"
    note = "on the first 500 images (cotta) or the first 2,000 images (stamp) of each corruption."
    assert note in section(page, "CIFAR-10-C, round 1")
    assert "on the first 2,000 images of each corruption." in section(page, "CIFAR-10-C, round 1, three seeds")
    assert "on the first" not in section(page, "CIFAR-10-C, round 5"), "no row is shown"
    assert table_of(page, "CIFAR-10-C, round 1, three seeds")["adapt"]["Error (open)"] == "23.00 ±2.00 *"
    assert "openset_seeds --data data --weights weights --out runs/leaderboard-2000 --limit 2000 --seeds 0,1,2" in page


def test_part_of_the_images_stands_in_where_whole_streams_have_not_come_so_far(tmp_path):
    for method, whole in (("tent", 1), ("roid", 2), ("adapt", 5), ("eata", 5)):
        run = make_run(method, "cifar10-c", unknown="svhn-c")
        write(tmp_path / "all", run, whole, 10.0, scores=method != "eata")
        write(tmp_path / "part", run, 5, 20.0, limit=2000)
        write(tmp_path / "few", run, 5, 30.0, limit=1000)
    page = render_page([Results(tmp_path / name) for name in ("all", "few", "part")])
    fifth = table_of(page, "CIFAR-10-C, round 5")
    numbers = {row: cells["Error (open)"].replace("**", "") for row, cells in fifth.items()}
    assert numbers == {"adapt": "15.00", "eata": "15.00", "tent": "25.00 *", "roid": "12.00 @2"}
    assert fifth["eata"]["AUROC"] == "75.00 *", "whole streams of the paper's tables measured no scores"
    first = table_of(page, "CIFAR-10-C, round 1")
    assert {cells["Error (open)"].strip("*") for cells in first.values()} == {"11.00"}


def test_page_without_results_names_every_command():
    page = render_page([])
    assert all(f"driftproof bench run {name} " in page for name in SUITES)
    assert page.count("Not run, not to the end, or without scores: every method.") == sum(
        len(build().tables) for build in SUITES.values()
    )
    for name, methods in re.findall(r"^driftproof bench run (\w+) --methods (\S+) ", page, flags=re.MULTILINE):
        assert set(methods.split(",")) <= {spec.method for spec in SPECS[name]}


def test_method_with_state_in_its_output_is_not_taken_for_stateless(tmp_path):
    spec = make_run("t3a", "cifar10-c", unknown=None)
    rows = [{"round": 1, "domain": domain, "error": 1.0} for domain in spec.domains]
    still = {"scope": "nothing()", "statistics": "Batch()"}
    outputs = {"before": True, "LaplacianAdjusted(neighbors=5)": True, "AdjustedTemplates()": False}
    for name, (output, complete) in zip("abc", outputs.items(), strict=True):
        write_rows(tmp_path / name, spec, rows, protocol=still | {"output": output})
        (entry, *_) = (e for t in SUITES["openset"]().tables for e in t.entries if (e.row, e.round) == ("t3a", 5))
        assert Results(tmp_path / name).value(entry).complete == complete


# --- running parts of it within a time limit --------------------------------------------------------------------------


def event(done, *, row=None, total=60):
    return runner.ProgressEvent(SPECS["openset"][0], "adapting" if row is None else "measured", done, total, row)


def test_run_is_left_between_domains_once_its_round_would_not_end_in_time():
    now = [0.0]
    watch, patient = (leaderboard.Watch(2, 100.0, lambda: now[0], whole_rounds=whole) for whole in (True, False))
    for done, seconds in ((2, 30.0), (4, 33.0), (28, 69.0)):  # slow at first, then 1.5 s a batch
        now[0] = seconds
        for each in (watch, patient):
            each(event(done))
            each(event(done, row={"error": 1.0}))
    now[0] = 72.0  # the next round of 30 batches would take 45 s
    with pytest.raises(leaderboard.OutOfTimeError):
        watch(event(30, row={"error": 1.0}))
    patient(event(30, row={"error": 1.0}))
    now[0] = 101.0
    for each in (watch, patient):
        with pytest.raises(leaderboard.OutOfTimeError):
            each(event(31))


def test_finished_run_is_not_left():
    watch = leaderboard.Watch(rounds=1, deadline=100.0, clock=lambda: 99.0)
    watch(event(1))
    watch(event(60, row={"error": 1.0}))


def test_rows_reported_at_once_are_no_pace():
    paces = {}
    watch = leaderboard.Watch(1, 1e9, paces=paces)
    for _ in range(4):  # as `RunContext.append` reports the methods of a run of costs
        watch(event(4, row={"milliseconds": 1.0}, total=4))
    assert not paces


def test_run_that_would_not_end_in_time_does_not_start(tmp_path, capsys):
    part = leaderboard.parse_line("openset --methods tent,eata --images cifar10-c --open --rounds 1", tmp_path)
    tent, eata = part.jobs
    paces = {}
    watch = leaderboard.Watch(1, 1e9, clock=iter((5.0, 9.0, 12.0)).__next__, paces=paces)
    for done in (100, 200, 300):  # the first domain says nothing
        watch(dataclasses.replace(event(done, row={"error": 1.0}, total=1500), spec=tent.spec))
    assert paces == {("tent", 200): 0.03}
    assert leaderboard.estimate_seconds(tent, paces) == pytest.approx(0.03 * 15 * 100)
    assert leaderboard.estimate_seconds(eata, paces) == pytest.approx(0.015 * 15 * 100), "others may be faster"
    assert leaderboard.estimate_seconds(dataclasses.replace(tent, rounds=2), {}) == 0.0, "nothing is known"
    for partly, job in ((False, tent), (False, dataclasses.replace(tent, rounds=2)), (True, tent)):
        arguments = argparse.Namespace(partly=partly, to_the_deadline=False)
        leaderboard.run_one(arguments, None, part, job, time.monotonic() + 40.0, paces)
        assert f"not begun, needs about {45 * job.rounds} s" in capsys.readouterr().out
    begun = dataclasses.replace(tent, rounds=50)
    with pytest.raises(AttributeError, match="answer_rounds"):  # one round fits
        leaderboard.run_one(arguments, None, part, begun, time.monotonic() + 50.0, paces)


def test_plan_keeps_the_order_of_its_lines_and_methods(tmp_path):
    (tmp_path / "plan.txt").write_text(
        "# cheap ones first\nopenset --methods paf_kip,tent --images cifar100-c --open --rounds 1\n\n"
        "openset_small --methods tent --limit 2000 --seeds 0,1\n"
        'paf_kip_parts --table paf_kip_parts --row "no crops" --row "a crop for each image"\n'
    )
    first, second, third = leaderboard.read_plan(tmp_path / "plan.txt", tmp_path)
    assert [dict(job.spec.options)["view"] for job in third.jobs] == ["none", "crop each image"]
    assert {len(job.spec.domains) for job in third.jobs} == {5}
    assert [(job.spec.method, job.spec.setting, job.rounds) for job in first.jobs] == [
        ("paf_kip", "open", 1), ("tent", "open", 1)
    ]  # fmt: skip
    assert {job.spec.seed for job in second.jobs} == {0, 1}
    assert (first.out.name, second.out.name) == ("all", "2000")
    assert {name for name, _, _ in leaderboard.list_domains([first, second], "cpu")} == {"cifar100-c", "svhn-c"}
    tasks = leaderboard.list_tasks([first, second], "cuda")
    assert [isinstance(task, leaderboard.Domain) for task in tasks[:33]] == [True] * 30 + [False] * 2 + [True]
    assert sorted({task.images for task in tasks[32:] if isinstance(task, leaderboard.Domain)}) == ["cifar10-c"]
