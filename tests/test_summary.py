"""The summary against the rows it is made of, put together by hand here; what other pages quote of it."""

import re
import shutil
import statistics
from dataclasses import replace
from random import Random

import pytest

from driftproof.bench import Results, Store, suite
from driftproof.bench.archive import write_archive
from driftproof.bench.paper import paper_table
from driftproof.cli import main
from driftproof.errors import ConfigurationError, InputError
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

STILL = {"source": "Source()", "bn_adapt": "Batch()"}


def put(folder, spec, rounds, error, rounded_from=None, measure="error"):
    """A cell whose errors, or another measure, a function of the round gives, a little different in every domain."""
    cell, random = Store(folder).run(spec), Random(spec.name)
    moves = {"scope": "nothing()", "statistics": STILL[spec.method]} if spec.method in STILL else {"scope": "all"}
    rows = [
        {"round": round, "domain": domain, measure: about(error(round), random)} | scores(spec, random)
        for round in range(1, rounds + 1)
        for domain in spec.domains
    ]
    with cell.locked():
        cell.write_spec(spec, moves)
        card = {"seconds": 1.0, "hardware": "a card", "device": "cuda", "torch": "2.11", "engine": "graph"}
        late = {row["round"] for row in rows if row["round"] >= (rounded_from or rounds + 1)}
        cell.append(rows, [card | {"precision": "bf16" if row["round"] in late else "tf32"} for row in rows])
    return rows


def about(error, random):
    """Of ten thousand images so many, give or take a few."""
    return round(error + random.uniform(-0.4, 0.4), 2)


def scores(spec, random):
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
    """As in the paper, more or less: what learns from everything collapses among unknown images."""
    if method in STILL or "+crowd" in method:
        return lambda round: 15.0 + (9.0 if method == "swr+crowd" and setting == "open" else 0.0)
    return lambda round: 14.0 + (1.5 if setting == "open" else 0.1) * round


def make(folder, rounds=50, sets=("cifar10-c",), names=("table1",)):
    measured = {}
    for name in names:
        for spec in suite(name).specs():
            if spec.images in sets and spec not in measured:
                reached = 2 if spec.method in STILL else rounds
                measured[spec] = put(folder, spec, reached, error_of(spec.method, spec.setting))
    Store(folder).update_metadata(
        {"limit": None, "replaced": {"imagenet-o-c-64": "other"}, "prepared on test images": list(sets)}
    )
    return measured


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    measured = make(root / "store")
    write_archive([root / "store"], root / "results" / "cifar")
    return root / "results", measured


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
def test_every_number_of_a_table_comes_from_the_rows_and_stands_beside_the_papers(finished, heading, name, round):
    folder, measured = finished
    shown = numbers_of(render_summary(load_archives(folder)), heading)
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


def test_a_run_that_stopped_early_shows_the_round_it_reached(tmp_path):
    measured = make(tmp_path / "store", rounds=7)
    write_archive([tmp_path / "store"], tmp_path / "results" / "cifar")
    text = render_summary(load_archives(tmp_path / "results"))
    shown = numbers_of(text, "Error after 50 rounds")
    for spec, rows in measured.items():
        if spec.method in ("tent", "source", "eata+crowd"):
            ours, _, difference = shown[spec.method, f"CIFAR-10-C/{spec.setting.title()}"]
            assert ours.endswith("@7") == (spec.method != "source"), "what learns nothing is the same in every round"
            assert bool(difference) == (spec.method == "source")
            number = float(ours.replace("@7", "").replace("*", ""))
            assert number == pytest.approx(mean_of(rows, min(7, rows[-1]["round"])), abs=0.0051)
    (centre, *_) = evaluate_claims(load_archives(tmp_path / "results"))
    assert centre.verdict.startswith("so far, ")
    assert centre.verdict.endswith(" (round 7 of 50)")
    assert all("(round 7 of 50)" in words for words in centre.evidence)


def test_numbers_of_fewer_digits_are_named_with_the_round_that_began_them(tmp_path):
    for spec in suite("table1").specs():
        if spec.images == "cifar10-c" and spec.method in ("tent", "tent+crowd", "gce", "ent"):
            late = {"tent": None, "tent+crowd": 1 if spec.unknown else 3, "gce": 2, "ent": 1}[spec.method]
            put(tmp_path / "store", spec, 5, lambda round: 15.0, rounded_from=late)
    text = render_summary([Results(tmp_path / "store")])
    long, short = (text.split(f"### {heading}")[1].split("\n#")[0] for heading in ("Error after 50", "Error after one"))
    both = "tent+crowd on CIFAR-10-C/Closed from round 3 on; tent+crowd on CIFAR-10-C/Open"
    assert f"\nComputed in bfloat16: gce from round 2 on; ent; {both}." in long
    assert "\nComputed in bfloat16: ent; tent+crowd on CIFAR-10-C/Open." in short
    assert "| graph bf16, graph tf32 |" in text


def test_how_steps_were_timed_is_told_of_the_runs_that_count(tmp_path):
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
    said = table_notes(table, results)
    assert not any("bfloat16" in sentence for sentence in said), "what was timed in it was timed longer in tf32"
    assert any("500 (card A, graph, tf32), 30 (card B, graph, tf32);" in sentence for sentence in said)
    (peaks,) = (sentence for sentence in said if "allocated" in sentence)
    assert peaks.endswith(", in MiB: ent 3, swr 3, tent 3, eata 3, tent+crowd 3.")
    assert any(sentence.startswith("Memory is computed") for sentence in said)


def test_what_was_prepared_on_is_told_of_the_set_that_took_anothers_place(tmp_path):
    eata = next(spec for spec in suite("table2").specs() if spec.method == "eata" and spec.images == "cifar10-c")
    put(tmp_path, replace(eata, images="other-c"), 1, lambda round: 15.0)
    Store(tmp_path).update_metadata({"replaced": {"cifar10-c": "other-c"}, "prepared on test images": ["other-c", "unseen-c"]})
    results = Results(tmp_path)
    for table in results.tables():
        said = table_notes(table, results)
        assert "Methods that prepare on source images of other-c used its clean test images." in said
        assert not any("unseen-c" in sentence for sentence in said)


def test_what_selection_gains_is_told_of_rows_that_say_more_than_a_method(tmp_path):
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


def test_where_all_numbers_are_of_fewer_digits_none_is_named(tmp_path):
    for spec in suite("table2").specs():
        if spec.images == "cifar10-c" and spec.method in ("bn_adapt", "tent"):
            put(tmp_path / "store", spec, 1, lambda round: 15.0, rounded_from=1)
    assert "\n\nComputed in bfloat16.\n\n" in render_summary([Results(tmp_path / "store")])


def test_tables_of_the_paper_come_first_and_a_few_images_show_only_what_is_not_known_of_all(tmp_path):
    for name, specs in {
        "choices": [spec for spec in suite("open_choices").specs() if spec.method == "bn_adapt"],
        "few": [replace(spec, limit=40) for spec in suite("s3").specs() if spec.model == "wrn40_2"],
        "whole": [spec for spec in suite("table1").specs() if spec.model == "wrn40_2"],
    }.items():
        for spec in specs:
            if spec.task == "stream":
                put(tmp_path / name, spec, 1, lambda round: 15.0)
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


def verdicts(folder):
    return {claim.text.split(":")[0].split(",")[0]: claim for claim in evaluate_claims(load_archives(folder))}


def test_claims_follow_from_the_numbers(finished):
    folder, _ = finished
    found = verdicts(folder)
    assert found["Among unknown images"].verdict == "holds"
    assert len(found["Among unknown images"].cases) == 2, "only one of the two sets was measured"
    assert found["Selection improves open-set adaptation"].verdict == "holds"
    separates = found["The confidence difference separates better than MSP"]
    assert (separates.verdict, len(separates.cases)) == ("holds", 4), "both protocols, both measures"
    assert found["Selection by softmax beats selection by logits"].verdict == "not measured"
    assert found["SWR among unknown images remains hard"].verdict == "holds"
    long = found["Selection improves long-term adaptation"]
    assert (long.verdict, len(long.cases)) == ("holds", 4)


def test_a_claim_that_fails_says_where(tmp_path):
    make(tmp_path / "store")
    tent = next(s for s in suite("table1").specs() if (s.method, s.images, s.setting) == ("tent", "cifar10-c", "open"))
    crowd = next(s for s in suite("table1").specs() if (s.method, s.images) == ("ent+crowd", "cifar10-c"))
    for spec, error in ((tent, 16.0), (crowd, 60.0)):
        put(tmp_path / "other", spec, 51, lambda round, error=error: error)
    write_archive([tmp_path / "store", tmp_path / "other"], tmp_path / "results" / "cifar")
    found = verdicts(tmp_path / "results")
    assert found["Among unknown images"].verdict == "holds in 1 of 2 cases"
    (failed,) = (words for words in found["Among unknown images"].evidence if "✗" in words)
    assert failed.startswith("CIFAR-10-C: tent 1")
    assert found["Selection improves long-term adaptation"].verdict == "holds in 3 of 4 cases"
    assert found["Selection improves open-set adaptation"].verdict == "holds"


def test_robustness_and_logits_are_read_from_their_own_tables(tmp_path):
    for name, sets in (("table8", ("tiny-imagenet-c",)), ("s5", ("cifar100-c",))):
        for spec in suite(name).specs():
            if spec.images in sets:
                options = dict(spec.options)
                spread = options.get("lr", 0) * 5000 + 40 / spec.batch_size
                worse = spread * (0.1 if "+crowd" in spec.method else 1.0) + (3 if options.get("on") == "logits" else 0)
                put(tmp_path / "store", spec, 50 if name == "s5" else 10, lambda round, worse=worse: 20 + worse)
    write_archive([tmp_path / "store"], tmp_path / "results" / "tiny")
    found = verdicts(tmp_path / "results")
    assert found["Selection makes TENT robust to learning rate and batch size"].verdict == "holds"
    assert found["Selection by softmax beats selection by logits"].verdict == "holds"


def test_claims_on_driving_scenes_are_read_round_by_round(tmp_path):
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
    *_, rescued, kept, found = evaluate_claims([Results(tmp_path / "store")])
    assert (rescued.verdict, len(rescued.cases)) == ("so far, holds (round 3 of 5)", 2)
    assert rescued.evidence[0] == (
        "CamVid: mIoU tent+crowd (lr 1e-04) 52.0, tent (lr 1e-04) 44.0 (+8.0) (round 3 of 5)"
    )
    assert kept.verdict == "so far, holds in 1 of 2 cases (round 3 of 5)"
    assert kept.evidence[1] == "CamVid: mIoU of swr+crowd (lr 1e-04) 50.0, then 48.0 ✗ (round 3 of 5)"
    assert found.verdict == "so far, holds in 2 of 4 cases (round 3 of 5)"
    assert found.evidence[0].startswith("CamVid, tent+crowd (lr 1e-04), wrong: AUROC 60.0, MSP 70.0 ✗")


def test_a_verdict_says_how_far_the_runs_behind_it_have_come(tmp_path):
    for spec in suite("table1").specs():
        if spec.images == "cifar10-c" and spec.method.partition("+")[0] in ("tent", "swr"):
            rounds = {"tent": 60, "swr": 1}[spec.method.partition("+")[0]]
            put(tmp_path / "store", spec, rounds, error_of(spec.method, spec.setting))
    write_archive([tmp_path / "store"], tmp_path / "results" / "cifar")
    found = verdicts(tmp_path / "results")
    assert (
        found["Selection improves long-term adaptation"].verdict
        == "so far, holds in 1 of 2 cases (rounds 1 to 50 of 50)"
    )


def test_a_table_says_in_which_round_it_looks_and_on_what(tmp_path, capsys):
    (tent, *_) = (spec for spec in suite("table8").specs() if spec.method == "tent")
    (tried, *_) = (spec for spec in suite("open_choices").specs() if spec.images == tent.images)
    for spec in (tent, tried):
        put(tmp_path / "store", spec, 1, lambda round: 50.0)
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": {}})
    text = render_summary([Results(tmp_path / "store")])
    assert "`table8a`: Table 8a, error %, lower is better, round 10.\n" in text
    assert "`choice_tiny`: error %, lower is better, round 2, held-out corruptions.\n" in text
    with pytest.raises(SystemExit):
        main(["bench", "compare", str(tmp_path / "store")])
    said = " ".join(capsys.readouterr().out.split())
    assert "error %; lower is better; round 10; in brackets" in said
    assert "error %; lower is better; round 2, held-out corruptions; @" in said


def test_the_protocol_says_how_many_seeds_there_are(tmp_path):
    spec = next(spec for spec in suite("table2").specs() if spec.method == "tent")
    for seed in (0, 10, 2):
        put(tmp_path / "store", replace(spec, seed=seed), 1, lambda round: 50.0)
    head, _, row = render_summary([Results(tmp_path / "store")]).strip().splitlines()[-3:]
    seeds = [cell.strip() for cell in head.split("|")].index("seeds")
    assert row.split("|")[seeds].strip() == "0, 2, 10"


def test_claims_hold_a_method_against_another_on_seeds_that_both_were_run_with(tmp_path):
    (tent, crowd) = (
        next(
            spec
            for spec in suite("table1").specs()
            if (spec.images, spec.setting) == ("cifar10-c", "closed") and spec.method == method
        )
        for method in ("tent", "tent+crowd")
    )
    for spec, error in ((tent, 10), (replace(tent, seed=1), 30), (crowd, 12)):
        put(tmp_path / "store", spec, 1, lambda round, error=error: error)
    results = Results(tmp_path / "store")
    (rescue,) = (claim for claim in evaluate_claims([results]) if claim.text.startswith("Selection improves long-term"))
    assert rescue.verdict.startswith("so far, does not hold")
    (table,) = (measured for measured in results.tables() if measured.table.name == "table2")
    assert table.values["tent", "CIFAR-10-C/Closed"].seeds == 2
    assert not compare_with_paper(table).cells["tent+crowd", "CIFAR-10-C/Closed"].gain, "they are not of the same seeds"


def test_deviations_are_compared_in_the_last_round_that_all_have_reached(tmp_path):
    for spec in suite("table8").specs():
        rate = dict(spec.options).get("lr", 0) * 5000
        grows = 9.0 if spec.method == "tent" else 0.0
        early = spec.method == "tent+crowd" and rate == 25
        put(
            tmp_path / "store",
            spec,
            1 if early else 4,
            lambda round, rate=rate, grows=grows: 20 + rate + grows * round**rate,
        )
    write_archive([tmp_path / "store"], tmp_path / "results" / "tiny")
    (results,) = load_archives(tmp_path / "results")
    (table,) = (measured for measured in results.tables() if measured.table.name == "table8a")
    assert (table.values["tent+crowd", "Std"].round, table.values["tent", "Std"].round) == (1, 4)
    claim = verdicts(tmp_path / "results")["Selection makes TENT robust to learning rate and batch size"]
    by_rate = claim.evidence[0]
    assert by_rate.endswith("(round 1 of 10)")
    with_it, without = map(float, re.findall(r"deviation ([\d.]+) with selection, ([\d.]+) without", by_rate)[0])
    spread = statistics.stdev([25, 5, 2.5, 0.5])
    assert with_it == pytest.approx(spread, abs=0.5)
    assert without == pytest.approx(spread, abs=0.5), "in round 1 as well, where all are the same nine points worse"


def test_every_table_says_what_its_numbers_rest_on(finished):
    folder, _ = finished
    text = render_summary(load_archives(folder), sections=["## Why\n\nBecause."], figures={"figures/a.svg": "A curve."})
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


def test_what_is_far_from_the_paper_is_listed(finished):
    folder, measured = finished
    text = render_summary(load_archives(folder)).split("## More than 3 points from the paper")[1].split("\n## ")[0]
    listed = {
        tuple(cell.strip() for cell in line.strip("|").split("|"))[:3]
        for line in text.splitlines()
        if line.startswith("| `")
    }
    (tent,) = (rows for spec, rows in measured.items() if (spec.method, spec.setting) == ("tent", "open"))
    assert ("`table2`", "tent", "CIFAR-10-C/Open") in listed, "15.5 against 27.8"
    assert ("`table2`", "tent+crowd", "CIFAR-10-C/Open") not in listed, "15 against 14.94"
    assert listed_as_far_off(folder)["tent", "CIFAR-10-C/Open"][0] == f"{mean_of(tent, 1):.2f}"
    assert ("`table1`, `s5`", "source", "CIFAR-10-C/Closed, CIFAR-10-C") in listed, (
        "a number that several tables show is there once, with what each calls its setting"
    )
    assert listed_as_far_off(folder)["source", "CIFAR-10-C/Closed, CIFAR-10-C"][-1] == "learns nothing"


def test_a_number_that_one_table_shows_in_many_settings_names_them_all(tmp_path):
    (source,) = (spec for spec in suite("table8").specs() if spec.method == "source")
    put(tmp_path / "store", source, 1, lambda round: 50.0)
    write_archive([tmp_path / "store"], tmp_path / "results" / "tiny")
    ((_, settings),) = listed_as_far_off(tmp_path / "results")
    table8 = [entry.column for table in suite("table8").tables for entry in table.entries if entry.row == "source"]
    assert len(table8) == 8
    assert set(table8) < set(settings.split(", "))


def listed_as_far_off(folder):
    text = render_summary(load_archives(folder)).split("## More than 3 points from the paper")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {(method.strip(), column.strip()): [word.strip() for word in rest] for _, method, column, *rest in lines}


def test_what_is_far_from_the_paper_stands_beside_what_was_tried(tmp_path):
    make(tmp_path / "store", rounds=1, names=("table2",))
    write_archive([tmp_path / "store"], tmp_path / "results" / "cifar")
    *_, bystander, tried = listed_as_far_off(tmp_path / "results")["tent", "CIFAR-10-C/Open"]
    assert float(bystander.replace("−", "-")) == pytest.approx(15.0 - 15.73, abs=0.3)
    assert tried == "no ablation was run"
    errors = {(): 40.0, ("lr", 3e-4): 30.0, ("lr", 1e-4): 25.0, ("mean_entropy", 0.5): 41.5}
    for spec in suite("open_choices").specs():
        changed = tuple(item for item in spec.options if item != ("lr", 1e-3))
        if (spec.method, spec.images, spec.setting, spec.batch_size) == ("tent", "cifar10-c", "open", 200):
            error = errors[changed[0] if changed else ()]
            put(tmp_path / "tried", spec, 1 if changed else 2, lambda round, error=error: error + 50 * (round - 1))
    write_archive([tmp_path / "tried"], tmp_path / "results" / "choices")
    *_, tried = listed_as_far_off(tmp_path / "results")["tent", "CIFAR-10-C/Open"]
    pace, spread = tried.split("<br>")
    changes = [float(change.replace("−", "-")) for change in re.findall(r"[+−][\d.]+(?=;|$)", f"{pace};{spread}")]
    assert changes == pytest.approx([-10.0, -15.0, 1.5], abs=0.9), "in round 1, as the others have no second"
    assert pace.startswith("`choice_pace`, round 1: tent, lr = 0.0003 −")
    assert spread.startswith("`choice_spread`, round 1: tent, λ_max = 0.5 +")


def test_a_score_that_is_far_from_the_paper_stands_beside_the_error_of_the_network_it_is_taken_of(finished):
    folder, measured = finished
    (rows,) = (
        rows
        for spec, rows in measured.items()
        if (spec.method, spec.images, spec.setting) == ("tent", "cifar10-c", "open")
    )
    *_, beside = listed_as_far_off(folder)["msp", "CIFAR-10/SVHN-C AUROC"]
    assert beside == f"`table1`: the error of tent is {mean_of(rows, 50):.2f}, the paper's 85.22"


def test_an_experiment_is_told_in_its_last_round_beside_the_same_stream(tmp_path):
    def is_tent(spec):
        return (spec.method, spec.images, spec.setting) == ("tent", "cifar100-c", "closed")

    (table1,) = (spec for spec in suite("table1").specs() if is_tent(spec))
    put(tmp_path / "store", table1, 50, lambda round: 35.0 + round)
    falling = {(5, 1e-3): 5.0, (5, 3e-4): 4.0, (4, 1e-3): 3.0, (4, 3e-4): 1.0, (3, 1e-3): 9.0}
    for name in ("endurance", "milder"):
        for spec in filter(is_tent, suite(name).specs()):
            by = falling[spec.severity, dict(spec.options)["lr"]]
            put(tmp_path / "tried", spec, {"endurance": 30, "milder": 5}[name], lambda round, by=by: 30 + by * round)
    for name in ("store", "tried"):
        write_archive([tmp_path / name], tmp_path / "results" / name)
    ((_, settings),) = listed_as_far_off(tmp_path / "results")
    found = listed_as_far_off(tmp_path / "results")["tent", settings][-1].split("<br>")
    assert [words.rpartition(" ")[0] for words in found] == [
        "`choice_pace`, round 2: tent, lr = 0.0003",
        "`choice_endurance`, round 30: tent, lr = 0.0003",
        "`choice_milder`, round 5: tent, lr = 0.0003",
    ]
    changes = [float(words.rpartition(" ")[2].replace("−", "-")) for words in found]
    assert changes == pytest.approx([-2.0, -30.0, -10.0], abs=0.9)


def test_a_number_of_the_first_round_is_not_explained_by_many_more_steps(tmp_path):
    for spec in suite("table2").specs():
        if (spec.method, spec.images, spec.setting) == ("tent", "cifar100-c", "closed"):
            put(tmp_path / "store", spec, 1, lambda round: 70.0)
    for spec in suite("endurance").specs():
        if spec.method == "tent":
            by = 40.0 * dict(spec.options)["lr"] / 1e-3
            put(tmp_path / "tried", spec, 30, lambda round, by=by: 20 + by * round / 30)
    for name in ("store", "tried"):
        write_archive([tmp_path / name], tmp_path / "results" / name)
    found = listed_as_far_off(tmp_path / "results")["tent", "CIFAR-100-C/Closed"][-1].split("<br>")
    assert [words.rpartition(" ")[0] for words in found] == [
        "`choice_pace`, round 2: tent, lr = 0.0003",
        "`choice_endurance`, round 4: tent, lr = 0.0003",
    ], "four rounds of four domains are about one of fifteen"
    changes = [float(words.rpartition(" ")[2].replace("−", "-")) for words in found]
    assert changes == pytest.approx([-28 * 2 / 30, -28 * 4 / 30], abs=0.9)


def test_a_variant_is_not_explained_by_experiments_with_the_usual(tmp_path):
    (variant,) = (
        spec for spec in suite("s5").specs() if ("on", "logits") in spec.options and spec.images == "cifar100-c"
    )
    put(tmp_path / "store", variant, 50, lambda round: 43.0)
    for spec in suite("open_choices").specs():
        if spec.images == "cifar100-c" and spec.setting == "closed" and spec.method in ("tent", "tent+crowd"):
            put(tmp_path / "tried", spec, 2, lambda round, options=spec.options: 30.0 + len(options))
    for name in ("store", "tried"):
        write_archive([tmp_path / name], tmp_path / "results" / name)
    ((row, column),) = listed_as_far_off(tmp_path / "results")
    assert row == "tent+crowd (logits)"
    found = listed_as_far_off(tmp_path / "results")[row, column][-1].split("<br>")
    assert {words.partition(",")[0] for words in found} == {"`choice_pace`", "`choice_spread`"}, "those of plain TENT"


@pytest.mark.parametrize(("images", "name", "rounds"), [("cifar10-c", "endurance", 30), ("cifar100-c", "milder", 5)])
def test_a_variant_is_explained_by_experiments_with_itself(tmp_path, images, name, rounds):
    (variant,) = (spec for spec in suite("s5").specs() if ("on", "logits") in spec.options and spec.images == images)
    put(tmp_path / "store", variant, 50, lambda round: 43.0)
    for spec in suite(name).specs():
        if spec.images == images and spec.method in ("tent", "tent+crowd"):
            by = dict(spec.options).get("mean_entropy", 2.0)
            put(tmp_path / name, spec, rounds, lambda round, by=by: 30.0 + by * round)
    for folder in ("store", name):
        write_archive([tmp_path / folder], tmp_path / "results" / folder)
    (told,) = listed_as_far_off(tmp_path / "results").values()
    where, changes = told[-1].split(": ")
    assert where == f"`choice_{name}_logits`, round {rounds}", "and none of plain TENT"
    (change,) = re.findall(r"tent\+crowd \(logits\), λ_max = 0.25 −([\d.]+)", changes)
    assert float(change) == pytest.approx(0.25 * rounds, abs=0.9)
    assert "tent+crowd (logits), source statistics in θ_o" in changes


def test_a_change_that_two_experiments_show_is_told_once(tmp_path):
    for spec in suite("table2").specs():
        if (spec.method, spec.images, spec.setting) == ("ent", "cifar10-c", "closed"):
            put(tmp_path / "store", spec, 1, lambda round: 70.0)
    for spec in suite("endurance").specs():
        if (spec.method, spec.images) == ("ent", "cifar10-c"):
            put(tmp_path / "tried", spec, 2, lambda round, rate=dict(spec.options)["lr"]: 1e5 * rate)
    for name in ("store", "tried"):
        write_archive([tmp_path / name], tmp_path / "results" / name)
    found = listed_as_far_off(tmp_path / "results")["ent", "CIFAR-10-C/Closed"][-1]
    assert found.startswith("`choice_pace`, round 2: ent, lr = 3e-05 −")
    assert "choice_endurance" not in found


def test_what_is_measured_otherwise_than_by_its_error_may_be_as_far_off_as_what_learns_nothing(tmp_path):
    for spec in suite("table3").specs():
        if spec.method in ("bn_adapt", "ttn"):
            put(tmp_path / "store", spec, 1, lambda round: 10.0, measure="mean_iou")
    write_archive([tmp_path / "store"], tmp_path / "results" / "driving")
    found = listed_as_far_off(tmp_path / "results")
    assert {words[-1] for (method, _), words in found.items() if method == "ttn"} >= {"BN Adapt deviates as much"}


def test_what_is_as_far_from_the_paper_as_what_learns_nothing_needs_no_experiment(tmp_path):
    for spec in suite("table2").specs():
        if spec.images == "tiny-imagenet-c" and spec.setting == "closed" and spec.method in ("bn_adapt", "eata"):
            put(tmp_path / "store", spec, 1, lambda round: 52.0)
    write_archive([tmp_path / "store"], tmp_path / "results" / "tiny")
    assert listed_as_far_off(tmp_path / "results")["eata", "TinyImageNet-C/Closed"][-1] == "BN Adapt deviates as much"


def test_what_was_tried_without_selection_does_not_explain_what_selection_leaves_to_explain_no_more(tmp_path):
    for spec in suite("table2").specs():
        if spec.images == "tiny-imagenet-c" and spec.setting == "closed" and spec.method in ("bn_adapt", "tent+crowd"):
            put(tmp_path / "store", spec, 1, lambda round: 52.0)
    for spec in suite("open_choices").specs():
        if spec.images == "tiny-imagenet-c":
            put(tmp_path / "tried", spec, 1, lambda round: 50.0)
    for name in ("store", "tried"):
        write_archive([tmp_path / name], tmp_path / "results" / name)
    found = listed_as_far_off(tmp_path / "results")["tent+crowd", "TinyImageNet-C/Closed"][-1]
    assert found == "BN Adapt deviates as much"


def test_a_choice_of_a_filter_says_nothing_of_the_selection_that_replaces_it(tmp_path):
    for method in ("eata+crowd", "swr+crowd"):
        for spec in suite("table2").specs():
            if (spec.method, spec.images, spec.setting) == (method, "cifar100-c", "open"):
                put(tmp_path / "store", spec, 1, lambda round: 70.0)
    for spec in suite("open_choices").specs():
        if spec.method in ("eata", "swr"):
            put(tmp_path / "tried", spec, 1, lambda round: 50.0)
    for name in ("store", "tried"):
        write_archive([tmp_path / name], tmp_path / "results" / name)
    found = listed_as_far_off(tmp_path / "results")
    assert found["eata+crowd", "CIFAR-100-C/Open"][-1].startswith("`choice_batch`, round 1: eata, 200 + 200 ")
    assert "ε" not in found["eata+crowd", "CIFAR-100-C/Open"][-1]
    (swr,) = (table for table in suite("open_choices").tables if table.name == "choice_swr")
    others = {entry.row for entry in swr.entries if entry.specs[0].method == "swr"} - {"swr, λ = 250"}
    assert all(other in found["swr+crowd", "CIFAR-100-C/Open"][-1] for other in others)


def test_what_was_measured_on_a_few_images_is_no_disagreement_and_decides_no_claim(tmp_path):
    for spec in suite("table2").specs():
        if (spec.images, spec.method) == ("cifar10-c", "tent") or spec.method == "tent+crowd":
            put(tmp_path / "store", replace(spec, limit=40), 1, lambda round: 70.0)
    Store(tmp_path / "store").update_metadata({"limit": 40, "replaced": {}})
    write_archive([tmp_path / "store"], tmp_path / "results" / "few")
    assert listed_as_far_off(tmp_path / "results") == {}
    claim = verdicts(tmp_path / "results")["Selection improves open-set adaptation"]
    assert claim.verdict.startswith("so far, ")
    assert all("[Only the first 40 images of each domain.]" in words for words in claim.evidence)


def test_a_stand_in_is_named_wherever_its_numbers_are(tmp_path):
    stand_in, errors = {"imagenet-o-c-64": "imagenet64-other-c"}, {"bn_adapt": 70.0, "tent": 93.0, "tent+crowd": 63.0}
    for spec in suite("table2").specs():
        if spec.images == "tiny-imagenet-c" and spec.method in errors:
            here = replace(spec, unknown=stand_in.get(spec.unknown))
            put(tmp_path / "store", here, 1, lambda round, error=errors[spec.method]: error)
    Store(tmp_path / "store").update_metadata({"limit": None, "replaced": stand_in, "prepared on test images": []})
    write_archive([tmp_path / "store"], tmp_path / "results" / "tiny")
    said = "imagenet64-other-c replaces imagenet-o-c-64."
    far = listed_as_far_off(tmp_path / "results")
    assert said in far["tent", "TinyImageNet-C/Open"][-1]
    assert far["bn_adapt", "TinyImageNet-C/Open"][-1] == f"{said}<br>learns nothing"
    assert far["tent", "TinyImageNet-C/Closed"][-1] == "no ablation was run"
    (rescued,) = verdicts(tmp_path / "results")["Selection improves open-set adaptation"].evidence
    assert rescued.endswith(f"[{said}]")


def test_times_say_what_they_were_taken_on_and_what_can_be_compared(tmp_path, capsys):
    (spec,) = (spec for spec in suite("table6").specs() if spec.task == "costs")
    methods = spec.method.split(",")
    cell = Store(tmp_path).run(spec.with_options(trials=300))
    with cell.locked():
        cell.write_spec(spec.with_options(trials=300), {})
        rows = [{"round": 1, "domain": name, "milliseconds": 5.0 if name == "tent" else 7.0} for name in methods]
        cell.append(rows, [{"hardware": "a card", "engine": "graph", "precision": None}] * len(rows))
    with pytest.raises(SystemExit):
        main(["bench", "compare", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "Timed steps per method: 300 (a card, graph)" in said
    paper = {
        name: paper_table("T6_cost_cls").value(row, "Time (ms)") for name, row in (("ent", "ENT"), ("tent", "TENT"))
    }
    assert f"in brackets the paper's: ent 1.40 ({paper['ent'] / paper['tent']:.2f}), swr 1.40 (" in said


def test_pages_quote_claims_tables_and_numbers(finished, tmp_path):
    folder, measured = finished
    (spec,) = (spec for spec in measured if (spec.method, spec.setting) == ("tent+crowd", "open"))
    page = (
        "Ends at <!-- results:table1/tent+crowd/CIFAR-10-C/Open -->9<!-- /results --> %.\n"
        "<!-- results:claims -->old\nlines<!-- /results -->\n<!-- results:table2 --><!-- /results -->\n"
        "<!-- results:verdicts --><!-- /results -->\n"
    )
    text = render_placeholders(page, citable_values(load_archives(folder)))
    assert f"-->{mean_of(measured[spec], 50):.1f}<!--" in text
    assert "old\nlines" not in text
    assert "| claim | verdict | numbers |" in text
    (centre, *_) = evaluate_claims(load_archives(folder))
    assert f"| {centre.text} | {centre.verdict} |\n" in text
    assert render_placeholders(text, citable_values(load_archives(folder))) == text
    with pytest.raises(ConfigurationError, match="Did you mean claims"):
        render_placeholders("<!-- results:clams --><!-- /results -->", citable_values([]))


def test_pages_quote_how_a_number_began(tmp_path):
    spec = next(spec for spec in suite("table1").specs() if spec.method == "tent" and spec.images == "cifar10-c")
    rows = put(tmp_path / "store", spec, 3, lambda round: 10.0 * round)
    named = citable_values([Results(tmp_path / "store")])
    assert named["table1/tent/CIFAR-10-C/Closed"] == f"{mean_of(rows, 3):.1f} (round 3)"
    for round in (1, 2):
        assert named[f"table1/tent/CIFAR-10-C/Closed@{round}"] == f"{mean_of(rows, round):.1f}"


def test_a_number_measured_on_a_few_images_says_so_and_is_quoted_only_where_no_other_is_known(tmp_path):
    tent, gce = (
        next(spec for spec in suite("table1").specs() if (spec.method, spec.images) == (method, "cifar10-c"))
        for method in ("tent", "gce")
    )
    put(tmp_path / "whole", tent, 3, lambda round: 10.0)
    few = {spec: put(tmp_path / "few", replace(spec, limit=40), 10, lambda round: 77.0) for spec in (tent, gce)}
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


def test_a_table_measured_on_a_few_images_says_so_where_it_is_quoted(tmp_path):
    spec = next(spec for spec in suite("table2").specs() if spec.method == "tent")
    put(tmp_path / "store", replace(spec, limit=40), 1, lambda round: 77.0)
    Store(tmp_path / "store").update_metadata({"limit": 40, "replaced": {}})
    assert "\n\nOnly the first 40 images of each domain.\n" in citable_values([Results(tmp_path / "store")])["table2"]


def test_a_mark_that_is_not_closed_is_named_and_nothing_is_written(finished, tmp_path, capsys):
    page = "A <!-- results:claims -->1 %.\n\nBy hand.\n\nB <!-- results:verdicts -->2<!-- /results --> %."
    for text in (page, "At the end <!-- results:claims -->"):
        with pytest.raises(InputError, match="`<!-- /results -->` after `<!-- results:claims -->`"):
            render_placeholders(text, {"claims": "10", "verdicts": "20"})
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(SystemExit) as ending:
        main(
            [
                "bench",
                "summarize",
                str(finished[0]),
                "--out",
                str(tmp_path / "R.md"),
                "--fill",
                str(tmp_path / "page.md"),
            ]
        )
    assert ending.value.code == 2
    assert "<!-- results:claims -->" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
    assert (tmp_path / "page.md").read_text() == page


def test_a_quote_that_is_like_no_other_is_not_answered_with_all_of_them(finished):
    with pytest.raises(ConfigurationError, match=r"Choose from claims, verdicts, table1, .* and \d+ more\.") as refused:
        render_placeholders("<!-- results:zzz --><!-- /results -->", citable_values(load_archives(finished[0])))
    assert len(str(refused.value)) < 2000


def test_the_command_writes_the_page_and_fills_in_the_others(finished, tmp_path, capsys):
    folder, _ = finished
    (tmp_path / "page.md").write_text("<!-- results:claims --><!-- /results -->")
    with pytest.raises(SystemExit) as ending:
        main(["bench", "summarize", str(folder), "--out", str(tmp_path / "R.md"), "--fill", str(tmp_path / "page.md")])
    assert ending.value.code == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "R.md"), str(tmp_path / "page.md")]
    assert (tmp_path / "R.md").read_text() == render_summary(load_archives(folder))
    assert "| claim | verdict | numbers |" in (tmp_path / "page.md").read_text()


def test_notes_and_figures_beside_the_archives_are_taken_in(finished, tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(finished[0], folder)
    quoting = (
        "## A\n\n<!-- results:table1/source/CIFAR-10-C/Closed --><!-- /results -->, "
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
    quoted = render_placeholders(quoting, citable_values(load_archives(folder)) | benchmark_tables(folder))
    assert "| a card |" in quoted
    assert render_results_page(folder) == render_summary(load_archives(folder), sections=[quoted, "## B"], figures=figures)


def test_nothing_measured_is_said():
    assert "Nothing has been measured yet." in render_summary([])
    assert "Nothing has been measured yet." in citable_values([])["claims"]


def test_a_number_is_that_of_the_first_archive_that_has_it(tmp_path):
    spec = next(spec for spec in suite("table1").specs() if spec.method == "tent" and spec.images == "cifar10-c")
    for name, error in (("a", 20.0), ("b", 30.0)):
        put(tmp_path / f"store-{name}", spec, 1, lambda round, error=error: error)
        put(tmp_path / f"store-{name}", replace(spec, seed=1), 1, lambda round, error=error: error)
        write_archive([tmp_path / f"store-{name}"], tmp_path / "results" / name)
    first = Results(tmp_path / "results" / "a")
    assert citable_values(load_archives(tmp_path / "results"))["table2"] == citable_values([first])["table2"]
    assert "±" in citable_values([first])["table2"]


def test_figures_are_shown_from_where_the_page_is(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "results")
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
