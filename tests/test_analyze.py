"""The costs of a step, from the command line."""

import json

import pytest

from driftproof.analyses import count_memory, method_memory
from driftproof.cli import main
from driftproof.models import build_model


def run(capsys, *words):
    with pytest.raises(SystemExit) as ending:
        main(["analyze", "costs", *words])
    return ending.value.code, capsys.readouterr()


def test_costs_of_every_method_are_counted_and_timed(capsys):
    words = ["--model", "wrn10_1", "--batch-size", "4", "--size", "16", "--trials", "2", "--warm-up", "0", "--json"]
    status, output = run(capsys, *words, "--methods", "source,ent,tent,eata,tent+crowd")
    costs = json.loads(output.out)
    assert status == 0
    assert list(costs) == ["source", "ent", "tent", "eata", "tent+crowd"]
    counted = count_memory(build_model("wrn10_1"), (3, 16, 16))
    for name, found in costs.items():
        expected = None if name == "source" else pytest.approx(method_memory(name, counted, batch=4))
        assert found["memory"] == expected
        assert found["peak"] is None  # a CPU keeps no count
        assert found["milliseconds"] > 0


def test_preparing_methods_are_timed_on_images_and_scenes(capsys):
    few = ["--batch-size", "2", "--trials", "1", "--warm-up", "0", "--json"]
    networks = {"wrn10_1": ("16", "ttn,eata"), "deeplabv3plus_small": ("32", "swr+crowd")}
    for model, (size, methods) in networks.items():
        status, output = run(capsys, "--model", model, "--size", size, *few, "--methods", methods)
        assert status == 0
        assert list(json.loads(output.out)) == methods.split(",")


def test_costs_table(capsys):
    status, output = run(
        capsys, "--model", "wrn10_1", "--batch-size", "2", "--size", "8", "--trials", "1", "--methods", "tent"
    )
    assert status == 0
    assert "counted MiB" in output.out
    assert "tent" in output.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "wrn10_1", "--methods", "tnt"], "Did you mean tent"),
        (["--model", "wrn10_1", "--methods", "tent", "--engine", "warp"], "Expected `engine` to be one of"),
        (["--methods", "tent"], "Expected `--model` or `--weights`"),
    ],
)
def test_invalid_options_are_named(capsys, words, message):
    status, output = run(capsys, *words, "--batch-size", "2", "--trials", "1")
    assert status == 2
    assert message in " ".join(output.err.split())
