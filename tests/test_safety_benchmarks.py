"""The guard and safety benchmarks in miniature: a small network on images that look like CIFAR-10's files."""

import importlib
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import driftproof as dp
from driftproof.models import build_from_checkpoint, build_model, save_checkpoint

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of ten plain colors with noise, and a network whose last layer was fitted to them."""
    root, draws = tmp_path_factory.mktemp("cifar"), np.random.default_rng(0)
    colors = draws.integers(0, 256, (10, 3, 1, 1))
    for name, count in (("test_batch", 60), ("data_batch_1", 40)):
        labels = np.arange(count) % 10
        pixels = np.clip(colors[labels] + draws.normal(0, 20, (count, 3, 32, 32)), 0, 255).astype(np.uint8)
        (root / "cifar-10-batches-py").mkdir(exist_ok=True)
        content = {b"data": pixels.reshape(count, -1), b"labels": labels.tolist()}
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol=2))
    torch.manual_seed(0)
    save_checkpoint(root / "wrn40_2_cifar10.pt", build_model("wrn10_1"), {"arch": "wrn10_1"})
    return root


def run_script(monkeypatch, module, folder, out, *options):
    command = [f"{module.__name__}.py", "--data", folder, "--weights", folder, "--out", out, *options]
    monkeypatch.setattr(sys, "argv", list(map(str, command)))
    return module.main()


def test_every_method_meets_every_order_in_the_grid(load):
    grid, runs = load("guard_runs").make_grid(), load("guard_runs")
    assert {(run.method, run.order) for run in grid} == {(m, o) for m in runs.METHODS for o in runs.ORDERS}
    assert len(grid) == len(set(grid))


def test_batches_are_of_one_size_and_come_with_the_source_networks_logits(load):
    runs, domains = load("guard_runs"), load("cifar_domains")
    labels = torch.arange(30) % 3
    made = [domains.Domain(name, labels.view(-1, 1, 1, 1).to(torch.uint8), labels) for name in ("a", "b")]
    bench = runs.Bench(torch.nn.Identity(), made, [labels.float(), 10.0 + labels], [])
    batches = list(runs.make_batches(bench, runs.Run("tent", 1.0, "sorted", 4), 14))
    assert [len(images) for images, _, _ in batches] == [4] * 14
    for index, (images, theirs, logits) in enumerate(batches):
        assert torch.equal((255 * images.flatten()).round().long(), theirs)
        assert torch.equal(logits, theirs + (10.0 if index >= 7 else 0.0))
    assert torch.cat([theirs for _, theirs, _ in batches[:7]]).diff().min() == 0, "sorted within a domain"


def test_indicators_see_a_network_that_moves_to_one_class(load):
    runs = load("guard_runs")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    adapter, images = dp.tent(model.eval(), lr=0.3), torch.rand(16, 3, 8, 8)
    indicators, source_logits, labels = runs.Indicators(adapter), model(images).detach(), torch.zeros(16).long()
    for index in range(6):
        indicators.update(index, images, labels, adapter(images), source_logits)
    series = indicators.compute()
    assert series["distance"][0] > 0, "the first batch was learned from before it was compared"
    assert series["distance"] == sorted(series["distance"])
    assert series["disagreement"][0] == 0
    assert series["frozen_error"] == [series["frozen_error"][0]] * 6
    assert series["mean_entropy"][0] == pytest.approx(series["frozen_mean_entropy"][0], abs=1e-4)
    assert series["entropy"][-1] < series["frozen_entropy"][-1]


def test_record_keeps_runs_and_does_not_repeat_them(load, monkeypatch, folder, tmp_path, capsys):
    script, runs = load("guards"), load("guard_runs")
    grid = [runs.Run("tent", 1.0, "shuffled", 4), runs.Run("eata", 30.0, "sorted", 4)]
    monkeypatch.setattr(script, "make_grid", lambda: grid)
    options = ("--images", 8, "--batches", 8, "--every", 2, "--source-images", 8, "--held-out", "--record")
    assert run_script(monkeypatch, script, folder, tmp_path, *options) == 0
    kept = (tmp_path / "record-0.jsonl").read_text()
    lines = [json.loads(line) for line in kept.splitlines()]
    assert [line["run"]["method"] for line in lines] == ["tent", "eata"]
    assert all(len(line["series"]["mean_prediction"]) == len(line["series"]["batch"]) == 4 for line in lines)
    assert run_script(monkeypatch, script, folder, tmp_path, *options) == 0
    assert (tmp_path / "record-0.jsonl").read_text() == kept
    assert "of 2" in capsys.readouterr().out


def test_chosen_runs_are_repeated_with_guards_and_judged(load, monkeypatch, folder, tmp_path):
    script, runs, results = load("guards"), load("guard_runs"), load("guard_results")
    monkeypatch.setattr(script, "make_grid", lambda: [runs.Run("tent", 1.0, "shuffled", 4)])
    monkeypatch.setattr(results, "COLLAPSED", -1000.0)  # so that the one run counts as collapsed
    arms = ("guards", "guards, statistics auto")
    options = ("--images", 8, "--batches", 8, "--held-out", "--runs", 1, "--arms", *arms)
    code = run_script(monkeypatch, script, folder, tmp_path, *options)
    found = json.loads((tmp_path / "guards.json").read_text())
    again = {line["arm"]: line for line in found["with guards"]}
    assert set(again) == set(found["verdicts"]) == set(arms)
    assert all(line["source"] == found["without guards"][0]["source"] for line in again.values())
    assert {line["batches"] for line in again.values()} == {8}
    verdict = found["verdicts"]["guards"]
    assert verdict["rescued"] == int(again["guards"]["final"] <= again["guards"]["source"] + 2)
    assert code == int(verdict["rescued"] + verdict["healthy"] < 2), "one must be rescued and one healthy"
    (tmp_path / "again").mkdir()
    options = (*options, "--found", tmp_path / "guards.json")
    assert run_script(monkeypatch, script, folder, tmp_path / "again", *options) == code
    repeated = json.loads((tmp_path / "again" / "guards.json").read_text())
    assert repeated["verdicts"] == found["verdicts"], "no search, the same runs"
    assert repeated["protocol"]["runs searched"] == "1 collapsed (an earlier result)"
    found["with guards"] = [again["guards"] | {"seconds": -1.0}]
    (tmp_path / "partial.json").write_text(json.dumps(found))
    options = (*options, "--found", tmp_path / "partial.json", "--resume")
    run_script(monkeypatch, script, folder, tmp_path / "again", *options)
    resumed = json.loads((tmp_path / "again" / "guards.json").read_text())["with guards"]
    assert [line["arm"] for line in resumed] == list(arms)
    assert resumed[0]["seconds"] == -1.0, "the run that was there is kept as it is"


def make_line(method, order, final, *, source=10.0, alarms=0, size=4):
    run = {"method": method, "factor": 1.0, "order": order, "size": size}
    return {"run": run, "final": final, "source": source, "batches": 600, "alarms": alarms} | {
        "first_alarm": 3 if alarms else None, "alarmed_batches": 2 * alarms, "arm": "guards",
    }  # fmt: skip


def test_choice_is_spread_over_methods_and_orders(load):
    lines = [make_line("tent", "sorted", 50.0, size=size) for size in range(1, 30)]
    lines += [make_line(method, "shuffled", 50.0) for method in ("ent", "gce")]
    lines += [make_line("eata", "sorted", final) for final in (10.0, 10.1, 20.0)]
    collapsed, healthy = load("guard_results").choose(lines, 3)
    assert {line["run"]["method"] for line in collapsed} == {"tent", "ent", "gce"}
    assert [line["final"] for line in healthy] == [10.0]


@pytest.mark.parametrize(("unrescued", "alarms", "good"), [(0, 0, True), (1, 1, True), (2, 0, False), (0, 2, False)])
def test_verdict_allows_one_lost_run_and_one_alarm_in_ten_thousand_batches(load, unrescued, alarms, good):
    results = load("guard_results")
    collapsed = [make_line("tent", "sorted", 60.0, size=size) for size in range(20)]
    healthy = [make_line("ent", "shuffled", 9.0, size=size) for size in range(20)]
    guarded = [
        line | {"final": 12.1 if index < unrescued else 12.0, "alarms": 1} for index, line in enumerate(collapsed)
    ]
    guarded += [line | {"alarms": int(index < alarms)} for index, line in enumerate(healthy)]
    verdict = results.judge((collapsed, healthy), guarded)
    assert (verdict["rescued"], verdict["false alarms"], verdict["healthy batches"]) == (20 - unrescued, alarms, 12000)
    assert results.is_good(verdict, 20) == good
    page = results.format_page((collapsed, healthy), guarded, {"guards": verdict}, {"images": "some"})
    assert page.count("batches of") == 40


def make_domain(load, count=20):
    labels = torch.arange(count) % 4
    return load("cifar_domains").Domain("clean", torch.full((count, 3, 8, 8), 100, dtype=torch.uint8), labels)


def test_damaged_images_do_not_count(load):
    rows, domain = load("safety_rows"), make_domain(load)
    scaled = list(rows.make_batches(rows.Row(size=8, damage=rows.scale), domain, 10))
    assert [len(images) for images, _, _ in scaled] == [8, 8, 4]
    for images, _, counts in scaled:
        assert images[0].min() == pytest.approx(100)
        assert images[1:].max() < 1
        assert counts.tolist() == [False, *[True] * (len(images) - 1)]
    once = rows.Row(size=4, damage=rows.set_pixel(1e8), once=True)
    batches = list(rows.make_batches(once, domain, 10))
    assert [bool(images.max() > 1e7) for images, _, _ in batches] == [False, False, True, False, False]
    assert [int(counts.sum()) for _, _, counts in batches] == [0, 0, 0, 4, 4]


def test_only_corrupted_rows_are_cut_short(load):
    rows, domain = load("safety_rows"), make_domain(load)
    for row, count in ((rows.Row(size=3, rounds=2), 14), (rows.Row("fog", 3, rounds=2), 8), (rows.Row("fog", 8), 3)):
        assert len(list(rows.make_batches(row, domain, 4))) == rows.count_batches(row, 20, 4) == count


def test_no_answer_is_a_wrong_answer(load):
    rows, domain = load("safety_rows"), make_domain(load)

    def answer(images):
        logits = torch.zeros(len(images), 4)
        logits[:, 0] = 1.0
        logits[4:] = float("nan")
        return logits

    # Five of the twenty are of class 0; sorted, they come first, and the fifth has no answer.
    batches = rows.make_batches(rows.Row(size=20, sorted=True), domain, 1)
    assert rows.count_right(answer, batches) == pytest.approx(20)


@pytest.mark.parametrize(
    ("adapt", "plain", "failures"),
    [(79.0, 70.0, 0), (78.9, 70.0, 1), (82.0, 82.0, 0), (81.9, 82.0, 1), (float("nan"), 82.0, 2)],
)
def test_adapting_may_lose_a_point_to_source_and_nothing_to_a_method_that_helps(load, adapt, plain, failures):
    rows = load("safety_rows")
    assert len(rows.find_failures(rows.Row(), {"source": 80.0, "plain": plain, "adapt": adapt})) == failures


def test_mistake_has_to_be_named_where_it_is_made_and_only_there(load):
    rows = load("safety_rows")
    row, fine = rows.ROWS["outputs are probabilities"], {"source": 80.0, "plain": 80.0, "adapt": 80.0}
    named = ["warning: The outputs are probabilities. Remove the softmax."]
    assert rows.find_failures(row, fine | {"check": named, "check of correct use": []}) == []
    assert len(rows.find_failures(row, fine | {"check": [], "check of correct use": []})) == 1
    assert len(rows.find_failures(row, fine | {"check": named, "check of correct use": named})) == 1


@pytest.mark.parametrize(
    ("plain", "ends", "failures"), [(20.0, "collapsed", 0), (20.0, "drifting", 1), (71.0, "healthy", 2)]
)
def test_collapsing_row_needs_a_collapse_and_a_health_that_says_so(load, plain, ends, failures):
    rows = load("safety_rows")
    results = {"source": 80.0, "plain": plain, "adapt": 80.0, "plain ends": ends}
    assert len(rows.find_failures(rows.Row(collapses=True), results)) == failures


def test_network_without_its_normalization_needs_normalized_images(load, folder):
    model = build_from_checkpoint(folder / "wrn40_2_cifar10.pt").eval()
    bare, images = load("safety_rows").expect_normalized(model), torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(bare((images - 0.5) / 0.5), model(images))


def test_rows_of_several_workers_are_those_of_one(load, monkeypatch, folder, tmp_path, capsys):
    script = load("safety")
    options = ("--networks", "wrn40_2", "--images", 20, "--max-batches", 4, "--no-command", "--rows")
    code = run_script(monkeypatch, script, folder, tmp_path, *options, "NaN", "clean, batches of 4")
    rows = json.loads((tmp_path / "safety.json").read_text())["networks"]["wrn40_2"]
    assert set(rows) == {"one NaN pixel in each 64 images", "clean, batches of 4"}
    assert "quarantined 1" in rows["one NaN pixel in each 64 images"]["adapt says"]
    assert code == int(any(row["failures"] for row in rows.values()))
    assert capsys.readouterr().out.count("| one NaN pixel") == 1

    class InThisProcess:
        def __init__(self, command):
            monkeypatch.setattr(sys, "argv", command[1:])
            self._code = script.main()

        def wait(self):
            return self._code

    monkeypatch.setattr(script.subprocess, "Popen", InThisProcess)
    (tmp_path / "rows-9.json").write_text('{"wrn40_2": {"clean, shuffled": {}}}')  # of an earlier run
    parts = ("NaN", "clean, batches of 4", "--workers", 2)
    assert run_script(monkeypatch, script, folder, tmp_path, *options, *parts) == code
    assert json.loads((tmp_path / "safety.json").read_text())["networks"]["wrn40_2"] == rows


def test_command_reads_a_folder_per_class(load, folder, monkeypatch):
    domains, rows = load("cifar_domains"), load("safety_rows")
    (domain,) = domains.load_domains(folder, ["clean"], device="cpu", count=20)
    found = rows.measure_command(domain, folder / "wrn40_2_cifar10.pt", device="cpu")
    adapter = dp.adapt(build_from_checkpoint(folder / "wrn40_2_cifar10.pt"))
    expected = adapter(domain.images(torch.arange(20))).argmax(dim=1) == domain.labels
    assert found == pytest.approx(100 * float(expected.float().mean()))


def test_threshold_of_learning_takes_the_worse_answer_where_only_some_batches_reach_it(load):
    script = load("learning_threshold")
    row = {"cap held": 0.4, "largest cap held": 0.6, "source": 70.0, "held": 71.0, "learned": 69.0, "averaged": 72.0}
    learns, sometimes, never = (script.choose(row, "learned", threshold) for threshold in (0.3, 0.5, 0.7))
    assert (learns, sometimes, never) == (69.0, 69.0, 71.0)
    assert [script.choose(row, "averaged", threshold) for threshold in (0.3, 0.5, 0.7)] == [72.0, 71.0, 71.0]


def test_learning_is_measured_on_images_that_the_safety_rows_do_not_have(load, monkeypatch, folder, tmp_path):
    script, domains = load("learning_threshold"), load("cifar_domains")
    monkeypatch.setattr(script, "SEVERITIES", ())
    monkeypatch.setattr(script, "SIZES", (20,))
    assert run_script(monkeypatch, script, folder, tmp_path, "--networks", "wrn40_2", "--images", 20) == 0
    (row,) = json.loads((tmp_path / "learning.json").read_text())["rows"]
    (domain,) = domains.load_domains(folder, ["clean"], device="cpu", count=40)
    logits = domains.predict(build_from_checkpoint(folder / "wrn40_2_cifar10.pt").eval(), domain)[20:]
    expected = (logits.argmax(dim=1) == domain.labels[20:]).float().mean()
    assert row["source"] == pytest.approx(100 * float(expected))
    assert "| wrn40_2, clean, batches of 20 |" in (tmp_path / "learning.md").read_text()
