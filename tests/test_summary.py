"""The results page and citable values against the rows they are made of."""

import re
import statistics
from dataclasses import replace
from random import Random

import pytest

from driftproof.bench import Results, Store
from driftproof.bench.archive import write_archive
from driftproof.cli import main
from driftproof.errors import ConfigurationError, InputError
from driftproof.paper import suite
from driftproof.paper.deviations import large_deviations
from driftproof.paper.printed import paper_table
from driftproof.report import (
    benchmark_tables,
    citable_values,
    evaluate_claims,
    load_archives,
    render_placeholders,
    render_results_page,
    render_summary,
)
from driftproof.report.comparison import compare_with_paper
from driftproof.report.notes import table_notes

STATELESS = {"source": "Source()", "bn_adapt": "Batch()"}


def write_run(folder, spec, rounds, error, bf16_from=None, metric="error"):
    """Write a run whose metric is a function of the round, with noise per domain."""
    cell, random = Store(folder).run(spec), Random(spec.name)
    moves = (
        {"scope": "nothing()", "statistics": STATELESS[spec.method]} if spec.method in STATELESS else {"scope": "all"}
    )
    rows = [
        {"round": round, "domain": domain, metric: add_noise(error(round), random)} | make_scores(spec, random)
        for round in range(1, rounds + 1)
        for domain in spec.domains
    ]
    with cell.locked():
        cell.write_spec(spec, moves)
        conditions = {"seconds": 1.0, "hardware": "a card", "device": "cuda", "torch": "2.11", "engine": "graph"}
        late = {row["round"] for row in rows if row["round"] >= (bf16_from or rounds + 1)}
        cell.append(rows, [conditions | {"precision": "bf16" if row["round"] in late else "tf32"} for row in rows])
    return rows


def add_noise(error, random):
    return round(error + random.uniform(-0.4, 0.4), 2)


def make_scores(spec, random):
    kinds = {"msp": 60, "max_logit": 61, "energy": 62, "confidence_difference": 80}
    wanted = "scores" in spec.measures and spec.unknown
    return {
        f"{name}/{protocol}/{kind}": (base if kind == "auroc" else 100 - base) + random.random()
        for name, base in kinds.items()
        for protocol in ("including", "excluding")
        for kind in ("auroc", "fpr")
        if wanted
    }


def error_of(method, setting):
    """Roughly as in the paper: methods without selection collapse among unknown images."""
    if method in STATELESS or "+crowd" in method:
        return lambda round: 15.0 + (9.0 if method == "swr+crowd" and setting == "open" else 0.0)
    return lambda round: 14.0 + (1.5 if setting == "open" else 0.1) * round


def write_suites(folder, rounds=50, sets=("cifar10-c",), names=("table1",)):
    measured = {}
    for name in names:
        for spec in suite(name).specs():
            if spec.images in sets and spec not in measured:
                reached = 2 if spec.method in STATELESS else rounds
                measured[spec] = write_run(folder, spec, reached, error_of(spec.method, spec.setting))
    Store(folder).update_metadata(
        {"limit": None, "replaced": {"imagenet-o-c-64": "other"}, "prepared on test images": list(sets)}
    )
    return measured


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one archive of table 1 after 50 rounds, its rows, and the loaded archives."""
    root = tmp_path_factory.mktemp("results")
    measured = write_suites(root / "store")
    write_archive([root / "store"], root / "results" / "cifar")
    return root / "results", measured, load_archives(root / "results")


@pytest.fixture(scope="module")
def summary(finished):
    return render_summary(finished[2])


@pytest.fixture(scope="module")
def values(finished):
    return citable_values(finished[2])


@pytest.fixture
def small(tmp_path):
    """A folder with one archive of two short runs."""
    for spec in suite("table2").specs():
        if spec.images == "cifar10-c" and spec.method in ("source", "tent"):
            write_run(tmp_path / "store", spec, 1, lambda round: 15.0)
    write_archive([tmp_path / "store"], tmp_path / "results" / "cifar")
    return tmp_path / "results"


def mean_of(rows, round):
    return statistics.fmean(row["error"] for row in rows if row["round"] == round)


def numbers_of(text, heading):
    """The tables below a heading, by method and column: ours, the paper's, the difference."""
    section = text.split(f"### {heading}\n")[1].split("\n#")[0]
    found = {}
    for table in re.findall(r"((?:^\|.*\n)+)", section, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines())
        for row in rows:
            for place in range(1, len(head), 3):
                found[row[0], head[place]] = tuple(cell.replace("−", "-").strip("*") for cell in row[place : place + 3])
    return found


@pytest.mark.parametrize(
    ("heading", "name", "round"),
    [("Error after 50 rounds", "T1_rounds50", 50), ("Error after one round", "T2_round1", 1)],
)
def test_tables_match_the_rows_and_the_paper(finished, summary, heading, name, round):
    _, measured, _ = finished
    shown = numbers_of(summary, heading)
    assert set(shown) >= {(spec.method, f"CIFAR-10-C/{spec.setting.title()}") for spec in measured}
    names = {"tent": "TENT", "tent+crowd": "TENT + Ours", "source": "Source", "bn_adapt": "BN Adapt"}
    for spec, rows in measured.items():
        if spec.method in names:
            place = f"CIFAR-10-C/{spec.setting.title()}"
            ours = mean_of(rows, min(round, rows[-1]["round"]))
            paper = paper_table(name).value(names[spec.method], place)
            text, theirs, difference = shown[spec.method, place]
            assert float(text.replace("*", "")) == pytest.approx(ours, abs=0.0051)
            assert float(theirs) == paper
            assert float(difference) == pytest.approx(ours - paper, abs=0.0051)


def test_early_run_shows_its_round(tmp_path):
    measured = write_suites(tmp_path / "store", rounds=7)
    archives = [Results(tmp_path / "store")]
    text = render_summary(archives)
    shown = numbers_of(text, "Error after 50 rounds")
    for spec, rows in measured.items():
        if spec.method in ("tent", "source", "eata+crowd"):
            ours, _, difference = shown[spec.method, f"CIFAR-10-C/{spec.setting.title()}"]
            assert ours.endswith("@7") == (spec.method != "source"), "what learns nothing is the same in every round"
            assert bool(difference) == (spec.method == "source")
            number = float(ours.replace("@7", "").replace("*", ""))
            assert number == pytest.approx(mean_of(rows, min(7, rows[-1]["round"])), abs=0.0051)
    (headline, *_) = evaluate_claims(archives)
    assert headline.verdict.startswith("so far, ")
    assert headline.verdict.endswith(" (round 7 of 50)")
    assert all("(round 7 of 50)" in words for words in headline.evidence)


def test_bf16_numbers_are_noted_with_their_first_round(tmp_path):
    for spec in suite("table1").specs():
        if spec.images == "cifar10-c" and spec.method in ("tent", "tent+crowd", "gce", "ent"):
            late = {"tent": None, "tent+crowd": 1 if spec.unknown else 3, "gce": 2, "ent": 1}[spec.method]
            write_run(tmp_path / "store", spec, 5, lambda round: 15.0, bf16_from=late)
    text = render_summary([Results(tmp_path / "store")])
    long, short = (text.split(f"### {heading}")[1].split("\n#")[0] for heading in ("Error after 50", "Error after one"))
    both = "tent+crowd on CIFAR-10-C/Closed from round 3 on; tent+crowd on CIFAR-10-C/Open"
    assert f"\nComputed in bfloat16: gce from round 2 on; ent; {both}." in long
    assert "\nComputed in bfloat16: ent; tent+crowd on CIFAR-10-C/Open." in short
    assert "| graph bf16, graph tf32 |" in text


def test_timing_notes_describe_the_runs_used(tmp_path):
    (costs,) = (spec for spec in suite("table6").specs() if spec.task == "costs")
    for trials, seed, card, precision in (
        (30, 0, "card A", "bf16"),
        (500, 0, "card A", "tf32"),
        (30, 1, "card B", "tf32"),
    ):
        spec = replace(costs.with_options(trials=trials), seed=seed)
        cell, rows = (
            Store(tmp_path).run(spec),
            [
                {"round": 1, "domain": name, "milliseconds": 5.0, "memory": 7.0, "peak": 3 * 2**20}
                for name in spec.method.split(",")
            ],
        )
        with cell.locked():
            cell.write_spec(spec, {})
            cell.append(rows, [{"hardware": card, "engine": "graph", "precision": precision}] * len(rows))
    results = Results(tmp_path)
    (table,) = (measured for measured in results.tables() if measured.table.name == "table6")
    notes = table_notes(table, results)
    assert not any("bfloat16" in sentence for sentence in notes), "the longest timing is in tf32"
    assert any("500 (card A, graph, tf32), 30 (card B, graph, tf32);" in sentence for sentence in notes)
    (peaks,) = (sentence for sentence in notes if "allocated" in sentence)
    assert peaks.endswith(", in MiB: ent 3, swr 3, tent 3, eata 3, tent+crowd 3.")
    assert any(sentence.startswith("Memory is computed") for sentence in notes)


def test_preparation_note_names_the_replacement_set(tmp_path):
    eata = next(spec for spec in suite("table2").specs() if spec.method == "eata" and spec.images == "cifar10-c")
    write_run(tmp_path, replace(eata, images="other-c"), 1, lambda round: 15.0)
    Store(tmp_path).update_metadata(
        {"replaced": {"cifar10-c": "other-c"}, "prepared on test images": ["other-c", "unseen-c"]}
    )
    results = Results(tmp_path)
    for table in results.tables():
        notes = table_notes(table, results)
        assert "Methods that prepare on source images of other-c used its clean test images." in notes
        assert not any("unseen-c" in sentence for sentence in notes)


def test_gain_is_shown_for_rows_with_options(tmp_path):
    rows = ("tent (lr 1e-05)", "tent+crowd (lr 1e-05)")
    specs = {entry.row: entry.specs[0] for table in suite("camvid_x10").tables for entry in table.entries}
    for row, error in zip(rows, (40.0, 50.0), strict=True):
        cell, spec = Store(tmp_path).run(specs[row]), specs[row]
        with cell.locked():
            cell.write_spec(spec, {})
            cell.append(
                [{"round": 1, "domain": name, "mean_iou": error} for name in spec.domains], [{}] * len(spec.domains)
            )
    (table,) = (measured for measured in Results(tmp_path).tables() if measured.table.name == "camvid_x10")
    assert compare_with_paper(table).cells[rows[1], "Round 1"].gain == "+10.00"


def test_table_entirely_in_bf16_names_no_rows(tmp_path):
    for spec in suite("table2").specs():
        if spec.images == "cifar10-c" and spec.method in ("bn_adapt", "tent"):
            write_run(tmp_path / "store", spec, 1, lambda round: 15.0, bf16_from=1)
    assert "\n\nComputed in bfloat16.\n\n" in render_summary([Results(tmp_path / "store")])


def test_archives_are_ordered_and_subsets_add_only_new_tables(tmp_path):
    for name, specs in {
        "choices": [spec for spec in suite("open_choices").specs() if spec.method == "bn_adapt"],
        "few": [replace(spec, limit=40) for spec in suite("s3").specs() if spec.model == "wrn40_2"],
        "whole": [spec for spec in suite("table1").specs() if spec.model == "wrn40_2"],
    }.items():
        for spec in specs:
            if spec.task == "stream":
                write_run(tmp_path / name, spec, 1, lambda round: 15.0)
        Store(tmp_path / name).update_metadata({"limit": specs[0].limit, "replaced": {}})
        write_archive([tmp_path / name], tmp_path / "results" / name)
    text = render_results_page(tmp_path / "results")
    beginning, *sections = re.split(r"^## ", text, flags=re.MULTILINE)[:4]
    assert "[The paper's claims](#the-papers-claims)" in beginning, "who asks whether it holds finds this first"
    assert [section.split("\n")[0] for section in sections] == ["whole", "few", "choices"]
    shown = [re.findall(r"^`(\w+)`: ", section, flags=re.MULTILINE) for section in sections]
    assert {"table1", "table2"} <= set(shown[0])
    assert shown[1] == ["s3a"], "CoTTA was measured on a few images alone"
    assert all(name.startswith("choice_") for name in shown[2])
    about = [section.split("\n")[2] for section in sections]
    both = "wrn40_2 on cifar10-c, cifar100-c"
    assert about[0] == f"{both}, also among unknown images of svhn-c."
    assert about[1:] == [f"{both}.", f"{both} under held-out corruptions, also among unknown images of svhn-c."]


def verdicts(archives):
    """Claims by the beginning of their text."""
    return {claim.text.split(":")[0].split(",")[0]: claim for claim in evaluate_claims(archives)}


def test_verdicts_follow_from_the_numbers(finished):
    found = verdicts(finished[2])
    assert found["Among unknown images"].verdict == "holds"
    assert len(found["Among unknown images"].cases) == 2, "only one of the two sets was measured"
    assert found["Selection improves open-set adaptation"].verdict == "holds"
    separates = found["The confidence difference separates better than MSP"]
    assert (separates.verdict, len(separates.cases)) == ("holds", 4), "both protocols, both measures"
    assert found["Selection by softmax beats selection by logits"].verdict == "not measured"
    assert found["SWR among unknown images remains hard"].verdict == "holds"
    long = found["Selection improves long-term adaptation"]
    assert (long.verdict, len(long.cases)) == ("holds", 4)


def test_failed_claim_names_the_case(tmp_path):
    changed = {("tent", "open"): 16.0, ("ent+crowd", "closed"): 60.0}
    for spec in suite("table1").specs():
        method, setting = spec.method, spec.setting
        if spec.images == "cifar10-c" and method.partition("+")[0] in ("bn_adapt", "ent", "tent", "eata", "swr"):
            error = error_of(method, setting)
            if (method, setting) in changed:
                error = lambda round, error=changed[method, setting]: error  # noqa: E731
            write_run(tmp_path / "store", spec, 2 if method in STATELESS else 50, error)
    archives = [Results(tmp_path / "store")]
    found = verdicts(archives)
    assert found["Among unknown images"].verdict == "holds in 1 of 2 cases"
    (failed,) = (words for words in found["Among unknown images"].evidence if "✗" in words)
    assert failed.startswith("CIFAR-10-C: tent 1")
    assert found["Selection improves long-term adaptation"].verdict == "holds in 3 of 4 cases"
    assert found["Selection improves open-set adaptation"].verdict == "holds"


def test_robustness_and_logit_claims_use_their_tables(tmp_path):
    for name, sets in (("table8", ("tiny-imagenet-c",)), ("s5", ("cifar100-c",))):
        for spec in suite(name).specs():
            if spec.images in sets:
                options = dict(spec.options)
                spread = options.get("lr", 0) * 5000 + 40 / spec.batch_size
                worse = spread * (0.1 if "+crowd" in spec.method else 1.0) + (3 if options.get("on") == "logits" else 0)
                write_run(tmp_path / "store", spec, 50 if name == "s5" else 10, lambda round, worse=worse: 20 + worse)
    archives = [Results(tmp_path / "store")]
    found = verdicts(archives)
    assert found["Selection makes TENT robust to learning rate and batch size"].verdict == "holds"
    assert found["Selection by softmax beats selection by logits"].verdict == "holds"


def test_driving_claims_compare_rounds(tmp_path):
    falls = {"tent": 3.0, "tent+crowd": -1.0, "swr": 2.0, "swr+crowd": 1.0}
    for spec in suite("camvid_x100").specs():
        scores = {"novelty/wrong/auroc": 60.0, "msp/wrong/auroc": 70.0}
        scores |= {"novelty/unknown/auroc": 80.0, "msp/unknown/auroc": 70.0}
        rows = [
            {"round": round, "domain": domain, "mean_iou": 50.0 - falls[spec.method] * (round - 1), **scores}
            for round in (1, 2, 3)
            for domain in spec.domains
        ]
        cell = Store(tmp_path / "store").run(spec)
        with cell.locked():
            cell.write_spec(spec, {"scope": "all"})
            cell.append(rows, [{"seconds": 1.0}] * len(rows))
    *_, improved, kept, found = evaluate_claims([Results(tmp_path / "store")])
    assert (improved.verdict, len(improved.cases)) == ("so far, holds (round 3 of 5)", 2)
    assert improved.evidence[0] == (
        "CamVid: mIoU tent+crowd (lr 1e-04) 52.0, tent (lr 1e-04) 44.0 (+8.0) (round 3 of 5)"
    )
    assert kept.verdict == "so far, holds in 1 of 2 cases (round 3 of 5)"
    assert kept.evidence[1] == "CamVid: mIoU of swr+crowd (lr 1e-04) 50.0, then 48.0 ✗ (round 3 of 5)"
    assert found.verdict == "so far, holds in 2 of 4 cases (round 3 of 5)"
    assert found.evidence[0].startswith("CamVid, tent+crowd (lr 1e-04), wrong: AUROC 60.0, MSP 70.0 ✗")


def test_verdict_names_the_rounds(tmp_path):
    for spec in suite("table1").specs():
        if spec.images == "cifar10-c" and spec.method.partition("+")[0] in ("tent", "swr"):
            rounds = {"tent": 60, "swr": 1}[spec.method.partition("+")[0]]
            write_run(tmp_path / "store", spec, rounds, error_of(spec.method, spec.setting))
    archives = [Results(tmp_path / "store")]
    found = verdicts(archives)
    assert (
        found["Selection improves long-term adaptation"].verdict
        == "so far, holds in 1 of 2 cases (rounds 1 to 50 of 50)"
    )


def test_table_names_its_round_and_corruptions(tmp_path, capsys):
    (tent, *_) = (spec for spec in suite("table8").specs() if spec.method == "tent")
    (tried, *_) = (spec for spec in suite("open_choices").specs() if spec.images == tent.images)
    for spec in (tent, tried):
        write_run(tmp_path / "store", spec, 1, lambda round: 50.0)
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": {}})
    text = render_summary([Results(tmp_path / "store")])
    assert "`table8a`: Table 8a, error %, lower is better, round 10.\n" in text
    assert "`choice_tiny`: error %, lower is better, round 2, held-out corruptions.\n" in text
    with pytest.raises(SystemExit):
        main(["bench", "compare", str(tmp_path / "store")])
    output = " ".join(capsys.readouterr().out.split())
    assert "error %; lower is better; round 10; in brackets" in output
    assert "error %; lower is better; round 2, held-out corruptions; @" in output


def test_protocol_lists_the_seeds(tmp_path):
    spec = next(spec for spec in suite("table2").specs() if spec.method == "tent")
    for seed in (0, 10, 2):
        write_run(tmp_path / "store", replace(spec, seed=seed), 1, lambda round: 50.0)
    head, _, row = render_summary([Results(tmp_path / "store")]).strip().splitlines()[-3:]
    seeds = [cell.strip() for cell in head.split("|")].index("seeds")
    assert row.split("|")[seeds].strip() == "0, 2, 10"


def test_claims_compare_common_seeds(tmp_path):
    (tent, crowd) = (
        next(
            spec
            for spec in suite("table1").specs()
            if (spec.images, spec.setting) == ("cifar10-c", "closed") and spec.method == method
        )
        for method in ("tent", "tent+crowd")
    )
    for spec, error in ((tent, 10), (replace(tent, seed=1), 30), (crowd, 12)):
        write_run(tmp_path / "store", spec, 1, lambda round, error=error: error)
    results = Results(tmp_path / "store")
    (rescue,) = (claim for claim in evaluate_claims([results]) if claim.text.startswith("Selection improves long-term"))
    assert rescue.verdict.startswith("so far, does not hold")
    (table,) = (measured for measured in results.tables() if measured.table.name == "table2")
    assert table.values["tent", "CIFAR-10-C/Closed"].seeds == 2
    assert not compare_with_paper(table).cells["tent+crowd", "CIFAR-10-C/Closed"].gain, "they are not of the same seeds"


def test_robustness_claim_uses_the_last_common_round(tmp_path):
    for spec in suite("table8").specs():
        rate = dict(spec.options).get("lr", 0) * 5000
        grows = 9.0 if spec.method == "tent" else 0.0
        early = spec.method == "tent+crowd" and rate == 25
        write_run(
            tmp_path / "store",
            spec,
            1 if early else 4,
            lambda round, rate=rate, grows=grows: 20 + rate + grows * round**rate,
        )
    archives = [Results(tmp_path / "store")]
    (results,) = archives
    (table,) = (measured for measured in results.tables() if measured.table.name == "table8a")
    assert (table.values["tent+crowd", "Std"].round, table.values["tent", "Std"].round) == (1, 4)
    claim = verdicts(archives)["Selection makes TENT robust to learning rate and batch size"]
    by_rate = claim.evidence[0]
    assert by_rate.endswith("(round 1 of 10)")
    with_it, without = map(float, re.findall(r"deviation ([\d.]+) with selection, ([\d.]+) without", by_rate)[0])
    spread = statistics.stdev([25, 5, 2.5, 0.5])
    assert with_it == pytest.approx(spread, abs=0.5)
    assert without == pytest.approx(spread, abs=0.5), "in round 1, where all errors are nine points higher"


def test_table_sections_contain_their_notes(finished):
    text = render_summary(finished[2], sections=["## Why\n\nBecause."], figures={"figures/a.svg": "A curve."})
    for section in text.split("\n### ")[1:]:
        assert "used its clean test images." in section
        assert "replaces" not in section.split("## Protocol")[0], "no unknown set of these tables was replaced"
    assert "## Why\n\nBecause." in text
    assert "![a](figures/a.svg)\n\nA curve." in text
    assert "a card (cuda)" in text
    long_run = text.split("### Error after 50 rounds")[1].split("###")[0]
    assert "Not measured: " not in long_run
    others = [f"{name}/{setting}" for name in ("CIFAR-100-C", "TinyImageNet-C") for setting in ("Closed", "Open")]
    assert f"Settings without numbers here: {', '.join(others)}." in long_run


def test_large_deviations_are_listed(finished, summary):
    _, measured, archives = finished
    text = summary.split("## More than 3 points from the paper")[1].split("\n## ")[0]
    listed = {
        tuple(cell.strip() for cell in line.strip("|").split("|"))[:3]
        for line in text.splitlines()
        if line.startswith("| `")
    }
    (tent,) = (rows for spec, rows in measured.items() if (spec.method, spec.setting) == ("tent", "open"))
    assert ("`table2`", "tent", "CIFAR-10-C/Open") in listed, "15.5 against 27.8"
    assert ("`table2`", "tent+crowd", "CIFAR-10-C/Open") not in listed, "15 against 14.94"
    assert listed_deviations(archives)["tent", "CIFAR-10-C/Open"][0] == f"{mean_of(tent, 1):.2f}"
    assert ("`table1`, `s5`", "source", "CIFAR-10-C/Closed, CIFAR-10-C") in listed, (
        "a number that several tables show is there once, with what each calls its setting"
    )
    assert listed_deviations(archives)["source", "CIFAR-10-C/Closed, CIFAR-10-C"][-1] == "learns nothing"


def test_deviation_in_several_settings_lists_them_all(tmp_path):
    (source,) = (spec for spec in suite("table8").specs() if spec.method == "source")
    write_run(tmp_path / "store", source, 1, lambda round: 50.0)
    archives = [Results(tmp_path / "store")]
    ((_, settings),) = listed_deviations(archives)
    table8 = [entry.column for table in suite("table8").tables for entry in table.entries if entry.row == "source"]
    assert len(table8) == 8
    assert set(table8) < set(settings.split(", "))


def listed_deviations(archives):
    """The cells of the table of deviations, by method and setting."""
    text = large_deviations(archives)
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {(method.strip(), column.strip()): [word.strip() for word in rest] for _, method, column, *rest in lines}


def test_deviation_lists_the_effects_of_ablations(tmp_path):
    write_suites(tmp_path / "store", rounds=1, names=("table2",))
    archives = [Results(tmp_path / "store")]
    *_, baseline, effects = listed_deviations(archives)["tent", "CIFAR-10-C/Open"]
    assert float(baseline.replace("−", "-")) == pytest.approx(15.0 - 15.73, abs=0.3)
    assert effects == "no ablation was run"
    errors = {(): 40.0, ("lr", 3e-4): 30.0, ("lr", 1e-4): 25.0, ("mean_entropy", 0.5): 41.5}
    for spec in suite("open_choices").specs():
        changed = tuple(item for item in spec.options if item != ("lr", 1e-3))
        if (spec.method, spec.images, spec.setting, spec.batch_size) == ("tent", "cifar10-c", "open", 200):
            error = errors[changed[0] if changed else ()]
            write_run(
                tmp_path / "tried", spec, 1 if changed else 2, lambda round, error=error: error + 50 * (round - 1)
            )
    archives.append(Results(tmp_path / "tried"))
    *_, effects = listed_deviations(archives)["tent", "CIFAR-10-C/Open"]
    rates, entropies = effects.split("<br>")
    changes = [float(change.replace("−", "-")) for change in re.findall(r"[+−][\d.]+(?=;|$)", f"{rates};{entropies}")]
    assert changes == pytest.approx([-10.0, -15.0, 1.5], abs=0.9), "in round 1, as the others have no second"
    assert rates.startswith("`choice_pace`, round 1: tent, lr = 0.0003 −")
    assert entropies.startswith("`choice_spread`, round 1: tent, λ_max = 0.5 +")


def test_deviation_of_a_score_names_the_error_of_the_run(finished):
    _, measured, archives = finished
    (rows,) = (
        rows
        for spec, rows in measured.items()
        if (spec.method, spec.images, spec.setting) == ("tent", "cifar10-c", "open")
    )
    *_, explanation = listed_deviations(archives)["msp", "CIFAR-10/SVHN-C AUROC"]
    assert explanation == f"`table1`: the error of tent is {mean_of(rows, 50):.2f}, the paper's 85.22"


def test_ablation_effect_is_taken_from_the_last_common_round(tmp_path):
    def is_tent(spec):
        return (spec.method, spec.images, spec.setting) == ("tent", "cifar100-c", "closed")

    (table1,) = (spec for spec in suite("table1").specs() if is_tent(spec))
    write_run(tmp_path / "store", table1, 50, lambda round: 35.0 + round)
    falling = {(5, 1e-3): 5.0, (5, 3e-4): 4.0, (4, 1e-3): 3.0, (4, 3e-4): 1.0, (3, 1e-3): 9.0}
    for name in ("endurance", "milder"):
        for spec in filter(is_tent, suite(name).specs()):
            by = falling[spec.severity, dict(spec.options)["lr"]]
            write_run(
                tmp_path / "tried", spec, {"endurance": 30, "milder": 5}[name], lambda round, by=by: 30 + by * round
            )
    archives = [Results(tmp_path / "store"), Results(tmp_path / "tried")]
    ((_, settings),) = listed_deviations(archives)
    found = listed_deviations(archives)["tent", settings][-1].split("<br>")
    assert [words.rpartition(" ")[0] for words in found] == [
        "`choice_pace`, round 2: tent, lr = 0.0003",
        "`choice_endurance`, round 30: tent, lr = 0.0003",
        "`choice_milder`, round 5: tent, lr = 0.0003",
    ]
    changes = [float(words.rpartition(" ")[2].replace("−", "-")) for words in found]
    assert changes == pytest.approx([-2.0, -30.0, -10.0], abs=0.9)


def test_ablation_effect_uses_about_as_many_steps(tmp_path):
    for spec in suite("table2").specs():
        if (spec.method, spec.images, spec.setting) == ("tent", "cifar100-c", "closed"):
            write_run(tmp_path / "store", spec, 1, lambda round: 70.0)
    for spec in suite("endurance").specs():
        if spec.method == "tent":
            by = 40.0 * dict(spec.options)["lr"] / 1e-3
            write_run(tmp_path / "tried", spec, 30, lambda round, by=by: 20 + by * round / 30)
    archives = [Results(tmp_path / "store"), Results(tmp_path / "tried")]
    found = listed_deviations(archives)["tent", "CIFAR-100-C/Closed"][-1].split("<br>")
    assert [words.rpartition(" ")[0] for words in found] == [
        "`choice_pace`, round 2: tent, lr = 0.0003",
        "`choice_endurance`, round 4: tent, lr = 0.0003",
    ], "four rounds of four domains are about one of fifteen"
    changes = [float(words.rpartition(" ")[2].replace("−", "-")) for words in found]
    assert changes == pytest.approx([-28 * 2 / 30, -28 * 4 / 30], abs=0.9)


def test_ablations_of_the_default_do_not_explain_a_variant(tmp_path):
    (variant,) = (
        spec for spec in suite("s5").specs() if ("on", "logits") in spec.options and spec.images == "cifar100-c"
    )
    write_run(tmp_path / "store", variant, 50, lambda round: 43.0)
    for spec in suite("open_choices").specs():
        if spec.images == "cifar100-c" and spec.setting == "closed" and spec.method in ("tent", "tent+crowd"):
            write_run(tmp_path / "tried", spec, 2, lambda round, options=spec.options: 30.0 + len(options))
    archives = [Results(tmp_path / "store"), Results(tmp_path / "tried")]
    ((row, column),) = listed_deviations(archives)
    assert row == "tent+crowd (logits)"
    found = listed_deviations(archives)[row, column][-1].split("<br>")
    assert {words.partition(",")[0] for words in found} == {"`choice_pace`", "`choice_spread`"}, "those of plain TENT"


@pytest.mark.parametrize(("images", "name", "rounds"), [("cifar10-c", "endurance", 30), ("cifar100-c", "milder", 5)])
def test_ablations_of_a_variant_explain_it(tmp_path, images, name, rounds):
    (variant,) = (spec for spec in suite("s5").specs() if ("on", "logits") in spec.options and spec.images == images)
    write_run(tmp_path / "store", variant, 50, lambda round: 43.0)
    for spec in suite(name).specs():
        if spec.images == images and spec.method in ("tent", "tent+crowd"):
            by = dict(spec.options).get("mean_entropy", 2.0)
            write_run(tmp_path / name, spec, rounds, lambda round, by=by: 30.0 + by * round)
    archives = [Results(tmp_path / "store"), Results(tmp_path / name)]
    (texts,) = listed_deviations(archives).values()
    where, changes = texts[-1].split(": ")
    assert where == f"`choice_{name}_logits`, round {rounds}", "and none of plain TENT"
    (change,) = re.findall(r"tent\+crowd \(logits\), λ_max = 0.25 −([\d.]+)", changes)
    assert float(change) == pytest.approx(0.25 * rounds, abs=0.9)
    assert "tent+crowd (logits), source statistics in θ_o" in changes


def test_effect_in_two_tables_is_listed_once(tmp_path):
    for spec in suite("table2").specs():
        if (spec.method, spec.images, spec.setting) == ("ent", "cifar10-c", "closed"):
            write_run(tmp_path / "store", spec, 1, lambda round: 70.0)
    for spec in suite("endurance").specs():
        if (spec.method, spec.images) == ("ent", "cifar10-c"):
            write_run(tmp_path / "tried", spec, 2, lambda round, rate=dict(spec.options)["lr"]: 1e5 * rate)
    archives = [Results(tmp_path / "store"), Results(tmp_path / "tried")]
    found = listed_deviations(archives)["ent", "CIFAR-10-C/Closed"][-1]
    assert found.startswith("`choice_pace`, round 2: ent, lr = 3e-05 −")
    assert "choice_endurance" not in found


def test_deviation_of_mean_iou_is_compared_with_bn_adapt(tmp_path):
    for spec in suite("table3").specs():
        if spec.method in ("bn_adapt", "ttn"):
            write_run(tmp_path / "store", spec, 1, lambda round: 10.0, metric="mean_iou")
    archives = [Results(tmp_path / "store")]
    found = listed_deviations(archives)
    assert {words[-1] for (method, _), words in found.items() if method == "ttn"} >= {"BN Adapt deviates as much"}


def test_deviation_equal_to_bn_adapts_needs_no_ablation(tmp_path):
    for spec in suite("table2").specs():
        if spec.images == "tiny-imagenet-c" and spec.setting == "closed" and spec.method in ("bn_adapt", "eata"):
            write_run(tmp_path / "store", spec, 1, lambda round: 52.0)
    archives = [Results(tmp_path / "store")]
    assert listed_deviations(archives)["eata", "TinyImageNet-C/Closed"][-1] == "BN Adapt deviates as much"


def test_plain_ablations_are_ignored_if_bn_adapt_deviates_as_much(tmp_path):
    for spec in suite("table2").specs():
        if spec.images == "tiny-imagenet-c" and spec.setting == "closed" and spec.method in ("bn_adapt", "tent+crowd"):
            write_run(tmp_path / "store", spec, 1, lambda round: 52.0)
    for spec in suite("open_choices").specs():
        if spec.images == "tiny-imagenet-c":
            write_run(tmp_path / "tried", spec, 1, lambda round: 50.0)
    archives = [Results(tmp_path / "store"), Results(tmp_path / "tried")]
    found = listed_deviations(archives)["tent+crowd", "TinyImageNet-C/Closed"][-1]
    assert found == "BN Adapt deviates as much"


def test_filter_ablations_do_not_explain_a_selection(tmp_path):
    for method in ("eata+crowd", "swr+crowd"):
        for spec in suite("table2").specs():
            if (spec.method, spec.images, spec.setting) == (method, "cifar100-c", "open"):
                write_run(tmp_path / "store", spec, 1, lambda round: 70.0)
    for spec in suite("open_choices").specs():
        if spec.method in ("eata", "swr"):
            write_run(tmp_path / "tried", spec, 1, lambda round: 50.0)
    archives = [Results(tmp_path / "store"), Results(tmp_path / "tried")]
    found = listed_deviations(archives)
    assert found["eata+crowd", "CIFAR-100-C/Open"][-1].startswith("`choice_batch`, round 1: eata, 200 + 200 ")
    assert "ε" not in found["eata+crowd", "CIFAR-100-C/Open"][-1]
    (swr,) = (table for table in suite("open_choices").tables if table.name == "choice_swr")
    others = {entry.row for entry in swr.entries if entry.specs[0].method == "swr"} - {"swr, λ = 250"}
    assert all(other in found["swr+crowd", "CIFAR-100-C/Open"][-1] for other in others)


def test_subset_of_images_is_no_deviation_and_decides_no_claim(tmp_path):
    for spec in suite("table2").specs():
        if (spec.images, spec.method) == ("cifar10-c", "tent") or spec.method == "tent+crowd":
            write_run(tmp_path / "store", replace(spec, limit=40), 1, lambda round: 70.0)
    Store(tmp_path / "store").update_metadata({"limit": 40, "replaced": {}})
    archives = [Results(tmp_path / "store")]
    assert listed_deviations(archives) == {}
    claim = verdicts(archives)["Selection improves open-set adaptation"]
    assert claim.verdict.startswith("so far, ")
    assert all("[Only the first 40 images of each domain.]" in words for words in claim.evidence)


def test_replacement_is_named_with_its_numbers(tmp_path):
    stand_in, errors = {"imagenet-o-c-64": "imagenet64-other-c"}, {"bn_adapt": 70.0, "tent": 93.0, "tent+crowd": 63.0}
    for spec in suite("table2").specs():
        if spec.images == "tiny-imagenet-c" and spec.method in errors:
            here = replace(spec, unknown=stand_in.get(spec.unknown))
            write_run(tmp_path / "store", here, 1, lambda round, error=errors[spec.method]: error)
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": stand_in, "prepared on test images": []})
    archives = [Results(tmp_path / "store")]
    note = "imagenet64-other-c replaces imagenet-o-c-64."
    far = listed_deviations(archives)
    assert note in far["tent", "TinyImageNet-C/Open"][-1]
    assert far["bn_adapt", "TinyImageNet-C/Open"][-1] == f"{note}<br>learns nothing"
    assert far["tent", "TinyImageNet-C/Closed"][-1] == "no ablation was run"
    (improved,) = verdicts(archives)["Selection improves open-set adaptation"].evidence
    assert improved.endswith(f"[{note}]")


def test_timing_notes_name_hardware_and_ratios(tmp_path, capsys):
    (spec,) = (spec for spec in suite("table6").specs() if spec.task == "costs")
    methods = spec.method.split(",")
    cell = Store(tmp_path).run(spec.with_options(trials=300))
    with cell.locked():
        cell.write_spec(spec.with_options(trials=300), {})
        rows = [{"round": 1, "domain": name, "milliseconds": 5.0 if name == "tent" else 7.0} for name in methods]
        cell.append(rows, [{"hardware": "a card", "engine": "graph", "precision": None}] * len(rows))
    with pytest.raises(SystemExit):
        main(["bench", "compare", str(tmp_path)])
    output = " ".join(capsys.readouterr().out.split())
    assert "Timed steps per method: 300 (a card, graph)" in output
    paper = {
        name: paper_table("T6_cost_cls").value(row, "Time (ms)") for name, row in (("ent", "ENT"), ("tent", "TENT"))
    }
    assert f"in brackets the paper's: ent 1.40 ({paper['ent'] / paper['tent']:.2f}), swr 1.40 (" in output


def test_placeholders_are_filled_with_claims_tables_and_numbers(finished, values):
    _, measured, archives = finished
    (spec,) = (spec for spec in measured if (spec.method, spec.setting) == ("tent+crowd", "open"))
    page = (
        "Ends at <!-- results:table1/tent+crowd/CIFAR-10-C/Open -->9<!-- /results --> %.\n"
        "<!-- results:claims -->old\nlines<!-- /results -->\n<!-- results:table2 --><!-- /results -->\n"
        "<!-- results:verdicts --><!-- /results -->\n"
    )
    text = render_placeholders(page, values)
    assert f"-->{mean_of(measured[spec], 50):.1f}<!--" in text
    assert "old\nlines" not in text
    assert "| claim | verdict | numbers |" in text
    (headline, *_) = evaluate_claims(archives)
    assert f"| {headline.text} | {headline.verdict} |\n" in text
    assert render_placeholders(text, values) == text
    with pytest.raises(ConfigurationError, match="Did you mean claims"):
        render_placeholders("<!-- results:clams --><!-- /results -->", citable_values([]))


def test_numbers_of_single_rounds_are_citable(tmp_path):
    spec = next(spec for spec in suite("table1").specs() if spec.method == "tent" and spec.images == "cifar10-c")
    rows = write_run(tmp_path / "store", spec, 3, lambda round: 10.0 * round)
    named = citable_values([Results(tmp_path / "store")])
    assert named["table1/tent/CIFAR-10-C/Closed"] == f"{mean_of(rows, 3):.1f} (round 3)"
    for round in (1, 2):
        assert named[f"table1/tent/CIFAR-10-C/Closed@{round}"] == f"{mean_of(rows, round):.1f}"


def test_numbers_on_all_images_precede_those_on_a_subset(tmp_path):
    tent, gce = (
        next(spec for spec in suite("table1").specs() if (spec.method, spec.images) == (method, "cifar10-c"))
        for method in ("tent", "gce")
    )
    write_run(tmp_path / "whole", tent, 3, lambda round: 10.0)
    few = {spec: write_run(tmp_path / "few", replace(spec, limit=40), 10, lambda round: 77.0) for spec in (tent, gce)}
    for name, limit in (("whole", None), ("few", 40)):
        Store(tmp_path / name).update_metadata({"limit": limit, "replaced": {}})
    named = citable_values([Results(tmp_path / "few"), Results(tmp_path / "whole")])
    assert named["table1/tent/CIFAR-10-C/Closed"].endswith(" (round 3)")
    assert "table1/tent/CIFAR-10-C/Closed@3" in named
    assert "table1/tent/CIFAR-10-C/Closed@5" not in named, "only a few images have got so far"
    tenth = f"{mean_of(few[gce], 10):.1f}"
    assert named["table1/gce/CIFAR-10-C/Closed"] == f"{tenth} (round 10, first 40 images)"
    assert named["table1/gce/CIFAR-10-C/Closed@10"] == f"{tenth} (first 40 images)"
    assert named["table2/gce/CIFAR-10-C/Closed"] == f"{mean_of(few[gce], 1):.1f} (first 40 images)"


def test_cited_table_on_a_subset_says_so(tmp_path):
    spec = next(spec for spec in suite("table2").specs() if spec.method == "tent")
    write_run(tmp_path / "store", replace(spec, limit=40), 1, lambda round: 77.0)
    Store(tmp_path / "store").update_metadata({"limit": 40, "replaced": {}})
    assert "\n\nOnly the first 40 images of each domain.\n" in citable_values([Results(tmp_path / "store")])["table2"]


def test_unclosed_placeholder_is_named_and_nothing_is_written(small, tmp_path, capsys):
    page = "A <!-- results:claims -->1 %.\n\nBy hand.\n\nB <!-- results:verdicts -->2<!-- /results --> %."
    for text in (page, "At the end <!-- results:claims -->"):
        with pytest.raises(InputError, match="`<!-- /results -->` after `<!-- results:claims -->`"):
            render_placeholders(text, {"claims": "10", "verdicts": "20"})
    (tmp_path / "page.md").write_text(page)
    words = [small, "--out", tmp_path / "R.md", "--fill", tmp_path / "page.md"]
    with pytest.raises(SystemExit) as ending:
        main(["bench", "summarize", *map(str, words)])
    assert ending.value.code == 2
    assert "<!-- results:claims -->" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "R.md").exists()
    assert (tmp_path / "page.md").read_text() == page


def test_unknown_placeholder_error_is_short(values):
    with pytest.raises(ConfigurationError, match=r"Choose from claims, verdicts, table1, .* and \d+ more\.") as refused:
        render_placeholders("<!-- results:zzz --><!-- /results -->", values)
    assert len(str(refused.value)) < 2000


def test_summarize_writes_the_page_and_fills_others(small, tmp_path, capsys):
    (tmp_path / "page.md").write_text("<!-- results:claims --><!-- /results -->")
    with pytest.raises(SystemExit) as ending:
        main(["bench", "summarize", str(small), "--out", str(tmp_path / "R.md"), "--fill", str(tmp_path / "page.md")])
    assert ending.value.code == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "R.md"), str(tmp_path / "page.md")]
    assert (tmp_path / "R.md").read_text() == render_summary(load_archives(small))
    assert "| claim | verdict | numbers |" in (tmp_path / "page.md").read_text()


def test_results_page_includes_notes_and_figures(small):
    folder, archives = small, load_archives(small)
    quoting = (
        "## A\n\n<!-- results:table2/source/CIFAR-10-C/Closed --><!-- /results -->, "
        "<!-- results:speed/gpu --><!-- /results -->"
    )
    files = {
        "notes/b.md": "## B",
        "notes/a.md": quoting,
        "speed/gpu.md": "| a card |",
        "figures/a/z.svg": "",
        "figures/x.svg": "",
        "figures/y.svg": "",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "figures" / "x.json").write_text('{"title": "Here", "caption": "A curve.", "numbers": {}}')
    figures = {"figures/x.svg": "Here. A curve.", "figures/y.svg": "y", "figures/a/z.svg": "z"}
    quoted = render_placeholders(quoting, citable_values(archives) | benchmark_tables(folder))
    assert "| a card |" in quoted
    assert render_results_page(folder) == render_summary(archives, sections=[quoted, "## B"], figures=figures)


def test_summary_without_results_says_so():
    assert "Nothing has been measured yet." in render_summary([])
    assert "Nothing has been measured yet." in citable_values([])["claims"]


def test_first_archive_provides_a_value(tmp_path):
    spec = next(spec for spec in suite("table1").specs() if spec.method == "tent" and spec.images == "cifar10-c")
    for name, error in (("a", 20.0), ("b", 30.0)):
        write_run(tmp_path / f"store-{name}", spec, 1, lambda round, error=error: error)
        write_run(tmp_path / f"store-{name}", replace(spec, seed=1), 1, lambda round, error=error: error)
        write_archive([tmp_path / f"store-{name}"], tmp_path / "results" / name)
    first = Results(tmp_path / "results" / "a")
    assert citable_values(load_archives(tmp_path / "results"))["table2"] == citable_values([first])["table2"]
    assert "±" in citable_values([first])["table2"]


def test_figure_paths_are_relative_to_the_page(small, tmp_path):
    (tmp_path / "results" / "figures").mkdir()
    (tmp_path / "results" / "figures" / "one.svg").write_text("<svg/>")
    (tmp_path / "results" / "figures" / "one.json").write_text('{"title": "One"}')
    assert "(figures/one.svg)" in render_results_page(tmp_path / "results")
    assert "(../results/figures/one.svg)" in render_results_page(tmp_path / "results", tmp_path / "pages" / "page.md")
    (tmp_path / "results" / "figures" / "one.json").write_text("[1]")
    with pytest.raises(InputError, match=r"one\.json to be a JSON object"):
        render_results_page(tmp_path / "results")
    (tmp_path / "results" / "figures" / "one.json").unlink()
    (tmp_path / "results" / "notes").mkdir()
    (tmp_path / "results" / "notes" / "one.md").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(InputError, match=r"one\.md to be text in UTF-8"):
        render_results_page(tmp_path / "results")
