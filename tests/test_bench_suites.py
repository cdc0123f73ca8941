"""Suites against an independent copy of the paper's settings, and the specs they list."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftproof
from driftproof.bench import Spec, build_method
from driftproof.bench.metrics import METRICS
from driftproof.bench.spec import differences
from driftproof.errors import ConfigurationError, StateError
from driftproof.models import MODELS
from driftproof.paper import SUITES, suite
from driftproof.paper.printed import PAPER_TABLES, paper_table
from networks import build

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)

BUILT = {name: make() for name, make in SUITES.items()}
TABLES = {table.name: table for made in BUILT.values() for table in made.tables}
SPECS = {name: list(made.specs()) for name, made in BUILT.items()}
CAMVID = ("camvid", "camvid_x10", "camvid_x100", "camvid_x1000", "camvid_parts", "camvid_rates")
OUR_OWN = ("demo", *CAMVID, "rules", "gradients", "open_choices", "endurance", "milder")
DRIVING = ("table3", "table4", "s1", "s3b", "s4", *CAMVID)


# The paper's tables


def test_every_paper_table_has_a_suite():
    filled = [table.paper for table in TABLES.values() if table.paper]
    assert sorted(filled) == sorted(PAPER_TABLES)
    ours = {table.name for name in OUR_OWN for table in BUILT[name].tables}
    assert {table.name for table in TABLES.values() if table.paper is None} == ours | {"s5_rejected"}


def test_rejected_shares_come_from_the_runs_of_table_s5():
    compared = {(entry.row, entry.column): entry.specs for entry in TABLES["s5"].entries if "+crowd" in entry.row}
    rejected = TABLES["s5_rejected"]
    assert {(entry.row, entry.column): entry.specs for entry in rejected.entries} == compared
    assert {(entry.metric, entry.round, entry.paper_row) for entry in rejected.entries} == {("rejected", 50, None)}


@pytest.mark.parametrize("table", [table for table in TABLES.values() if table.paper], ids=lambda table: table.name)
def test_every_paper_number_has_one_entry_or_summary(table):
    paper = paper_table(table.paper)
    places = [(entry.paper_row, entry.column) for entry in table.entries if entry.paper_row]
    rows = {entry.row: entry.paper_row for entry in table.entries}
    places += [(row, summary.column) for summary in table.summaries for row in rows.values() if row]
    assert sorted(places) == sorted(itertools.product(paper.rows, paper.columns))
    ours = [(entry.row, entry.column) for entry in table.entries]
    assert len(set(ours)) == len(ours)
    assert all(rows[entry.row] == entry.paper_row for entry in table.entries)
    columns = {entry.column for entry in table.entries}
    assert all(set(summary.of) <= columns and summary.column not in columns for summary in table.summaries)


@pytest.mark.parametrize("table", [table for table in TABLES.values() if table.paper], ids=lambda table: table.name)
def test_table_direction_matches_paper(table):
    ways = set(paper_table(table.paper).better.values())
    assert len(ways) > 1 or ways == {"lower" if table.lower_is_better else "higher"}


@pytest.mark.parametrize(
    ("name", "rounds"),
    {
        **{"table1": 50, "table2": 1, "table3": 1, "table4": 10, "table5": 50, "table6": 50, "table7": 50},
        **{"table8": 10, "s1": 1, "s2": 10, "s3": 50, "s3b": 1, "s4": 1, "s5": 50},
    }.items(),
)
def test_suite_rounds_match_its_tables(name, rounds):
    assert BUILT[name].rounds == rounds
    assert max(entry.round for table in BUILT[name].tables for entry in table.entries) == rounds


@pytest.mark.parametrize(
    ("table", "rounds"),
    {
        **{"table1": {50}, "table2": {1}, "table4": {1, 10}, "table5a": {50}, "table6": {1, 50}, "table7a": {50}},
        **{"table7b": {1}, "table8a": {10}, "table8b": {10}, "s2a": {10}, "s2b": {1}, "s3a": {1, 50}, "s5": {50}},
    }.items(),
)
def test_entries_use_the_papers_rounds(table, rounds):
    assert {entry.round for entry in TABLES[table].entries} == rounds
    costly = [entry for entry in TABLES[table].entries if entry.metric in ("memory", "milliseconds")]
    assert all(entry.round == 1 for entry in costly)


def test_tables_share_runs():
    shared = set(SPECS["table1"])
    assert set(SPECS["table2"]) == shared
    assert set(SPECS["table5"]) < shared
    assert {spec for spec in SPECS["table6"] if spec.task == "stream"} < shared
    assert {spec for spec in SPECS["s5"] if ("on", "logits") not in spec.options} < shared
    assert {spec for spec in SPECS["s3"] if spec.model == "wrn40_2" and spec.method.startswith("tent")} & shared
    assert set(SPECS["s1"]) & set(SPECS["s3b"]) & set(SPECS["table3"])


def short(column):
    """Return `cifar100` for `CIFAR-100/SVHN-C AUROC`."""
    return column.partition("/")[0].removesuffix("-C").replace("-", "").lower()


def test_entries_use_the_runs_of_their_row_and_column():
    for table in ("table1", "table2"):
        for entry in TABLES[table].entries:
            (spec,) = entry.specs
            images, setting = entry.column.split("/")
            names = {"CIFAR-10-C": "cifar10-c", "CIFAR-100-C": "cifar100-c", "TinyImageNet-C": "tiny-imagenet-c"}
            assert (spec.images, spec.setting) == (names[images], setting.lower())
            assert spec.method == entry.row.partition(" (")[0]
    for entry in TABLES["table6"].entries:
        if entry.column.endswith(" error"):
            assert [spec.setting for spec in entry.specs] == ["closed", "open"], "the mean of closed and open"
    models = {"ResNet50": "resnet50_cifar", "WRN28": "wrn28_10"}
    for entry in (*TABLES["table7a"].entries, *TABLES["table7b"].entries):
        network, setting = entry.column.split("/")
        assert [(spec.model, spec.setting) for spec in entry.specs] == [(models[network], setting.lower())]
    for entry in (*TABLES["s2a"].entries, *TABLES["s2b"].entries):
        assert [spec.setting for spec in entry.specs] == [entry.column.lower()]
    for entry in (*TABLES["s5"].entries, *TABLES["table5a"].entries, *TABLES["table5b"].entries):
        (spec,) = entry.specs
        assert (spec.setting, spec.images) in {
            ("closed", "tiny-imagenet-c" if entry.column.startswith("Tiny") else f"{short(entry.column)}-c"),
            ("open", f"{short(entry.column)}-c"),
        }
        assert (spec.setting == "open") == ("SVHN" in entry.column)
    for protocol in ("including", "excluding"):
        table = TABLES["table5a" if protocol == "including" else "table5b"]
        measures = {(entry.row, entry.column.split()[-1]): entry.metric for entry in table.entries}
        assert measures["energy", "FPR@TPR95"] == f"energy/{protocol}/fpr"
        assert measures["confidence_difference", "AUROC"] == f"confidence_difference/{protocol}/auroc"
        assert {spec.method for entry in table.entries for spec in entry.specs} == {"tent"}


# The paper's settings


@pytest.mark.parametrize(
    "name", [name for name in SUITES if name not in (*DRIVING, "demo", "open_choices", "endurance", "milder")]
)
def test_streams_use_the_papers_corruptions_severity_and_batch_size(name):
    unknown = {
        "cifar10-c": "svhn-c",
        "cifar100-c": "svhn-c",
        "tiny-imagenet-c": "imagenet-o-c-64",
        "imagenet-c": "imagenet-o-c-224",
    }
    for spec in SPECS[name]:
        if spec.task == "stream":
            assert spec.domains == CORRUPTIONS
            assert spec.unknown in (None, unknown[spec.images])
        assert spec.severity == 5
        assert (spec.seed, spec.limit) == (0, None)
        if name != "table8":
            assert spec.batch_size == (64 if spec.images == "imagenet-c" else 200)


def test_networks_are_the_papers():
    used = {
        (name, spec.images, spec.model)
        for name, specs in SPECS.items()
        for spec in specs
        if name not in (*DRIVING, *OUR_OWN[1:])
    }
    assert used - {("demo", spec.images, spec.model) for spec in SPECS["demo"]} == {
        *(
            (name, images, model)
            for name in ("table1", "table2", "s5")
            for images, model in [("cifar10-c", "wrn40_2"), ("cifar100-c", "wrn40_2"), ("tiny-imagenet-c", "resnet50")]
        ),
        *((name, images, "wrn40_2") for name in ("table5", "table6", "s3") for images in ("cifar10-c", "cifar100-c")),
        *(("table7", "cifar10-c", model) for model in ("resnet50_cifar", "wrn28_10")),
        ("table8", "tiny-imagenet-c", "resnet50"),
        ("s2", "imagenet-c", "resnet50"),
        ("s3", "cifar10-c", "wrn28_10"),
        ("s3", "cifar100-c", "resnext29"),
    }
    assert {model for name, _, model in used if name != "demo"} <= set(MODELS)


CROWD = "ConfidenceDifference(margin=0.0, on='softmax')"
TASK = (
    "NearestPrototypes(sample_entropy=0.8, mean_entropy=0.25, consistency_weight=0.1, temperature=0.1, dimensions=128, "
    "epochs=10, lr=0.001, batch_size=200, augment=photometric)"
)
PENALTY = "ShiftAgnosticPenalty(weight=250.0, anchor='{}', samples=2000, batch_size=32, augment=photometric)"
FILTER = "EntropyBelow(network='adapting') & NonRedundant(similarity={}, momentum=0.9) & EntropyWeight()"
TEACHER = (
    "TeacherEnsemble({}views=RandomViews(count=32, augment=cotta_view), "
    "scales=MultiScale(scales=(0.5, 0.75, 1.0, 1.25, 1.5)))"
)
ALL, AFFINE = "everything()", "norm_affine()"

# Scope, optimizer, learning rate, loss, selection, λ_max, regularizer.
DEFAULTS = {
    "gce": (AFFINE, "Adam", 1e-3, "GCE(q=0.8)", "None", 0.0, "None"),
    "conjugate": (AFFINE, "Adam", 1e-3, "Conjugate(epsilon=6.0, temperature=1.0)", "None", 0.0, "None"),
    "conjugate (ε = 0)": (AFFINE, "Adam", 1e-3, "Conjugate(epsilon=0.0, temperature=1.0)", "None", 0.0, "None"),
    "ent": (ALL, "Adam", 1e-4, "Entropy()", "None", 0.0, "None"),
    "ent+crowd": (ALL, "Adam", 1e-4, "Entropy()", CROWD, 0.5, "None"),
    "tent": (AFFINE, "Adam", 1e-3, "Entropy()", "None", 0.0, "None"),
    "tent+crowd": (AFFINE, "Adam", 1e-3, "Entropy()", CROWD, 0.5, "None"),
    "swr": (ALL, "Adam", 1e-4, "Entropy()", "None", 0.5, f"{PENALTY.format('previous')} + {TASK}"),
    "swr+crowd": (ALL, "Adam", 1e-4, "Entropy()", CROWD, 0.5, f"{PENALTY.format('previous')} + {TASK}"),
}
BETA, SIMILAR = {"cifar10-c": 1.0, "cifar100-c": 1.0, "tiny-imagenet-c": 2000.0}, {"tiny-imagenet-c": 0.05}


def eata_on(images, *, crowd):
    select, weight = (CROWD, 0.5) if crowd else (FILTER.format(SIMILAR.get(images, 0.4)), 0.0)
    fisher = f"Fisher(weight={BETA[images]}, samples=2000, batch_size=200)"
    return AFFINE, "Adam", 1e-3, "Entropy()", select, weight, fisher


def cotta_at(threshold):
    output = TEACHER.format("" if threshold is None else f"threshold={threshold}, ")
    return ALL, "Adam", 1e-3, "Consistency(symmetric=False)", "None", 0.0, "None", output


ON_IMAGENET = {
    "tent": (AFFINE, "SGD", 2.5e-4, "Entropy()", "None", 0.0, "None"),
    "tent+crowd": (AFFINE, "SGD", 2.5e-4, "Entropy()", CROWD, 0.5, "None"),
    "swr": (ALL, "SGD", 2.5e-4, "Entropy()", "None", 0.5, f"{PENALTY.format('source')} + {TASK}"),
    "swr+crowd": (ALL, "SGD", 2.5e-4, "Entropy()", CROWD, 0.5, f"{PENALTY.format('source')} + {TASK}"),
}
LOGITS = (AFFINE, "Adam", 1e-3, "Entropy()", "ConfidenceDifference(margin=0.0, on='logits')", 0.5, "None")

NETWORKS = {"image": build("wide_resnet"), "pixels": build("segmentation")}
adapters = {}


def adapter_of(spec):
    key = spec.method, spec.options, spec.model
    if key not in adapters:
        network = NETWORKS["pixels" if spec.model.startswith("deeplab") else "image"]
        adapters[key] = build_method(spec.method, network, dict(spec.options))
    return adapters[key]


def settings_of(spec):
    adapter = adapter_of(spec)
    method, (group,) = adapter.method, adapter.optimizer.param_groups
    described = method.describe()
    averaging = spec.method == "cotta"
    assert described.get("teacher", "None") == ("EMA(momentum=0.999)" if averaging else "None")
    assert described.get("after", "()") == ("(StochasticRestore(probability=0.01),)" if averaging else "()")
    assert averaging or described["output"] == "before"
    assert (method.average_over, method.mean_entropy_over) == ("selected", "batch")
    assert method.source_statistics is None
    assert group["weight_decay"] == 0
    if isinstance(adapter.optimizer, torch.optim.SGD):
        assert (group["momentum"], group["nesterov"]) == (0.9, False)
    else:
        assert (group["betas"], group["eps"], group["amsgrad"]) == ((0.9, 0.999), 1e-8, False)
    optimizer = type(adapter.optimizer).__name__
    return (
        described["scope"],
        optimizer,
        group["lr"],
        described["loss"],
        described["select"],
        method.mean_entropy,
        described["regularizer"],
        *([described["output"]] if averaging else []),
    )


def expected_settings(row, images):
    base, _, crowd = row.partition("+")
    if images == "imagenet-c":
        return ON_IMAGENET[row]
    return eata_on(images, crowd=bool(crowd)) if base == "eata" else DEFAULTS[row]


@pytest.mark.parametrize("name", ["table1", "table2", "table5a", "table6", "table7a", "table7b", "s2a", "s2b", "s5"])
def test_hyper_parameters_match_paper(name):
    seen = set()
    for entry in TABLES[name].entries:
        for spec in entry.specs:
            if spec.task == "costs" or spec.method in ("source", "bn_adapt"):
                continue
            row = entry.row if "conjugate" in entry.row else spec.method
            wanted = LOGITS if entry.row == "tent+crowd (logits)" else expected_settings(row, spec.images)
            assert settings_of(spec) == wanted, spec
            assert adapter_of(spec).method.describe()["statistics"] == "Batch()"
            assert adapter_of(spec).method.accumulate == 1
            seen.add(entry.row)
    assert seen


@pytest.mark.parametrize(("method", "statistics"), [("source", "Source()"), ("bn_adapt", "Batch()")])
def test_stateless_methods_have_no_options(method, statistics):
    specs = {spec for specs in SPECS.values() for spec in specs if spec.method == method and spec.task == "stream"}
    assert {spec.options for spec in specs} == {()}
    assert {adapter_of(spec).method.describe()["statistics"] for spec in specs} == {statistics}
    assert all(not adapter_of(spec).trainable_parameters for spec in specs)


def test_learning_rates_and_batch_sizes_of_table_8():
    for column, lr in {"lr=0.005": 5e-3, "lr=0.001": 1e-3, "lr=0.0005": 5e-4, "lr=0.0001": 1e-4}.items():
        for method in ("tent", "tent+crowd"):
            (spec,) = specs_at("table8a", method, column)
            assert (settings_of(spec)[2], adapter_of(spec).method.accumulate, spec.batch_size) == (lr, 1, 200)
    for column, (size, batches) in {"bs=64": (64, 3), "bs=32": (32, 6), "bs=16": (16, 12), "bs=8": (8, 25)}.items():
        for method in ("tent", "tent+crowd"):
            (spec,) = specs_at("table8b", method, column)
            assert (settings_of(spec)[2], adapter_of(spec).method.accumulate, spec.batch_size) == (1e-4, batches, size)
    assert {spec.setting for spec in SPECS["table8"]} == {"closed"}
    assert [summary.how for name in ("table8a", "table8b") for summary in TABLES[name].summaries] == ["deviation"] * 2


def specs_at(table, row, column):
    (found,) = (entry.specs for entry in TABLES[table].entries if (entry.row, entry.column) == (row, column))
    return found


def test_cotta_thresholds_are_its_own_and_derived():
    thresholds = {"(a)": {"CIFAR-10-C": 0.92, "CIFAR-100-C": 0.72}, "(b)": {"CIFAR-10-C": 0.92, "CIFAR-100-C": 0.72}}
    for images, letter in itertools.product(("CIFAR-10-C", "CIFAR-100-C"), ("(a)", "(b)", "(c)")):
        (spec,) = specs_at("s3a", "cotta", f"{images}/{letter}")
        assert settings_of(spec) == cotta_at(thresholds[letter][images] if letter != "(c)" else None)
        assert adapter_of(spec).prepared == (letter != "(c)"), "deriving a threshold needs source data"
    models = {letter: specs_at("s3a", "cotta", f"CIFAR-10-C/({letter})")[0].model for letter in "abc"}
    assert models == {"a": "wrn28_10", "b": "wrn40_2", "c": "wrn40_2"}
    assert specs_at("s3a", "cotta", "CIFAR-100-C/(a)")[0].model == "resnext29"
    assert {spec.setting for spec in SPECS["s3"]} == {"closed"}


def test_plain_tent_has_analysis_metrics_on_open_streams_and_cifar():
    for spec in set(
        itertools.chain(*(SPECS[name] for name in ("table1", "table5", "table7", "table8", "s2", "rules")))
    ):
        scored = spec.method == "tent" and (spec.setting == "open" or spec.images.startswith("cifar"))
        assert {"scores", "crowd", "histograms"} <= set(spec.measures) or not scored
        assert ("scores" in spec.measures) == scored
        assert (dict(spec.options).get("novelty") == "confidence_difference") == scored


def test_costs_follow_the_papers_protocol():
    (spec,) = (spec for spec in SPECS["table6"] if spec.task == "costs")
    assert spec.method == "ent,swr,tent,eata,tent+crowd"
    assert dict(spec.options) == {"trials": 5000, "warm_up": 50}
    assert (spec.model, spec.batch_size) == ("wrn40_2", 200)
    for name in ("table6", "s3a", "s4"):
        for entry in TABLES[name].entries:
            for spec in entry.specs:
                if spec.task == "costs":
                    assert entry.domain in spec.method.split(",")
                    assert entry.metric == {"Memory (MB)": "memory", "Time (ms)": "milliseconds"}[entry.column]


def test_selection_rules_differ_only_in_selection():
    assert {"tent", "tent+crowd"} == {spec.method for spec in set(SPECS["rules"]) & set(SPECS["table1"])}
    rules = {"tent": ("None", 0.0), "tent+crowd": (CROWD, 0.5)}
    rules |= {"tent+confident": ("ConfidenceAbove(threshold=0.9, network='adapting')", 0.0)}
    rules |= {"tent+certain": ("EntropyBelow(network='adapting')", 0.0)}
    for spec in SPECS["rules"]:
        assert settings_of(spec) == (AFFINE, "Adam", 1e-3, "Entropy()", *rules[spec.method], "None")
    streams = {(spec.images, spec.unknown) for spec in SPECS["rules"]}
    assert len(SPECS["rules"]) == len(rules) * len(streams) == 4 * 2 * 2


def test_ablations_change_only_the_ablated_option():
    papers = {(spec.method, spec.images, spec.unknown): spec for spec in reversed(SPECS["table1"])}
    choices = {
        "conjugate": [
            *({}, {"epsilon": 0.0}, {"output": "after"}, {"batch_size": 400}),
            *({"lr": 3e-4}, {"lr": 1e-4}),
        ],
        "swr": [
            *({}, {"strength": 2.5}, {"strength": 10.0}, {"strength": 25.0}, {"strength": 2500.0}),
            *({"prototypes": False}, {"anchor": "source"}),
        ],
        "swr+crowd": [{}, {"strength": 2.5}, {"strength": 25.0}],
        "tent+crowd": [{}, {"batch_size": 400}, {"source_statistics": "source"}, {"average_over": "batch"}],
        "eata": [{}, {"redundancy": 0.1}, {"redundancy": 0.05}, {"lr": 3e-4}, {"lr": 1e-4}, {"batch_size": 400}],
        "gce": [{}, {"output": "after"}, {"q": 0.1}, {"lr": 3e-3}, {"lr": 3e-4}, {"lr": 1e-4}, {"batch_size": 400}],
        "tent": [{}, {"lr": 3e-4}, {"lr": 1e-4}, {"mean_entropy": 0.5}, {"batch_size": 400}],
        "ent": [{}, {"lr": 3e-5}, {"lr": 1e-5}, {"mean_entropy": 0.5}, {"batch_size": 400}],
        "bn_adapt": [{}, {"batch_size": 400}],
    }
    tiny = [{}, {"lr": 2e-3}, {"lr": 5e-3}]
    seen = {}
    for spec in SPECS["open_choices"]:
        assert spec.domains == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
        theirs = papers[spec.method, spec.images, spec.unknown]
        plain = {key: value for key, value in theirs.options if key != "novelty"}
        changed = {key: value for key, value in spec.options if plain.get(key) != value}
        assert set(plain) <= set(dict(spec.options))
        if spec.batch_size != theirs.batch_size:
            assert spec.unknown is not None
            changed["batch_size"] = spec.batch_size
        assert spec.model == theirs.model
        assert changed in (tiny if spec.images == "tiny-imagenet-c" else choices[spec.method])
        seen.setdefault(spec.method, []).append((spec.images, spec.unknown, str(changed)))
    assert len(seen["tent"]) - sum(images == "tiny-imagenet-c" for images, *_ in seen["tent"]) == 4 * 5 - 2
    for method, ways in choices.items():
        assert len(seen[method]) == len(set(seen[method]))
        if method not in ("eata", "tent", "swr+crowd"):
            assert len(seen[method]) == 4 * len(ways) - 2 * ({"batch_size": 400} in ways)
    assert {images for images, *_ in seen["swr+crowd"]} == {"cifar10-c"}, "where the paper's SWR is far from ours"
    assert len(seen["swr+crowd"]) == 2 * len(choices["swr+crowd"])
    asked = {images for images, _, way in seen["eata"] if "redundancy" in way}
    assert asked == {"cifar100-c"}, "ε is in question where there are a hundred classes"


def specs_of(table):
    return [spec for entry in TABLES[table].entries for spec in entry.specs]


def test_long_run_extends_runs_of_learning_rate_ablation():
    ablated = {spec for spec in specs_of("choice_pace") if spec.unknown is None}
    rates = dict.fromkeys(("tent", "gce", "eata"), (1e-3, 3e-4)) | {"ent": (1e-4, 3e-5)}
    collapsing = {(method, images) for method in rates for images in ("cifar10-c", "cifar100-c")} - {
        ("gce", "cifar10-c")
    }
    assert set(specs_of("choice_endurance")) == {
        spec
        for spec in ablated
        if (spec.method, spec.images) in collapsing and dict(spec.options)["lr"] in rates[spec.method]
    }
    assert len(specs_of("choice_endurance")) == 2 * len(collapsing)
    assert BUILT["endurance"].rounds > BUILT["open_choices"].rounds


def test_lower_severity_differs_only_in_severity_and_learning_rate():
    rates = dict.fromkeys(("tent", "gce", "eata"), 3e-4) | {"ent": 3e-5}
    papers = {
        spec.method: {key: value for key, value in spec.options if key != "novelty"}
        for spec in reversed(SPECS["table1"])
        if (spec.images, spec.unknown) == ("cifar100-c", None)
    }
    tried = []
    for spec in specs_of("choice_milder"):
        assert (spec.images, spec.unknown, spec.model) == ("cifar100-c", None, "wrn40_2")
        assert (spec.domains, spec.batch_size, spec.limit) == (CORRUPTIONS, 200, None)
        usual = dict(spec.options) == papers[spec.method]
        assert usual or dict(spec.options) == papers[spec.method] | {"lr": rates[spec.method]}
        tried.append((spec.method, spec.severity, usual))
    everything = {(method, severity, True) for method in ("bn_adapt", *rates) for severity in (3, 4)}
    assert len(tried) == len(set(tried))
    assert set(tried) == everything | {(method, 4, False) for method in rates}


def test_logit_ablations_are_the_same_on_held_out_and_lower_severity_streams():
    papers = {spec.images: spec for spec in SPECS["s5"] if ("on", "logits") in spec.options}
    held_out = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    streams = {
        "choice_endurance_logits": {("cifar10-c", 5, held_out), ("cifar100-c", 5, held_out)},
        "choice_milder_logits": {("cifar100-c", 4, CORRUPTIONS)},
    }
    choices = [
        *({}, {"mean_entropy": 0.25}, {"mean_entropy": 0.0}, {"lr": 3e-4}, {"mean_entropy": 0.0, "lr": 3e-4}),
        *({"source_statistics": "source"}, {"average_over": "batch"}),
    ]
    for table, there in streams.items():
        seen = []
        for spec in specs_of(table):
            theirs = papers[spec.images]
            chosen = dict(spec.options)
            changed = {key: value for key, value in chosen.items() if dict(theirs.options).get(key) != value}
            assert chosen.keys() >= dict(theirs.options).keys()
            stream = (spec.images, spec.severity, spec.domains)
            assert stream in there
            assert spec == dataclasses.replace(
                theirs, severity=spec.severity, domains=spec.domains, options=spec.options
            )
            assert changed in choices
            seen.append((stream, str(changed)))
        assert len(seen) == len(set(seen)) == len(there) * len(choices)


@pytest.mark.parametrize("name", ["endurance", "milder"])
def test_collapse_tables_show_last_round(name):
    rounds = {entry.round for table in BUILT[name].tables for entry in table.entries}
    assert rounds == {BUILT[name].rounds}


def test_every_deviating_method_has_an_ablation():
    rows = {entry.row for name, table in TABLES.items() if name.startswith("choice_") for entry in table.entries}
    for method in ("gce", "conjugate", "ent", "tent", "tent+crowd", "eata", "swr"):
        assert sum(row == method or row.startswith(f"{method}, ") for row in rows) > 1


# Learning rate, margin of the selection, λ_max, statistics, momentum of the statistics.
SEGMENTATION = {
    "ttn": (None, None, 0.0, "TTN", 0.1),
    "tent": (1e-6, None, 0.0, "TTN", 0.1),
    "tent+crowd": (1e-6, -0.2, 0.5, "TTN", 0.1),
    "swr": (1e-6, None, 0.5, "TTN", 0.1),
    "swr+crowd": (1e-6, -0.2, 0.2, "TTN", 0.1),
    "cotta": (7.5e-6, None, 0.0, "Batch", None),
}


RATES = {
    "camvid_x10": (1e-5,),
    "camvid_x100": (1e-4,),
    "camvid_x1000": (1e-3,),
    "camvid_rates": (1e-6, 1e-5, 1e-4, 1e-3),
}


@pytest.mark.parametrize("name", [name for name in DRIVING if name not in ("s4", "camvid_parts")])
def test_segmentation_hyper_parameters_match_paper(name):
    for spec in SPECS[name]:
        assert spec.batch_size == 2
        if "oracle" in dict(spec.options) or spec.method in ("source", "bn_adapt"):
            continue
        adapter = adapter_of(spec)
        lr = adapter.optimizer.param_groups[0]["lr"] if adapter.trainable_parameters else None
        statistics = adapter.statistics
        rules = {type(rule).__name__: rule for rule in getattr(adapter.select, "components", [adapter.select])}
        padded = not {"mapillary", "gtav"}.isdisjoint(spec.domains)  # whose frames differ in shape
        framed = padded and spec.method.partition("+")[0] in ("tent", "swr", "cotta")
        assert ("IgnorePadding" in rules) == framed, "exactly where frames are padded"
        margin = getattr(rules.get("ConfidenceDifference"), "margin", None)
        found = (lr, margin, adapter.method.mean_entropy, type(statistics).__name__)
        lr, *others = SEGMENTATION[spec.method]
        rates = RATES.get(name, (lr,))
        assert (*found, getattr(statistics, "momentum", None)) in {(rate, *others) for rate in rates}
        if spec.method.startswith("swr"):
            assert "NearestPrototypes" not in adapter.method.describe()["regularizer"]
        if spec.method == "cotta":
            assert adapter.method.output.threshold is None


# Names in specs exist


@pytest.mark.parametrize("name", SUITES)
def test_specs_use_existing_methods_options_metrics_and_networks(name):
    made = BUILT[name]
    for spec in SPECS[name]:
        if spec.task == "stream":
            adapter_of(spec)
        if spec.task == "costs":
            for method in spec.method.split(","):
                build_method(method, NETWORKS["image"], {})
        assert set(spec.measures) <= set(METRICS)
        assert spec.model in MODELS or made.command is not None


@pytest.mark.parametrize("name", [name for name in CAMVID if name not in ("camvid_parts", "camvid_rates")])
def test_camvid_stream_is_clean_and_five_corruptions(name):
    for spec in SPECS[name]:
        assert spec.domains == ("clean", "fog", "snow", "brightness", "frost", "motion_blur")
        assert (spec.images, spec.batch_size, spec.severity) == ("camvid-c", 2, 3)
        assert spec.measures == ("iou", "selection", "pixels")
    methods = ["source", "bn_adapt", "ttn", "tent", "tent+crowd", "swr", "swr+crowd"]
    assert [spec.method for spec in SPECS[name]] == (methods if name == "camvid" else methods[3:])


def test_camvid_ablation_separates_selection_and_mean_entropy():
    usual, ablated = SPECS["camvid_x100"], SPECS["camvid_parts"]
    assert set(usual) < set(ablated)
    found = {(spec.method, adapter_of(spec).method.mean_entropy) for spec in ablated}
    shares = {"tent": (0.0, 0.5), "swr": (0.2, 0.5)}
    assert found == {(f"{base}{more}", share) for base in shares for more in ("", "+crowd") for share in shares[base]}
    assert len({spec.with_options(mean_entropy=0.0) for spec in ablated}) == 4, "nothing else differs"


def test_rejection_tables_have_no_best_value():
    tables = [table for name in CAMVID for table in suite(name).tables]
    rejected = [table for table in tables if any(entry.metric.startswith("rejection/") for entry in table.entries)]
    assert len(rejected) == 4
    assert all(table.lower_is_better is None for table in rejected)


def test_camvid_learning_rates_are_searched_on_other_data():
    reported = [spec for name in CAMVID if name != "camvid_rates" for spec in SPECS[name]]
    for spec in SPECS["camvid_rates"]:
        assert spec.images not in {other.images for other in reported}
        assert not set(spec.domains) & {domain for other in reported for domain in other.domains}


def test_suite_lists_runs_once_in_table_order():
    for name, made in BUILT.items():
        every = [spec for table in made.tables for entry in table.entries for spec in entry.specs]
        assert SPECS[name] == list(dict.fromkeys(every))
        assert made.name == name


def test_unknown_suite_suggests_nearest():
    with pytest.raises(ConfigurationError, match="Did you mean table1"):
        suite("tabel1")


# Specs

words = st.text("abc-+_é", min_size=1, max_size=6)
numbers = st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, 1e-3, 1e300]) | st.booleans()
specs = st.builds(
    Spec,
    method=words,
    images=words,
    model=words,
    unknown=st.none() | words,
    options=st.dictionaries(words, st.none() | words | numbers, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    domains=st.lists(words, min_size=1, max_size=3, unique=True).map(tuple),
    severity=st.integers(1, 5),
    batch_size=st.integers(1, 300),
    limit=st.none() | st.integers(1, 300),
    seed=st.integers(0, 9),
    measures=st.lists(words, max_size=3).map(tuple),
    task=st.sampled_from(["stream", "costs"]),
)
FIELDS = [field.name for field in dataclasses.fields(Spec)]


@given(specs)
def test_spec_round_trips_through_json(spec):
    again = Spec.from_data(json.loads(json.dumps(spec.as_data())))
    assert again == spec
    assert again.digest == spec.digest
    assert differences(again.as_data(), spec.as_data()) == []


@given(specs, specs, st.sampled_from(FIELDS))
def test_digest_depends_on_every_field(spec, other, field):
    changed = dataclasses.replace(spec, **{field: getattr(other, field)})
    assert (changed.digest == spec.digest) == (changed == spec)
    assert (changed.name == spec.name) == (changed == spec)
    (line,) = differences(changed.as_data(), spec.as_data()) or [""]
    assert line.startswith(field) == (changed != spec)


@given(words, numbers, numbers)
def test_equal_options_have_equal_digests(name, value, other):
    first, second = (Spec("tent", "x", "y", domains=("fog",)).with_options(**{name: v}) for v in (value, other))
    assert (first.digest == second.digest) == (first == second) == (value == other)


def test_digest_is_the_same_in_every_process():
    path = Path(driftproof.__file__).parent / "bench" / "spec.py"
    every = [spec for name in ("table1", "table8", "s3", "demo") for spec in SPECS[name]]
    code = (
        "import importlib.util, json, sys\n"
        f"found = importlib.util.spec_from_file_location('spec', {str(path)!r})\n"
        "module = sys.modules['spec'] = importlib.util.module_from_spec(found)\n"
        "found.loader.exec_module(module)\n"
        "print([module.Spec.from_data(data).name for data in json.load(sys.stdin)])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([spec.as_data() for spec in every]),
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    names = [spec.name for spec in every]
    assert ended.stdout.strip() == str(names)
    assert len(set(names)) == len(set(every))


def test_spec_name_is_readable():
    spec = Spec("tent+crowd", "cifar10-c", "wrn40_2", "svhn-c", domains=("fog",))
    assert spec.name == f"tent+crowd-cifar10-c-open-{spec.digest}"
    assert len(spec.digest) == 12
    costs = dataclasses.replace(spec, method="tent,eata", task="costs", unknown=None)
    assert costs.name == f"costs-cifar10-c-closed-{costs.digest}"


junk = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | words
nested = junk | st.lists(junk, max_size=2) | st.dictionaries(words, junk, max_size=2) | st.lists(st.lists(junk))


@given(specs, st.sampled_from([*FIELDS, "color"]), nested)
def test_damaged_spec_data_are_refused(spec, field, value):
    data = spec.as_data() | {field: value}
    try:
        read = Spec.from_data(data)
    except StateError:
        return
    assert field != "color"
    assert hash(read) == hash(Spec.from_data(data))
    as_written, as_read = ({key: (type(kept), kept) for key, kept in d.items()} for d in (data, read.as_data()))
    assert as_read == as_written


@pytest.mark.parametrize("data", [{}, {"method": "tent"}, [], ["method"], "method", None, 7])
def test_data_that_are_no_spec_are_refused(data):
    with pytest.raises(StateError, match="Expected the fields of a spec, but"):
        Spec.from_data(data)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"domains": ()}, "`domains` to name each domain once"),
        ({"domains": ("fog", "snow", "fog")}, "`domains` to name each domain once"),
        ({"batch_size": 0}, "`batch_size` to be at least 1, but got 0"),
        ({"limit": -1}, "`limit` to be at least 1, but got -1"),
        ({"options": (("lr", 1.0), ("lr", 2.0))}, "`options` once each and in order"),
        ({"options": (("lr", 1.0), ("epsilon", 2.0))}, "`options` once each and in order"),
    ],
)
def test_invalid_spec_is_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        Spec(**{"method": "tent", "images": "x", "model": "y", "domains": ("fog",)} | wrong)


def test_with_options_adds_and_replaces():
    spec = Spec("tent", "x", "y", domains=("fog",), options=(("lr", 1e-3),)).with_options(accumulate=3, lr=1e-4)
    assert spec.options == (("accumulate", 3), ("lr", 1e-4))
    assert spec.setting == "closed"
