"""Programs of `torch.export` adapt like the models they were made of."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import driftproof as dp
from driftproof.errors import ModelError
from driftproof.models import load_exported
from rows_on_disk import run_command
from test_adapt_runs import images, pictures  # noqa: F401  # fixtures

# Torch's own, when it exports a program or copies one.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*torch.jit:DeprecationWarning")

NETWORK = """
import torch
from torch import nn

def build():
    torch.manual_seed(3)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()
"""


def build():
    found = {}
    exec(NETWORK, found)
    return found["build"]()


def export(path, model, *, dynamic=True):
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    torch.export.save(torch.export.export(model, (torch.rand(4, 3, 12, 12),), dynamic_shapes=shapes), path)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(path, build())
    return path


@pytest.mark.parametrize("method", [dp.tent, dp.adapt, dp.bn_adapt, dp.t3a])
def test_exported_program_adapts_like_its_model(program, method):
    first, second = method(build()), method(load_exported(program))
    for batch in torch.rand(4, 6, 3, 12, 12):
        assert torch.equal(first(batch), second(batch))
        assert torch.equal(first.last.novelty, second.last.novelty)


def test_layers_are_found_again(program):
    kinds = [type(layer) for layer in load_exported(program).modules()]
    for kind in (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.Linear):
        assert kinds.count(kind) == 1


def test_what_cannot_be_adapted_is_said(tmp_path):
    export(tmp_path / "fixed.pt2", build(), dynamic=False)
    with pytest.raises(ModelError, match=r"takes 4 images only. Export the model again with `dynamic_shapes"):
        load_exported(tmp_path / "fixed.pt2")
    torch.jit.save(torch.jit.script(build()), tmp_path / "net.ts")
    with pytest.raises(ModelError, match=r"net\.ts is TorchScript.*torch\.export\.save"):
        load_exported(tmp_path / "net.ts")
    (tmp_path / "net.pt2").write_bytes(b"no archive")
    with pytest.raises(ModelError, match="it is no archive"):
        load_exported(tmp_path / "net.pt2")
    with pytest.raises(FileNotFoundError):
        load_exported(tmp_path / "missing.pt2")


def test_command_adapts_a_program(program, images, capsys):  # noqa: F811
    Path("exported_net.py").write_text(NETWORK)
    sys.modules.pop("exported_net", None)
    Path("net.pt2").write_bytes(program.read_bytes())
    words = ("--method", "tent+crowd", "--batch-size", 8)
    assert run_command("adapt", images, "--model", "net.pt2", *words, "--out", "program.csv") == 0
    assert run_command("adapt", images, "--model", "exported_net:build", *words, "--out", "module.csv") == 0
    assert Path("program.csv").read_bytes() == Path("module.csv").read_bytes()
    assert run_command("adapt", images, "--model", "net.pt2", "--weights", "x.pt", "--out", "other.csv") == 2
    assert "Expected no `--weights` with net.pt2" in capsys.readouterr().err
