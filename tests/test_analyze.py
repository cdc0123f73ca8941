"""The costs of a step, from the command line."""

import json

import pytest

from driftproof.analyses import count_memory, method_memory
from driftproof.models import build_model
from rows_on_disk import run_command


def test_costs_of_every_method_are_counted_and_timed(capsys):
    words = ("--model", "wrn10_1", "--batch-size", 4, "--size", 16, "--trials", 2, "--warm-up", 0, "--json")
    assert run_command("analyze", "costs", *words, "--methods", "source,ent,tent,eata,tent+crowd") == 0
    costs = json.loads(capsys.readouterr().out)
    assert list(costs) == ["source", "ent", "tent", "eata", "tent+crowd"]
    counted = count_memory(build_model("wrn10_1"), (3, 16, 16))
    for name, found in costs.items():
        expected = None if name == "source" else pytest.approx(method_memory(name, counted, batch=4))
        assert found["memory"] == expected
        assert found["peak"] is None  # a CPU keeps no count
        assert found["milliseconds"] > 0


def test_costs_on_scenes_as_a_table(capsys):
    words = ("--model", "deeplabv3plus_small", "--size", 32, "--batch-size", 2, "--trials", 1, "--warm-up", 0)
    assert run_command("analyze", "costs", *words, "--methods", "swr+crowd") == 0
    shown = capsys.readouterr().out
    assert "counted MiB" in shown
    assert "swr+crowd" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "wrn10_1", "--methods", "tnt"], "Did you mean tent"),
        (["--model", "wrn10_1", "--methods", "tent", "--engine", "warp"], "Expected `engine` to be one of"),
        (["--methods", "tent"], "Expected `--model` or `--weights`"),
    ],
)
def test_invalid_options_are_named(capsys, words, message):
    assert run_command("analyze", "costs", *words, "--batch-size", 2, "--trials", 1) == 2
    assert message in " ".join(capsys.readouterr().err.split())
