"""The report against its rows: every number is computed again here, from the files on disk alone."""

import csv
import io
import itertools
import json
import math
import re
import shlex
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from random import Random

import numpy as np
import pyarrow.parquet
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from driftproof.bench import Results, Spec, Store, suite
from driftproof.bench.archive import write_archive
from driftproof.bench.pixels import IOU_CURVE
from driftproof.bench.plan import RunFilter, plan_runs
from driftproof.cli.bench import bench_commands
from driftproof.corruptions import CORRUPTIONS, HELD_OUT
from driftproof.errors import InputError, MissingPackageError
from driftproof.report import ANALYSES, flat_rows, plot_text, table_notes, table_text, write_report
from driftproof.report.commands import reproduction_commands
from driftproof.report.comparison import compare_with_paper
from driftproof.report.curves import Curve, Panel, draw_curves, spread_labels
from driftproof.report.figures import domain_figures, within_domain_figures
from driftproof.report.findings import stream_findings
from driftproof.report.protocol import build_protocol
from driftproof.report.responsive import WIDE
from driftproof.report.series import distinguishing_fields, group_streams

METHODS = ("bn_adapt", "tent", "tent+crowd")
LAST = 3
ODD = 'odd<i>&"$x^2$"'


def table_specs():
    return [spec for spec in suite("table1").specs() if spec.images == "cifar10-c" and spec.method in METHODS]


def make_cell(store, spec, *, rounds, extra=0):
    """A cell with made-up numbers: so many complete rounds, and some domains of one more."""
    random = Random(spec.name)
    cell = store.run(spec)
    cell.folder.mkdir(parents=True)
    cell.write_spec(spec, {"statistics": "Batch()", "select": "None", "output": "before"})
    visits = [(round, domain) for round in range(1, rounds + 2) for domain in spec.domains]
    visits = visits[: rounds * len(spec.domains) + extra]
    rows = [made_up_row(spec, random, *visit) for visit in visits]
    cell.append(rows, [made_up_conditions(random) for _ in visits])


def made_up_row(spec, random, round, domain):
    selects = "+" in spec.method
    base = 12 + 8 * random.random() + (0 if selects or spec.method == "bn_adapt" else 7.0 * round)
    row = {"round": round, "domain": domain, "batches": 4, "samples": 800, "skipped": 0, "error": base}
    row |= {"rejected": 0.2, "selected_known": random.uniform(0.6, 0.9) if selects else 1.0}
    row["selected_unknown"] = None if spec.unknown is None else random.uniform(0.2, 0.5) if selects else 1.0
    if "iou" in spec.measures:
        row["mean_iou"] = None if domain == "lost" else row.pop("error")
        row |= {name: None if domain == "lost" else random.uniform(20, 60) for name in IOU_CURVE[:-1]}
        row[IOU_CURVE[-1]] = row["mean_iou"]
    if "scores" in spec.measures:
        for score in ("msp", "max_logit", "energy", "confidence_difference"):
            for protocol in ("including", "excluding"):
                row |= {f"{score}/{protocol}/{kind}": random.uniform(50, 90) for kind in ("auroc", "fpr")}
    return row


def made_up_conditions(random):
    machine = {"device": "cpu", "hardware": "some <processor>", "threads": 2}
    versions = {"driftproof": "0.1.0", "torch": "2.6.0", "python": "3.12.1"}
    return {"seconds": random.uniform(1, 9), "peak_memory": random.randrange(2**28, 2**29), **machine, **versions}


def make_results(folder):
    """Closed and open, one or two seeds, one cell that stopped in its second round, one with odd names."""
    store = Store(folder)
    store.update_metadata({"limit": 800, "replaced": {}, "weights wrn40_2 cifar10-c": "0123456789abcdef"})
    for spec in table_specs():
        for seed in (0, 1) if spec.method.startswith("tent") else (0,):
            stopped = spec.method == "tent+crowd" and spec.unknown is not None
            make_cell(store, replace(spec, limit=800, seed=seed), rounds=2 if stopped else LAST, extra=7 * stopped)
    make_cell(store, Spec(ODD, "set<b>", "net&work", domains=("a_b", "c<d>"), limit=800), rounds=1)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("results") / "made <up>")


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory):
    return write_report(Results(folder), tmp_path_factory.mktemp("report") / "new" / "folder")


@pytest.fixture(scope="module")
def page(report):
    parsed = Page()
    parsed.feed(report.read_text(encoding="utf-8"))
    parsed.close()
    return parsed


class Page(HTMLParser):
    """What a reader finds on the page."""

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.links, self.ids = [], set(), [], []
        self.places = defaultdict(lambda: defaultdict(str))
        self.best, self.sentences, self.described = set(), [], {}
        self.svg_text = defaultdict(list)
        self.table = self.row = self.column = self.figure = self.variant = None

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name.split(":")[-1] in ("href", "src", "action", "data")]
        self.ids += [given["id"]] if "id" in given else []
        if tag != "meta":
            self.stack.append((tag, given.get("class", "")))
        if tag == "table":
            self.table = given.get("data-table")
        elif tag == "tr":
            self.row = ""
        elif tag == "td":
            self.column = given.get("data-column")
            if given.get("class") == "best":
                self.best.add((self.table, self.row, self.column))
        elif tag == "figure":
            self.figure = given["id"]
        elif given.get("role") == "img":
            self.variant = given["class"]
            self.described[self.figure] = given["aria-label"]
        elif tag in ("dd", "p"):
            self.sentences.append("")
        elif tag == "text":
            self.svg_text[self.figure, self.variant].append("")

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        tag, style = self.stack[-1] if self.stack else ("", "")
        inside = [name for name, _ in self.stack]
        if tag == "th" and "tbody" in inside:
            self.row += data
        elif "td" in inside and self.table:
            self.places[self.table, self.row, self.column][style] += data
        elif "text" in inside:
            self.svg_text[self.figure, self.variant][-1] += data
        elif tag in ("dd", "p"):
            self.sentences[-1] += data


def rows_on_disk(folder):
    """Rows by method, whether open, and seed; only of the streams that the tables show."""
    found = {}
    for path in folder.glob("cells/*/spec.json"):
        spec = json.loads(path.read_text())["spec"]
        if spec["images"] == "cifar10-c":
            lines = (path.parent / "rows.jsonl").read_text().splitlines()
            found[spec["method"], spec["unknown"] is not None, spec["seed"]] = [json.loads(line) for line in lines]
    return found


def by_seed(folder, method, is_open, round, measure="error"):
    """The mean over domains, for each seed."""
    return [
        np.mean([row[measure] for row in rows if row["round"] == round])
        for (found, unknown, _), rows in sorted(rows_on_disk(folder).items())
        if (found, unknown) == (method, is_open)
    ]


def reached(method, is_open):
    return 2 if (method, is_open) == ("tent+crowd", True) else LAST


def as_number(text):
    return float(text.replace("−", "-").replace("±", ""))


PAPER_ROWS = {"bn_adapt": "BN Adapt", "tent": "TENT", "tent+crowd": "TENT + Ours"}


def paper_value(table, method, column):
    text = resources.files("driftproof.bench").joinpath("paper.json").read_text()
    (found,) = (entry for entry in json.loads(text)["tables"] if entry["id"] == table)
    (row,) = (row for row in found["rows"] if row["method"] == PAPER_ROWS[method])
    return row["values"][found["columns"].index(column)]


@pytest.mark.parametrize(("name", "paper", "wanted"), [("table1", "T1_rounds50", 50), ("table2", "T2_round1", 1)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", ["Closed", "Open"])
def test_every_number_of_a_table_is_that_of_the_rows(folder, page, name, paper, wanted, method, setting):
    column, is_open = f"CIFAR-10-C/{setting}", setting == "Open"
    shown = page.places[name, method, column]
    round = min(wanted, reached(method, is_open))
    seeds = by_seed(folder, method, is_open, round)
    ours, theirs = np.mean(seeds), paper_value(paper, method, column)
    assert as_number(shown["ours"]) == pytest.approx(ours, abs=0.0051)
    assert as_number(shown["paper"]) == theirs
    assert shown["round-note"] == ("" if round == wanted else f"@{round}")
    assert (shown["difference"] != "") == (round == wanted)
    if shown["difference"]:
        assert as_number(shown["difference"]) == pytest.approx(ours - theirs, abs=0.0051)
    assert (shown["std"] != "") == (len(seeds) > 1)
    if shown["std"]:
        assert as_number(shown["std"]) == pytest.approx(np.std(seeds, ddof=1), abs=0.0051)


def test_what_selection_gains_is_told_in_the_same_round_or_not_at_all(folder, page):
    for name, round in (("table1", LAST), ("table2", 1)):
        for setting in ("Closed", "Open"):
            is_open = setting == "Open"
            gain = page.places[name, "tent+crowd", f"CIFAR-10-C/{setting}"]["gain"]
            if min(round, reached("tent+crowd", is_open)) < round:
                assert gain == ""
            else:
                with_it, without = (np.mean(by_seed(folder, m, is_open, round)) for m in ("tent+crowd", "tent"))
                assert as_number(gain) == pytest.approx(with_it - without, abs=0.0051)
    assert not any(shown["gain"] for (_, row, _), shown in page.places.items() if "+" not in row)


def test_the_best_of_a_stream_is_told_among_those_that_came_as_far(folder):
    results = Results(folder)
    for stream, finding in zip(group_streams(results), stream_findings(results, group_streams(results)), strict=True):
        stopped = stream.spec.unknown is not None
        best = [sentence for sentence in finding.sentences if sentence.startswith("Best ")]
        assert all(sentence.startswith(f"Best of those that reached round {LAST}: ") == stopped for sentence in best)
        assert len(best) == (len(stream.series) > 1)


def test_the_best_of_a_column_is_bold_among_those_that_came_as_far(folder, page):
    for name, round in (("table1", LAST), ("table2", 1)):
        for setting in ("Closed", "Open"):
            is_open, column = setting == "Open", f"CIFAR-10-C/{setting}"
            rivals = [method for method in METHODS if min(reached(method, is_open), round) == round]
            best = min(rivals, key=lambda method: np.mean(by_seed(folder, method, is_open, round)))
            assert [row for table, row, place in page.best if (table, place) == (name, column)] == [best]


def test_the_lower_of_two_false_positive_rates_is_the_better(folder, page):
    scores = ("msp", "max_logit", "energy", "confidence_difference")
    for kind, shown, choose in (("auroc", "AUROC", max), ("fpr", "FPR@TPR95", min)):
        values = {s: np.mean(by_seed(folder, "tent", True, LAST, f"{s}/including/{kind}")) for s in scores}
        column = f"CIFAR-10/SVHN-C {shown}"
        assert ("table5a", choose(values, key=values.get), column) in page.best


def test_the_sentences_say_what_the_rows_say(folder, page):
    for is_open in (False, True):
        last = reached("tent+crowd", is_open)
        ends = [np.mean(by_seed(folder, method, is_open, r)) for method in ("tent", "tent+crowd") for r in (1, last)]
        (sentence,) = (text for text in page.sentences if text.startswith("tent ") and ("(round 2)" in text) == is_open)
        assert "rose" in sentence
        numbers = [float(number) for number in re.findall(r"\d+\.\d", sentence)]
        assert numbers == pytest.approx(ends, abs=0.051)
    assert any("lower in 2 of 2 comparisons" in text for text in page.sentences)
    assert any("first 800 images" in text for text in page.sentences)
    assert any("marked with @" in text for text in page.sentences)


def test_a_heat_map_shows_the_last_round_domain_by_domain(folder, page):
    text = page.svg_text["domains-1", "wide"]
    assert page.described["domains-1"].startswith("cifar10-c, wrn40_2, closed.")
    shown = [float(part) for part in text if re.fullmatch(r"\d+\.\d", part)]
    expected = []
    for method in METHODS:
        seeds = [
            {row["domain"]: row["error"] for row in rows if row["round"] == LAST}
            for (found, is_open, _), rows in rows_on_disk(folder).items()
            if (found, is_open) == (method, False)
        ]
        values = [np.mean([seed[domain] for seed in seeds]) for domain in CORRUPTIONS]
        expected += [*values, np.mean(values)]
    assert shown == pytest.approx(expected, abs=0.051)
    assert sorted(text) == sorted(page.svg_text["domains-1", "narrow"])


def test_the_figures_tell_their_numbers_to_those_who_cannot_see_them(folder, page):
    told = page.described["rounds-1"]
    for setting, part in zip(("closed", "open"), re.split(r"; open", told), strict=True):
        for method, first, last in re.findall(r"([\w+]+) from (\d+\.\d) to (\d+\.\d)", part):
            is_open = setting == "open"
            ends = [np.mean(by_seed(folder, method, is_open, round)) for round in (1, reached(method, is_open))]
            assert [float(first), float(last)] == pytest.approx(ends, abs=0.051)
    known, unknown = re.findall(r"tent\+crowd from ([\d.]+) to", page.described["selected-2"])
    for shown, measure in ((known, "selected_known"), (unknown, "selected_unknown")):
        shares = by_seed(folder, "tent+crowd", True, 1, measure)
        assert float(shown) == pytest.approx(100 * np.mean(shares), abs=0.051)


def test_both_variants_of_a_figure_name_every_method(page):
    for variant in ("wide", "narrow"):
        names = [text.split(" @")[0] for text in page.svg_text["rounds-1", variant]]
        assert all(names.count(method) == 2 for method in METHODS)
        assert "tent+crowd @2" in page.svg_text["rounds-1", variant]


def test_the_page_needs_nothing_from_elsewhere(report, page):
    text = report.read_text(encoding="utf-8")
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert "http" not in text
    assert "@import" not in text
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (report.parent / link).is_file()
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{name}" for name in page.ids}


def test_no_two_things_on_the_page_share_an_id(page):
    assert len(page.ids) == len(set(page.ids))


def test_odd_names_are_shown_as_they_are(report, page):
    text = report.read_text(encoding="utf-8")
    assert "<i>" not in text
    assert "set<b>" not in text
    assert ODD in page.svg_text["domains-3", "wide"]
    assert "c<d>" in page.svg_text["domains-3", "narrow"]
    assert any("some <processor>" in text for text in page.sentences)
    assert ODD in page.described["domains-3"]


def test_the_protocol_is_on_the_page(folder, page):
    text = " ".join(page.sentences)
    seconds = sum(
        json.loads(line)["seconds"]
        for path in folder.glob("cells/*/conditions.jsonl")
        for line in path.read_text().splitlines()
    )
    minutes, rest = divmod(round(seconds), 60)
    assert f"{minutes // 60} h {minutes % 60} min" in text if minutes >= 60 else f"{minutes} min {rest} s" in text
    assert "0123456789abcdef" in text
    assert "2.6.0" in text


def test_files_are_the_rows_with_all_that_is_known_of_them(folder, report):
    rows = flat_rows(Results(folder))
    in_csv = list(csv.DictReader(io.StringIO((report.parent / "rows.csv").read_text(encoding="utf-8"))))
    in_parquet = pyarrow.parquet.read_table(report.parent / "rows.parquet").to_pylist()
    assert in_parquet == rows
    assert in_csv == [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]
    assert len(rows) == sum(len(path.read_text().splitlines()) for path in folder.glob("cells/*/rows.jsonl"))
    for path in folder.glob("cells/*/spec.json"):
        description = json.loads(path.read_text())
        mine = [row for row in rows if row["cell"] == path.parent.name]
        measured = [json.loads(line) for line in (path.parent / "rows.jsonl").read_text().splitlines()]
        conditions = [json.loads(line) for line in (path.parent / "conditions.jsonl").read_text().splitlines()]
        for row, found, how in zip(mine, measured, conditions, strict=True):
            assert row.items() >= found.items()
            assert row.items() >= how.items()
            assert row["seed"] == description["spec"]["seed"]
            for key, value in description["spec"]["options"].items():
                assert row[f"option/{key}"] == value
            for key, value in description["protocol"].items():
                assert row[f"protocol/{key}"] == value


def test_the_precision_of_selection_is_not_lost_to_that_of_computing(tmp_path):
    cell = Store(tmp_path).run(spec := Spec("tent+crowd", "images", "network", domains=("fog",)))
    with cell.locked():
        cell.write_spec(spec, {})
        cell.append([{"round": 1, "domain": "fog", "precision": 0.75}], [{"engine": "graph", "precision": "bf16"}])
    (row,) = flat_rows(Results(tmp_path))
    assert (row["precision"], row["step/precision"]) == (0.75, "bf16")


def test_a_column_of_several_kinds_becomes_text_in_parquet(tmp_path):
    store = Store(tmp_path / "results")
    spec = Spec("tent", "images", "network", domains=("fog",))
    for options in ({"a": 1, "b": 1}, {"a": 0.5, "b": "x"}, {"b": None}, {"b": True}):
        make_cell(store, spec.with_options(**options), rounds=1)
    out = write_report(Results(store.folder), tmp_path / "report").parent
    table = pyarrow.parquet.read_table(out / "rows.parquet")
    found = {(row["option/a"], row["option/b"]) for row in table.to_pylist()}
    assert found == {(1.0, "1"), (0.5, "x"), (None, None), (None, "true")}


def test_the_same_results_make_the_same_bytes(folder, report, tmp_path):
    again = write_report(Results(folder), tmp_path)
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == {".html", ".svg", ".png", ".csv", ".parquet"}
    assert files == sorted(path.relative_to(report.parent) for path in report.parent.rglob("*") if path.is_file())
    for path in files:
        assert (again.parent / path).read_bytes() == (report.parent / path).read_bytes(), path


def test_pictures_of_scenes_beside_a_report_are_linked_to(report, tmp_path):
    make_cell(Store(tmp_path / "results"), Spec("tent", "images", "network", domains=("fog",)), rounds=1)
    scenes = tmp_path / "report" / "scenes" / "index.html"
    scenes.parent.mkdir(parents=True)
    scenes.touch()
    assert 'href="scenes/index.html"' in write_report(Results(tmp_path / "results"), tmp_path / "report").read_text()
    assert "scenes/index.html" not in report.read_text()


def test_a_report_that_fails_leaves_the_earlier_page(tmp_path):
    make_cell(Store(tmp_path / "results"), Spec("tent", "images", "network", domains=("fog",)), rounds=1)
    out = tmp_path / "report"
    (out / "rows.csv").mkdir(parents=True)
    (out / "index.html").write_text("the earlier page")
    with pytest.raises(OSError, match=r"rows\.csv"):
        write_report(Results(tmp_path / "results"), out)
    assert (out / "index.html").read_text() == "the earlier page"
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize("package", ["jinja2", "matplotlib", "pyarrow"])
def test_a_missing_package_is_named_before_anything_is_written(folder, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"{package}.*driftproof\[report\]"):
        write_report(Results(folder), tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_costs_alone_make_a_report_without_figures(tmp_path):
    (spec,) = {spec for spec in suite("table6").specs() if spec.task == "costs"}
    cell = Store(tmp_path / "results").run(spec)
    cell.folder.mkdir(parents=True)
    cell.write_spec(spec, {"image": "(3, 32, 32)"})
    methods = spec.method.split(",")
    rows = [{"round": 1, "domain": name, "memory": 10.0, "milliseconds": 1.5} for name in methods]
    cell.append(rows, [made_up_conditions(Random(0))] * len(rows))
    out = write_report(Results(tmp_path / "results"), tmp_path / "report", title="A <title>")
    parsed = Page()
    parsed.feed(out.read_text(encoding="utf-8"))
    assert [parsed.places["table6", name, "Time (ms)"]["ours"] for name in methods] == ["1.50"] * len(methods)
    assert not parsed.described
    assert "<title>A &lt;title&gt;</title>" in out.read_text(encoding="utf-8")


def test_a_page_without_streams_says_what_it_shows_instead(tmp_path):
    spec = next(suite("gradients").specs())
    stopped = Spec("tent", "made-c", "net", domains=("fog", "snow"))
    for folder, one, rounds, said in (
        ("gradients", spec, 1, "gradients of single samples"),
        ("begun", stopped, 0, "No round is complete yet."),
    ):
        make_cell(Store(tmp_path / folder), one, rounds=rounds, extra=1)
        parsed = Page()
        parsed.feed(write_report(Results(tmp_path / folder), tmp_path / "report").read_text(encoding="utf-8"))
        assert any(said in text for text in parsed.sentences)
        assert not any("cost of a step" in text for text in parsed.sentences)


def test_variants_of_a_method_are_told_apart_and_compared_with_their_like(tmp_path):
    store = Store(tmp_path)
    spec = Spec("tent", "images", "network", domains=("fog", "snow"))
    for rate in (0.1, 0.2):
        for method in ("tent", "tent+crowd"):
            make_cell(store, replace(spec, method=method).with_options(lr=rate, q=1), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    assert {series.name for series in stream.series} == {
        f"{name}, lr={r}" for name in ("tent", "tent+crowd") for r in (0.1, 0.2)
    }
    for plain, selecting in stream.pairs():
        assert (plain.method, selecting.method) == ("tent", "tent+crowd")
        assert plain.specs[0].options == selecting.specs[0].options
    assert len(stream.pairs()) == 2
    (finding,) = stream_findings(Results(tmp_path), [stream])
    for (plain, selecting), sentence in zip(stream.pairs(), finding.sentences, strict=False):
        numbers = [statistics.fmean(series.per_domain(Results(tmp_path), "error")) for series in (plain, selecting)]
        assert re.findall(r"\d+\.\d\b(?=\s%)", sentence) == [f"{number:.1f}" for number in numbers]
        assert f"{plain.name} is at" in sentence


def test_what_belongs_to_a_selection_keeps_no_method_from_being_compared(tmp_path):
    store, spec = Store(tmp_path), Spec("", "images", "network", domains=("fog", "snow"))
    for rate in (0.1, 0.2):
        make_cell(store, replace(spec, method="tent").with_options(lr=rate), rounds=1)
        for share in (0.0, 0.5):
            selecting = replace(spec, method="tent+crowd").with_options(lr=rate, margin=-0.2, mean_entropy=share)
            make_cell(store, selecting, rounds=1)
    make_cell(store, replace(spec, method="tent").with_options(lr=0.2, mean_entropy=0.5), rounds=1)
    make_cell(store, replace(spec, method="tent+crowd").with_options(lr=0.3, margin=-0.2, mean_entropy=0.5), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    assert {(plain.name, selecting.name) for plain, selecting in stream.pairs()} == {
        ("tent, lr=0.1", "tent+crowd, lr=0.1, λ_max=0"),
        ("tent, lr=0.1", "tent+crowd, lr=0.1, λ_max=0.5"),
        ("tent, lr=0.2", "tent+crowd, lr=0.2, λ_max=0"),
        ("tent, lr=0.2, λ_max=0.5", "tent+crowd, lr=0.2, λ_max=0.5"),
    }


def test_methods_are_compared_with_their_like_whatever_they_are_called(tmp_path):
    store, spec = Store(tmp_path), Spec("", "images", "network", domains=("fog", "snow"))
    for method, options in (
        *(("ent", {"lr": 1e-3}), ("ent+crowd", {"lr": 1e-5})),
        *(("tent", {"lr": 1e-3, "novelty": "msp"}), ("tent", {"lr": 1e-4}), ("tent+crowd", {"lr": 1e-3})),
        *(("tent+crowd", {"lr": 1e-3, "on": "logits"}), ("eata", {"redundancy": 0.4}), ("eata+crowd", {})),
    ):
        make_cell(store, replace(spec, method=method).with_options(**options), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    found = {(plain.name, selecting.name) for plain, selecting in stream.pairs()}
    watched = "tent, lr=0.001, novelty=msp"
    assert found == {(watched, "tent+crowd"), (watched, "tent+crowd, on=logits"), ("eata", "eata+crowd")}


def test_a_seed_that_has_only_begun_and_one_that_was_measured_twice_count_once(tmp_path):
    store, spec = Store(tmp_path), Spec("tent", "images", "network", domains=("fog", "snow"))
    make_cell(store, spec, rounds=3)
    make_cell(store, replace(spec, measures=("error",)), rounds=2)
    make_cell(store, replace(spec, seed=1), rounds=1)
    results = Results(tmp_path)
    (series,) = (series for stream in group_streams(results) for series in stream.series)
    assert [cell.seed for cell in series.specs] == [0, 1]
    assert series.per_round(results, "error") == results.per_round(spec)
    last = [row["error"] for row in results.rows(spec) if row["round"] == 3]
    assert series.per_domain(results, "error") == last


def test_what_differs_in_a_number_comes_in_the_order_of_the_number(tmp_path):
    store, spec = Store(tmp_path), Spec("tent", "made-c", "net", domains=("fog",))
    for rate in (1e-3, 1e-6, 1e-4, 1e-5, None):
        make_cell(store, spec.with_options(lr=rate), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    assert [dict(series.specs[0].options)["lr"] for series in stream.series] == [1e-6, 1e-5, 1e-4, 1e-3, None]


def test_what_is_better_and_what_is_missing_depends_on_the_stream(tmp_path):
    store, long = Store(tmp_path / "results"), "very_" * 20
    methods = ("source", "bn_adapt", "ttn", "tent", "tent+crowd", "cotta", "swr", "swr+crowd")
    spec = Spec("", "scenes", long, domains=("lost", "found", long), measures=("iou", "selection"), batch_size=2)
    for method in methods:
        make_cell(store, replace(spec, method=method, domains=spec.domains[1:]), rounds=2)
    make_cell(store, replace(spec, method="tent"), rounds=2)
    results, parsed = Results(store.folder), Page()
    parsed.feed(write_report(results, tmp_path / "report").read_text(encoding="utf-8"))
    together = [stream for stream in group_streams(results) if len(stream.series) > 1]
    better = sum(
        selecting.per_round(results, "mean_iou")[-1] > plain.per_round(results, "mean_iou")[-1]
        for plain, selecting in together[0].pairs()
    )
    assert any(
        f"mean IoU of the last round is higher in {better} of 2 comparisons." in text for text in parsed.sentences
    )
    maps = [text for (figure, variant), text in parsed.svg_text.items() if figure.startswith("domains")]
    assert any("–" in text for text in maps)
    assert all(any("…" in word for word in text) for text in maps)
    assert all(any(method in text for text in maps) for method in methods)
    said = " ".join(parsed.described.values())
    assert "Mean IoU in each round" in said
    assert "Share of the pixels" in said
    assert "unknown objects among the known" in said
    assert "closed" not in said
    assert {row[1] for row in build_protocol(results, together).streams.rows} == {"within the frames"}


def test_how_a_drive_went_is_drawn_point_by_point(tmp_path):
    store, domains = Store(tmp_path / "results"), ("clean", "fog", "motion_blur")
    spec = Spec("tent", "scenes", "net", domains=domains, measures=("iou", "selection"), batch_size=2)
    for method, rounds in {"source": 1, "tent": 3, "tent+crowd": 2}.items():
        make_cell(store, replace(spec, method=method), rounds=rounds)
    results = Results(store.folder)
    (drawing,) = within_domain_figures(results, group_streams(results))
    rows = {cell.spec.method: cell.rows for cell in store.runs()}
    for method, name in {"source": "source @1", "tent": "tent", "tent+crowd": "tent+crowd @2"}.items():
        first, last = rows[method][-3][IOU_CURVE[0]], rows[method][-1][IOU_CURVE[-1]]
        assert f"{name} from {first:.1f} to {last:.1f}" in drawing.description
    assert drawing.caption.endswith("in round 3.")
    assert all(name in drawing.wide and name in drawing.narrow for name in ("clean", "fog", "motion blur"))


def test_a_name_that_has_no_room_keeps_its_ends_and_the_mark_of_its_round(tmp_path):
    store, long = Store(tmp_path), "very_" * 20 + "own"
    spec = Spec("tent", "scenes", "net", domains=("clean", "fog"), measures=("iou", "selection"), batch_size=2)
    make_cell(store, spec, rounds=2)
    make_cell(store, spec.with_options(statistics=long), rounds=1)
    results = Results(tmp_path)
    for draw in (within_domain_figures, domain_figures):
        (drawing,) = draw(results, group_streams(results))
        for picture in (drawing.wide, drawing.narrow):
            assert re.search(r"tent, [a-z_=]*…[a-z_]*own @1<", picture), "a run that stopped looks finished without it"


@pytest.mark.parametrize("second", ["fog", "x" * 70])
def test_stretches_divide_a_curve_evenly(second):
    names = ("clean", second)
    values = [float(place) for place in range(40)]
    panel = Panel("drive", "mIoU %", [Curve("tent", "tent", "", values, values, values)], segments=names)
    (axes,) = draw_curves([panel], WIDE).axes
    assert list(axes.get_xticks()) == [10.5, 30.5]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[0] == "clean"
    assert labels[1] == second or (labels[1].startswith("\nx") and len(second) > 50), (
        "names that have no room take turns"
    )
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert [20.5, 20.5] in [x for x, _ in lines]
    assert (list(range(1, 21)), values[:20]) in lines
    assert (list(range(21, 41)), values[20:]) in lines, "what came of another domain is not joined"


def test_the_commands_in_the_footer_are_commands(folder, page):
    offered = typer.main.get_command(bench_commands).commands["run"]
    assert reproduction_commands(Results(folder)) == [
        "driftproof bench run table1 --rounds 3 --methods bn_adapt --sets cifar10-c --limit 800 --out 'made <up>'",
        "driftproof bench run table1 --rounds 3 --methods tent --sets cifar10-c --seeds 0,1 --limit 800"
        " --out 'made <up>'",
        "driftproof bench run table1 --rounds 3 --methods tent+crowd --sets cifar10-c --closed --seeds 0,1"
        " --limit 800 --out 'made <up>'",
        "driftproof bench run table1 --rounds 2 --methods tent+crowd --sets cifar10-c --open --seeds 0,1"
        " --limit 800 --out 'made <up>'",
        "driftproof bench compare 'made <up>'",
        "driftproof bench report 'made <up>'",
    ]
    words = shlex.split(reproduction_commands(Results(folder))[0])[3:]
    assert offered.make_context("run", words).params["out"].name == folder.name


def test_the_commands_in_the_footer_say_how_it_was_computed_where_that_never_changed(tmp_path):
    store = Store(tmp_path / "out")
    fast = {"device": "cuda", "engine": "graph", "precision": "bf16", "channels_last": True, "seconds": 1.0}
    for spec in suite("table1").specs():
        if spec.images == "cifar10-c" and spec.method in ("tent", "tent+crowd"):
            cell = store.run(spec)
            with cell.locked():
                cell.write_spec(spec, {})
                rows = [{"round": 1, "domain": domain, "error": 10.0} for domain in spec.domains]
                changed = {"precision": "tf32"} if spec.method == "tent" else {}
                cell.append(rows, [fast] * 7 + [fast | changed] * 8)
    words = shlex.split(reproduction_commands(Results(store.folder))[0])[3:]
    assert "--precision" not in words
    given = typer.main.get_command(bench_commands).commands["run"].make_context("run", words).params
    assert (given["device"], given["engine"], given["channels_last"]) == ("cuda", "graph", True)


def test_costs_measured_alone_are_told_as_such(tmp_path):
    (spec,) = (spec.with_options(trials=300) for spec in suite("table6").specs() if spec.task == "costs")
    cell = Store(tmp_path / "out").run(spec)
    with cell.locked():
        cell.write_spec(spec, {})
        cell.append([{"round": 1, "domain": "tent", "milliseconds": 7.0}], [{}])
    first, *_ = reproduction_commands(Results(tmp_path / "out"))
    assert first == "driftproof bench run table6 --rounds 1 --task costs --closed --trials 300 --out out"


def asked_by(offered):
    """The cells that commands ask for, each with the most rounds that any of them wants of it."""
    asked = {}
    for words in map(shlex.split, offered):
        given = typer.main.get_command(bench_commands).commands["run"].make_context("run", words[3:]).params
        choice = RunFilter(
            methods=given["methods"].split(",") if given["methods"] else (),
            sets=given["sets"].split(",") if given["sets"] else (),
            setting={None: None, True: "open", False: "closed"}[given["opened"]],
            task=given["task"],
            rounds=given["rounds"],
            seeds=[int(seed) for seed in given["seeds"].split(",")],
            replaced=dict(text.split("=") for text in given["replace"]),
        )
        for job in plan_runs([suite(name) for name in given["names"]], choice):
            asked[job.spec] = max(asked.get(job.spec, 0), job.rounds)
    return asked


def test_the_commands_in_the_footer_ask_for_the_cells_that_are_there_and_no_others(tmp_path):
    store, specs = Store(tmp_path / "out"), [spec for spec in suite("s3").specs() if spec.method != "cotta"]
    store.update_metadata({"replaced": {"cifar100-c": "svhn-c"}})
    for spec in specs:
        if spec.images == "cifar100-c":
            make_cell(store, replace(spec, images="svhn-c"), rounds=2)
        elif spec.task == "costs":
            make_cell(store, spec, rounds=1)
    results = Results(store.folder)
    assert asked_by(reproduction_commands(results)[:-2]) == {cell: results.rounds(cell) for cell in results.runs}
    write_archive([store.folder], tmp_path / "kept")
    assert all(" --out kept-again" in command for command in reproduction_commands(Results(tmp_path / "kept"))[:-2])


@pytest.mark.parametrize("name", ["table6", "rules", "s2"])
def test_the_commands_in_the_footer_ask_for_each_cell_as_far_as_it_has_come(tmp_path, name):
    random, store = Random(name), Store(tmp_path / "out")
    for spec in suite(name).specs():
        for seed in range(2):
            if rounds := random.choice([0, 1, 1, 3]):
                make_cell(store, replace(spec, seed=seed), rounds=rounds if spec.task == "stream" else 1)
    results = Results(store.folder)
    assert asked_by(reproduction_commands(results)[:-2]) == {cell: results.rounds(cell) for cell in results.runs}


def test_the_commands_in_the_footer_are_few_where_cells_lie_together(tmp_path):
    store = Store(tmp_path / "out")
    for spec in suite("rules").specs():
        far = spec.method == "tent+crowd" or (spec.method, spec.setting) == ("tent+certain", "open")
        make_cell(store, spec, rounds=3 if far else 1)
    offered = reproduction_commands(Results(store.folder))[:-2]
    assert offered == [
        "driftproof bench run table1 --rounds 3 --methods tent+crowd --sets cifar10-c,cifar100-c --out out",
        "driftproof bench run rules --rounds 3 --methods tent+certain --open --out out",
        "driftproof bench run table1 --rounds 1 --methods tent --sets cifar10-c,cifar100-c --out out",
        "driftproof bench run rules --rounds 1 --methods tent+certain,tent+confident --out out",
    ]


def test_the_commands_in_the_footer_say_how_a_demo_was_run(tmp_path):
    for seed, rounds in ((0, suite("demo").rounds), (3, 1)):
        for spec in suite("demo").specs():
            make_cell(Store(tmp_path / f"demo{seed or ''}"), replace(spec, seed=seed), rounds=rounds)
    assert reproduction_commands(Results(tmp_path / "demo"))[0] == "driftproof demo"
    assert reproduction_commands(Results(tmp_path / "demo3"))[0] == "driftproof demo --rounds 1 --seed 3 --out demo3"


def test_the_commands_in_the_footer_prefer_the_suite_of_which_all_is_there(tmp_path):
    store = Store(tmp_path / "out")
    for spec in suite("endurance").specs():
        if (spec.method, spec.images) == ("tent", "cifar10-c"):
            make_cell(store, spec, rounds=2)
    results = Results(store.folder)
    assert asked_by(reproduction_commands(results)[:-2]) == dict.fromkeys(results.runs, 2)


def test_the_commands_in_the_footer_leave_long_runs_to_the_suite_that_wants_them(tmp_path):
    store, far = Store(tmp_path / "out"), set(suite("endurance").specs())
    for spec in suite("open_choices").specs():
        if spec.images == "cifar100-c" and spec.method in ("tent", "gce", "bn_adapt"):
            make_cell(store, spec, rounds=30 if spec in far else 2)
    results = Results(store.folder)
    offered = reproduction_commands(results)[:-2]
    assert offered == [
        "driftproof bench run endurance --rounds 30 --methods gce,tent --sets cifar100-c --out out",
        "driftproof bench run open_choices --rounds 2 --methods bn_adapt,gce,tent --sets cifar100-c --out out",
    ]
    assert asked_by(offered) == {cell: results.rounds(cell) for cell in results.runs}


def test_the_commands_in_the_footer_ask_for_more_than_a_suite_wants_where_nothing_else_goes_along(tmp_path):
    store = Store(tmp_path / "out")
    specs = [spec for spec in suite("camvid_rates").specs() if spec.method in ("tent", "swr")]
    (one, *_) = (spec for spec in specs if spec.method == "tent")
    for spec in specs:
        make_cell(store, spec, rounds=3 if spec.method == "swr" or spec is one else 2)
    assert reproduction_commands(Results(store.folder))[:-2] == [
        "driftproof bench run camvid_rates --rounds 3 --methods swr --out out",
        "driftproof bench run camvid_rates --rounds 2 --methods tent --out out",
    ]


def test_the_commands_in_the_footer_say_that_frost_was_made_up(tmp_path):
    store = Store(tmp_path / "out")
    store.update_metadata({"frost": "made up"})
    for spec in (*table_specs(), *suite("demo").specs()):
        make_cell(store, spec, rounds=1)
    offered = reproduction_commands(Results(store.folder))[:-2]
    assert offered[0] == "driftproof demo --rounds 1 --out out"
    assert len(offered) > 1
    assert all(" --procedural-frost " in command for command in offered[1:])
    store.write_metadata({"frost": "photos"})
    assert not any("frost" in command for command in reproduction_commands(Results(store.folder)))


def test_streams_of_the_same_images_are_told_apart_wherever_they_are_named(tmp_path):
    store, spec = Store(tmp_path / "out"), Spec("tent", "made-c", "net", domains=("fog",))
    others = [replace(spec, batch_size=8), replace(spec, model="other"), replace(spec, unknown="x-c", batch_size=8)]
    for one in (spec, *others):
        make_cell(store, one, rounds=2)
    results = Results(store.folder)
    names = [stream.name for stream in group_streams(results)]
    assert len(set(names)) == len(names) == 4
    assert {finding.title for finding in stream_findings(results, group_streams(results))} == {
        "made-c, closed, net, batches of 200, 2 rounds",
        "made-c, closed, net, batches of 8, 2 rounds",
        "made-c, closed, other, 2 rounds",
        "made-c, open (x-c), net, 2 rounds",
    }
    insights = list(ANALYSES["curves"](results))
    assert sorted(name for insight in insights for name in insight.as_data()) == sorted(names)


def test_the_numbers_beside_a_figure_are_its_own_and_its_title_fits(tmp_path):
    store, spec = Store(tmp_path / "out"), Spec("tent", "made-c", "net", domains=CORRUPTIONS)
    for one in (replace(spec, batch_size=8), spec, replace(spec, unknown="x-c"), replace(spec, domains=HELD_OUT)):
        make_cell(store, one, rounds=2)
    results = Results(store.folder)
    insights = list(ANALYSES["curves"](results))
    assert [insight.draw().title for insight in insights] == [
        "made-c, net, batches of 200, 15 domains from gaussian_noise to jpeg_compression",
        "made-c, net, batches of 8, 15 domains from gaussian_noise to jpeg_compression",
        "made-c, net, batches of 200, speckle_noise, gaussian_blur, spatter, saturate",
    ]
    shown = [list(insight.as_data()) for insight in insights]
    assert [len(names) for names in shown] == [2, 1, 1], "the open stream stands beside the closed one"
    assert shown[0][1].startswith("made-c, open (x-c)")


def test_what_learns_nothing_can_be_the_best_of_a_round_it_was_not_run_to(tmp_path):
    for method, errors in {"bn_adapt": [15.0], "tent": [14.0, 20.0, 30.0], "tent+crowd": [14.0, 15.0, 16.0]}.items():
        spec = Spec(method, "made-c", "net", domains=("fog",))
        cell = Store(tmp_path).run(spec)
        cell.folder.mkdir(parents=True)
        cell.write_spec(spec, {"scope": "nothing()" if method == "bn_adapt" else "norm_affine()", "statistics": "Batch()"})
        rows = [{"round": round, "domain": "fog", "error": error} for round, error in enumerate(errors, start=1)]
        cell.append(rows, [{}] * len(rows))
    (finding,) = stream_findings(Results(tmp_path), group_streams(Results(tmp_path)))
    assert finding.sentences[-1] == "Best in the last round: bn_adapt, 15.0\u00a0%."


def test_many_domains_that_begin_and_end_alike_are_named_in_full():
    one, other = (Spec("tent", "made-c", "net", domains=("fog", *middle, "snow")) for middle in ("abcd", "dcba"))
    assert distinguishing_fields(one, [one, other]) == ["fog, a, b, c, d, snow"]


def test_the_page_says_what_the_terminal_says_of_how_a_table_was_computed(tmp_path):
    store = Store(tmp_path / "out")
    for spec in table_specs():
        make_cell(store, spec, rounds=1)
    for path in store.folder.glob("cells/tent+crowd-*/conditions.jsonl"):
        lines = [json.loads(line) | {"precision": "bf16"} for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    results, parsed = Results(store.folder), Page()
    parsed.feed(write_report(results, tmp_path / "report").read_text(encoding="utf-8"))
    said = {sentence for table in results.tables() for sentence in table_notes(table, results)}
    assert any("Computed in bfloat16" in sentence for sentence in said)
    assert said <= set(parsed.sentences)


def test_runs_that_stopped_early_are_not_said_to_have_come_to_the_end(folder, page):
    assert any("the last common round is lower in 2 of 2" in text for text in page.sentences)
    assert any("up to 3 rounds through" in text for text in page.sentences)
    assert not any("selection.In" in text for text in page.sentences)


def printed(measured, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table_text(measured))
    return console.file.getvalue()


def test_the_terminal_shows_ours_the_papers_and_the_difference(folder):
    (table,) = (table for table in Results(folder).tables() if table.table.name == "table2")
    text = printed(table, 120)
    for method in METHODS:
        ours, theirs = np.mean(by_seed(folder, method, True, 1)), paper_value("T2_round1", method, "CIFAR-10-C/Open")
        difference = f"{ours - theirs:+.1f}".replace("-", "−")
        assert f"({theirs + 1e-9:.1f}, {difference})" in text
        assert f"{ours:.1f}" in text


def test_no_cosine_is_better_than_another(tmp_path):
    for number, spec in enumerate(suite("gradients").specs(), start=1):
        cell = Store(tmp_path).run(spec)
        with cell.locked():
            cell.write_spec(spec, {})
            cell.append([{"round": 1, "domain": "all", "right": 0.583 * number, "wrong": 0.4}], [{}])
    (table,) = Results(tmp_path).tables()
    text = printed(table, 120)
    assert "0.58" in text
    assert "better" not in text
    assert not any(cell.is_best for cell in compare_with_paper(table).cells.values())


def test_a_narrow_terminal_loses_nothing(folder):
    for table in Results(folder).tables():
        wide, narrow = printed(table, 300), printed(table, 46)
        assert "…" not in narrow
        assert all(len(line) <= 46 for line in narrow.splitlines())
        body = re.compile(r"[\d.−+@]+\d")
        assert sorted(body.findall(narrow.split("──")[-1])) == sorted(body.findall(wide.split("──")[-1]))


finite = st.floats(0, 100, allow_nan=False)


names = st.sampled_from(["source", "tent", "tent+crowd", "eata", "eata+crowd"])
curves = st.dictionaries(names, st.lists(finite, min_size=1, max_size=12), min_size=1)


@given(curves, st.integers(30, 100), st.integers(2, 20))
def test_a_terminal_plot_names_each_curve_once_and_keeps_its_size(series, width, height):
    lines = plot_text(series, width=width, height=height).splitlines()
    assert len(lines) == max(height, len(series) + 2, 4)
    assert max(map(len, lines)) <= max(width, len(lines[-1]))
    labels = [line.split()[-1] for line in lines[:-2] if line.split()[-1] in series]
    assert sorted(labels) == sorted(series)


@given(st.lists(finite, min_size=2, max_size=9), st.integers(4, 20))
def test_a_terminal_plot_puts_its_marks_where_the_values_are(values, height):
    lines = plot_text({"tent": values}, width=70, height=height).splitlines()[:-2]
    low, high = min(values), max(values)
    missing = max(5 - (high - low), 0) / 2
    low, high = low - missing, high + missing
    rows = [(len(lines) - 1) * (high - value) / (high - low) for value in values]
    start = max(line.find("┤") for line in lines) + 1
    columns = 70 - start - len("○ tent") - 1
    for index, row in enumerate(rows):
        column = start + math.floor((columns - 1) * index / (len(values) - 1) + 0.5)
        assert lines[math.floor(row + 0.5)][column] == "○"


def test_a_terminal_plot_passes_over_what_is_not_a_number():
    assert "○ tent" in plot_text({"tent": [1.0, math.nan, 3.0], "none": [math.nan]})
    assert "none" not in plot_text({"tent": [1.0], "none": [math.nan]})
    with pytest.raises(InputError, match="at least one"):
        plot_text({"tent": []})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.08))
def test_labels_are_moved_apart_in_their_order_and_no_further_than_needed(places, spacing):
    moved = spread_labels(places, spacing)
    order = sorted(range(len(places)), key=places.__getitem__)
    for lower, upper in itertools.pairwise(order):
        assert moved[upper] - moved[lower] >= spacing - 1e-9
    if all(places[b] - places[a] >= spacing for a, b in itertools.pairwise(order)):
        assert moved == pytest.approx(places)
    assert statistics.fmean(moved) == pytest.approx(statistics.fmean(places), abs=spacing * len(places))
