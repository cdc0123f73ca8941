"""The report against its rows, with every number recomputed from the files on disk."""

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
from matplotlib.figure import Figure
from rich.console import Console

from driftproof.bench import Results, Spec, Store
from driftproof.bench.archive import write_archive
from driftproof.bench.pixels import IOU_CURVE
from driftproof.bench.plan import RunFilter, plan_runs
from driftproof.cli.bench import bench_commands
from driftproof.corruptions import CORRUPTIONS, HELD_OUT
from driftproof.errors import InputError, MissingPackageError
from driftproof.paper import suite
from driftproof.report import ANALYSES, flat_rows, plot_text, render_summary, table_notes, table_text, write_report
from driftproof.report.commands import reproduction_commands
from driftproof.report.comparison import compare_with_paper
from driftproof.report.curves import Curve, Panel, draw_curves, spread_labels
from driftproof.report.figures import domain_figures, round_figures, within_domain_figures
from driftproof.report.findings import stream_findings
from driftproof.report.health import health_table
from driftproof.report.protocol import build_protocol
from driftproof.report.responsive import WIDE
from driftproof.report.series import distinguishing_fields, group_streams

METHODS = ("bn_adapt", "tent", "tent+crowd")
LAST = 3
SAVEFIG = Figure.savefig
ODD = 'odd<i>&"$x^2$"'


def table_specs():
    return [spec for spec in suite("table1").specs() if spec.images == "cifar10-c" and spec.method in METHODS]


def write_run(store, spec, *, rounds, extra=0):
    """Write a run with random numbers: some complete rounds, and `extra` domains of the next."""
    random = Random(spec.name)
    cell = store.run(spec)
    cell.folder.mkdir(parents=True)
    cell.write_spec(spec, {"statistics": "Batch()", "select": "None", "output": "before"})
    visits = [(round, domain) for round in range(1, rounds + 2) for domain in spec.domains]
    visits = visits[: rounds * len(spec.domains) + extra]
    rows = [make_row(spec, random, *visit) for visit in visits]
    cell.append(rows, [make_conditions(random) for _ in visits])


def make_row(spec, random, round, domain):
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


def make_conditions(random):
    machine = {"device": "cpu", "hardware": "some <processor>", "threads": 2}
    versions = {"driftproof": "0.1.0", "torch": "2.6.0", "python": "3.12.1"}
    return {"seconds": random.uniform(1, 9), "peak_memory": random.randrange(2**28, 2**29), **machine, **versions}


def make_results(folder):
    """Closed and open streams, one or two seeds, one run that stopped early, one with special characters."""
    store = Store(folder)
    store.update_metadata({"limit": 800, "replaced": {}, "weights wrn40_2 cifar10-c": "0123456789abcdef"})
    for spec in table_specs():
        for seed in (0, 1) if spec.method.startswith("tent") else (0,):
            stopped = spec.method == "tent+crowd" and spec.unknown is not None
            write_run(store, replace(spec, limit=800, seed=seed), rounds=2 if stopped else LAST, extra=7 * stopped)
    write_run(store, Spec(ODD, "set<b>", "net&work", domains=("a_b", "c<d>"), limit=800), rounds=1)
    return folder


@pytest.fixture(scope="module", autouse=True)
def without_png():
    """Skip rendering PNG files, a third of the time of a figure; `test_equal_results_give_equal_bytes` renders them."""

    def savefig(self, file, *, format, **options):
        return file.write(b"PNG") if format == "png" else SAVEFIG(self, file, format=format, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield


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
    """Collects tables, sentences, links and figure texts of a page."""

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
    """Rows by method, open or not, and seed, of the streams in the tables."""
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
    text = resources.files("driftproof.paper").joinpath("printed.json").read_text()
    (found,) = (entry for entry in json.loads(text)["tables"] if entry["id"] == table)
    (row,) = (row for row in found["rows"] if row["method"] == PAPER_ROWS[method])
    return row["values"][found["columns"].index(column)]


@pytest.mark.parametrize(("name", "paper", "wanted"), [("table1", "T1_rounds50", 50), ("table2", "T2_round1", 1)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", ["Closed", "Open"])
def test_page_tables_match_the_rows(folder, page, name, paper, wanted, method, setting):
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


def test_gain_compares_equal_rounds_only(folder, page):
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


def test_best_method_is_chosen_among_complete_runs(folder):
    results = Results(folder)
    for stream, finding in zip(group_streams(results), stream_findings(results, group_streams(results)), strict=True):
        stopped = stream.spec.unknown is not None
        best = [sentence for sentence in finding.sentences if sentence.startswith("Best ")]
        assert all(sentence.startswith(f"Best of those that reached round {LAST}: ") == stopped for sentence in best)
        assert len(best) == (len(stream.series) > 1)


def test_best_of_a_column_is_bold_among_equal_rounds(folder, page):
    for name, round in (("table1", LAST), ("table2", 1)):
        for setting in ("Closed", "Open"):
            is_open, column = setting == "Open", f"CIFAR-10-C/{setting}"
            rivals = [method for method in METHODS if min(reached(method, is_open), round) == round]
            best = min(rivals, key=lambda method: np.mean(by_seed(folder, method, is_open, round)))
            assert [row for table, row, place in page.best if (table, place) == (name, column)] == [best]


def test_lower_false_positive_rate_is_best(folder, page):
    scores = ("msp", "max_logit", "energy", "confidence_difference")
    for kind, shown, choose in (("auroc", "AUROC", max), ("fpr", "FPR@TPR95", min)):
        values = {s: np.mean(by_seed(folder, "tent", True, LAST, f"{s}/including/{kind}")) for s in scores}
        column = f"CIFAR-10/SVHN-C {shown}"
        assert ("table5a", choose(values, key=values.get), column) in page.best


def test_findings_match_the_rows(folder, page):
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


def test_heatmap_shows_last_round_per_domain(folder, page):
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


def test_figure_descriptions_contain_their_numbers(folder, page):
    description = page.described["rounds-1"]
    for setting, part in zip(("closed", "open"), re.split(r"; open", description), strict=True):
        for method, first, last in re.findall(r"([\w+]+) from (\d+\.\d) to (\d+\.\d)", part):
            is_open = setting == "open"
            ends = [np.mean(by_seed(folder, method, is_open, round)) for round in (1, reached(method, is_open))]
            assert [float(first), float(last)] == pytest.approx(ends, abs=0.051)
    known, unknown = re.findall(r"tent\+crowd from ([\d.]+) to", page.described["selected-2"])
    for shown, measure in ((known, "selected_known"), (unknown, "selected_unknown")):
        shares = by_seed(folder, "tent+crowd", True, 1, measure)
        assert float(shown) == pytest.approx(100 * np.mean(shares), abs=0.051)


def test_wide_and_narrow_figures_label_every_method(page):
    for variant in ("wide", "narrow"):
        names = [text.split(" @")[0] for text in page.svg_text["rounds-1", variant]]
        assert all(names.count(method) == 2 for method in METHODS)
        assert "tent+crowd @2" in page.svg_text["rounds-1", variant]


def test_page_is_self_contained(report, page):
    text = report.read_text(encoding="utf-8")
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert "http" not in text
    assert "@import" not in text
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (report.parent / link).is_file()
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{name}" for name in page.ids}


def test_page_ids_are_unique(page):
    assert len(page.ids) == len(set(page.ids))


def test_special_characters_are_escaped(report, page):
    text = report.read_text(encoding="utf-8")
    assert "<i>" not in text
    assert "set<b>" not in text
    assert ODD in page.svg_text["domains-3", "wide"]
    assert "c<d>" in page.svg_text["domains-3", "narrow"]
    assert any("some <processor>" in text for text in page.sentences)
    assert ODD in page.described["domains-3"]


def test_page_shows_the_protocol(folder, page):
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


def test_csv_and_parquet_contain_all_rows_and_fields(folder, report):
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


def test_selection_precision_and_numerical_precision_are_separate_columns(tmp_path):
    cell = Store(tmp_path).run(spec := Spec("tent+crowd", "images", "network", domains=("fog",)))
    with cell.locked():
        cell.write_spec(spec, {})
        cell.append([{"round": 1, "domain": "fog", "precision": 0.75}], [{"engine": "graph", "precision": "bf16"}])
    (row,) = flat_rows(Results(tmp_path))
    assert (row["precision"], row["step/precision"]) == (0.75, "bf16")


def test_column_of_mixed_types_becomes_text_in_parquet(tmp_path):
    store = Store(tmp_path / "results")
    spec = Spec("tent", "images", "network", domains=("fog",))
    for options in ({"a": 1, "b": 1}, {"a": 0.5, "b": "x"}, {"b": None}, {"b": True}):
        write_run(store, spec.with_options(**options), rounds=1)
    out = write_report(Results(store.folder), tmp_path / "report").parent
    table = pyarrow.parquet.read_table(out / "rows.parquet")
    found = {(row["option/a"], row["option/b"]) for row in table.to_pylist()}
    assert found == {(1.0, "1"), (0.5, "x"), (None, None), (None, "true")}


def test_equal_results_give_equal_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", SAVEFIG)
    store = Store(tmp_path / "results")
    for method in ("tent", "tent+crowd"):
        write_run(store, Spec(method, "images", "network", domains=("fog", "snow")), rounds=2)
    write_costs(store)
    first, again = (write_report(Results(store.folder), tmp_path / name).parent for name in ("first", "again"))
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == {".html", ".svg", ".png", ".csv", ".parquet"}
    assert {path.stem.split("-")[0] for path in files if path.suffix == ".png"} == {"rounds", "domains", "selected"}
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    for path in files:
        assert (again / path).read_bytes() == (first / path).read_bytes(), path


def test_page_links_to_existing_scenes(report, tmp_path):
    write_run(Store(tmp_path / "results"), Spec("tent", "images", "network", domains=("fog",)), rounds=1)
    scenes = tmp_path / "report" / "scenes" / "index.html"
    scenes.parent.mkdir(parents=True)
    scenes.touch()
    assert 'href="scenes/index.html"' in write_report(Results(tmp_path / "results"), tmp_path / "report").read_text()
    assert "scenes/index.html" not in report.read_text()


def test_failed_report_keeps_the_earlier_page(tmp_path):
    write_run(Store(tmp_path / "results"), Spec("tent", "images", "network", domains=("fog",)), rounds=1)
    out = tmp_path / "report"
    (out / "rows.csv").mkdir(parents=True)
    (out / "index.html").write_text("the earlier page")
    with pytest.raises(OSError, match=r"rows\.csv"):
        write_report(Results(tmp_path / "results"), out)
    assert (out / "index.html").read_text() == "the earlier page"
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize("package", ["jinja2", "matplotlib", "pyarrow"])
def test_missing_package_is_named_before_writing(folder, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"{package}.*driftproof\[report\]"):
        write_report(Results(folder), tmp_path / "report")
    assert not (tmp_path / "report").exists()


def write_costs(store):
    """Write the run of `table6` that measures the cost of a step; return its methods."""
    (spec,) = {spec for spec in suite("table6").specs() if spec.task == "costs"}
    cell = store.run(spec)
    cell.folder.mkdir(parents=True)
    cell.write_spec(spec, {"image": "(3, 32, 32)"})
    methods = spec.method.split(",")
    rows = [{"round": 1, "domain": name, "memory": 10.0, "milliseconds": 1.5} for name in methods]
    cell.append(rows, [make_conditions(Random(0))] * len(rows))
    return methods


def test_report_of_costs_has_no_figures(tmp_path):
    methods = write_costs(Store(tmp_path / "results"))
    out = write_report(Results(tmp_path / "results"), tmp_path / "report", title="A <title>")
    parsed = Page()
    parsed.feed(out.read_text(encoding="utf-8"))
    assert [parsed.places["table6", name, "Time (ms)"]["ours"] for name in methods] == ["1.50"] * len(methods)
    assert not parsed.described
    assert "<title>A &lt;title&gt;</title>" in out.read_text(encoding="utf-8")


def test_page_without_streams_names_its_content(tmp_path):
    spec = next(suite("gradients").specs())
    stopped = Spec("tent", "made-c", "net", domains=("fog", "snow"))
    for folder, one, rounds, expected in (
        ("gradients", spec, 1, "gradients of single samples"),
        ("begun", stopped, 0, "No round is complete yet."),
    ):
        write_run(Store(tmp_path / folder), one, rounds=rounds, extra=1)
        parsed = Page()
        parsed.feed(write_report(Results(tmp_path / folder), tmp_path / "report").read_text(encoding="utf-8"))
        assert any(expected in text for text in parsed.sentences)
        assert not any("cost of a step" in text for text in parsed.sentences)


def test_variants_are_named_and_paired_by_options(tmp_path):
    store = Store(tmp_path)
    spec = Spec("tent", "images", "network", domains=("fog", "snow"))
    for rate in (0.1, 0.2):
        for method in ("tent", "tent+crowd"):
            write_run(store, replace(spec, method=method).with_options(lr=rate, q=1), rounds=1)
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


def test_selection_options_do_not_prevent_pairing(tmp_path):
    store, spec = Store(tmp_path), Spec("", "images", "network", domains=("fog", "snow"))
    for rate in (0.1, 0.2):
        write_run(store, replace(spec, method="tent").with_options(lr=rate), rounds=1)
        for share in (0.0, 0.5):
            selecting = replace(spec, method="tent+crowd").with_options(lr=rate, margin=-0.2, mean_entropy=share)
            write_run(store, selecting, rounds=1)
    write_run(store, replace(spec, method="tent").with_options(lr=0.2, mean_entropy=0.5), rounds=1)
    write_run(store, replace(spec, method="tent+crowd").with_options(lr=0.3, margin=-0.2, mean_entropy=0.5), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    assert {(plain.name, selecting.name) for plain, selecting in stream.pairs()} == {
        ("tent, lr=0.1", "tent+crowd, lr=0.1, λ_max=0"),
        ("tent, lr=0.1", "tent+crowd, lr=0.1, λ_max=0.5"),
        ("tent, lr=0.2", "tent+crowd, lr=0.2, λ_max=0"),
        ("tent, lr=0.2, λ_max=0.5", "tent+crowd, lr=0.2, λ_max=0.5"),
    }


def test_pairing_ignores_diagnostic_options_and_requires_equal_ones(tmp_path):
    store, spec = Store(tmp_path), Spec("", "images", "network", domains=("fog", "snow"))
    for method, options in (
        *(("ent", {"lr": 1e-3}), ("ent+crowd", {"lr": 1e-5})),
        *(("tent", {"lr": 1e-3, "novelty": "msp"}), ("tent", {"lr": 1e-4}), ("tent+crowd", {"lr": 1e-3})),
        *(("tent+crowd", {"lr": 1e-3, "on": "logits"}), ("eata", {"redundancy": 0.4}), ("eata+crowd", {})),
    ):
        write_run(store, replace(spec, method=method).with_options(**options), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    found = {(plain.name, selecting.name) for plain, selecting in stream.pairs()}
    watched = "tent, lr=0.001, novelty=msp"
    assert found == {(watched, "tent+crowd"), (watched, "tent+crowd, on=logits"), ("eata", "eata+crowd")}


def test_series_uses_the_longest_run_of_each_seed(tmp_path):
    store, spec = Store(tmp_path), Spec("tent", "images", "network", domains=("fog", "snow"))
    write_run(store, spec, rounds=3)
    write_run(store, replace(spec, measures=("error",)), rounds=2)
    write_run(store, replace(spec, seed=1), rounds=1)
    results = Results(tmp_path)
    (series,) = (series for stream in group_streams(results) for series in stream.series)
    assert [cell.seed for cell in series.specs] == [0, 1]
    assert series.per_round(results, "error") == results.per_round(spec)
    last = [row["error"] for row in results.rows(spec) if row["round"] == 3]
    assert series.per_domain(results, "error") == last


def test_variants_are_sorted_by_value(tmp_path):
    store, spec = Store(tmp_path), Spec("tent", "made-c", "net", domains=("fog",))
    for rate in (1e-3, 1e-6, 1e-4, 1e-5, None):
        write_run(store, spec.with_options(lr=rate), rounds=1)
    (stream,) = group_streams(Results(tmp_path))
    assert [dict(series.specs[0].options)["lr"] for series in stream.series] == [1e-6, 1e-5, 1e-4, 1e-3, None]


def test_segmentation_report_uses_mean_iou(tmp_path):
    store, long = Store(tmp_path / "results"), "very_" * 12
    methods = ("source", "bn_adapt", "ttn", "tent", "tent+crowd", "swr", "swr+crowd")
    spec = Spec("", "scenes", long, domains=("lost", "found", long), measures=("iou", "selection"), batch_size=2)
    for method in methods:
        write_run(store, replace(spec, method=method, domains=spec.domains[1:]), rounds=2)
    write_run(store, replace(spec, method="tent"), rounds=2)
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
    descriptions = " ".join(parsed.described.values())
    assert "Mean IoU in each round" in descriptions
    assert "Share of the pixels" in descriptions
    assert "unknown objects among the known" in descriptions
    assert "closed" not in descriptions
    assert {row[1] for row in build_protocol(results, together).streams.rows} == {"within the frames"}


def test_within_domain_figure_shows_the_running_mean_iou(tmp_path):
    store, domains = Store(tmp_path / "results"), ("clean", "fog", "motion_blur")
    spec = Spec("tent", "scenes", "net", domains=domains, measures=("iou", "selection"), batch_size=2)
    for method, rounds in {"source": 1, "tent": 3, "tent+crowd": 2}.items():
        write_run(store, replace(spec, method=method), rounds=rounds)
    results = Results(store.folder)
    (figure,) = within_domain_figures(results, group_streams(results))
    rows = {cell.spec.method: cell.rows for cell in store.runs()}
    for method, name in {"source": "source @1", "tent": "tent", "tent+crowd": "tent+crowd @2"}.items():
        first, last = rows[method][-3][IOU_CURVE[0]], rows[method][-1][IOU_CURVE[-1]]
        assert f"{name} from {first:.1f} to {last:.1f}" in figure.description
    assert figure.caption.endswith("in round 3.")
    assert all(name in figure.wide and name in figure.narrow for name in ("clean", "fog", "motion blur"))


def test_ellipsized_name_keeps_its_ends_and_round(tmp_path):
    store, long = Store(tmp_path), "very_" * 12 + "own"
    spec = Spec("tent", "scenes", "net", domains=("clean", "fog"), measures=("iou", "selection"), batch_size=2)
    write_run(store, spec, rounds=2)
    write_run(store, spec.with_options(statistics=long), rounds=1)
    results = Results(tmp_path)
    for draw in (within_domain_figures, domain_figures):
        (figure,) = draw(results, group_streams(results))
        for svg in (figure.wide, figure.narrow):
            assert re.search(r"tent, [a-z_=]*…[a-z_]*own @1<", svg), "a run that stopped looks finished without it"


@pytest.mark.parametrize("second", ["fog", "x" * 70])
def test_segments_divide_a_curve_evenly(second):
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


def test_commands_are_valid(folder, page):
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


def test_commands_include_execution_options_shared_by_all_rows(tmp_path):
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


def test_commands_of_costs_select_the_task(tmp_path):
    (spec,) = (spec.with_options(trials=300) for spec in suite("table6").specs() if spec.task == "costs")
    cell = Store(tmp_path / "out").run(spec)
    with cell.locked():
        cell.write_spec(spec, {})
        cell.append([{"round": 1, "domain": "tent", "milliseconds": 7.0}], [{}])
    first, *_ = reproduction_commands(Results(tmp_path / "out"))
    assert first == "driftproof bench run table6 --rounds 1 --task costs --closed --trials 300 --out out"


def requested_runs(offered):
    """The runs that commands request, each with the maximum number of rounds."""
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


def test_commands_request_exactly_the_existing_runs(tmp_path):
    store, specs = Store(tmp_path / "out"), [spec for spec in suite("s3").specs() if spec.method != "cotta"]
    store.update_metadata({"replaced": {"cifar100-c": "svhn-c"}})
    for spec in specs:
        if spec.images == "cifar100-c":
            write_run(store, replace(spec, images="svhn-c"), rounds=2)
        elif spec.task == "costs":
            write_run(store, spec, rounds=1)
    results = Results(store.folder)
    assert requested_runs(reproduction_commands(results)[:-2]) == {cell: results.rounds(cell) for cell in results.runs}
    write_archive([store.folder], tmp_path / "kept")
    assert all(" --out kept-again" in command for command in reproduction_commands(Results(tmp_path / "kept"))[:-2])


@pytest.mark.parametrize("name", ["table6", "rules", "s2"])
def test_commands_request_each_run_with_its_rounds(tmp_path, name):
    random, store = Random(name), Store(tmp_path / "out")
    for spec in suite(name).specs():
        for seed in range(2):
            if rounds := random.choice([0, 1, 1, 3]):
                write_run(store, replace(spec, seed=seed), rounds=rounds if spec.task == "stream" else 1)
    results = Results(store.folder)
    assert requested_runs(reproduction_commands(results)[:-2]) == {cell: results.rounds(cell) for cell in results.runs}


def test_commands_are_merged(tmp_path):
    store = Store(tmp_path / "out")
    for spec in suite("rules").specs():
        far = spec.method == "tent+crowd" or (spec.method, spec.setting) == ("tent+certain", "open")
        write_run(store, spec, rounds=3 if far else 1)
    offered = reproduction_commands(Results(store.folder))[:-2]
    assert offered == [
        "driftproof bench run table1 --rounds 3 --methods tent+crowd --sets cifar10-c,cifar100-c --out out",
        "driftproof bench run rules --rounds 3 --methods tent+certain --open --out out",
        "driftproof bench run table1 --rounds 1 --methods tent --sets cifar10-c,cifar100-c --out out",
        "driftproof bench run rules --rounds 1 --methods tent+certain,tent+confident --out out",
    ]


def test_commands_of_the_demo_use_its_own_command(tmp_path):
    for seed, rounds in ((0, suite("demo").rounds), (3, 1)):
        for spec in suite("demo").specs():
            write_run(Store(tmp_path / f"demo{seed or ''}"), replace(spec, seed=seed), rounds=rounds)
    assert reproduction_commands(Results(tmp_path / "demo"))[0] == "driftproof demo"
    assert reproduction_commands(Results(tmp_path / "demo3"))[0] == "driftproof demo --rounds 1 --seed 3 --out demo3"


def test_commands_prefer_a_complete_suite(tmp_path):
    store = Store(tmp_path / "out")
    for spec in suite("endurance").specs():
        if (spec.method, spec.images) == ("tent", "cifar10-c"):
            write_run(store, spec, rounds=2)
    results = Results(store.folder)
    assert requested_runs(reproduction_commands(results)[:-2]) == dict.fromkeys(results.runs, 2)


def test_commands_assign_long_runs_to_the_suite_with_as_many_rounds(tmp_path):
    store, far = Store(tmp_path / "out"), set(suite("endurance").specs())
    for spec in suite("open_choices").specs():
        if spec.images == "cifar100-c" and spec.method in ("tent", "gce", "bn_adapt"):
            write_run(store, spec, rounds=30 if spec in far else 2)
    results = Results(store.folder)
    offered = reproduction_commands(results)[:-2]
    assert offered == [
        "driftproof bench run endurance --rounds 30 --methods gce,tent --sets cifar100-c --out out",
        "driftproof bench run open_choices --rounds 2 --methods bn_adapt,gce,tent --sets cifar100-c --out out",
    ]
    assert requested_runs(offered) == {cell: results.rounds(cell) for cell in results.runs}


def test_commands_exceed_a_suites_rounds_only_without_unfinished_runs(tmp_path):
    store = Store(tmp_path / "out")
    specs = [spec for spec in suite("camvid_rates").specs() if spec.method in ("tent", "swr")]
    (one, *_) = (spec for spec in specs if spec.method == "tent")
    for spec in specs:
        write_run(store, spec, rounds=3 if spec.method == "swr" or spec is one else 2)
    assert reproduction_commands(Results(store.folder))[:-2] == [
        "driftproof bench run camvid_rates --rounds 3 --methods swr --out out",
        "driftproof bench run camvid_rates --rounds 2 --methods tent --out out",
    ]


def test_commands_include_procedural_frost(tmp_path):
    store = Store(tmp_path / "out")
    store.update_metadata({"frost": "made up"})
    for spec in (*table_specs(), *suite("demo").specs()):
        write_run(store, spec, rounds=1)
    offered = reproduction_commands(Results(store.folder))[:-2]
    assert offered[0] == "driftproof demo --rounds 1 --out out"
    assert len(offered) > 1
    assert all(" --procedural-frost " in command for command in offered[1:])
    store.write_metadata({"frost": "photos"})
    assert not any("frost" in command for command in reproduction_commands(Results(store.folder)))


def test_streams_of_the_same_images_have_distinct_names(tmp_path):
    store, spec = Store(tmp_path / "out"), Spec("tent", "made-c", "net", domains=("fog",))
    others = [replace(spec, batch_size=8), replace(spec, model="other"), replace(spec, unknown="x-c", batch_size=8)]
    for one in (spec, *others):
        write_run(store, one, rounds=2)
    results = Results(store.folder)
    names = [stream.name for stream in group_streams(results)]
    assert len(set(names)) == len(names) == 4
    assert {finding.title for finding in stream_findings(results, group_streams(results))} == {
        "made-c, closed, net, batches of 200, 2 rounds",
        "made-c, closed, net, batches of 8, 2 rounds",
        "made-c, closed, other, 2 rounds",
        "made-c, open (x-c), net, 2 rounds",
    }
    figures = list(ANALYSES["curves"](results))
    assert sorted(name for figure in figures for name in figure.as_data()) == sorted(names)


def test_figure_data_matches_its_figure_and_title(tmp_path):
    store, spec = Store(tmp_path / "out"), Spec("tent", "made-c", "net", domains=CORRUPTIONS)
    for one in (replace(spec, batch_size=8), spec, replace(spec, unknown="x-c"), replace(spec, domains=HELD_OUT)):
        write_run(store, one, rounds=2)
    results = Results(store.folder)
    figures = list(ANALYSES["curves"](results))
    assert [figure.draw().title for figure in figures] == [
        "made-c, net, batches of 200, 15 domains from gaussian_noise to jpeg_compression",
        "made-c, net, batches of 8, 15 domains from gaussian_noise to jpeg_compression",
        "made-c, net, batches of 200, speckle_noise, gaussian_blur, spatter, saturate",
    ]
    shown = [list(figure.as_data()) for figure in figures]
    assert [len(names) for names in shown] == [2, 1, 1], "closed and open streams are panels of one figure"
    assert shown[0][1].startswith("made-c, open (x-c)")


def test_stateless_method_can_be_best_in_a_later_round(tmp_path):
    for method, errors in {"bn_adapt": [15.0], "tent": [14.0, 20.0, 30.0], "tent+crowd": [14.0, 15.0, 16.0]}.items():
        spec = Spec(method, "made-c", "net", domains=("fog",))
        cell = Store(tmp_path).run(spec)
        cell.folder.mkdir(parents=True)
        cell.write_spec(
            spec, {"scope": "nothing()" if method == "bn_adapt" else "norm_affine()", "statistics": "Batch()"}
        )
        rows = [{"round": round, "domain": "fog", "error": error} for round, error in enumerate(errors, start=1)]
        cell.append(rows, [{}] * len(rows))
    (finding,) = stream_findings(Results(tmp_path), group_streams(Results(tmp_path)))
    assert finding.sentences[-1] == "Best in the last round: bn_adapt, 15.0\u00a0%."


def test_ambiguous_domains_are_listed_in_full():
    one, other = (Spec("tent", "made-c", "net", domains=("fog", *middle, "snow")) for middle in ("abcd", "dcba"))
    assert distinguishing_fields(one, [one, other]) == ["fog, a, b, c, d, snow"]


def test_page_contains_the_table_notes(tmp_path):
    store = Store(tmp_path / "out")
    for spec in table_specs():
        if spec.unknown is None and spec.method != "tent":
            write_run(store, spec, rounds=1)
    for path in store.folder.glob("cells/tent+crowd-*/conditions.jsonl"):
        lines = [json.loads(line) | {"precision": "bf16"} for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    results, parsed = Results(store.folder), Page()
    parsed.feed(write_report(results, tmp_path / "report").read_text(encoding="utf-8"))
    notes = {sentence for table in results.tables() for sentence in table_notes(table, results)}
    assert any("Computed in bfloat16" in sentence for sentence in notes)
    assert notes <= set(parsed.sentences)


def test_page_states_that_runs_stopped_early(folder, page):
    assert any("the last common round is lower in 2 of 2" in text for text in page.sentences)
    assert any("up to 3 rounds through" in text for text in page.sentences)
    assert not any("selection.In" in text for text in page.sentences)


def printed(measured, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table_text(measured))
    return console.file.getvalue()


def test_terminal_table_shows_ours_paper_and_difference(folder):
    (table,) = (table for table in Results(folder).tables() if table.table.name == "table2")
    text = printed(table, 120)
    for method in METHODS:
        ours, theirs = np.mean(by_seed(folder, method, True, 1)), paper_value("T2_round1", method, "CIFAR-10-C/Open")
        difference = f"{ours - theirs:+.1f}".replace("-", "−")
        assert f"({theirs + 1e-9:.1f}, {difference})" in text
        assert f"{ours:.1f}" in text


def test_cosines_have_no_best(tmp_path):
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


def test_narrow_terminal_table_keeps_all_numbers(folder):
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
def test_terminal_plot_labels_each_curve_once_and_keeps_its_size(series, width, height):
    lines = plot_text(series, width=width, height=height).splitlines()
    assert len(lines) == max(height, len(series) + 2, 4)
    assert max(map(len, lines)) <= max(width, len(lines[-1]))
    labels = [line.split()[-1] for line in lines[:-2] if line.split()[-1] in series]
    assert sorted(labels) == sorted(series)


@given(st.lists(finite, min_size=2, max_size=9), st.integers(4, 20))
def test_terminal_plot_places_markers_at_values(values, height):
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


def test_terminal_plot_skips_nan():
    assert "○ tent" in plot_text({"tent": [1.0, math.nan, 3.0], "none": [math.nan]})
    assert "none" not in plot_text({"tent": [1.0], "none": [math.nan]})
    with pytest.raises(InputError, match="at least one"):
        plot_text({"tent": []})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.08))
def test_spread_labels_keeps_order_and_minimum_distance(places, spacing):
    moved = spread_labels(places, spacing)
    order = sorted(range(len(places)), key=places.__getitem__)
    for lower, upper in itertools.pairwise(order):
        assert moved[upper] - moved[lower] >= spacing - 1e-9
    if all(places[b] - places[a] >= spacing for a, b in itertools.pairwise(order)):
        assert moved == pytest.approx(places)
    assert statistics.fmean(moved) == pytest.approx(statistics.fmean(places), abs=spacing * len(places))


# Health and guard events


def write_health(folder, changes, rounds=3):
    """Write two seeds whose rows hold health; `changes` replace parts of rows, by seed, round and domain."""
    spec = Spec("tent", "x", "y", domains=("fog", "frost"))
    healthy = {"quarantined": 0, "health": "healthy", "health/looks": 5, "health/unhealthy": 0}
    for seed in (0, 1):
        visits = [(round, domain) for round in range(1, rounds + 1) for domain in spec.domains]
        rows = [make_row(spec, Random(seed), *visit) | healthy | changes.get((seed, *visit), {}) for visit in visits]
        seeded = replace(spec, seed=seed)
        run = Store(folder).run(seeded)
        run.folder.mkdir(parents=True)
        run.write_spec(seeded, {"statistics": "Batch()"})
        run.append(rows, [make_conditions(Random(seed)) for _ in rows])
    return folder


def test_health_is_reported_where_it_was_lost(tmp_path):
    changes = {
        (1, 2, "frost"): {"health/unhealthy": 1, "guard/rolled back": 1, "quarantined": 7},
        (0, 3, "fog"): {"health": "collapsed", "guard/fell back": 4, "guard/rolled back": 2},
    }
    folder = write_health(tmp_path / "store", changes)
    write_archive([folder], tmp_path / "results" / "archive")
    for results in (Results(folder), Results(tmp_path / "results" / "archive")):
        streams = group_streams(results)
        (row,) = health_table(results, streams).rows
        assert [*row[:4], row[6]] == ["tent", "x, closed", "round 2, frost", "2 of 12", "7"]
        assert {*row[4].split(", ")} == {"3 healthy", "1 collapsed"}
        assert {*row[5].split(", ")} == {"rolled back 3", "fell back 4"}
        (figure,) = round_figures(results, streams)
        assert "A cross marks" in figure.caption
        assert "(not healthy from round 2)" in figure.description
        assert f"| {' | '.join(row)} |" in render_summary([results])
    text = write_report(Results(folder), tmp_path / "report").read_text(encoding="utf-8")
    assert [text.count(f">{cell}<") for cell in ("round 2, frost", "2 of 12", "7")] == [1, 1, 1]


def test_health_section_says_when_nothing_happened_and_is_absent_without_health(tmp_path, folder, report):
    results = Results(write_health(tmp_path / "store", {}))
    assert health_table(results, group_streams(results)).rows == []
    assert "All methods stayed healthy, and no guard acted." in render_summary([results])
    assert "cross" not in round_figures(results, group_streams(results))[0].caption
    old = Results(folder)
    assert health_table(old, group_streams(old)) is None
    assert 'id="health"' not in report.read_text(encoding="utf-8")
    assert "### Health" not in render_summary([old])
