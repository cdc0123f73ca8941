"""What `check` says of a model, and that the adapter agrees."""

import pytest
import torch
from torch import nn

import driftproof as dp
from networks import AttentionNet, GroupNormNet, WideResNet


def found(model):
    return {problem.message: problem for problem in dp.check(model)}


def severities(model):
    return [problem.severity for problem in dp.check(model)]


def test_nothing_to_say_of_a_batch_norm_network():
    assert dp.check(WideResNet()) == []


class Uncopyable(WideResNet):
    def __deepcopy__(self, memo):
        raise TypeError("no")


def compiled():
    class OptimizedModule(nn.Module):
        def __init__(self):
            super().__init__()
            self._orig_mod = WideResNet()

    return OptimizedModule()


@pytest.mark.parametrize(
    ("construct", "complaint"),
    [
        (lambda: nn.DataParallel(WideResNet()), "wrapped in DataParallel"),
        (lambda: torch.jit.trace(WideResNet().eval(), torch.rand(1, 3, 8, 8)), "TorchScript"),
        (lambda: nn.Sequential(torch.jit.script(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)), "layers are TorchScript"),
        (compiled, "torch.compile"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy"),
        (lambda: nn.Flatten(), "no floating-point parameters"),
        (lambda: WideResNet().to("meta"), "meta device"),
        (Uncopyable, "cannot be copied: no"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_errors_are_what_the_adapter_refuses(construct, complaint):
    model = construct()
    problems = dp.check(model)
    assert problems[0].severity == "error"
    assert complaint in problems[0].message
    with pytest.raises(dp.errors.ModelError, match=complaint):
        dp.source(model)


def test_two_devices():
    model = WideResNet()
    model.extra = nn.Linear(2, 2, device="meta")
    assert "error" in severities(model)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert severities(model) == ["warning"]


def test_something_else_than_a_model():
    with pytest.raises(dp.errors.ModelError, match=r"torch\.nn\.Module, but got function"):
        dp.tent(lambda x: x)
    with pytest.raises(dp.errors.ModelError, match=r"torch\.nn\.Module, but got function"):
        dp.check(lambda x: x)


def test_no_normalization():
    (problem,) = dp.check(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    assert problem.severity == "warning"
    assert "no normalization layers" in problem.message
    assert "ent, swr and cotta" in problem.fix


def test_no_batch_norm():
    (problem,) = dp.check(GroupNormNet())
    assert "no batch norm" in problem.message


def test_mixed_normalization_and_dropout():
    problems = found(nn.Sequential(nn.BatchNorm2d(3), nn.GroupNorm(1, 3), nn.Dropout()))
    assert problems["Some normalization layers are no batch norms"].layers == ("1",)
    assert problems["Dropout and stochastic depth stay off during adaptation"].layers == ("2",)
    assert any("Dropout" in what for what in found(AttentionNet()))


def test_missing_affine_and_missing_statistics():
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 3, 1))
    assert any("No normalization layer has a weight" in what for what in found(model))
    model.append(nn.BatchNorm2d(3, track_running_stats=False))
    problems = found(model)
    assert problems["Some normalization layers have no weight or bias"].layers == ("0",)
    assert problems["Some batch norms keep no running statistics and always use the batch's"].layers == ("2",)


def test_frozen_batch_norms_are_recognized_by_name():
    class FrozenBatchNorm2d(nn.Module):
        pass

    model = nn.Sequential(nn.Conv2d(3, 3, 1), FrozenBatchNorm2d(), nn.BatchNorm2d(3))
    (problem,) = dp.check(model)
    assert problem.layers == ("1",)


def test_frozen_parameters_and_half_precision():
    model = WideResNet()
    model.stem.requires_grad_(False)
    (problem,) = dp.check(model)
    assert problem.severity == "note"
    assert problem.layers == ("stem.weight",)
    assert dp.check(WideResNet().requires_grad_(False)) == [], "a model frozen throughout was loaded for inference"
    assert any("float16" in what for what in found(WideResNet().half()))


def test_errors_come_first_and_read_as_sentences():
    model = nn.Sequential(
        *[nn.Sequential(nn.BatchNorm2d(3, affine=False)) for _ in range(5)], nn.Conv2d(3, 3, 1), nn.Dropout()
    )
    problems = dp.check(model)
    assert severities(model) == sorted(severities(model), key=["error", "warning", "note"].index)
    assert str(problems[0]).startswith("warning: No normalization layer has a weight or bias")
    assert "(0.0, 1.0, 2.0 and 2 more)" in str(problems[0])
