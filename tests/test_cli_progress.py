"""Progress of a benchmark on the terminal, and names of options."""

import dataclasses
import io
import itertools
import re
from pathlib import Path
from unittest.mock import Mock

import typer
from rich.console import Console

from driftproof.bench import Spec
from driftproof.bench.runner import ProgressEvent
from driftproof.cli import app, bench_progress
from driftproof.cli.bounded_progress import BoundedProgress
from driftproof.paper import suite


def test_progress_has_one_line_per_run():
    spec, shown = Spec("tent", "cifar10-c", "wrn40_2", domains=("fog",)), {}
    display = Mock(add_task=Mock(side_effect=range(3)))
    display.update = lambda task, description, completed, total: shown.update({task: (description, completed, total)})
    similar = [spec for name in ("table8", "table7", "table4") for spec in suite(name).specs()]
    assert len(set(bench_progress._make_titles(similar).values())) == len(similar)
    seeded = dataclasses.replace(spec, unknown="svhn-c", seed=3)
    costs = dataclasses.replace(spec, method="tent,eata", task="costs")
    on_progress = bench_progress._ProgressLines(display, [spec, seeded, costs])
    on_progress(ProgressEvent(spec, "svhn-c/fog/5", 40))
    assert shown[0] == ("tent on cifar10-c, closed: svhn-c/fog/5, 40 images", 40, None)
    on_progress(ProgressEvent(spec, "measured", 3, 9, {"round": 1, "domain": "fog", "error": 12.34}))
    on_progress(ProgressEvent(spec, "adapting", 4, 9))
    assert shown[0] == ("tent on cifar10-c, closed: round 1, fog 12.3 %", 4, 9)
    on_progress(ProgressEvent(seeded, "failed", 0))
    assert shown[1] == ("tent on cifar10-c, open, seed 3: failed", 0, None)
    on_progress(ProgressEvent(costs, "measured", 2, 2, {"round": 1, "domain": "tent", "memory": 5.0}))
    assert shown[2] == ("costs on cifar10-c, closed: round 1, tent", 2, 2)


def test_log_prints_results_every_ten_seconds_and_every_failure(capsys, monkeypatch):
    spec, now = Spec("tent", "a-set-with-a-long-name", "wrn40_2", domains=("impulse_noise",)), [0.0]
    monkeypatch.setattr(bench_progress, "monotonic", lambda: now[0])
    with bench_progress.progress_display([spec]) as on_progress:
        for seconds, measure, value in [(0, "error", 12.34), (9, "error", 13.0), (10, "mean_iou", 56.78)]:
            now[0] = float(seconds)
            on_progress(ProgressEvent(spec, "adapting", 1, 2))
            on_progress(ProgressEvent(spec, "measured", 2, 2, {"round": 12, "domain": "impulse_noise", measure: value}))
            line = f"tent on a-set-with-a-long-name, closed: round 12, impulse_noise {value:.1f} %\n"
            assert capsys.readouterr().err == ("" if seconds == 9 else line)
        on_progress(ProgressEvent(spec, "failed", 0))
        assert capsys.readouterr().err == "tent on a-set-with-a-long-name, closed: failed\n"
        now[0] = 21.0
        on_progress(ProgressEvent(spec, "learning shares", 110))
        assert capsys.readouterr().err.endswith("closed: learning shares, 110 images\n")


def test_bounded_progress_always_shows_unfinished_tasks():
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=10)
    with BoundedProgress(console=console, auto_refresh=False) as progress:
        slow = progress.add_task("slow", total=2)
        for number in range(20):
            progress.update(progress.add_task(f"cell {number}", total=1), completed=number < 19)
        console.file.truncate(0)
        progress.refresh()
        shown = console.file.getvalue()
        assert all(f"{name} " in shown for name in ("slow", "cell 19", "cell 18"))
        assert "cell 0 " not in shown
        progress.update(slow, completed=2)
        console.file.truncate(0)
    assert all(f"cell {number} " in console.file.getvalue() for number in range(20)), "all tasks are shown at the end"


def test_option_names_agree_with_the_page():
    """Each option of the table in docs/command-line.md belongs to exactly the commands it names."""
    found = {}

    def walk(command, *path):
        for name, below in getattr(command, "commands", {}).items():
            walk(below, *path, name)
        for option in itertools.chain(*(parameter.opts for parameter in command.params)):
            found.setdefault(option, set()).add(" ".join(path))

    walk(typer.main.get_command(app))
    page = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text()
    rows = re.findall(r"^\| `(--[\w-]+)` \| [^|]+ \| ([^|]+) \|$", page, flags=re.MULTILINE)
    assert {option: set(names.split(", ")) for option, names in rows} == {option: found[option] for option, _ in rows}
    assert len(rows) > 20
    assert not {"--set", "--sets", "--root", "--start"} & set(found), "former names"
