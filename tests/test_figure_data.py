"""The data of the paper's figures against the samples their rows were counted from."""

import json
import math
import sys
from dataclasses import replace
from random import Random

import pytest

from driftproof.bench import Results, Spec, Store
from driftproof.bench.archive import write_archive
from driftproof.bench.histograms import BINS, KINDS, edges
from driftproof.cli import main
from driftproof.paper import suite
from driftproof.report import ANALYSES
from driftproof.report.curves import Curve, Panel, draw_curves
from driftproof.report.responsive import WIDE
from driftproof.report.selection_quality import selection_quality_per_round

ROUNDS = 3
SPECS = [spec for spec in suite("rules").specs() if (spec.images, spec.unknown) == ("cifar10-c", None)]
(MATRIX,) = (spec for spec in suite("gradients").specs() if dict(spec.options)["mixing"])


def share(part, whole):
    return len(part) / len(whole) if whole else None


def row_of(samples, prefix, chosen):
    """Shares of (selected, correct) pairs, as the benchmark writes them."""
    selected = [correct for correct, *picks in samples if picks[chosen]]
    rejected = [correct for correct, *picks in samples if not picks[chosen]]
    return {
        f"{prefix}precision": share([c for c in selected if c], selected),
        f"{prefix}recall": share([c for c in selected if c], [c for c, *_ in samples if c]),
        f"{prefix}npv": share([c for c in rejected if not c], rejected),
        f"{prefix}rejected": share(rejected, samples),
    }


def write(cell, spec, rows):
    cell.folder.mkdir(parents=True)
    cell.write_spec(spec, {"loss": "Entropy()"})
    cell.append(rows, [{"seconds": 1.0}] * len(rows))


def make(folder):
    """Cells whose every sample is known: whether it was right, learned from, and would have been by the crowd."""
    samples = {}
    for spec in SPECS:
        random, rows = Random(spec.name), []
        for round in range(1, ROUNDS + 1):
            for domain in spec.domains:
                few = [
                    (random.random() < 0.7, spec.method == "tent" or random.random() < 0.6, random.random() < 0.8)
                    for _ in range(random.randrange(1, 30))
                ]
                samples.setdefault((spec, round), []).extend(few)
                row = {"round": round, "domain": domain, "samples": len(few), "error": 20.0} | row_of(few, "", 0)
                if "crowd" in spec.measures:
                    aurocs = dict.fromkeys(
                        ("msp/including/auroc", "confidence_difference/including/auroc"), 60.0 + round
                    )
                    row |= row_of(few, "crowd/", 1) | histograms(random) | aurocs
                rows.append(row)
        write(Store(folder).run(spec), spec, rows)
    return samples


def histograms(random):
    return {
        f"histogram/{name}/{kind}": [random.randrange(5) for _ in range(BINS)]
        for name in ("confidence", "confidence_difference")
        for kind in KINDS
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("figures")
    samples = make(root / "store")
    cosines = [[None if row == column == 3 else (row - column) / 10 for column in range(10)] for row in range(10)]
    row = {"domain": "all", "round": 1, "sizes": [[1] * 10] * 10, "cosines": cosines, "right": 0.0, "wrong": None}
    write(Store(root / "store").run(MATRIX), MATRIX, [row | {"domain": "fog"}, row])
    write_archive([root / "store"], root / "kept")
    return root, samples


def percent(part, whole):
    return 100 * len(part) / len(whole) if whole else math.nan


@pytest.mark.parametrize("folder", ["store", "kept"])
def test_selection_quality_counts_all_samples_of_a_round(made, folder):
    root, samples = made
    results = Results(root / folder)
    for spec in SPECS:
        for prefix, chosen in {"": 1, "crowd/": 2}.items():
            found = selection_quality_per_round(results, spec, prefix)
            if prefix and "crowd" not in spec.measures:
                assert found == []
                continue
            assert len(found) == ROUNDS
            for round, quality in enumerate(found, start=1):
                every = samples[spec, round]
                selected, rejected = ([s for s in every if s[chosen] is which] for which in (True, False))
                assert (quality.selected, quality.rejected) == (len(selected), len(rejected))
                expected = {
                    "precision": percent([s for s in selected if s[0]], selected),
                    "recall": percent([s for s in selected if s[0]], [s for s in every if s[0]]),
                    "negative_precision": percent([s for s in rejected if not s[0]], rejected),
                    "rejected_share": percent(rejected, every),
                }
                for name, value in expected.items():
                    assert getattr(quality, name) == pytest.approx(value, nan_ok=True)


def analyze(capsys, *words):
    with pytest.raises(SystemExit) as ending:
        main(["analyze", *map(str, words)])
    return ending.value.code, capsys.readouterr()


@pytest.mark.parametrize("folder", ["store", "kept"])
def test_json_contains_the_numbers_of_a_figure(made, capsys, folder):
    root, _ = made
    results = Results(root / folder)
    status, output = analyze(capsys, "selection", root / folder, "--json")
    figures = json.loads(output.out, parse_constant=pytest.fail)
    assert (status, len(figures)) == (0, 2), "one of all rules, and one of plain TENT"
    cells = {spec.method: spec for spec in SPECS}
    shown = figures["selection-1"]
    assert set(shown) == set(cells) == {"tent", "tent+confident", "tent+certain", "tent+crowd"}
    for method, spec in cells.items():
        assert shown[method]["recall"] == [quality.recall for quality in selection_quality_per_round(results, spec)]
    assert shown["tent"]["recall"] == [100.0] * ROUNDS
    lost = [quality.rejected_share for quality in selection_quality_per_round(results, cells["tent"], "crowd/")]
    assert figures["rejected-1"]["tent"]["lost confidence"] == lost


def test_missing_rules_are_named(tmp_path):
    for spec in SPECS:
        if spec.method in ("tent", "tent+crowd"):
            row = {"domain": "fog", "samples": 4, "error": 20.0, **row_of([(True, True), (False, False)], "", 0)}
            write(Store(tmp_path).run(spec), spec, [row | {"round": 1, "domain": name} for name in spec.domains])
    (figure, *_) = ANALYSES["selection"](Results(tmp_path))
    assert figure.draw().caption.endswith(" in each round. Not run: tent+confident, tent+certain.")


def test_rule_without_counts_is_left_out_and_named(tmp_path, capsys):
    counted = row_of([(True, True), (False, False)], "", 0)
    for spec in SPECS:
        if spec.method in ("tent", "tent+crowd"):
            row = {"round": 1, "samples": 4, "error": 20.0, **(counted if "+" in spec.method else {})}
            write(Store(tmp_path).run(spec), spec, [row | {"domain": name} for name in spec.domains])
    (figure,) = ANALYSES["selection"](Results(tmp_path))
    assert set(figure.numbers) == {"tent+crowd"}
    assert figure.draw().caption.endswith(" Not run: tent+confident, tent+certain. Not counted: tent.")


def test_rules_without_any_counts_are_an_error(tmp_path, capsys):
    tent = next(spec for spec in SPECS if spec.method == "tent")
    rows = [{"round": 1, "domain": name, "samples": 4, "error": 20.0} for name in tent.domains]
    write(Store(tmp_path).run(tent), tent, rows)
    status, output = analyze(capsys, "selection", tmp_path)
    assert status == 2
    assert "that `analyze selection` can draw, but found none" in " ".join(output.err.split())


def test_histograms_sum_over_the_domains_of_a_round(made, capsys):
    root, _ = made
    for words, round in ((("--round", 1), 1), ((), ROUNDS)):
        status, output = analyze(capsys, "scores", root / "store", "--json", *words)
        assert status == 0
        for shown in json.loads(output.out).values():
            (spec,) = (spec for spec in SPECS if spec.name == shown["cell"])
            rows = [row for row in Results(root / "store").rows(spec) if row["round"] == round]
            for name in ("confidence", "confidence_difference"):
                assert shown["edges"][name] == edges(name)
                for kind in KINDS:
                    each = [row[f"histogram/{name}/{kind}"] for row in rows]
                    assert shown["counts"][name][kind] == [sum(counts) for counts in zip(*each, strict=True)]
            assert shown["auroc"] == {"confidence": 60.0 + round, "confidence_difference": 60.0 + round}
    status, output = analyze(capsys, "scores", root / "kept", "--round", 2)
    assert status == 2
    assert "Archives keep histograms of the first and the last round only." in " ".join(output.err.split())


def with_histograms(spec, rows):
    aurocs = dict.fromkeys(("msp/including/auroc", "confidence_difference/including/auroc"), 70.0)
    places = [(round, domain) for round in range(1, rows + 1) for domain in spec.domains][:rows]
    return [{"round": n, "domain": domain, "error": 9.0, **histograms(Random(n)), **aurocs} for n, domain in places]


def test_incomplete_round_is_left_out_and_named(tmp_path, capsys):
    begun = next(spec for spec in SPECS if spec.method == "tent")
    done = replace(begun, unknown="svhn-c")
    for spec, rows in ((begun, 2 * len(begun.domains) + 1), (done, 3 * len(done.domains))):
        write(Store(tmp_path).run(spec), spec, with_histograms(spec, rows))
    (figure,) = ANALYSES["scores"](Results(tmp_path), round=3)
    assert figure.numbers["cell"] == done.name
    assert figure.draw().caption.endswith(f" Left out, without histograms of the round: {begun.name}.")
    both = list(ANALYSES["scores"](Results(tmp_path)))
    assert {figure.numbers["cell"]: figure.numbers["round"] for figure in both} == {begun.name: 2, done.name: 3}
    assert not any("Left out" in figure.draw().caption for figure in both)
    status, output = analyze(capsys, "scores", tmp_path, "--round", 4)
    assert status == 2
    assert "Expected histograms of round 4, but no run has completed it and kept them." in " ".join(output.err.split())


def test_runs_are_found_despite_chained_replacements(tmp_path):
    tent = next(spec for spec in SPECS if spec.method == "tent")
    cells = [replace(tent, model="wrn28_10"), replace(tent, unknown="svhn-c")]
    for spec in (*cells, replace(cells[0], seed=1)):
        write(Store(tmp_path).run(spec), spec, with_histograms(spec, len(spec.domains)))
    Store(tmp_path).update_metadata({"limit": None, "replaced": {"wrn40_2": "wrn28_10", "resnet50_cifar": "wrn40_2"}})
    shown = {figure.numbers["cell"] for figure in ANALYSES["scores"](Results(tmp_path))}
    assert shown == {spec.name for spec in cells}, "of several seeds the first"


def test_gradient_matrix_covers_all_domains(made, capsys):
    root, _ = made
    status, output = analyze(capsys, "gradients", root / "kept", "--json")
    (shown,) = json.loads(output.out).values()
    assert status == 0
    assert (shown["domain"], shown["cosines"][3][3], shown["cosines"][9][0]) == ("all", None, 0.9)


@pytest.mark.parametrize(("name", "count"), [("selection", 2), ("scores", 1), ("gradients", 1), ("curves", 1)])
def test_figures_are_drawn_from_an_archive(made, capsys, tmp_path, name, count):
    root, _ = made
    status, output = analyze(capsys, name, root / "kept", "--out", tmp_path / "figures")
    assert status == 0
    paths = output.out.split()
    assert len(paths) == count
    for path in paths:
        stem = path.removesuffix(".svg")
        assert "</svg>" in (tmp_path / path).read_text()
        assert (tmp_path / f"{stem}.png").stat().st_size > 1000
        assert set(json.loads((tmp_path / f"{stem}.json").read_text())) == {"title", "caption", "numbers"}


@pytest.mark.parametrize("name", ["selection", "scores", "gradients", "curves"])
def test_json_does_not_need_matplotlib(made, capsys, monkeypatch, name):
    for module in [*sys.modules]:
        if module.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, output = analyze(capsys, name, made[0] / "store", "--json")
    assert (status, output.err) == (0, "")
    assert json.loads(output.out)


def test_single_round_is_a_centered_point():
    (panel,) = draw_curves([Panel("error", "%", [Curve("tent", "tent", "", [9.0], [9.0], [9.0])])], WIDE).axes
    assert sum(panel.get_xlim()) == 2
    assert list(panel.lines[0].get_xdata()) == [1]


def test_results_without_figure_data_are_an_error(tmp_path, capsys):
    spec = Spec("tent", "x", "y", domains=("fog",))
    write(Store(tmp_path).run(spec), spec, [{"round": 1, "domain": "fog", "error": 9.0}])
    for name in ("selection", "scores", "gradients", "curves"):
        status, output = analyze(capsys, name, tmp_path)
        assert status == 2
        assert f"that `analyze {name}` can draw, but found none" in " ".join(output.err.split())
