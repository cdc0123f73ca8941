"""The report: labels, means, figures, tables and the page."""

import itertools
import json
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import polars as pl
import pytest
from PIL import Image

from driftproof.bench import Spec, Store
from driftproof.bench.frames import load, read_frames
from driftproof.errors import InputError
from driftproof.report import figures, sections
from driftproof.report.figures import PALETTE, line_styles
from driftproof.report.page import ReportTable, write_report
from driftproof.report.series import label_measures, label_runs, per_domain, per_round
from driftproof.report.tables import frame_table
from rows_on_disk import run_command, visits_of, write_rows

ODD = 'odd<i>&"$x^2$"'
DOMAINS = ("fog", "snow", "frost")
STATELESS = {"scope": "nothing()", "statistics": "Source()"}
CLOSED = Spec("tent", "cifar10-c", "wrn40_2", domains=DOMAINS)
OPEN = replace(CLOSED, unknown="svhn-c")
COMMAND = "driftproof bench run 'my suite.toml' --out <here>"


def write_run(folder, spec, *, rounds, extra=0, health=(), protocol=None, **fixed):
    """Write a run with random numbers: complete rounds, and `extra` domains of the next.

    `health` names the state of each round; numbers in `fixed` replace random ones.
    """
    draw, rows = Random(spec.name), []
    for number, domain in visits_of(spec, rounds, extra):
        level = 12 + 8 * draw.random() + (7 * number if spec.method == "tent" else 0)
        row = {"round": number, "domain": domain, "batches": 4, "samples": 800, "error": level}
        row |= {"precision": draw.random(), "recall": draw.random(), "msp/auroc": 100 * draw.random(), "oscr": None}
        if spec.unknown:
            kinds = {kind: [draw.randrange(9) for _ in range(40)] for kind in ("correct", "wrong", "unknown")}
            row |= {f"histogram/confidence/{kind}": bins for kind, bins in kinds.items()}
        if health:
            row |= {"health": health[number - 1], "health/unhealthy": 0, "quarantined": 0}
            row |= {"guard/rolled back": 2} if health[number - 1] == "collapsed" else {}
        if "iou" in spec.measures:
            row |= {"mean_iou": row.pop("error"), "mean_iou@50": level / 2, "mean_iou@100": level}
        rows.append(row | fixed)
    machine = {"device": "cpu", "hardware": "some <processor>", "torch": "2.6.0", "python": "3.12.1"}
    costs = [{"seconds": draw.uniform(1, 9), "peak_memory": draw.randrange(2**28, 2**29)} for _ in rows]
    protocol = protocol or {"scope": "norm_affine()", "statistics": "Batch()"}
    write_rows(folder, spec, rows, [cost | machine for cost in costs], protocol)


def make_results(folder):
    """Closed and open streams, one or two seeds, a run that stopped early, one with special characters."""
    Store(folder).update_metadata({"limit": 800, "commands": [{"command": COMMAND, "date": "2026-11-17"}]})
    for stream in (CLOSED, OPEN):
        write_run(folder, replace(stream, method="source"), rounds=1, protocol=STATELESS, error=30.0)
        for seed in (0, 1):
            write_run(folder, replace(stream, seed=seed), rounds=3, health=("healthy", "collapsed", "drifting"))
        stopped = stream.unknown is not None
        write_run(folder, replace(stream, method="eata"), rounds=2 if stopped else 3, extra=2 * stopped)
        write_run(folder, replace(stream, method="tent+crowd"), rounds=3, health=("healthy",) * 3)
    write_run(folder, Spec(ODD, "set<b>", "net&work", domains=("a_b", "c<d>")), rounds=1)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("results"))


def label_numbers(folder):
    frames = read_frames(folder)
    return label_measures(frames.measures, label_runs(frames.runs))


@pytest.fixture(scope="module")
def numbers(folder):
    return label_numbers(folder)


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    table = ReportTable("Mine & yours", pl.DataFrame({"method": ["a<b"], "x": ["*1.5 (paper 2)"]}), "A note.")
    given = {"a.html": str(folder), "": [folder]}
    pages = [write_report(where, root / out, tables=[table]) for out, where in given.items()]
    assert [path.name for path in pages] == ["a.html", "index.html"]
    text, again = (path.read_text() for path in pages)
    assert text == again, "equal results give equal pages"
    return text


def runs_by_hand(folder):
    for home in sorted((folder / "cells").iterdir()):
        spec = Spec.from_data(json.loads((home / "spec.json").read_text())["spec"])
        rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
        yield spec, rows[: len(rows) // len(spec.domains) * len(spec.domains)]


def test_means_over_domains_and_seeds_equal_a_loop(folder, numbers):
    found = {(row["column"], row["label"], row["round"]): row for row in per_round(numbers, "error").to_dicts()}
    expected = {}
    for spec, rows in runs_by_hand(folder):
        setting = f"open ({spec.unknown})" if spec.unknown else "closed"
        for number in {row["round"] for row in rows}:
            mean = statistics.fmean(row["error"] for row in rows if row["round"] == number)
            expected.setdefault((f"{spec.images}, {setting}", spec.method, number), []).append(mean)
    for column in ("cifar10-c, closed", "cifar10-c, open (svhn-c)"):  # a stateless method goes on as it was
        expected |= {(column, "source", number): [30.0] for number in (1, 2, 3)}
    assert found.keys() == expected.keys()
    for key, means in expected.items():
        row = found[key]
        assert row["value"] == pytest.approx(statistics.fmean(means))
        assert (row["low"], row["high"], row["seeds"]) == pytest.approx((min(means), max(means), len(means)))
        assert row["deviation"] == (pytest.approx(statistics.stdev(means)) if len(means) > 1 else None)
    last = per_domain(numbers, "error").filter(label="eata", column="cifar10-c, open (svhn-c)")
    (rows,) = (rows for spec, rows in runs_by_hand(folder) if spec.method == "eata" and spec.unknown)
    assert last.select("round", "domain", "value").rows() == [(2, row["domain"], row["error"]) for row in rows[-3:]]


def test_seeds_are_averaged_by_their_mean(tmp_path):
    """Of three seeds, the median is another number."""
    for seed, error in enumerate((10.0, 20.0, 60.0)):
        write_run(tmp_path, replace(CLOSED, seed=seed), rounds=1, error=error)
    numbers = label_numbers(tmp_path)
    assert per_round(numbers, "error")["value"].to_list() == [pytest.approx(30)]
    assert per_domain(numbers, "error")["value"].to_list() == [pytest.approx(30)] * len(CLOSED.domains)


def test_labels_name_what_differs_and_order_is_the_registry(tmp_path):
    for rate in (0.1, 0.02):
        write_run(tmp_path, replace(CLOSED, options=(("lr", rate),)), rounds=1)
    for stream in (OPEN, replace(CLOSED, batch_size=64), replace(CLOSED, model="resnet50")):
        write_run(tmp_path, replace(stream, method="tent+crowd"), rounds=1)
    write_run(tmp_path, replace(CLOSED, method="source"), rounds=1)
    write_run(tmp_path, replace(CLOSED, method="my.pkg:own"), rounds=1)
    runs = label_runs(read_frames(tmp_path).runs)
    labels = runs.sort("order")["label"].unique(maintain_order=True).to_list()
    assert labels == ["source", "tent, lr=0.02", "tent, lr=0.1", "tent+crowd", "my.pkg:own"]
    assert runs["column"].unique().sort().to_list() == [
        "cifar10-c, closed, resnet50",
        "cifar10-c, closed, wrn40_2, batches of 200",
        "cifar10-c, closed, wrn40_2, batches of 64",
        "cifar10-c, open (svhn-c), wrn40_2",
    ]


def test_edited_method_is_another_row_and_edited_images_another_column(tmp_path):
    own, image_code = replace(CLOSED, method="my.pkg:own"), (("cifar10-c", "aaaaaaaa"),)
    for spec, labels, columns in (
        (CLOSED, ["tent"], {"cifar10-c, closed"}),
        (replace(own, code=((own.method, "a" * 8),)), ["tent", own.method], {"cifar10-c, closed"}),
        (replace(own, code=((own.method, "b" * 8),)), ["tent", *(f"{own.method}, code={c * 6}" for c in "ab")], None),
        (replace(CLOSED, code=image_code), None, {"cifar10-c, closed", "cifar10-c, closed #2"}),
    ):
        write_run(tmp_path, spec, rounds=1)
        runs = label_runs(read_frames(tmp_path).runs)
        assert labels is None or runs["label"].to_list() == labels
        assert columns is None or set(runs["column"]) == columns


def test_verdict_compares_methods_that_finished_on_the_same_settings(numbers):
    main = sections.main_settings(numbers)
    assert set(main["label"]) == {"source", "tent", "tent+crowd", "eata"}, "one method ran on a setting of its own"
    verdict = sections.verdict(main)
    ends = per_round(numbers, "error").filter(label="tent+crowd", round=3)["value"]
    assert verdict["best"] == "tent+crowd", "eata did not finish on the open stream"
    assert (verdict["value"], verdict["source"]) == (pytest.approx(ends.mean()), 30)
    assert verdict["settings"] == ["cifar10-c, closed", "cifar10-c, open (svhn-c)"]
    assert (verdict["rounds"], verdict["has_health"], verdict["left"], verdict["end"]) == ([3], True, None, "healthy")
    course = sections.headline_course(main)
    assert course.filter(label="eata")["round"].to_list() == [1, 2]
    assert course.filter(label="tent+crowd")["difference"][-1] == pytest.approx(ends.mean() - 30)
    assert course.filter(label="tent", round=2)["event"][0].count("collapsed, rolled back ×12") == 2


def test_unhealthy_best_method_and_folders_without_rows_are_told(tmp_path):
    write_run(tmp_path / "few", CLOSED, rounds=0)
    with pytest.raises(InputError, match="no run has written one yet"):
        write_report(tmp_path / "few", tmp_path / "page.html")
    write_run(tmp_path / "few", replace(CLOSED, method="eata"), rounds=0, extra=1)
    assert "No stream has a complete round." in write_report(tmp_path / "few", tmp_path / "page.html").read_text()
    write_run(tmp_path, replace(CLOSED, method="source"), rounds=1, protocol=STATELESS, error=50.0)
    write_run(tmp_path, CLOSED, rounds=3, health=("healthy", "collapsed", "drifting"))
    text = " ".join(write_report(tmp_path, tmp_path / "page.html").read_text().split("</header>")[0].split())
    assert "<b>tent</b> has the lowest error:" in text
    assert "It was not healthy in round 2, and drifting at the end." in text
    write_run(tmp_path, replace(CLOSED, method="eata"), rounds=3, error=60.0)
    write_run(tmp_path, replace(CLOSED, method="bn_adapt"), rounds=3, error=10.0)
    text = write_report(tmp_path, tmp_path / "page.html").read_text()
    assert "40.00 points below the source model" in text
    assert "Its health was not recorded." in text


def test_result_table_marks_best_and_early_rounds(numbers):
    table, headings = sections.result_table(numbers)
    cells = {row["method"]: row for row in table.to_dicts()}
    closed, opened = "cifar10-c, closed", "cifar10-c, open (svhn-c)"
    assert headings[opened] == ("cifar10-c", "open (svhn-c)")
    assert cells["source"][closed] == "30.00"
    assert re.fullmatch(r"\d+\.\d\d ±\d+\.\d\d", cells["tent"][closed])
    assert cells["eata"][opened].endswith(" @2")
    best = min(per_round(numbers, "error").filter(column=closed, round=3)["value"])
    assert [row[closed] for row in cells.values() if row[closed] and row[closed][0] == "*"] == [f"*{best:.2f}"]
    assert cells["tent"]["mean"] is None, "one setting has another method"
    shown = frame_table(pl.DataFrame({"method": ["x"], "a": ["*1.00 ±0.10"], "b": [2.345], "c": [None]}))
    words = [next(iter(column.cells)) for column in shown.columns[1:]]
    assert [(word.plain, str(word.style)) for word in words] == [("1.00 ±0.10", "bold"), ("2.35", ""), ("–", "")]


def test_health_table_tells_states_and_guards(numbers):
    (closed, opened) = sections.health_table(numbers).to_dicts()
    states = {"first not healthy": "round 2, fog", "at the end": "drifting"}
    assert closed == {"method": "tent", "column": "cifar10-c, closed", **states, "quarantined": 0, "rolled back": 12}
    assert opened["column"] == "cifar10-c, open (svhn-c)"
    events = sections.health_events(numbers).filter(column="cifar10-c, closed").sort("round")
    assert events.select("label", "round", "event").rows() == [("tent", 2, "collapsed, rolled back ×12")]


def test_histograms_are_shares_over_the_last_round(folder):
    frames = read_frames(folder)
    shares = sections.histogram_shares(frames.histograms.collect(), label_runs(frames.runs))
    title = "confidence of tent, cifar10-c, open (svhn-c), round 3"
    found = shares.filter(column=title, kind="wrong").sort("low")["share"].to_list()
    (rows,) = (rows for spec, rows in runs_by_hand(folder) if (spec.method, spec.seed) == ("tent", 0) and spec.unknown)
    bins = [sum(counts) for counts in zip(*(row["histogram/confidence/wrong"] for row in rows[-3:]), strict=True)]
    assert found == pytest.approx([100 * count / sum(bins) for count in bins])


def luminance(color):
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_lines_stand_out_from_light_and_dark_pages_and_each_other():
    styles = (Path(figures.__file__).parent / "templates" / "page.css").read_text()
    papers = re.findall(r"--paper: (#\w{6});", styles)
    assert len(papers) == 2
    for color, paper in itertools.product(PALETTE, papers):
        light, dark = sorted((luminance(color), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, f"WCAG asks for 3:1 of graphics, {color}"
    labels = [f"m{index}{rule}" for index in range(20) for rule in ("", "+crowd")]
    styles = [(color, tuple(dashes)) for color, dashes in line_styles(labels).values()]
    assert len(set(styles)) == len(labels)


def test_charts_are_valid_and_save_as_svg_and_png(numbers, tmp_path):
    rounds = per_round(numbers, "error").filter(column="cifar10-c, closed").with_columns(event=pl.lit("x"))
    lines = figures.line_chart(rounds.select("label", "round", "value", "low", "high", "event"), baseline=0.0)
    heat = figures.heatmap(per_domain(numbers, "error").filter(column="cifar10-c, closed"))
    for chart in (lines, heat):
        chart.to_dict(validate=True)
    figures.save(lines, tmp_path / "a.svg")
    figures.save(heat, tmp_path / "b.png")
    text = (tmp_path / "a.svg").read_text()
    assert all(f">{label}<" in text for label in ("source", "tent", "tent+crowd", "round"))
    nothing = figures.line_chart(rounds.select("label", "round", "value", event=pl.lit(None, pl.String)))
    assert "event" not in json.dumps(figures.to_spec(nothing)["datasets"]), "else hovering would show a null"
    with Image.open(tmp_path / "b.png") as image:
        assert image.width > 1000
    with pytest.raises(Exception, match=r"ends with \.svg or \.png"):
        figures.save(heat, tmp_path / "b.pdf")


def test_long_streams_are_thinned_and_say_so(folder, numbers, tmp_path, page, monkeypatch):
    whole = sections.domain_course(numbers)
    monkeypatch.setattr(sections, "MAX_POINTS", whole.height // 2 + 1)
    thin = sections.domain_course(numbers)
    assert whole.filter((pl.col("round") - 1) % 2 == 0).equals(thin)
    drawn = write_report(folder, tmp_path / "page.html").read_text()
    assert ('"domains seen"' in page, '"domains seen, one round in 2"' in drawn) == (True, True)
    assert "one round in" not in page
    assert whole.filter(label="eata", column="cifar10-c, closed")["position"].to_list() == list(range(1, 10))


def test_segmentation_is_drawn_within_domains(tmp_path):
    write_run(tmp_path, replace(CLOSED, measures=("iou",)), rounds=1)
    numbers = label_numbers(tmp_path)
    assert sections.domain_course(numbers)["position"].to_list() == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert sections.primary_measure(numbers) == ("mean_iou", "mean IoU", False)
    assert "highest mean IoU" in write_report(tmp_path, tmp_path / "a.html").read_text()
    write_run(tmp_path, replace(CLOSED, images="cifar100-c"), rounds=1)
    both = write_report(tmp_path, tmp_path / "a.html").read_text()
    assert "lowest error" in both
    for name in ("table-results-0", "table-results-1", "domains-0", "domains-scenes-0"):
        assert f'id="{name}"' in both


def test_page_is_one_file_with_everything_escaped(page, numbers):
    assert len(page.encode()) < 3e6
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", outside)
    assert "<h2>Mine &amp; yours</h2>" in outside
    assert "a&lt;b" in outside
    assert "1.5 (paper 2)" in outside
    assert "driftproof bench run &#39;my suite.toml&#39; --out &lt;here&gt;  # 2026-11-17" in outside
    assert "Only the first 800 images of each domain." in outside
    assert "some &lt;processor&gt;" in outside
    for name in ("results", "rounds", "stream", "domains", "selection", "novelty", "health", "costs", "protocol"):
        assert f'<section id="{name}">' in outside
    assert not any(name in page for name in (ODD, "set<b>", "c<d>"))
    (charts,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', page)
    specs = json.loads(charts)["specs"]
    rows = [row for spec in specs.values() for data in spec["datasets"].values() for row in data]
    assert {ODD, "tent", "tent+crowd"} <= {row.get("label") for row in rows}
    (rows, *_) = specs["rounds-0"]["datasets"].values()
    expected = per_round(numbers, "error").filter(column="cifar10-c, closed")
    assert [row["value"] for row in rows] == expected["value"].round(2).to_list()


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_missing_package_is_named(folder, tmp_path, monkeypatch, capsys, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert run_command("bench", "report", folder, "--out", tmp_path / "page.html") == 2
    assert "pip install 'driftproof[report]'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_command_writes_page_and_rows(folder, tmp_path, capsys, kind):
    rows = tmp_path / f"rows.{kind}"
    assert run_command("bench", "report", folder, "--out", tmp_path / "p.html", "--rows", rows) == 0
    assert capsys.readouterr().out.split() == [str(rows), str(tmp_path / "p.html")]
    read = pl.read_csv(rows, schema=load(folder).schema) if kind == "csv" else pl.read_parquet(rows)
    assert read.equals(load(folder))
