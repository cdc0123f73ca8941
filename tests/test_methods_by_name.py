"""Methods by name, as commands and benchmarks build them."""

import inspect
from pathlib import Path

import pytest

import driftproof as dp
from cases import BANK_METHODS, RECENT_METHODS
from driftproof.errors import ConfigurationError
from driftproof.methods.by_name import METHODS, build_method
from networks import build as small_network

SELECTING = ("gce", "conjugate", "ent", "tent", "eata", "swr", "cotta", "adapt", "memo", *RECENT_METHODS, *BANK_METHODS)
NETWORK = small_network("wide_resnet")


@pytest.mark.parametrize("name", METHODS)
def test_method_name_builds_method_with_paper_settings(name):
    by_hand = getattr(dp, name)(NETWORK)
    assert build_method(name, NETWORK, {}).method.describe() == by_hand.method.describe()
    if name in SELECTING:
        by_hand = getattr(dp, name)(NETWORK, select=dp.ConfidenceDifference())
        assert build_method(f"{name}+crowd", NETWORK, {}).method.describe() == by_hand.method.describe()
    else:
        with pytest.raises(ConfigurationError, match="known method"):
            build_method(f"{name}+crowd", NETWORK, {})


def test_published_methods_are_said_in_sixty_lines():
    files = {name: Path(inspect.getfile(inspect.unwrap(method))) for name, method in METHODS.items()}
    assert {name for name, file in files.items() if len(file.read_text().splitlines()) > 60} <= {"sentinel"}


def test_options_are_keywords_of_method_and_selection():
    options = {"lr": 0.02, "accumulate": 4, "margin": -0.2, "on": "logits", "mean_entropy": 0.1, "output": "after"}
    found = build_method("tent+crowd", NETWORK, options)
    select = dp.ConfidenceDifference(margin=-0.2, on="logits")
    by_hand = dp.tent(NETWORK, lr=0.02, accumulate=4, select=select, mean_entropy=0.1, output="after")
    assert found.method.describe() == by_hand.method.describe()
    assert found.optimizer.param_groups[0]["lr"] == 0.02
    assert options["margin"] == -0.2, "the caller's options are unchanged"
    confident, certain = (build_method(f"tent+{name}", NETWORK, {}) for name in ("confident", "certain"))
    assert repr(confident.select) == "ConfidenceAbove(threshold=0.9, network='adapting')"
    assert repr(certain.select) == "EntropyBelow(network='adapting')"
    adapter = build_method("tent", NETWORK, {"optimizer": "sgd", "statistics": "source", "source_statistics": "batch"})
    assert adapter.optimizer.param_groups[0]["momentum"] == 0.9
    assert [repr(part) for part in (adapter.statistics, adapter.method.source_statistics)] == ["Source()", "Batch()"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tnet", {}, "Did you mean tent"),
        ("tent", {"lrr": 1}, "option of tent, but got 'lrr'. Did you mean lr"),
        ("tent", {"margin": 0}, "known option of tent, but got 'margin'"),
        ("source", {"lr": 1e-3}, "known option of source"),
        ("tent", {"select": "crowd"}, "known option of tent, but got 'select'"),
        ("tent", {"optimizer": "adm"}, "known optimizer, but got 'adm'. Did you mean adam"),
        ("tent", {"lr": "fast"}, "`lr` to be a number of at least 0, but got 'fast'"),
        ("tent", {"guard": "rollback"}, "known guard, but got 'rollback'. Did you mean roll_back"),
    ],
)
def test_unknown_method_or_option_suggests_nearest(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        build_method(name, NETWORK, options)
