"""A run that is killed again and again ends like one left alone; `make soak` is the long version."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc/self/statm").exists(), reason="needs Linux")


def soak(folder, steps, kills, seed):
    script = [sys.executable, str(BENCHMARKS / "soak.py"), "--out", str(folder), "--seed", str(seed)]
    paths = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    words = ["--steps", str(steps), "--kills", str(kills)]
    ended = subprocess.run([*script, *words], env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads((folder / "soak.json").read_text())


def check(results, steps):
    assert results["steps"] == steps
    assert results["rows equal"] is results["a row for each line"] is results["states equal"] is True
    assert results["rows with an error"] > 0
    assert results["left behind"] == []


@pytest.mark.slow
def test_short_soak(tmp_path):
    """`test_adapt_runs` kills, stops and resumes runs as well, without a stream that runs beside them."""
    check(soak(tmp_path, 40, 2, seed=5), 40)


@pytest.mark.slow
def test_soak_of_two_minutes(tmp_path):
    results = soak(tmp_path, 5000, 12, seed=1)
    check(results, 5000)
    assert results["growth"] <= 0.02
    assert results["ends"]["KILL"] >= 3
