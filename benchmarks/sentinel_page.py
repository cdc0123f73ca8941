"""Write what the sentinel's proof measured into its page, between the page's marks.

python benchmarks/sentinel_page.py results/sentinel/proof --out docs/sentinel.md
"""

import argparse
from pathlib import Path
from statistics import fmean

import polars as pl

from driftproof.bench import load
from driftproof.files import atomic_write

STREAMS = {
    "C10 closed": ("cifar10-c", "closed"),
    "C10 open": ("cifar10-c", "open"),
    "C100 closed": ("cifar100-c", "closed"),
    "C100 open": ("cifar100-c", "open"),
}
SHOWN = (1, 2, 3, 4, 5, 10, 20, 30, 40, 50)
DOMAINS = 15
START, END = "<!-- rounds: written by benchmarks/sentinel_page.py -->", "<!-- end of rounds -->"
Means = dict[tuple[str, str, int, int], dict[str, float]]
"""Measures by images, setting, seed and round."""


def average(rows: pl.DataFrame) -> Means:
    """The means over all corruptions, of whole rounds."""
    wanted = rows.filter(pl.col("measure").is_in(["error", "novelty/auroc"]))
    grouped = wanted.group_by("stream", "setting", "seed", "round", "measure").agg(pl.col("value"))
    found: Means = {}
    for row in grouped.iter_rows(named=True):
        if len(row["value"]) == DOMAINS:
            key = row["stream"], row["setting"], row["seed"], row["round"]
            found.setdefault(key, {})[row["measure"]] = fmean(row["value"])
    return found


def show(found: dict[str, float] | None) -> str:
    """An error, and the AUROC in brackets where there is one."""
    if not found:
        return ""
    scored = "novelty/auroc" in found
    return f"{found['error']:.2f}" + (f" ({found['novelty/auroc']:.2f})" if scored else "")


def format_rounds(means: Means) -> list[str]:
    """A table of rounds, the last one of each stream among them."""
    last = {max((key[3] for key in means if key[:3] == (*place, 0)), default=0) for place in STREAMS.values()}
    largest = max(last, default=0)
    rounds = [number for number in sorted({*SHOWN, *last}) if 0 < number <= largest]
    rows = ([str(number), *(show(means.get((*place, 0, number))) for place in STREAMS.values())] for number in rounds)
    table = [["round", *STREAMS], ["---:"] * (len(STREAMS) + 1), *rows]
    return [f"| {' | '.join(row)} |" for row in table]


def format_seeds(means: Means) -> list[str]:
    """A table of the last round that other seeds have, for each stream."""
    seeds = sorted({key[2] for key in means})
    rows = []
    for name, place in STREAMS.items():
        common = [key[3] for key in means if key[:2] == place and key[2] == seeds[-1]]
        for number in sorted({1, *common[-1:]} if common else ()):
            rows.append([name, str(number), *(show(means.get((*place, seed, number))) for seed in seeds)])
    if not rows:
        return []
    table = [["stream", "round", *(f"seed {seed}" for seed in seeds)], ["---", *["---:"] * (len(seeds) + 1)], *rows]
    return ["", *(f"| {' | '.join(row)} |" for row in table)]


def fill(page: Path, lines: list[str]) -> None:
    """Write lines between the two marks of a page."""
    before, rest = page.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    text = "\n".join([*lines, ""])
    with atomic_write(page) as unfinished:
        unfinished.write_text(f"{before}{START}\n\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Read rows and fill the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = load(arguments.results)
    means = average(rows.filter((pl.col("method") == "sentinel") & (pl.col("model") == "wrn40_2")))
    fill(arguments.out, [*format_rounds(means), *format_seeds(means)])


if __name__ == "__main__":
    main()
