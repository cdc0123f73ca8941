"""Every number in README and docs is in the rows, in the code, or checked word for word by another test.

Numbers between `<!-- results:… -->` comments, and pages that are written anew from rows, are compared elsewhere. For all
others this test asks where they come from: `SOURCES` names the results, and the code for settings, of each page.
"""

import itertools
import json
import re
from bisect import bisect_left
from functools import cache
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest

import driftproof as dp
from driftproof.bench import load

ROOT = Path(__file__).parents[1]
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
    "docs/choosing.md": ["src/driftproof/health*.py"],
    "docs/command-line.md": ["src/driftproof/cli/*.py"],
    "docs/concepts.md": ["results/novelty/novelty.md", "results/alarms/*.md", "src/driftproof/alarm/*.py"],
    "docs/data.md": ["results/corruptions/*.md", "src/driftproof/data/*.py", "src/driftproof/corruptions/*.py"],
    "docs/driving.md": ["src/driftproof/data/scenes/*.py", "src/driftproof/paper/*.py", "src/driftproof/training/*.py"],
    "docs/faq.md": ["src/driftproof/health*.py", "src/driftproof/problems/*.py"],
    "docs/index.md": ["src/driftproof/problems/*.py", "src/driftproof/adapter/state_*.py"],
    "docs/interoperability.md": ["src/driftproof/adapter/stream_statistics.py"],
    "docs/methods.md": ["src/driftproof/methods/*.py"],
    "docs/production.md": ["src/driftproof/monitor/*.py", "benchmarks/soak*.py"],
    "docs/reproducing.md": ["src/driftproof/paper/*.py"],
    "docs/safety.md": [
        "results/safety/safety.md", "results/safety/earlier/safety.md", "results/guards/guards.md", "results/speed/health/*.md",
        "src/driftproof/health*.py", "src/driftproof/guards.py", "src/driftproof/statistics/*.py",
        "src/driftproof/methods/adapt.py", "benchmarks/guard*.py", "src/driftproof/adapter/watch.py",
    ],
    "docs/security.md": ["results/fuzz/fuzz.md", "benchmarks/poisoning*.py", "src/driftproof/statistics/auto.py"],
    "docs/sentinel.md": [
        "results/sentinel/*.md", "results/sentinel/*.json*", "results/sentinel/*/", "results/sentinel/scenes/*.jsonl",
        "docs/leaderboard.md", "src/driftproof/methods/sentinel.py", "src/driftproof/detectors.py",
    ],
    "docs/serving.md": [
        "src/driftproof/serve/*.py", "src/driftproof/cli/serve.py", "src/driftproof/cli/exit*.py", "results/serve/serve.md",
    ],
    "docs/speed.md": ["results/speed/limits/*.md", "benchmarks/agreement.py"],
    "docs/vit.md": ["src/driftproof/methods/adapt.py"],
}  # fmt: skip
"""Where the numbers of a page are to be found: rows as they were archived, and the code that has a setting."""

ELSEWHERE = {
    "README.md": [
        r"from \d+ to \d+ % to \d+ to \d+ %, and \d+ to \d+ % of",  # test_demo
        r"\d+ of \d+; ", r"\*\*\d+ methods behind",  # test_public_surface
    ],
    "docs/demo.md": [
        r"flagged \d+ % of the garments and \d+ % of the bags", r"Of \d+ batches, \d+ had a step",  # test_demo
        r"rejected \d+ % of the bags and \d+ % of the garments", r"loses \d+ to \d+ points",
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
    "README.md": [r"about 22 \|", "1e-6 to 1e-5"],
    "docs/benchmarking.md": ["with ` only 200 images"],
    "docs/concepts.md": ["accepts 95 %"],
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
        "30 % of the batch, 70 %", r"[12]e-[34]", "5e-4", "400 steps", "600 steps", r"\| 97 \|", r"\| 85 \|", "far from 85",
        r"missed by [\d.]+", "all rates 1e-5",
    ],
    "docs/serving.md": ["8388608"],  # test_serve_docs compares the limits with the code
    "docs/speed.md": ["19 bits", "32 to 128 channels", r"takes 1\.29 times"],
    "docs/vit.md": ["batches of 16"],
}  # fmt: skip
"""Numbers that nobody here measured: of papers and of other projects, of an example, or what a word means."""


def quote(page: str) -> list[str]:
    """Return words of a page with numbers that follow from rows in another way than by rounding."""
    if page == "README.md":
        return [f"| driftproof | {len(dp.methods.__all__)} |", *curves()]
    if page == "docs/index.md":
        return curves()
    if page == "docs/choosing.md":
        networks = json.loads((ROOT / "results/safety/safety.json").read_text())["networks"]
        return [f"all {sum(map(len, networks.values()))} rows"]
    if page == "docs/faq.md":
        counts = json.loads((ROOT / "results/architectures/architectures.json").read_text())["counts"]["eager"]
        return [f"lists {sum(counts.values())} architectures, of which {counts['adapted']} take steps"]
    return []


def curves() -> list[str]:
    """Return what the picture of fifty rounds shows, as its alternative text says it."""
    recorded = json.loads((ROOT / "src/driftproof/demo/recorded.json").read_text())["curves"]
    tent, crowd = (recorded[name][-1] for name in ("tent", "tent+crowd"))
    return [f"TENT rises to {tent:.0f} %, TENT with selection stays near {crowd:.0f} %"]


def read_claims(page: str) -> str:
    """Return what a page says itself, without code, addresses and what is filled in from rows."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!-- (results|poisoning): ?[^>]*-->.*?<!-- (/results|poisoning: end) -->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "`", text)
    text = re.sub(r"\]\([^)]*\)|https?://\S+|^\d\. ", "]", text, flags=re.MULTILINE)
    for words in [*ELSEWHERE.get(page, []), *GIVEN.get(page, []), *map(re.escape, quote(page))]:
        text, count = re.subn(words.replace("\\ ", " ").replace(" ", r"\s+"), "", text)
        assert count, f"{page} does not say: {words}"
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
        if given <= digits or ( (digits or abs(value) >= 100)):
            slack = 1e-9 if given <= digits else 0.5 * 10.0**-digits + 1e-9
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


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WRITTEN])
def test_numbers_come_from_rows_or_code(page):
    strange = [f"{word}: … {context} …" for word, context in find_numbers(read_claims(page)) if not is_known(page, word)]
    assert not strange, f"in none of {SOURCES.get(page)}:\n" + "\n".join(strange)
