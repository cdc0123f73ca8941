"""Suites against an independent copy of the paper's settings, and the specs they list."""

import dataclasses
import itertools
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftproof.bench import Results, Spec
from driftproof.bench.metrics import METRICS
from driftproof.methods.by_name import build_method
from driftproof.models import MODELS
from driftproof.paper import SUITES
from driftproof.paper.printed import load_tables
from networks import build

RESULTS = Path(__file__).parents[1] / "results"
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)

BUILT = {name: make() for name, make in SUITES.items()}
TABLES = {table.name: table for made in BUILT.values() for table in made.tables}
SPECS = {name: list(made.specs()) for name, made in BUILT.items()}
CAMVID = ("camvid", "camvid_x10", "camvid_x100", "camvid_x1000", "camvid_parts", "camvid_rates")
ABLATIONS = ("open_choices", "endurance", "milder")
DRIVING = ("table3", "table4", "s1", "s3b", "s4", *CAMVID)
CLASSIFICATION = [name for name in SUITES if name not in (*DRIVING, *ABLATIONS)]
SETS = {"CIFAR-10-C": "cifar10-c", "CIFAR-100-C": "cifar100-c", "TinyImageNet-C": "tiny-imagenet-c"}


def specs_at(table, row, column):
    (found,) = (entry.specs for entry in TABLES[table].entries if (entry.row, entry.column) == (row, column))
    return found


def test_every_number_of_the_paper_stands_next_to_one_of_ours():
    printed = {table.reference: table for table in load_tables().values()}
    ours = {table.reference: table for table in TABLES.values() if table.reference}
    assert ours.keys() == printed.keys()
    for reference, table in ours.items():
        numbers = [entry.reference for entry in table.entries if entry.reference is not None]
        numbers += [number for summary in table.summaries for number in summary.references.values()]
        assert sorted(numbers) == sorted(n for row in printed[reference].rows.values() for n in row.values())
        columns = [*dict.fromkeys(e.column for e in table.entries), *(summary.column for summary in table.summaries)]
        assert sorted(columns) == sorted(printed[reference].better)
        assert {c: table.is_lower_better(c) for c in columns} == {
            c: better == "lower" for c, better in printed[reference].better.items()
        }
    table1 = {(entry.row, entry.column): entry.reference for entry in TABLES["table1"].entries}
    assert table1["tent+crowd", "CIFAR-10-C/Open"] == 15.77
    assert table1["conjugate (ε = 0)", "CIFAR-10-C/Open"] is None


def test_suites_list_each_run_once_for_as_many_rounds_as_their_tables_show():
    for name, made in BUILT.items():
        assert made.name == name
        assert SPECS[name] == list(dict.fromkeys(s for t in made.tables for e in t.entries for s in e.specs))
        assert made.rounds == max(entry.round for table in made.tables for entry in table.entries)
        assert len({spec.name for spec in SPECS[name]}) == len(SPECS[name])


def test_entries_use_the_runs_and_rounds_of_their_row_and_column():
    rounds = {"table1": 50, "table2": 1, "table5a": 50, "table7a": 50, "table7b": 1, "table8a": 10, "s2a": 10, "s5": 50}
    models = {"ResNet50": "resnet50_cifar", "WRN28": "wrn28_10"}
    for name, table in TABLES.items():
        for entry in table.entries:
            first, _, second = entry.column.partition("/")
            if entry.column.endswith(" error"):
                assert [spec.setting for spec in entry.specs] == ["closed", "open"], "the mean of closed and open"
            for spec in entry.specs:
                assert spec.images == SETS.get(first, spec.images)
                assert spec.model == models.get(first, spec.model)
                assert second not in ("Closed", "Open") or spec.setting == second.lower()
                assert first not in ("Closed", "Open") or spec.setting == first.lower()
                assert spec.task != "costs" or entry.domain == entry.row in spec.method.split(",")
                assert name not in ("table1", "table2") or spec.method == entry.row.partition(" (")[0]
            assert entry.round == rounds.get(name, entry.round)
            assert not second.startswith("Round ") or entry.round == int(second.removeprefix("Round "))
    for letter, protocol in (("a", "including"), ("b", "excluding")):
        found = {(entry.row, entry.column): (entry.metric, entry.specs) for entry in TABLES[f"table5{letter}"].entries}
        metric, (spec,) = found["energy", "CIFAR-100/SVHN-C FPR@TPR95"]
        assert metric == f"energy/{protocol}/fpr"
        assert (spec.method, spec.images, spec.unknown) == ("tent", "cifar100-c", "svhn-c")


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_streams_use_the_papers_corruptions_severity_batch_size_and_networks(name):
    unknown = dict.fromkeys(("cifar10-c", "cifar100-c"), "svhn-c")
    unknown |= {"tiny-imagenet-c": "imagenet-o-c-64", "imagenet-c": "imagenet-o-c-224"}
    networks = {"table7": {"resnet50_cifar", "wrn28_10"}, "s3": {"wrn40_2", "wrn28_10", "resnext29"}}
    for spec in SPECS[name]:
        assert spec.task != "stream" or spec.domains == CORRUPTIONS
        assert spec.unknown in (None, unknown[spec.images])
        assert (spec.severity, spec.seed, spec.limit) == (5, 0, None)
        assert name == "table8" or spec.batch_size == (64 if spec.images == "imagenet-c" else 200)
        usual = {"wrn40_2"} if spec.images.startswith("cifar") else {"resnet50"}
        assert spec.model in networks.get(name, usual)
        scored = spec.method == "tent" and (spec.setting == "open" or spec.images.startswith("cifar"))
        assert ({"scores", "crowd", "histograms"} <= set(spec.measures)) == scored, "the paper analyzes plain TENT"
        assert (dict(spec.options).get("novelty") == "confidence_difference") == scored


CROWD = "ConfidenceDifference(margin=0.0, on='softmax')"
TASK = (
    "NearestPrototypes(sample_entropy=0.8, mean_entropy=0.25, consistency_weight=0.1, temperature=0.1, dimensions=128, "
    "epochs=10, lr=0.001, batch_size=200, augment=photometric)"
)
PENALTY = "ShiftAgnosticPenalty(weight=250.0, anchor='{}', samples=2000, batch_size=32, augment=photometric)"
FILTER = "EntropyBelow(network='adapting') & NonRedundant(similarity={}, momentum=0.9) & EntropyWeight()"
ALL, AFFINE = "everything()", "norm_affine()"
# Scope, loss, selection, λ_max, regularizer; then optimizer and learning rate.
SETTINGS = {
    "gce": (AFFINE, "GCE(q=0.8)", "None", 0.0, "None"),
    "conjugate": (AFFINE, "Conjugate(epsilon=6.0, temperature=1.0)", "None", 0.0, "None"),
    "conjugate (ε = 0)": (AFFINE, "Conjugate(epsilon=0.0, temperature=1.0)", "None", 0.0, "None"),
    "ent": (ALL, "Entropy()", "None", 0.0, "None"),
    "tent": (AFFINE, "Entropy()", "None", 0.0, "None"),
    "tent+confident": (AFFINE, "Entropy()", "ConfidenceAbove(threshold=0.9, network='adapting')", 0.0, "None"),
    "tent+certain": (AFFINE, "Entropy()", "EntropyBelow(network='adapting')", 0.0, "None"),
    "tent+crowd (logits)": (AFFINE, "Entropy()", CROWD.replace("softmax", "logits"), 0.5, "None"),
}
RATES = {"ent": 1e-4, "swr": 1e-4}
NETWORKS = {"image": build("wide_resnet"), "pixels": build("segmentation")}


@cache
def build_adapter(method, options, model):
    return build_method(method, NETWORKS["pixels" if model.startswith("deeplab") else "image"], dict(options))


def adapter_of(spec):
    return build_adapter(spec.method, spec.options, spec.model)


def expected_settings(row, images):
    base, _, crowd = row.partition("+")
    on_imagenet, hard = images == "imagenet-c", images == "tiny-imagenet-c"
    if base == "eata":
        fisher = f"Fisher(weight={2000.0 if hard else 1.0}, samples=2000, batch_size=200)"
        found = (AFFINE, "Entropy()", FILTER.format(0.05 if hard else 0.4), 0.0, fisher)
    elif base == "swr":
        penalty = PENALTY.format("source" if on_imagenet else "previous")
        found = (ALL, "Entropy()", "None", 0.5, f"{penalty} + {TASK}")
    else:
        found = SETTINGS.get(row) or SETTINGS[base]
    if crowd == "crowd":
        found = (*found[:2], CROWD, 0.5, found[4])
    return *found, *((torch.optim.SGD, 2.5e-4) if on_imagenet else (torch.optim.Adam, RATES.get(base, 1e-3)))


COMPARED = ("table1", "table2", "table5a", "table6", "table7a", "table7b", "s2a", "s2b", "s5", "rules")


@pytest.mark.parametrize("name", COMPARED)
def test_hyper_parameters_match_paper(name):
    for entry in TABLES[name].entries:
        for spec in entry.specs:
            if spec.task == "costs":
                assert dict(spec.options) == {"trials": 5000, "warm_up": 50}
                continue
            adapter = adapter_of(spec)
            about, method = adapter.method.describe(), adapter.method
            assert about["statistics"] == ("Source()" if spec.method == "source" else "Batch()")
            if spec.method in ("source", "bn_adapt"):
                assert spec.options == ()
                assert not adapter.trainable_parameters
                continue
            row = entry.row if "(" in entry.row else spec.method
            (group,) = adapter.optimizer.param_groups
            found = (about["scope"], about["loss"], about["select"], method.mean_entropy, about["regularizer"])
            assert (*found, type(adapter.optimizer), group["lr"]) == expected_settings(row, spec.images)
            assert (method.average_over, method.mean_entropy_over, method.accumulate) == ("selected", "batch", 1)
            assert (method.source_statistics, about["output"], group["weight_decay"]) == (None, "before", 0)
            assert group.get("momentum", 0.9) == 0.9
            assert group.get("betas", (0.9, 0.999)) == (0.9, 0.999)


def test_learning_rates_and_batch_sizes_of_table_8():
    columns = {f"lr={lr:g}": (lr, 1, 200) for lr in (5e-3, 1e-3, 5e-4, 1e-4)}
    columns |= {f"bs={size}": (1e-4, batches, size) for size, batches in ((64, 3), (32, 6), (16, 12), (8, 25))}
    for column, method in itertools.product(columns, ("tent", "tent+crowd")):
        (spec,) = specs_at("table8a" if "lr" in column else "table8b", method, column)
        adapter = adapter_of(spec)
        found = adapter.optimizer.param_groups[0]["lr"], adapter.method.accumulate, spec.batch_size
        assert (*found, spec.setting) == (*columns[column], "closed")
    assert [summary.how for name in ("table8a", "table8b") for summary in TABLES[name].summaries] == ["deviation"] * 2


def test_cotta_uses_its_own_networks_and_thresholds():
    for (images, threshold, own), letter in itertools.product(
        (("CIFAR-10-C", 0.92, "wrn28_10"), ("CIFAR-100-C", 0.72, "resnext29")), "abc"
    ):
        (spec,) = specs_at("s3a", "cotta", f"{images}/({letter})")
        adapter, about = adapter_of(spec), adapter_of(spec).method.describe()
        assert (spec.model, spec.setting) == (own if letter == "a" else "wrn40_2", "closed")
        assert adapter.prepared == (letter != "c"), "deriving a threshold needs source data"
        assert (f"threshold={threshold}" in about["output"]) == (letter != "c")
        assert (about["teacher"], about["scope"]) == ("EMA(momentum=0.999)", ALL)
        assert about["after"] == "(StochasticRestore(probability=0.01),)"


# Learning rate, margin of the selection, λ_max, statistics, momentum of the statistics.
SEGMENTATION = {
    "ttn": (None, None, 0.0, "TTN", 0.1),
    "tent": (1e-6, None, 0.0, "TTN", 0.1),
    "tent+crowd": (1e-6, -0.2, 0.5, "TTN", 0.1),
    "swr": (1e-6, None, 0.5, "TTN", 0.1),
    "swr+crowd": (1e-6, -0.2, 0.2, "TTN", 0.1),
    "cotta": (7.5e-6, None, 0.0, "Batch", None),
}
FACTORS = {"camvid_x10": (10,), "camvid_x100": (100,), "camvid_x1000": (1000,), "camvid_rates": (1, 10, 100, 1000)}


@pytest.mark.parametrize("name", [name for name in DRIVING if name not in ("s4", "camvid_parts")])
def test_segmentation_hyper_parameters_match_paper(name):
    for spec in SPECS[name]:
        assert spec.batch_size == 2
        if "oracle" in dict(spec.options) or spec.method in ("source", "bn_adapt"):
            continue
        adapter = adapter_of(spec)
        rules = {type(rule).__name__: rule for rule in getattr(adapter.select, "components", [adapter.select])}
        padded = not {"mapillary", "gtav"}.isdisjoint(spec.domains)  # whose frames differ in shape
        assert ("IgnorePadding" in rules) == (padded and spec.method != "ttn"), "exactly where frames are padded"
        margin = getattr(rules.get("ConfidenceDifference"), "margin", None)
        found = (margin, adapter.method.mean_entropy, type(adapter.statistics).__name__)
        lr, *others = SEGMENTATION[spec.method]
        assert (*found, getattr(adapter.statistics, "momentum", None)) == tuple(others)
        if lr is not None:
            rates = [pytest.approx(factor * lr) for factor in FACTORS.get(name, (1,))]
            assert adapter.optimizer.param_groups[0]["lr"] in rates
        assert "NearestPrototypes" not in adapter.method.describe().get("regularizer", "")
        assert spec.method != "cotta" or adapter.method.output.threshold is None


@pytest.mark.parametrize("name", SUITES)
def test_specs_use_existing_methods_options_metrics_and_networks(name):
    for spec in SPECS[name]:
        for method in spec.method.split(",") if spec.task == "costs" else ():
            build_method(method, NETWORKS["image"], {})
        if spec.task == "stream":
            adapter_of(spec)
        assert set(spec.measures) <= set(METRICS)
        assert spec.model in MODELS
        assert dataclasses.replace(spec, seed=1).name != spec.name


@pytest.mark.parametrize("folder", [path.parent for path in RESULTS.glob("*/runs.parquet")], ids=lambda path: path.name)
def test_archived_runs_are_in_the_suites_under_their_names(folder):
    """Digests are the same in every process and version, else results would be lost."""
    results = Results(folder)
    listed = {run for specs in SPECS.values() for spec in specs for run in results.seeds(spec)}
    assert {spec.name for spec in results.runs} == {run.name for run in results.runs.values()}
    assert listed == {spec for spec in results.runs if results.rounds(spec)}


VALUES = {"method": "eata", "images": "b", "model": "c", "unknown": "d", "options": (("lr", 0.5),), "domains": ("x",)}
VALUES |= {"severity": 4, "batch_size": 7, "limit": 3, "seed": 1, "measures": ("error",), "task": "costs"}
VALUES |= {"unknown_share": 0.1, "label_shift": 0.1}


@given(st.sets(st.sampled_from([*VALUES])), st.sets(st.sampled_from([*VALUES])))
def test_digest_depends_on_every_field(some, others):
    plain = Spec("tent", "a", "b", domains=("fog",))
    first, second = (dataclasses.replace(plain, **{name: VALUES[name] for name in names}) for names in (some, others))
    assert (first.digest == second.digest) == (first.name == second.name) == (some == others)
    assert Spec.from_data(json.loads(json.dumps(first.as_data()))) == first
