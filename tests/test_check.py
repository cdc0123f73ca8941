"""`check` finds the problems of a model, and the adapter rejects the errors."""

import pytest
import torch
from torch import nn

import driftproof as dp
from networks import AttentionNet, GroupNormNet, WideResNet


def problems_by_message(model):
    return {problem.message: problem for problem in dp.check(model)}


def severities(model):
    return [problem.severity for problem in dp.check(model)]


def test_batch_norm_network_has_no_problems():
    assert dp.check(WideResNet()) == []


class Uncopyable(WideResNet):
    def __deepcopy__(self, memo):
        raise TypeError("no")


def make_compiled():
    class OptimizedModule(nn.Module):
        def __init__(self):
            super().__init__()
            self._orig_mod = WideResNet()

    return OptimizedModule()


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (lambda: nn.DataParallel(WideResNet()), "wrapped in DataParallel"),
        (lambda: torch.jit.trace(WideResNet().eval(), torch.rand(1, 3, 8, 8)), "TorchScript"),
        (lambda: nn.Sequential(torch.jit.script(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)), "layers are TorchScript"),
        (make_compiled, "torch.compile"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy"),
        (lambda: nn.Flatten(), "no floating-point parameters"),
        (lambda: WideResNet().to("meta"), "meta device"),
        (Uncopyable, "cannot be copied: no"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_adapter_rejects_models_with_errors(make_model, message):
    model = make_model()
    problems = dp.check(model)
    assert problems[0].severity == "error"
    assert message in problems[0].message
    with pytest.raises(dp.errors.ModelError, match=message):
        dp.source(model)


def test_several_devices_is_an_error():
    model = WideResNet()
    model.extra = nn.Linear(2, 2, device="meta")
    assert "error" in severities(model)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert severities(model) == ["warning"]


def test_non_module_raises():
    with pytest.raises(dp.errors.ModelError, match=r"torch\.nn\.Module, but got function"):
        dp.tent(lambda x: x)
    with pytest.raises(dp.errors.ModelError, match=r"torch\.nn\.Module, but got function"):
        dp.check(lambda x: x)


def test_no_normalization_layers():
    (problem,) = dp.check(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    assert problem.severity == "warning"
    assert "no normalization layers" in problem.message
    assert "ent, swr and cotta" in problem.fix


def test_no_batch_norm():
    (problem,) = dp.check(GroupNormNet())
    assert "no batch norm" in problem.message


def test_mixed_normalization_and_dropout():
    problems = problems_by_message(nn.Sequential(nn.BatchNorm2d(3), nn.GroupNorm(1, 3), nn.Dropout()))
    assert problems["Some normalization layers are not batch norms"].layers == ("1",)
    assert problems["Dropout and stochastic depth are off during adaptation"].layers == ("2",)
    assert any("Dropout" in message for message in problems_by_message(AttentionNet()))


def test_missing_affine_and_missing_statistics():
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 3, 1))
    assert any("No normalization layer has a weight" in message for message in problems_by_message(model))
    model.append(nn.BatchNorm2d(3, track_running_stats=False))
    problems = problems_by_message(model)
    assert problems["Some normalization layers have no weight or bias"].layers == ("0",)
    assert problems["Some batch norms have no running statistics and always use those of the batch"].layers == ("2",)


def test_frozen_batch_norm_is_found_by_class_name():
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
    assert dp.check(WideResNet().requires_grad_(False)) == [], "all frozen: loaded for inference"
    assert any("float16" in message for message in problems_by_message(WideResNet().half()))


def test_problems_are_sorted_and_printable():
    model = nn.Sequential(
        *[nn.Sequential(nn.BatchNorm2d(3, affine=False)) for _ in range(5)], nn.Conv2d(3, 3, 1), nn.Dropout()
    )
    problems = dp.check(model)
    assert severities(model) == sorted(severities(model), key=["error", "warning", "note"].index)
    assert str(problems[0]).startswith("warning: No normalization layer has a weight or bias")
    assert "(0.0, 1.0, 2.0 and 2 more)" in str(problems[0])
