"""The numbers of the paper's figures against the samples their rows were counted from."""

import itertools
import json
from pathlib import Path
from random import Random

import pytest

from driftproof.bench.archive import write_archive
from driftproof.bench.histograms import BINS, KINDS
from driftproof.bench.spec import Spec
from driftproof.paper import suite
from rows_on_disk import run_command, write_rows

ROUNDS = 3
SPECS = [spec for spec in suite("rules").specs() if (spec.images, spec.unknown) == ("cifar10-c", None)]
(MATRIX,) = (spec for spec in suite("gradients").specs() if dict(spec.options)["mixing"])
HISTOGRAMS = [f"histogram/{score}/{kind}" for score in ("confidence", "confidence_difference") for kind in KINDS]
AUROCS = ("msp/including/auroc", "confidence_difference/including/auroc")


def share(part, whole):
    return sum(part) / len(whole) if whole else None


def row_of(samples, prefix, chosen):
    """Shares of samples (right, learned from, kept by the crowd), as the benchmark writes them."""
    selected, rejected = ([s[0] for s in samples if s[chosen] is which] for which in (True, False))
    return {
        f"{prefix}precision": share(selected, selected),
        f"{prefix}npv": share([not right for right in rejected], rejected),
        f"{prefix}rejected": len(rejected) / len(samples),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A results folder, an archive of it, and the samples of every round."""
    root, samples, counts = tmp_path_factory.mktemp("figures"), {}, {}
    for spec in SPECS:
        random, rows = Random(spec.name), []
        for round, domain in itertools.product(range(1, ROUNDS + 1), spec.domains):
            few = [
                (random.random() < 0.7, spec.method == "tent" or random.random() < 0.6, random.random() < 0.8)
                for _ in range(random.randrange(1, 30))
            ]
            samples.setdefault((spec.method, round), []).extend(few)
            row = {"round": round, "domain": domain, "samples": len(few), "error": 20.0, **row_of(few, "", 1)}
            if "crowd" in spec.measures:
                bins = {name: [random.randrange(5) for _ in range(BINS)] for name in HISTOGRAMS}
                counts.setdefault(round, []).append(bins)
                row |= row_of(few, "crowd/", 2) | bins | dict.fromkeys(AUROCS, 60.0 + round)
            rows.append(row)
        write_rows(root / "store", spec, rows, protocol={"loss": "Entropy()"})
    cosines = [[None if row == column == 3 else (row - column) / 10 for column in range(10)] for row in range(10)]
    row = {"domain": "all", "round": 1, "sizes": [[1] * 10] * 10, "cosines": cosines, "right": 0.0, "wrong": None}
    write_rows(root / "store", MATRIX, [row | {"domain": "fog"}, row])
    write_archive([root / "store"], root / "kept")
    return root, samples, counts


def analyze(capsys, *words):
    status, output = run_command("analyze", *words), capsys.readouterr()
    return status, output.out, " ".join(output.err.split())


@pytest.mark.parametrize("folder", ["store", "kept"])
def test_selection_figure_counts_all_samples_of_a_round(made, capsys, folder):
    root, samples, _ = made
    status, text, _ = analyze(capsys, "selection", root / folder, "--json")
    figures = json.loads(text, parse_constant=pytest.fail)
    assert (status, set(figures)) == (0, {"selection-1", "rejected-1"})
    assert set(figures["selection-1"]) == {spec.method for spec in SPECS}
    for (method, round), every in samples.items():
        kept = [s for s in every if s[1]]
        right = sum(s[0] for s in every)
        found = [figures["selection-1"][method][name][round - 1] for name in ("precision", "recall")]
        both = sum(s[0] for s in kept)
        assert found == pytest.approx([100 * both / len(kept), 100 * both / right])
    for round in range(1, ROUNDS + 1):
        every = samples["tent", round]
        lost = [s for s in every if not s[2]]
        found = [figures["rejected-1"]["tent"][name][round - 1] for name in ("lost confidence", "wrong among those")]
        assert found == pytest.approx([100 * len(lost) / len(every), 100 * sum(not s[0] for s in lost) / len(lost)])


def test_histograms_sum_over_the_domains_of_a_round(made, capsys):
    root, _, counts = made
    for words, round in ((("--round", 1), 1), ((), ROUNDS)):
        status, text, _ = analyze(capsys, "scores", root / "kept", "--json", *words)
        (shown,) = json.loads(text).values()
        found = {f"histogram/{s}/{kind}": bins for s, kinds in shown["counts"].items() for kind, bins in kinds.items()}
        assert found == {n: [sum(b) for b in zip(*(c[n] for c in counts[round]), strict=True)] for n in HISTOGRAMS}
        assert (status, shown["auroc"]) == (0, dict.fromkeys(("confidence", "confidence_difference"), 60.0 + round))
    status, _, error = analyze(capsys, "scores", root / "kept", "--round", 2)
    assert status == 2
    assert "Archives keep histograms of the first and the last round only." in error


def test_all_figures_are_drawn_from_an_archive(made, capsys, tmp_path):
    status, text, _ = analyze(capsys, "figures", made[0] / "kept", "--out", tmp_path)
    names = ["selection-1", "rejected-1", "scores-1", "gradients-1", "rounds-1"]
    assert (status, [Path(path).stem for path in text.split()]) == (0, names)
    for name in names:
        assert "</svg>" in (tmp_path / f"{name}.svg").read_text()
        assert set(json.loads((tmp_path / f"{name}.json").read_text())) == {"title", "caption", "numbers"}
    matrix = json.loads((tmp_path / "gradients-1.json").read_text())["numbers"]
    assert (matrix["cosines"][3][3], matrix["cosines"][9][0], matrix["wrong"]) == (None, 0.9, None)


def test_results_without_figure_data_are_an_error(tmp_path, capsys):
    write_rows(tmp_path, Spec("tent", "x", "y", domains=("fog",)), [{"round": 1, "domain": "fog", "error": 9.0}])
    for name in ("selection", "scores", "gradients", "curves", "figures"):
        status, _, error = analyze(capsys, name, tmp_path)
        assert (status, f"`analyze {name}` can draw, but found none" in error) == (2, True)
