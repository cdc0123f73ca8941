"""The proof's state file: a run goes on elsewhere as if nothing had happened."""

import dataclasses
import importlib
import itertools
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import driftproof as dp
from driftproof.bench import Results
from driftproof.bench.jobs import run_locally
from driftproof.bench.runner import RunSettings
from driftproof.bench.tables import TableEntry
from driftproof.errors import StateError
from networks import build
from small_bench import AT_ONCE, SmallBench, contents, crash_points, files, ignore, restore, small_jobs

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
sentinel_proof = importlib.import_module("sentinel_proof")
answer_rounds = importlib.import_module("answer_rounds")
sentinel_method = importlib.import_module("driftproof.methods.sentinel")

DOMAINS = ("fog", "snow")


def test_run_that_moves_to_another_machine_ends_with_same_bytes(tmp_path):
    jobs = small_jobs(rounds=3, domains=DOMAINS, methods=["tent+crowd"])
    run_locally(jobs, tmp_path / "whole", SmallBench(), AT_ONCE, ignore)
    for rounds in (1, 2, 3):
        here = tmp_path / str(rounds)
        if rounds > 1:
            sentinel_proof.unpack(tmp_path / "state.bin", here)
        jobs = small_jobs(rounds=rounds, domains=DOMAINS, methods=["tent+crowd"])
        run_locally(jobs, here / "all", SmallBench(), AT_ONCE, ignore)
        sentinel_proof.pack(here, tmp_path / "state.bin")
    assert contents(here / "all") == contents(tmp_path / "whole")


def write_over(folder, content):
    """Make a folder hold what `files` returned, and nothing else."""
    for path in list(folder.rglob("*")):
        if path.is_file() and str(path.relative_to(folder)) not in content:
            path.unlink()
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_state_that_is_packed_while_a_run_writes_can_be_resumed(tmp_path, monkeypatch):
    """The run goes on by so many file operations before every file that is read."""
    jobs, whole = small_jobs(rounds=1, domains=DOMAINS, methods=["tent+crowd"]), tmp_path / "whole"
    with crash_points(whole) as points:
        run_locally(jobs, whole, SmallBench(), AT_ONCE, ignore)
    read, packed = Path.read_bytes, set()
    states = [point for point, _ in itertools.groupby([*points, files(whole)]) if any("spec.json" in n for n in point)]
    for start, stride in itertools.product(range(len(states)), (1, 2, 5)):
        folder, place = restore(tmp_path / f"{start}-{stride}", states[start]), [start]

        def advance(path, folder=folder, place=place, stride=stride):
            place[0] = min(place[0] + stride, len(states) - 1)
            write_over(folder, states[place[0]])
            return read(path)

        (cell,) = (folder / "cells").iterdir()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", advance)
            found = sentinel_proof.read_run(cell)
        content = tuple((f"cells/{cell.name}/{name}", data) for name, data in sorted(found.items()))
        if content not in packed:  # the same files go on in the same way
            packed.add(content)
            again = restore(tmp_path / f"again-{start}-{stride}", dict(content))
            run_locally(jobs, again, SmallBench(), AT_ONCE, ignore)
            assert contents(again) == contents(whole)
    assert len(packed) == len(DOMAINS) + 1


def test_state_is_not_unpacked_over_other_runs(tmp_path):
    (tmp_path / "out").mkdir()
    sentinel_proof.pack(tmp_path, tmp_path / "state.bin")
    (tmp_path / "out" / "rows.jsonl").touch()
    with pytest.raises(StateError, match=r"empty folder for the runs of state.bin"):
        sentinel_proof.unpack(tmp_path / "state.bin", tmp_path / "out")


class KilledError(BaseException):
    """Ends a run as a signal would."""


@pytest.mark.parametrize(("unknown", "rows"), [(None, 3), ("unknown", 5)])
def test_rounds_without_an_answer_change_nothing_of_the_others(tmp_path, monkeypatch, unknown, rows):
    """Nor does a run that is killed after some rows of theirs, and resumed; their measures have names of their own."""
    # A batch of six has statistics of its own, so that the frozen network's logits are kept.
    monkeypatch.setattr(sentinel_method, "WindowedBlend", partial(dp.statistics.WindowedBlend, window=6))
    (job,) = small_jobs(rounds=4, domains=DOMAINS, methods=["sentinel"])
    job = dataclasses.replace(job, spec=dataclasses.replace(job.spec, unknown=unknown))

    def kill(event):
        if event.row is not None and 8 * event.done == rows * event.total:
            raise KilledError

    def run(folder, callback=ignore, rounds=(1, 4)):
        before = answer_rounds.AnswerRounds(rounds, is_closed=unknown is None)
        settings = RunSettings(save_every=0.0, before_domain=before)
        run_locally([job], tmp_path / folder, SmallBench(), settings, callback)
        (path,) = (tmp_path / folder).rglob("rows.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    whole, short = run("whole", rounds=(1, 2, 3, 4)), run("short")
    with pytest.raises(KilledError):
        run("killed", kill)
    assert run("killed") == short
    for ours, theirs in zip(short, whole, strict=True):
        if ours["round"] in (1, 4):
            # Health is a moving average over answers, those of the rounds before too.
            assert {name: ours[name] for name in ours if "health" not in name}.items() <= theirs.items()
        else:
            assert "error" not in ours
            assert ours["learner/selected_known"] == theirs["selected_known"]
    results = Results(tmp_path / "short")
    assert results.value(TableEntry("sentinel", job.spec.setting, (job.spec,), round=3)).round == 1


def make_sentinel(window):
    detector = dp.detectors.Sentinel(lr=1e-2, momentum=1.0, images_per_step=1)
    options = {"statistics": dp.statistics.WindowedBlend(0.3, window), "accumulate": 1, "guard": ()}
    return dp.sentinel(build("wide_resnet"), lr=1e-2, detector=detector, **options)


@pytest.mark.parametrize(("is_closed", "window"), [(False, 4), (True, 4), (False, 6)])
def test_passes_that_no_row_needs_are_left_out_and_change_nothing(is_closed, window):
    """Batches below the window have running statistics, so that the frozen network's logits differ between rounds."""
    whole, short = make_sentinel(window), make_sentinel(window)
    rounds, passes = answer_rounds.AnswerRounds({1, 5}, is_closed=is_closed), []
    short.source.register_forward_pre_hook(lambda network, images: passes.append(len(images[0])))
    generator = torch.Generator().manual_seed(0)
    stream = {domain: [torch.rand(n, 3, 8, 8, generator=generator) for n in (7, 7, 5)] for domain in DOMAINS}
    for number, domain in itertools.product(range(1, 6), DOMAINS):
        prefix, sentinel = rounds(short, number, domain), short.method.detector.affine.clone()
        for images in stream[domain]:
            passes.clear()
            answer, ours = whole(images), short(images)
            assert prefix or torch.equal(ours, answer)
            assert prefix == ("" if number in (1, 5) else "learner/")
            assert is_closed or torch.equal(short.last.novelty, whole.last.novelty)
            assert torch.equal(short.last.selected, whole.last.selected)
            assert len(passes) == (2 if not prefix else 0 if number > 2 and window == 4 else 1)
        assert torch.equal(short.method.detector.affine, sentinel) == (is_closed and bool(prefix))
    ours, theirs = (dict(adapter.network.named_parameters()) for adapter in (short, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
