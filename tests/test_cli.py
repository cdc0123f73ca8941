"""The command line: start-up time, exit codes, `check` and `adapt`."""

import csv
import errno
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import driftproof as dp
from driftproof import cli, corruptions, data, models, training
from driftproof.bench import METHODS
from driftproof.cli import completion
from driftproof.cli.exit_codes import CommandGroup
from driftproof.cli.order import arrange
from driftproof.cli.picture_page import write_picture_page
from driftproof.cli.prediction_rows import RowFile, make_columns, read_rows, sort_rows
from driftproof.cli.run_summary import RunSummary
from driftproof.cli.suites import suite_builders
from driftproof.cli.train import RECIPES, SETS
from driftproof.data import FileSet
from driftproof.health import Health
from driftproof.methods.by_name import parse_method
from rows_on_disk import run_command

HEAVY = {"torch", "numpy", "scipy", "PIL", "altair", "great_tables", "ray", "polars", "sklearn", "safetensors"}
NAMES = itertools.count()

PROJECT = """
import torch
from torch import nn

def build():
    print("noise")
    torch.manual_seed(3)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(32, 4))

class NaNForBright(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * torch.where(x.mean(dim=(1, 2, 3)) > 0.5, torch.nan, 1.0)[:, None]

def nan_for_bright():
    return NaNForBright(*build())

def per_pixel():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

def fails():
    raise KeyError("a [dict] key")

def needs(argument):
    return argument

def interrupted():
    raise KeyboardInterrupt

class Home:
    built = per_pixel()

plain = nn.Linear(3, 3)
nowhere = nn.Linear(3, 3, device="meta")
number = 7

def numbered():
    return number
"""


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Name of a user module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"user_project_{next(NAMES)}"
    Path(f"{name}.py").write_text(PROJECT)
    return name


def save_images(folder, count, *, first=0, side=12):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(first)
    for index in range(first, first + count):
        color = generator.random(3) * 200
        Image.fromarray((color + generator.random((side, side, 3)) * 55).astype(np.uint8)).save(
            folder / f"{index:03}.png"
        )
    return folder


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Start-up

STARTUP_SCRIPT = """
import contextlib, io, os, sys, time
sys.argv = ["driftproof"]
from driftproof.cli import app, main

def output_of(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(list(words))
    return out.getvalue()

assert "Exit codes" in output_of("--help")
print(time.process_time())
assert output_of("--version").startswith("driftproof ")

def visit(command, words):
    assert "Usage" in output_of(*words, "--help"), words
    for name, inner in getattr(command, "commands", {}).items():
        visit(inner, [*words, name])

import typer.main
visit(typer.main.get_command(app), [])
os.environ["_DRIFTPROOF_COMPLETE"] = "complete_bash"
for line, expected in (("ad", "adapt"), ("check --model wrn40", "wrn40_2"), ("adapt --method eat", "eata+crowd")):
    words = ["driftproof", *line.split()]
    os.environ |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    assert expected in output_of().split(), line
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def measure_startup():
    ended = subprocess.run([sys.executable, "-c", STARTUP_SCRIPT], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    seconds, loaded = ended.stdout.splitlines()
    return float(seconds), set(loaded.split())


def test_help_version_and_completion_import_no_heavy_module():
    seconds, loaded = measure_startup()
    assert loaded & HEAVY == set()
    assert seconds < 0.8 or measure_startup()[0] < 0.8, "measured twice, since one slow run may be noise"


def test_terminal_without_unicode_gets_replacement_characters(monkeypatch):
    results, printed = Path(__file__).parents[1] / "results" / "choices", io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert run_command("bench", "compare", results) == 0
    sys.stdout.flush()
    assert "swr, ? = 250" in printed.getvalue().decode("ascii")


def test_completion_names_match_the_library():
    assert set(completion.NETWORKS) == set(models.MODELS)
    assert set(completion.DATA_SETS) == set(data.DATASETS)
    assert set(completion.CORRUPTIONS) == {*corruptions.CORRUPTIONS, *corruptions.HELD_OUT}
    assert {parse_method(name)[0] for name in completion.METHODS} == set(METHODS)
    assert set(completion.SUITES) == set(suite_builders())
    assert len(set(completion.METHODS)) == len(completion.METHODS)
    assert set(RECIPES) <= set(models.MODELS)
    assert all(isinstance(getattr(training, recipe), training.Recipe) for recipe in RECIPES.values())
    assert all(callable(getattr(data, reader)) for reader in SETS.values())


# Exit codes


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (dp.errors.InputError("Expected [abc],\nbut got [/red]."), 2, "error: Expected [abc], but got [/red]."),
        (PermissionError(errno.EACCES, "Permission denied", "/x/[y]"), 2, "error: Permission denied: /x/[y]"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device"),
        (OSError("odd"), 2, "error: odd"),
        (dp.errors.DownloadError("It did not come."), 2, "error: It did not come."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, None),
    ],
)  # fmt: skip
def test_errors_become_one_line_and_an_exit_code(error, status, line, capsys, monkeypatch):
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    app = typer.Typer(cls=CommandGroup)

    @app.command("first")
    def first():
        raise error

    app.command("second")(lambda: None)
    with pytest.raises(SystemExit) as ended:
        app(["first"])
    assert (ended.value.code, capsys.readouterr().err) == (status, f"{line}\n" if line else "")


def test_unknown_commands_and_options_are_usage_errors(capsys):
    assert run("adpt") == 2
    assert run("check", "--modle", "x") == 2
    assert run("train", "--model", "wrn40", "--data", ".", "--out", "w") == 2
    assert "Did you mean wrn40_2" in capsys.readouterr().err
    assert run("corrupt", "here", "there", "--device", "abacus") == 2
    assert "to be available on this machine, but got 'abacus'" in capsys.readouterr().err


# check


def test_check_command_reports_problems_of_the_library(project, capsys):
    assert run("check", "--model", f"{project}:build", "--json") == 0
    output = capsys.readouterr()
    assert (json.loads(output.out), output.err) == ([], "noise\n")
    assert run("check", "--model", f"{project}:build") == 0
    assert "No problems" in capsys.readouterr().out
    assert run("check", "--model", f"{project}:plain", "--json") == 0
    (problem,) = dp.check(torch.nn.Linear(3, 3))
    expected = {"severity": "warning", "message": problem.message, "fix": problem.fix, "layers": []}
    assert json.loads(capsys.readouterr().out) == [expected]
    assert run("check", "--model", f"{project}:nowhere") == 1
    assert "meta" in capsys.readouterr().out
    assert run("check", "--model", f"{project}:Home.built") == 0


def test_check_loads_builtin_models_and_checkpoints(project, tmp_path, capsys):
    assert run("check", "--model", "wrn10_1", "--classes", 7) == 0
    weights = tmp_path / "weights.safetensors"
    models.save_checkpoint(weights, models.build_model("wrn10_1", classes=7), {"arch": "wrn10_1"})
    assert run("check", "--weights", weights) == 0
    assert run("check", "--model", "wrn10_1", "--classes", 7, "--weights", weights) == 0
    capsys.readouterr()
    assert run("check", "--model", "wrn10_1", "--weights", weights) == 2
    assert "classes=7" in capsys.readouterr().err
    assert run("check", "--model", f"{project}:build", "--weights", weights) == 2
    assert "match this Sequential" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("{}:buidl", "Did you mean build"),
        ("{}:Home.bilt", "Did you mean built"),
        ("{}.build", "Put a colon before the last part: {}:build"),
        ("{}:", "`package.module:name`"),
        ("{}:fails", "KeyError: 'a [dict] key' ({}.py:22)"),
        ("{}:needs", "missing 1 required positional argument: 'argument'."),
        ("{}:number", "got a int"),
        ("{}:numbered", "returned a int"),
        ("{}.inner:build", "{}.inner does not exist."),
        ("no_such_module:build", "no_such_module does not exist."),
        ("wrn40", "Did you mean wrn40_2"),
        ("broken:build", "raised SyntaxError"),
        ("lacking:build", "No module named 'no_such_module' (lacking.py:1)"),
        ("ending:build", "raised SystemExit: 3"),
    ],
)
def test_check_explains_models_that_cannot_be_loaded(model, reason, project, tmp_path, capsys):
    Path("broken.py").write_text("def build(:")
    Path("lacking.py").write_text("import no_such_module")
    Path("ending.py").write_text("raise SystemExit(3)")
    assert run("check", "--model", model.format(project)) == 2
    (line,) = capsys.readouterr().err.replace(f"{tmp_path.resolve()}{os.sep}", "").splitlines()
    assert reason.format(project, project) in line


def test_check_rejects_missing_or_conflicting_model_options(project, capsys):
    assert run("check") == 2
    assert "`--model` or `--weights`" in capsys.readouterr().err
    assert run("check", "--model", f"{project}:build", "--classes", 3) == 2
    assert run("check", "--weights", "nowhere.safetensors") == 2
    assert "No such file or directory: nowhere.safetensors" in capsys.readouterr().err
    assert run("check", "--model", f"{project}:interrupted") == 130
    assert capsys.readouterr().err == "interrupted\n"


# adapt


def run_documented_loop(project, paths, batch_size, **options):
    """The predictions of the loop in the documentation, by path."""
    adapter = dp.tent(sys.modules[project].build(), select=dp.ConfidenceDifference(), **options)
    rows = []
    for start in range(0, len(paths), batch_size):
        some = paths[start : start + batch_size]
        logits = adapter(FileSet(some).batch(range(len(some))) / 255)
        probability, predicted = logits.softmax(dim=1).max(dim=1)
        columns = (predicted, probability, adapter.last.novelty, adapter.last.selected)
        rows += zip(map(str, some), *(column.tolist() for column in columns), strict=True)
    return rows


def read_row(row):
    numbers = float(row["probability"]), float(row["novelty"])
    return row["path"], int(row["predicted"]), *numbers, row["selected"] == "true"


TENT = ("--method", "tent+crowd", "--option", "lr=0.2", "--guard", "none")


def test_adapt_equals_the_documented_loop_in_every_order(project, tmp_path, capsys):
    folder, single_file = save_images(tmp_path / "b", 10), save_images(tmp_path / "a", 1, first=90) / "090.png"
    paths = [*sorted(folder.iterdir()), single_file]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (age, age))
    out = tmp_path / "new" / "predictions.csv"
    options = ("--model", f"{project}:build", *TENT, "--batch-size", 4)
    shuffled = [paths[index] for index in arrange(paths, "random", seed=3)]
    for order, arranged in {"name": paths, "time": paths[::-1], "random": shuffled}.items():
        capsys.readouterr()
        assert run("adapt", folder, single_file, *options, "--order", order, "--seed", 3, "--out", out, "--force") == 0
        output = capsys.readouterr()
        assert output.out == ""
        rows = table(out)
        expected = run_documented_loop(project, arranged, 4, lr=0.2)
        assert [read_row(row) for row in rows] == sorted(expected, key=lambda row: paths.index(Path(row[0])))
        assert f"11 predictions, {sum(row[-1] for row in expected)} learned from" in output.err
    assert [path.name for path in out.parent.iterdir()] == ["predictions.csv"]


def test_adapt_raises_the_alarm_above_the_threshold(project, tmp_path, capsys):
    options = ("--model", f"{project}:build", "--batch-size", 4, *TENT, "--out", "predictions.csv", "--force")
    folder = save_images(tmp_path / "images", 9)
    assert run("adapt", folder, *options) == 0
    rows = table(Path("predictions.csv"))
    assert {row["alarm"] for row in rows} == {""}
    threshold = sorted(float(row["novelty"]) for row in rows)[4]
    assert run("adapt", folder, *options, "--alarm", threshold) == 0
    rows = table(Path("predictions.csv"))
    assert [row["alarm"] == "true" for row in rows] == [float(row["novelty"]) > threshold for row in rows]
    assert "4 alarms" in capsys.readouterr().err
    assert run("adapt", folder, *options, "--alarm", threshold, "--report", "page.html") == 0
    page = Path("page.html").read_text()
    refused = [row for row in table(Path("predictions.csv")) if row["selected"] == "false"]
    assert "<h2>Alarms: 4</h2>" in page
    assert page.count("data:image/jpeg") == 4 + len(refused)
    assert ("Refused: not learned from" in page) == bool(refused)


def test_picture_page_shows_the_most_novel_first_and_counts_all(tmp_path):
    columns, rows = ["error", "novelty", "predicted", "class", "alarm", "quarantined", "selected"], {}
    for index in range(70):
        Image.new("RGB", (320, 20), (index, 0, 0)).save(tmp_path / f"{index}.png")
        rows[tmp_path / f"{index}.png"] = [None, float(index), 1, f"cat<{index}>", True, False, True]
    text = write_picture_page(tmp_path / "p.html", columns, rows, RunSummary(images=70), "tent").read_text()
    assert "<h2>Alarms: 70</h2>" in text
    assert "Quarantined" not in text
    assert re.findall(r"cat&lt;(\d+)&gt;", text) == [str(index) for index in range(69, 9, -1)]
    assert text.count("data:image/jpeg;base64,") == 60


def test_random_order_depends_on_the_seed_alone():
    paths = [Path(f"{index}.png") for index in range(50)]
    first, again, other = (arrange(paths, "random", seed) for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(50)) == arrange(paths, "name")


def test_adapt_resumes_from_saved_state(project, tmp_path):
    first, second = save_images(tmp_path / "monday", 6), save_images(tmp_path / "tuesday", 6, first=6)
    options = ("--model", f"{project}:build", "--batch-size", 3, *TENT, "--order", "name")
    assert run("adapt", first, second, *options, "--out", "both.csv") == 0
    state = tmp_path / "states" / "now.safetensors"
    for day in (first, second):
        assert run("adapt", day, *options, "--out", f"{day.name}.csv", "--state", state) == 0
    rows = [table(Path(f"{name}.csv")) for name in ("monday", "tuesday", "both")]
    for row in itertools.chain(*rows):
        del row["index"]
    assert rows[0] + rows[1] == rows[2]


def test_adapt_rejects_equal_state_and_output_files(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 3)
    options = ("--model", f"{project}:build", "--out", "predictions.csv", "--state", Path("predictions.csv").resolve())
    assert run("adapt", folder, *options) == 2
    assert "different files" in capsys.readouterr().err
    assert not Path("predictions.csv").exists()


@pytest.mark.parametrize("margin", ["abc", "nan", "[0]"])
def test_adapt_rejects_margin_that_is_not_a_number(project, tmp_path, capsys, margin):
    folder = save_images(tmp_path / "images", 3)
    options = ("--model", f"{project}:build", "--method", "tent+crowd", "--option", f"margin={margin}")
    assert run("adapt", folder, *options, "--out", "predictions.csv") == 2
    assert "`margin` to be a number" in capsys.readouterr().err


def test_adapt_skips_and_reports_unreadable_images(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 5)
    options = (
        "--model",
        f"{project}:build",
        "--batch-size",
        2,
        "--out",
        "predictions.jsonl",
        "--method",
        "source",
        "--force",
    )
    assert run("adapt", folder, *options) == 0
    readable_rows = [json.loads(line) for line in Path("predictions.jsonl").read_text().splitlines()]
    for name in ("001b.png", "004a.png", "004b.png"):
        (folder / name).write_text("no image")
    capsys.readouterr()
    assert run("adapt", folder, *options) == 1
    output = capsys.readouterr().err
    assert all(f"{name} to be an image" in output for name in ("001b.png", "004a.png", "004b.png"))
    assert "5 predictions" in output
    assert "3 unreadable" in output
    rows = [json.loads(line) for line in Path("predictions.jsonl").read_text().splitlines()]
    assert [(row["path"], row["predicted"]) for row in rows if row["error"] is None] == [
        (row["path"], row["predicted"]) for row in readable_rows
    ]
    unread = [row for row in rows if row["error"] is not None]
    assert [Path(row["path"]).name for row in unread] == ["001b.png", "004a.png", "004b.png"]
    assert all(f"{row['path']} to be an image" in row["error"] and row["predicted"] is None for row in unread)


def test_all_table_formats_hold_the_same_rows(tmp_path):
    import polars

    columns = make_columns(names=True, labels=True)
    rows = [
        (n, f'{n}, "é".png', n, "ä, b", n / 7, -n / 3, n % 2 == 0, n == 3, n > 4, "ok", n - 1, None) for n in range(9)
    ]
    rows.append((9, "odd", None, None, None, None, False, False, None, None, None, "no image"))
    for kind in ("csv", "jsonl", "parquet"):
        file = RowFile(tmp_path / f"rows.{kind.replace('parquet', 'jsonl')}", columns)
        for some in (rows[6:], rows[:6]):
            file.append(some)
        assert list(read_rows(file.path, columns)) == rows[6:] + rows[:6]
        sort_rows(file, tmp_path / f"t.{kind}", tmp_path)
    dicts = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == dicts
    assert polars.read_parquet(tmp_path / "t.parquet").to_dicts() == dicts
    plain = [{name: "" if value is None else str(value) for name, value in row.items()} for row in dicts]
    for row in plain:
        row.update((name, row[name].lower()) for name in ("selected", "quarantined", "alarm"))
    assert table(tmp_path / "t.csv") == plain


def test_failed_adapt_leaves_existing_files_unchanged(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 3)
    save_images(tmp_path / "images", 1, first=50, side=20)
    out, state = tmp_path / "predictions.csv", tmp_path / "state"
    out.write_text("old")
    before = sorted(tmp_path.iterdir())
    options = ("--model", f"{project}:build", "--out", out, "--state", state, "--force")
    for index in range(60, 66):
        save_images(tmp_path / "images", 1, first=index, side=index)
    assert run("adapt", folder, *options, "--batch-size", 10) == 2
    assert "to have one size" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before
    assert run("adapt", folder, *options, "--batch-size", 2, "--size", 12) == 0
    state.write_text("damaged")
    assert run("adapt", folder, *options, "--size", 12) == 2
    assert "saved state" in capsys.readouterr().err


def test_adapt_prepares_methods_on_source_images(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 6)
    for name in "abcd":
        save_images(tmp_path / "source" / name, 3, first=ord(name))
    options = ("--model", f"{project}:build", "--method", "eata+crowd", "--out", "predictions.csv", "--batch-size", 3)
    options += ("--force",)
    assert run("adapt", folder, *options) == 2
    assert "`--source`" in capsys.readouterr().err
    assert run("adapt", folder, *options, "--source", "source", "--state", "state") == 0
    assert run("adapt", folder, *options, "--state", "state") == 0, "the state includes the preparation"
    assert run("adapt", folder, *options, "--source", folder) == 2
    assert "one sub-folder per class" in capsys.readouterr().err
    save_images(tmp_path / "source" / "e", 1)
    assert run("adapt", folder, *options, "--source", "source") == 2
    assert "each of the model's 4 classes, but got 5" in capsys.readouterr().err


def test_adapt_leaves_rows_with_nan_logits_blank(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 12)
    bright = [np.asarray(Image.open(path)).mean() > 127.5 for path in sorted(folder.iterdir())]
    assert 0 < sum(bright) < 12
    options = ("--model", f"{project}:nan_for_bright", "--method", "tent", "--out", "predictions.csv")
    assert run("adapt", folder, *options) == 0
    rows = table(Path("predictions.csv"))
    assert [row["predicted"] == row["probability"] == row["novelty"] == "" for row in rows] == bright
    assert "1 batch without a step (NaN or Inf in the model's logits)" in capsys.readouterr().err


def test_adapt_reports_what_guards_did(project, tmp_path, capsys):
    folder = save_images(tmp_path / "images", 40)
    options = ("--model", f"{project}:build", "--batch-size", 2, "--out", "predictions.csv", "--force")
    assert run("adapt", folder, *options, "--method", "tent", "--option", "lr=3") == 0
    assert re.search(r"warning: guards stepped in: .*fell back on \d+ of 20 batches", capsys.readouterr().err)
    assert run("adapt", folder, *options, "--method", "tent", "--option", "lr=3", "--guard", "none") == 0
    assert "guards stepped in" not in capsys.readouterr().err
    assert run("adapt", folder, *options) == 0
    output = capsys.readouterr().err
    assert "health: healthy; entropy of the mean prediction" in output
    assert "warning" not in output


def summarize(*healths, **others):
    summary = RunSummary()
    for health in healths:
        masks = {"selected": torch.tensor([True]), "quarantined": torch.tensor([False])}
        summary.add(SimpleNamespace(**masks, skipped=None, actions=(), health=health, **others), [0])
    return summary


def test_summary_warns_of_runs_that_were_or_ended_unhealthy():
    well, ill, misfit = Health(disagreement=0.1), Health(disagreement=0.9), Health(disagreement=0, statistics_gap=0.5)
    assert summarize(well, well).lines() == ["health: healthy; 10% of predictions differ from the frozen network's"]
    assert summarize(Health()).lines() == [], "nothing was measured"
    _, *lines = summarize(well, ill, well).lines()
    (line,) = lines
    assert "adaptation was collapsed after 2 of 3 batches: 90% of the predictions differ" in line
    assert "--option lr=" in line
    _, first, second = summarize(misfit).lines()
    assert "--order random" in first
    assert "the run ended collapsed" in second
    assert summarize(ill).state == "collapsed"


def test_adapt_names_quarantined_images(project, tmp_path, capsys):
    folder = tmp_path / "night"
    folder.mkdir()
    for index in range(12):
        value = 255 if index == 7 else 6 + index
        Image.fromarray(np.full((12, 12, 3), value, np.uint8)).save(folder / f"{index:02}.png")
    options = ("--model", f"{project}:build", "--method", "tent", "--out", "predictions.csv", "--alarm", 0)
    assert run("adapt", folder, *options) == 0
    rows = table(Path("predictions.csv"))
    assert [row["quarantined"] for row in rows] == ["true" if index == 7 else "false" for index in range(12)]
    assert [row["predicted"] == "" for row in rows] == [index == 7 for index in range(12)]
    assert (rows[7]["selected"], rows[7]["novelty"]) == ("false", "")
    assert "warning: 1 image quarantined" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--out": "predictions.txt"}, "Choose from .csv, .jsonl, .parquet"),
        ({"--method": "tnet"}, "Did you mean tent"),
        ({"--method": "tent", "--option": "rl=1"}, "known option of tent, but got 'rl'"),
        ({"--option": "lr"}, "`name=value`"),
        ({"--model": "{}:per_pixel"}, "For segmentation use `driftproof analyze scenes`."),
        ({"--model": "{}:plain", "--method": "source"}, "The model failed on images of shape"),
        ({"--guard": "gaurd"}, "known guard, but got 'gaurd'"),
        ({"--top-k": "5"}, "`--top-k` of at most 4, the model's classes, but got 5"),
        ({"--device": "cuda:99"}, "to be available on this machine"),
        ({"--alarm": "0.5", "--alarm-rate": "0.05"}, "`--alarm` or `--alarm-rate`, but got both"),
        ({"--alarm-rate": "0"}, "`--alarm-rate` to be above 0 and below 1, but got 0"),
        ({"--alarm-rate": "5"}, "`--alarm-rate` to be above 0 and below 1, but got 5"),
        ({"--alarm-rate": "nan"}, "`--alarm-rate` to be above 0 and below 1, but got nan"),
    ],
)
def test_adapt_explains_bad_options(changes, reason, project, tmp_path, capsys):
    options = {"--model": f"{project}:build", "--out": "predictions.csv"} | changes
    words = [word.format(project) for pair in options.items() for word in pair]
    assert run("adapt", save_images(tmp_path / "images", 2), *words) == 2
    assert reason in capsys.readouterr().err
    assert not Path(options["--out"]).exists()


def test_adapt_names_missing_images(project, tmp_path, capsys):
    options = ("--model", f"{project}:build", "--out", "predictions.csv")
    assert run("adapt", "nowhere", *options) == 2
    assert "to be an image or a folder of images, but it does not exist" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("adapt", "empty", *options) == 2
    assert "Expected images in empty" in capsys.readouterr().err


def test_parquet_without_polars_fails_before_the_model_is_built(project, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "polars", None)
    options = ("--model", f"{project}:interrupted", "--out", "predictions.parquet")
    assert run("adapt", save_images(tmp_path / "images", 2), *options) == 2
    assert "pip install 'driftproof[report]'" in capsys.readouterr().err


@pytest.mark.parametrize("network", ["wrn10_1", "deeplabv3plus_small"])
def test_train_fails_at_once_if_weights_cannot_be_written(tmp_path, capsys, network):
    (tmp_path / "weights").mkdir()
    assert run("train", "--model", network, "--data", tmp_path / "nowhere", "--out", tmp_path / "weights") != 0
    assert "Is a directory" in " ".join(capsys.readouterr().err.split())
