"""Every number in README and docs is in the rows, in the code, or checked word for word by another test.

Numbers between `<!-- results:… -->` comments, and pages that are written anew from rows, are compared elsewhere. For
all others this test asks where they come from: `SOURCES` names the results, and the code for settings, of each page. A
number that is a wrong one of the right table is noticed only where it is quoted word for word.
"""

import importlib
import itertools
import json
import re
import sys
from bisect import bisect_left
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest

import driftproof as dp
from driftproof.bench import load

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
sentinel_page = importlib.import_module("sentinel_page")

WRITTEN = {"docs/leaderboard.md"}
"""Pages that a test writes anew and compares."""

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"(?<![\w.,^@-])[−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\d]|\.\d|\w*-[\w-])")
MEASURED = re.compile(r"\s?(?:to [\d.]+\s?)?(?:%|points?|times|ms|MiB)\b|\s?%")
"""What follows a number that was measured, however small it is."""

SOURCES = {
    "README.md": [
        "docs/leaderboard.md", "results/novelty/novelty.md", "results/packages/packages.md", "pyproject.toml",
        "results/speed/limits/ratios.md", "src/driftproof/methods/*.py",
    ],
    "docs/benchmarking.md": ["src/driftproof/cli/bench_run.py"],
    "docs/choosing.md": ["src/driftproof/health*.py", "docs/leaderboard.md", "docs/sentinel.md"],
    "docs/command-line.md": ["src/driftproof/cli/*.py"],
    "docs/novelty.md": [
        "results/novelty/novelty.md", "results/novelty/unknown-*/novelty.md", "results/alarms/*.md",
        "src/driftproof/alarm/*.py",
    ],
    "docs/data.md": ["results/corruptions/*.md", "src/driftproof/data/*.py", "src/driftproof/corruptions/*.py"],
    "docs/demo.md": ["results/demo/rate.md"],
    "docs/driving.md": [
        "docs/sentinel.md", "src/driftproof/data/scenes/*.py", "src/driftproof/paper/*.py",
        "src/driftproof/training/*.py",
    ],
    "docs/faq.md": ["src/driftproof/health*.py", "src/driftproof/problems/*.py"],
    "docs/index.md": ["src/driftproof/problems/*.py", "src/driftproof/adapter/state_*.py"],
    "docs/interoperability.md": ["src/driftproof/adapter/unwrap.py"],
    "docs/methods.md": ["src/driftproof/methods/*.py"],
    "docs/production.md": ["src/driftproof/monitor/*.py", "benchmarks/soak*.py"],
    "docs/reproducing.md": ["src/driftproof/paper/*.py"],
    "docs/safety.md": [
        "results/safety/safety.md", "results/safety/learning.md", "results/safety/without-batch-norm*.json",
        "results/guards/guards.md",
        "results/speed/health/*.md", "src/driftproof/health*.py", "src/driftproof/guards.py",
        "src/driftproof/statistics/*.py",
        "results/sentinel/layer-norm*.json",
        "src/driftproof/methods/adapt.py", "benchmarks/guard*.py", "src/driftproof/adapter/watch.py",
    ],
    "docs/security.md": ["results/fuzz/fuzz.md", "benchmarks/poisoning*.py", "src/driftproof/statistics/auto.py"],
    "docs/sentinel.md": [
        "results/sentinel/*.md", "results/sentinel/*.json*", "results/sentinel/*/", "results/sentinel/scenes/*/*.json*",
        "results/sentinel/members/*.json",
        "docs/leaderboard.md", "src/driftproof/methods/sentinel.py", "src/driftproof/detectors.py",
    ],
    "docs/serving.md": [
        "src/driftproof/serve/*.py", "src/driftproof/cli/serve.py", "src/driftproof/cli/exit*.py",
        "results/serve/serve.md",
    ],
    "docs/speed.md": ["results/speed/limits/*.md", "results/step/step.md", "benchmarks/agreement.py"],
    "docs/vit.md": [
        "results/sentinel/layer-norm*.json", "results/safety/without-batch-norm*.json", "src/driftproof/methods/*.py",
    ],
}  # fmt: skip
"""Where the numbers of a page are to be found: rows as they were archived, and the code that has a setting."""

ELSEWHERE = {
    "README.md": [
        r"from \d+ to \d+ % to \d+ to \d+ %, and \d+ to \d+ % of",  # test_demo
        r"\d+ of \d+(?=[;,])", r"\*\*\d+ methods behind",  # test_public_surface
    ],
    "docs/demo.md": [
        r"flagged \d+ % of the garments and \d+ % of the bags", r"Of \d+ batches, \d+ had a step",  # test_demo
        r"[\d.]+ to [\d.]+ % of the garments", r"loses \d+ to \d+ points",
        r"rejected \d+ % of the bags and \d+ % of the garments",
    ],
    "docs/novelty.md": [
        r"[\d.]+ to [\d.]+ % of the garments", r"[\d.]+ to [\d.]+ %(?=\s+after clean garments)",  # test_demo
        r"There \d+ % of all rates",  # test_alarm_benchmarks
    ],
    "docs/interoperability.md": [
        r"in \d+ of \d+ rows", r"is [\d.]+ points below", r"up to \d+ points below",  # test_security_pages
    ],
    "docs/reproducing.md": [r"\| \d+ \| [\d.]+ \|", r"took [\d.]+ hours"],  # test_public_surface
    "docs/safety.md": [
        r"In \d+ of \d+ rows \(\d+ streams", r"and to \d+ % on clean images sorted by class, where ` keeps \d+ %",
    ],
    "docs/serving.md": [r"uploads, all refused by name \| \d+", r"99 % within \d+ ms", r"and \d+ ms where"],
}  # fmt: skip
"""Words with numbers that another test compares with the rows."""

GIVEN = {
    "README.md": [r"about 22 \|", "1e-6 to 1e-5", "1e-4, the default there"],
    "docs/benchmarking.md": ["with ` only 200 images"],
    "docs/choosing.md": ["the 100 classes of"],
    "docs/novelty.md": ["accepts 95 %", "the 95 % quantile of"],
    "docs/demo.md": ["lost only 8 points"],  # in rows that are no longer here
    "docs/driving.md": ["−0.2", r"more than 0\.2", "10, 100 and 1000 times", "quality 88"],
    "docs/glossary.md": ["50 % is chance", "accepts 95 %"],
    "docs/index.md": ["the paper uses 200 images"],
    "docs/interoperability.md": ["batches of 200 and 16"],
    "docs/methods.md": [r"arXiv 2608\.19890"],
    "docs/production.md": ["the state after 40 batches"],
    "docs/reproducing.md": ["64 × 64", "the paper's 5,000", "50 rounds", "round 50"],
    "docs/safety.md": ["more than 45 % of its predictions", "every 130 images"],
    "docs/security.md": [r"reads 100,000", "48 batches", "at most 60 %"],
    "docs/sentinel.md": [
        "30 % of the batch, 70 %", "1e-3", r"\| 97 \|", r"\| 85 \|", r"missed by [\d.]+",
        "more than about 3,000 batches", "after 25 epochs", "trained for 60 epochs",
    ],
    "docs/serving.md": ["8388608"],  # test_serve_docs compares the limits with the code
    "docs/speed.md": ["the first 44 of them", "19 bits", "32 to 128 channels", r"takes 1\.29 times"],
    "docs/vit.md": ["batches of 16"],
}  # fmt: skip
"""Numbers that nobody here measured: of papers and of other projects, of an example, or what a word means."""


BN_ADAPT = {
    (row["set"], row["stream"]): row["errors"]["bn_adapt"]
    for row in map(json.loads, (ROOT / "results/sentinel/research-4.jsonl").read_text().splitlines())
    if row["kind"] == "sentinel"
}
"""Errors of BN Adapt on held-out corruptions, by images and stream."""

BY_HAND = {
    "docs/novelty.md": [r"more than 35 % are unknown", r"fewer than 15 % are"],
    "docs/safety.md": [
        r"the cap is below 0\.21", r"in all \d+ of WRN-40-2, and in \d+ of a small network", r"all \d+ rows held",
    ],
    "docs/sentinel.md": [
        r"\| [\d.]+ \| [12]\.\d\d \| \d+ \|", r"(?<=\| )[−\d.]+(?= \| (met|missed|\d+ \| [\d,]+)? ?\|)",
    ],
}  # fmt: skip
"""Sums, ratios and differences of numbers beside them, which nothing computes again."""


def quote(page: str) -> list[str]:
    """Return words of a page with numbers that follow from rows in another way than by rounding."""
    if page == "README.md":
        networks = json.loads((ROOT / "results/safety/safety.json").read_text())["networks"]
        losses = sorted(row["source"] - row["adapt"] for rows in networks.values() for row in rows.values())
        safe = sum(loss <= 1 + 1e-4 for loss in losses)  # accuracies were computed in single precision
        rows = f"| {safe} of {len(losses)}; the worst is {losses[-1]:.1f} points below"
        return [f"| driftproof | {len(dp.methods.__all__)} |", rows, *curves(), default_ranges()]
    if page == "docs/index.md":
        return curves()
    if page == "docs/choosing.md":
        networks = json.loads((ROOT / "results/safety/safety.json").read_text())["networks"]
        return [f"all {sum(map(len, networks.values()))} rows"]
    if page == "docs/novelty.md":
        return [*novelty_words(), *alarm_words(), *alarm_rates()]
    if page == "docs/safety.md":
        return damage_words()
    if page == "docs/speed.md":
        return speed_words()
    if page == "docs/sentinel.md":
        return sentinel_words()
    if page == "docs/vit.md":
        return transformer_words()
    if page == "docs/faq.md":
        tables = (ROOT / "results/architectures").glob("*/architectures.json")
        counts = sum((Counter(json.loads(table.read_text())["counts"]["eager"]) for table in tables), Counter())
        return [f"lists {counts.total()} architectures, of which {counts['adapted']} take steps"]
    return []


def novelty_words() -> list[str]:
    """Return what is said about the default scores."""
    page, start = (ROOT / "results/novelty/novelty.md").read_text(), "## cifar10-c, round 1: "
    ranked = cell(page, f"{start}AUROC, unknown against all known", "centered_cosine_entropy", "bn_adapt")
    passed = cell(page, f"{start}FPR@TPR95, unknown against all known", "centered_cosine_entropy", "bn_adapt")
    assert 1 / 6.5 < 1 - ranked / 100 < 1 / 5.5
    return [
        f"{ranked:.0f} % means that one in six pairs",
        f"{passed:.0f} % of the unknown ones pass",
    ]


def default_ranges() -> str:
    """Return what is said about the default score's AUROC: the least and the most of all methods and rounds."""
    page, ranges = (ROOT / "results/novelty/novelty.md").read_text(), []
    for images in ("cifar10", "cifar100"):
        starts = [f"## {images}-c, round {number}: AUROC, unknown against all known" for number in (1, 5)]
        blocks = [split_table(page.partition(start)[2].partition("\n## ")[0]) for start in starts]
        lines = [line for block in blocks for line in block if line[0] == "centered_cosine_entropy"]
        found = [float(value) for _, *values, _ in lines for value in values]
        ranges.append(f"{min(found):.0f} to {max(found):.0f} %")
    return f"its AUROC is {ranges[0]} on CIFAR-10-C and {ranges[1]} on CIFAR-100-C, by method"


def cell(page: str, start: str, row: str, column: str) -> float:
    """Return a number of the first table after a heading; where a method has none, that of `bn_adapt`."""
    heads, *lines = split_table(page.partition(start)[2].partition("\n## ")[0])
    (line,) = (line for line in lines if line[0] == row)
    found = line[heads.index(column)] if column in heads else "–"
    return float(line[heads.index("bn_adapt")] if found == "–" else found)


def alarm_words() -> list[str]:
    """Return what is said about the rate of false alarms under batch statistics."""
    shares = {}
    for first in ("", "-known-first"):
        for row in json.loads((ROOT / f"results/alarms/alarms-five{first}.json").read_text())["rows"]:
            found = [each["known"] for each in row["domains"].values()][-5:]
            shares[row["score"], row["stream"], row["alarm"], row["rate"]] = found
    rates = (0.01, 0.02, 0.05, 0.1)
    first, start = "2,000 known images first", "unknown images from the start"
    cells = {
        "the stream | known only": ("the stream", "known only"),
        **{
            f"the stream, {when} | {share} unknown": ("the stream", f"{share} unknown{name}")
            for when, name in ((first, ", known first"), (start, ""))
            for share in ("a tenth", "half")
        },
        **{
            f"images of training | {stream}": ("source images", stream)
            for stream in ("known only", "a tenth unknown", "half unknown")
        },
        **{f"other source images | {stream}": ("new images", stream) for stream in ("known only", "half unknown")},
    }

    def count_near(alarm: str, stream: str, rate: float) -> int:
        return sum(rate / 1.5 <= share <= 1.5 * rate for share in shares["default", stream, alarm, rate])

    counts = {label: [count_near(*cell, rate) for rate in rates] for label, cell in cells.items()}
    fixed = [
        share / rate
        for (score, _, alarm, rate), found in shares.items()
        for share in found
        if score == "default" and alarm.endswith("fixed")
    ]
    unknown = [shares[score, "half unknown", "source images", 0.05] for score in ("msp", "energy")]
    contrast = [100 * shares["default", "known only", "source images", rate][3] for rate in rates]
    late = [0.05 / share for share in shares["default", "half unknown", "the stream", 0.05]]
    blur = 100 * shares["default", "half unknown, known first", "the stream", 0.05][1]
    assert all(found[2:] == [5, 5] for label, found in counts.items() if label.startswith("images of training"))
    return [
        *(f"| {label} | {' | '.join(map(str, found))} |" for label, found in counts.items()),
        "{:.1f} and {:.1f} % are flagged".format(*contrast),
        *(f"flags {100 * min(found):.0f} to {100 * max(found):.0f} %" for found in unknown),
        f"flags {min(fixed):.1f} to {max(fixed):.0f} times too",
        f"{min(late):.1f} to {max(late):.1f} times too few where 5 %",
        f"{blur:.1f} % of glass blur's",
    ]


def alarm_rates() -> list[str]:
    """Return the rows of known images flagged where 5 % were asked for, and of the mean share of unknown ones."""

    def show(file: str, alarm: str, stream: str) -> str:
        rows = json.loads((ROOT / f"results/alarms/{file}.json").read_text())["rows"]
        wanted = ("default", alarm, stream, 0.05)
        (row,) = (row for row in rows if (row["score"], row["alarm"], row["stream"], row["rate"]) == wanted)
        found = list(row["domains"].values())[-5:]
        known, unknown = ([each[kind] for each in found] for kind in ("known", "unknown"))
        flagged = "" if None in unknown else f" ({100 * fmean(unknown):.0f})"
        return f"{100 * min(known):.1f} to {100 * max(known):.1f}{flagged}"

    first = "half unknown, known first"
    cells = [("the stream", stream) for stream in ("known only", first, "half unknown")]
    cells += [("source images", stream) for stream in ("known only", "half unknown")]
    methods = [f"alarms-five{method}" for method in ("", "-adapt", "-source")]
    rows = [
        [show(method + "-known-first" * (stream == first), alarm, stream) for method in methods]
        for alarm, stream in cells
    ]
    known, _, unknown = show("alarms-five-sentinel-known-first", "the stream", first).rstrip(")").partition(" (")
    learned = f"{known} % of the known images are flagged where 5 % were asked for, and {unknown} % of the unknown"
    return [*(f"| {' | '.join(found)} |" for found in rows), learned]


def damage_words() -> list[str]:
    """Return what is said about damage that health does not see: means over the corruptions of a round."""
    folder = ROOT / "results/leaderboard/cifar10"
    whole = pl.col("limit").is_null() & pl.col("unknown").is_not_null() & (pl.col("batch_size") == 200)
    runs = pl.read_parquet(folder / "runs.parquet").filter(whole).select("run", "method")
    means = pl.read_parquet(folder / "measures.parquet").join(runs, on="run").pivot(
        on="measure", index=["run", "method", "round"], values="value", aggregate_function="mean"
    )  # fmt: skip
    later = means.filter(pl.col("round") == 5)
    (worse,), (good,) = (later.filter(pl.col("method") == name).to_dicts() for name in ("paf_kip", "tent+unient"))
    (before,) = means.filter((pl.col("run") == worse["run"]) & (pl.col("round") == 4)).to_dicts()
    (source,) = means.filter(pl.col("method") == "source")["error"].to_list()
    calm = means.filter(
        (pl.col("error") < source) & (pl.col("health/unhealthy") == 0) & (pl.col("health/distance") > 0)
    )
    usual = [100 * calm["health/disagreement"].min(), 100 * calm["health/disagreement"].max()]
    assert worse["health/disagreement"] < usual[1] / 100
    assert before["health/distance"] < good["health/distance"]
    return [
        f"rose to {worse['error']:.1f} %, the source network's being {source:.1f} %",
        f"{100 * worse['health/disagreement']:.0f} % of its predictions differ from the frozen network's",
        "runs that do well ({:.0f} to {:.0f} %)".format(*usual),
        f"keeps {100 * worse['health/mean_entropy_ratio']:.0f} % of its entropy",
        f"stands out: {worse['health/distance']:.1f}, and {before['health/distance']:.2f} a round earlier at "
        f"{before['error']:.1f} %",
        f"moved by {good['health/distance']:.2f} after five rounds and is at {good['error']:.1f} %",
    ]


def speed_words() -> list[str]:
    """Return what is said about the times with health."""
    page = (ROOT / "results/speed/limits/ratios.md").read_text()
    health = [
        100 * float(ratio) - 100 for ratio in re.findall(r"with health / without, both captured \| ([\d.]+)", page)
    ]
    times = re.findall(r"graph tent\+crowd: ([\d.]+) ms; on an H200 at most ([\d.]+) ms", page)
    return [
        "Health costs about {} % of a captured step".format(" to ".join(sorted({f"{cost:.0f}" for cost in health}))),
        "{} ms in TF32 (at most {}) and {} ms in bf16 (at most {})".format(*itertools.chain(*times)),
    ]


def sentinel_words() -> list[str]:
    """Return what is said about the sentinel on another network, its cheapest form and its cost."""
    rows = load(ROOT / "results/sentinel/streams").filter(
        (pl.col("stream") == "tiny-imagenet-c") & (pl.col("setting") == "closed") & (pl.col("measure") == "error")
    )
    errors = {(row["method"], row["domain"]): row["value"] for row in rows.iter_rows(named=True)}
    better = [place for place, error in errors.items() if error < errors["bn_adapt", place[1]]]
    assert sum(method == "sentinel" for method, _ in better) == 9
    corruptions = {"impulse_noise": "impulse noise", "contrast": "contrast", "defocus_blur": "defocus blur"}
    ours, theirs = ({name: errors[method, name] for name in corruptions} for method in ("sentinel", "bn_adapt"))
    kept = []
    for row in map(json.loads, (ROOT / "results/sentinel/research-17.jsonl").read_text().splitlines()):
        if row["choice"]["name"] == "gentle_early":
            (start,) = BN_ADAPT[row["set"], row["stream"]]
            whole, cheap = (start - row["errors"][answer][-1] for answer in ("lyfk", "lfk"))
            kept.append(100 * cheap / whole)
    cost = json.loads((ROOT / "results/sentinel/cost.json").read_text())
    ratio, least, memory = (cost["sentinel"][name] / cost["tent+crowd"][name] for name in ("ms", "ms_min", "peak_mib"))
    variants = json.loads((ROOT / "results/sentinel/cost-variants.json").read_text())
    three = variants["early late three"]["ms"] / variants["tent+crowd"]["ms"]
    return [
        f"a step takes {three:.2f} times as long",
        *(f"{words} ({ours[name]:.2f} against {theirs[name]:.2f})" for name, words in corruptions.items()),
        f"keeps {min(kept):.0f} to {max(kept):.0f} %",
        f"| 2.2 | {ratio:.3f} | {'met' if ratio <= 2.2 else 'missed'}",
        f"{least:.3f} between the fastest trials",
        f"| 1.3 | {memory:.2f} | met |",
    ]


def transformer_words() -> list[str]:
    """Return what is said about `adapt` without batch norm in clean, sorted and small-batch streams."""
    files = sorted((ROOT / "results/safety").glob("without-batch-norm-orders-*.json"))
    rows = [row for path in files for row in json.loads(path.read_text())["rows"].values()]
    changes = [accuracy - row["source"] for row in rows for accuracy in row["adapt"]]
    return [
        f"In {len(rows)} other streams",
        f"at worst {-min(changes):.2f} points of accuracy below the same two transformers",
        f"at best {max(changes):.2f} above",
    ]


def curves() -> list[str]:
    """Return what the picture of fifty rounds shows, as its alternative text says it."""
    recorded = json.loads((ROOT / "src/driftproof/demo/recorded.json").read_text())["curves"]
    tent, crowd = (recorded[name][-1] for name in ("tent", "tent+crowd"))
    return [f"TENT rises to {tent:.0f} %, TENT with selection stays near {crowd:.0f} %"]


def read_claims(page: str) -> str:
    """Return what a page says itself, without code, addresses and what is filled in from rows."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(
        r"<!-- (results|poisoning): ?[^>]*-->.*?<!-- (/results|poisoning: end) -->", "", text, flags=re.DOTALL
    )
    text = re.sub(r"`[^`\n]*`", "`", text)
    text = re.sub(r"\]\([^)]*\)|https?://\S+|^\d\. ", "]", text, flags=re.MULTILINE)
    for words in map(re.escape, quote(page)):
        text, count = re.subn(words.replace(r"\ ", r"\s+"), "", text)
        assert count, f"{page} does not say: {words}"
    for words in [*ELSEWHERE.get(page, []), *GIVEN.get(page, []), *BY_HAND.get(page, [])]:
        text = re.sub(words if "(?" in words else words.replace(" ", r"\s+"), "", text)
    return text


def read_number(text: str) -> tuple[float, int]:
    """Return a number and how many digits follow its point."""
    plain = text.replace(",", "").replace("−", "-")
    return float(plain), len(plain.partition(".")[2]) if "e" not in plain else 9


def iter_numbers(path: Path):
    """Yield the numbers of a file as they are written, and the means over domains of rows."""
    if path.is_dir():
        means = load(path).drop_nulls("value").group_by("run", "round", "measure").agg(pl.col("value").mean())
        yield from (f"{value:.3f}" for value in means["value"])
        return
    text = path.read_text(encoding="utf-8")
    yield from re.findall(r"(?<![\w.])[−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?", text.replace("_", ""))
    if path.suffix == ".jsonl" and '"round"' in text:
        rows = [row for row in map(json.loads, text.splitlines()) if "round" in row]
        for number in {row["round"] for row in rows}:
            those = [row for row in rows if row["round"] == number]
            for name, value in those[0].items():
                if isinstance(value, float):
                    yield f"{fmean(row[name] for row in those):.3f}"


@cache
def known_numbers(page: str) -> dict[int, list[float]]:
    """Return the numbers of a page's sources by how many digits follow the point, sorted."""
    found: dict[int, set[float]] = {}
    for pattern in SOURCES.get(page, []):
        paths = [path for path in ROOT.glob(pattern) if path.is_file() or (path / "measures.parquet").exists()]
        assert paths, f"{pattern}, a source of {page}, is not there"
        for word in itertools.chain.from_iterable(map(iter_numbers, paths)):
            value, digits = read_number(word)
            found.setdefault(digits, set()).add(abs(value))
    return {digits: sorted(values) for digits, values in found.items()}


def is_known(page: str, word: str) -> bool:
    """Whether a number, or one that is rounded to it, is in the sources of a page. Small integers are not rounded."""
    value, digits = read_number(word)
    for given, numbers in known_numbers(page).items():
        is_rounded = given > digits and (digits or abs(value) >= 100)
        slack = 1e-9 + (0.5 * 10.0**-digits if is_rounded else 0)
        place = bisect_left(numbers, abs(value) - slack)
        if place < len(numbers) and numbers[place] <= abs(value) + slack:
            return True
    return False


def find_numbers(text: str):
    """Yield every number that says something: all with a point, a unit or more than one digit."""
    for match in NUMBER.finditer(text):
        word = match.group()
        is_year = re.fullmatch(r"20\d\d", word)
        if not is_year and (len(word) > 1 or MEASURED.match(text, match.end())):
            yield word, " ".join(text[max(0, match.start() - 40) : match.end() + 30].split())


def split_table(text: str) -> list[list[str]]:
    return [[each.strip("* ") for each in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_tables_of_novelty_scores_show_the_rows():
    """Cells are AUROCs of round 1, and of round 5 where they differ. The frozen network's are alike for all methods."""
    results, compared = (ROOT / "results/novelty/novelty.md").read_text(), 0
    for block in re.split(r"\n\n", (ROOT / "docs/novelty.md").read_text()):
        heads, *rows = split_table(block) or [[]]
        methods = [re.fullmatch(r"(?:(CIFAR-100?-C): )?`([\w+]+)`", head) for head in heads[1:]]
        if not methods or not all(methods):
            continue
        for row in rows[1:]:
            images = "camvid-c"
            for match, shown in zip(methods, row[1:], strict=True):
                images = images if match[1] is None else match[1].lower().replace("-", "", 1)
                if not shown:
                    continue
                starts = [f"## {images}, round {number}: AUROC, unknown against all known\n" for number in (1, 5)]
                (score,) = re.findall(r'"(\w+)"', row[0])
                values = [cell(results, start, score, match[2]) for start in starts]
                quoted = (list(map(float, shown.split(" → "))) * 2)[:2]
                assert quoted == pytest.approx(values, abs=0.0551), (images, score, match[2])
                compared += 1
    assert compared > 60


def test_what_centering_does_with_few_unknown_images_is_that_of_the_rows():
    table = (ROOT / "docs/novelty.md").read_text().partition("**Why subtract a mean.**")[2].partition("On CamVid")[0]
    folders = {"50 %": "", "10 %": "unknown-0.1/", "2 %": "unknown-0.02/"}
    for share, *shown in split_table(table)[2:]:
        page = (ROOT / f"results/novelty/{folders[share]}novelty.md").read_text()
        assert list(map(float, shown)) == [
            cell(page, f"## {images}-held-out, round 1: AUROC, unknown against all known", score, "bn_adapt")
            for images in ("cifar10", "cifar100")
            for score in ("cosine_entropy", "centered_cosine_entropy")
        ]


def test_errors_of_a_transformer_are_those_of_the_rows():
    rows: dict[str, list[float]] = {}
    for path in sorted((ROOT / "results/sentinel").glob("layer-norm*.json")):
        for name, found in json.loads(path.read_text())["rows"].items():
            if name.endswith(", closed"):
                rows.setdefault(name.removesuffix(", closed"), [row["error"] for row in found])
    names = ["source", "adapt", "adapt, as with batch norm", "tent+crowd", "sentinel"]
    by_round, _, choices = (
        (ROOT / "docs/vit.md").read_text().partition("## What was measured")[2].partition("Nothing is")
    )
    for name, line in zip(names, split_table(by_round)[2:], strict=True):
        assert [float(each) for each in line[1:]] == (rows[name] * 3)[:3]
    files = [ROOT / f"results/safety/without-batch-norm-{part}.json" for part in ("0", "0-pairs", "1", "1-pairs")]
    last = [
        {name: found[-1]["error"] for name, found in json.loads(path.read_text())["rows"].items()} for path in files
    ]
    choices, _, strong = choices.partition("The chosen one")
    shown = split_table(choices)[2:]
    for line in shown:
        rate, pull, answer = line[0].strip("*").partition(":")[0].split(", ") if "," in line[0] else ("", "", "")
        mean = ", mean of both networks" if answer == "mean" else ""
        name = f"rate {float(rate):g}, pull {float(pull):g}{mean}, closed" if rate else "source, closed"
        assert [float(each) for each in line[1:]] == [found[name] for found in last]
    assert len(shown) == 7
    files = [ROOT / f"results/safety/without-batch-norm-strong-{seed}.json" for seed in (0, 1)]
    found = [json.loads(path.read_text())["rows"] for path in files]
    for name, line in zip(names, split_table(strong)[2:], strict=True):
        assert [float(each) for each in line[1:]] == [rows[f"{name}, closed"][-1]["error"] for rows in found]


def test_rounds_of_the_sentinel_are_those_of_the_rows(tmp_path):
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "sentinel_page.py" in line)
    page = tmp_path / "sentinel.md"
    page.write_text((ROOT / "docs/sentinel.md").read_text())
    rows = sentinel_page.average(load(ROOT / line.split()[-3]))
    sentinel_page.fill(page, [*sentinel_page.format_rounds(rows), *sentinel_page.format_seeds(rows)])
    assert page.read_text() == (ROOT / "docs/sentinel.md").read_text(), "`make results`"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WRITTEN])
def test_numbers_come_from_rows_or_code(page):
    strange = [
        f"{word}: … {context} …" for word, context in find_numbers(read_claims(page)) if not is_known(page, word)
    ]
    assert not strange, f"in none of {SOURCES.get(page)}:\n" + "\n".join(strange)


def test_readme_quotes_the_sentinels_fiftieth_round():
    readme = " ".join((ROOT / "README.md").read_text().split())
    means = sentinel_page.average(load(ROOT / "results" / "sentinel" / "earlier-default"))
    ten, hundred = (means[name, "open", 0, 50] for name in ("cifar10-c", "cifar100-c"))
    scores = f"{ten['novelty/auroc']:.1f} % and {hundred['novelty/auroc']:.1f} %"
    assert f"(`dp.sentinel` with an earlier default, in the fiftieth round: {scores})" in readme
    row = "[`dp.sentinel`](docs/sentinel.md), with an earlier default"
    assert f"{row} | {ten['error']:.1f} % |" in readme
    assert f"dp.sentinel at {ten['error']:.1f} %]" in readme
