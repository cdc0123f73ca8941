"""What the leaderboard page says around its tables."""

import re
from collections.abc import Mapping, Sequence

from driftproof.bench.results import Results, Value
from driftproof.bench.tables import Suite
from driftproof.leaderboard.suites import LIMITS, SEEDS
from driftproof.paper.comparison import format_markdown
from driftproof.paper.suites import suite as paper_suite
from driftproof.report.text import format_duration

__all__ = [
    "INTRODUCTION",
    "MEASURES",
    "SUMMARY",
    "describe_costs",
    "describe_paper_rows",
    "fill_numbers",
    "format_command",
]

INTRODUCTION = """\
# Leaderboard

Test-time adaptation among images of unknown classes: WRN-40-2 (AugMix), fifteen corruptions at severity 5 one after the
other, batches of 200, never reset. Half of every open batch are unknown images, SVHN-C unless the title says otherwise,
under the same corruption. A round goes through all corruptions once. Methods of the paper have its hyper-parameters,
all others the defaults of their functions. Rows of `sentinel` are of the default before the present one, whose errors
are higher ([Sentinel](sentinel.md#what-it-reaches)); those that are marked with a star are of a still earlier one,
whose answer included the second network's opinion (`members="network+mirror+detector+source"`). Rows of `adapt` in
round 1 of CIFAR-100-C, of closed CIFAR-10-C and in batches of 16 are of the present default, but for the speed at which
the cap of its statistics moves. Its other rows are of earlier defaults, which helped less among many classes."""

SUMMARY = (
    "In short, errors on open CIFAR-10-C in rounds 1 and 5: `sentinel`, a method of this library, "
    "{openset_cifar10|sentinel|Error (open)} and {openset_cifar10_5|sentinel|Error (open)} %; `adapt`, its "
    "default, {openset_cifar10|adapt|Error (open)} and {openset_cifar10_5|adapt|Error (open)}; of the published "
    "methods PAF-KIP, the best in round 1, {openset_cifar10|paf_kip|Error (open)} and "
    "{openset_cifar10_5|paf_kip|Error (open)}, and ROID {openset_cifar10|roid|Error (open)} and "
    "{openset_cifar10_5|roid|Error (open)}; TENT {openset_cifar10|tent|Error (open)} and "
    "{openset_cifar10_5|tent|Error (open)}, with the paper's selection {openset_cifar10|tent+crowd|Error (open)} "
    "and {openset_cifar10_5|tent+crowd|Error (open)}; the source network {openset_cifar10|source|Error (open)}."
)
"""What the tables show, with numbers to fill in."""

MEASURES = """\
Every number is measured while adapting and is a mean over the corruptions, in %:

- **Error** is over known images.
- **AUROC**, **FPR@95**, **H-score** (harmonic mean of accuracy and AUROC) and **OSCR** are by the method's own score.
  It is the one that the method publishes: PAF-KIP and RoTTA energy, STAMP entropy, UniEnt the cosine to the nearest
  class, `sentinel` the energy of its second network; `adapt` has the library's default of the time, the entropy of
  cosines. Where none is published, it is the confidence difference if the method compares with the source network, else
  one minus the largest probability.
- **AUROC by energy** is by the energy of the answer, for every method.

± is the standard deviation over seeds, bold the best of a column. What the GPU time did not reach is marked:

- `not run` is no number, and – a score that a run did not measure. Runs of the [paper's tables](reproducing.md) stand
  in where a method was run there only; they measured errors alone.
- `@3` is a number of round 3 in a table that shows a later one.
- `*` is a number of the first images of each corruption alone. A learning method has taken fewer steps by then, so one
  that collapses later looks better than it is. Such rows come after the others.

Methods that have neither all errors nor half of a table's numbers are listed below it, with the command to run
them."""

_PLACE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\|([^{}|]+)\}")


def fill_numbers(text: str, values: Mapping[str, Mapping[tuple[str, str], Value]]) -> str:
    """Fill in `{table|row|column}`, so that text quotes what its tables show.

    Examples:
        >>> values = {"openset": {("tent", "Error"): Value(ours=27.19, round=1, wanted=5)}}
        >>> fill_numbers("TENT has {openset|tent|Error} %.", values)
        'TENT has 27.2 (round 1) %.'
    """

    def show(match: re.Match[str]) -> str:
        table, row, column = match.groups()
        value = values[table][row, column]
        if value.ours is None:
            return "(not run)"
        return f"{value.ours:.1f}{'' if value.complete else f' (round {value.round})'}"

    return _PLACE.sub(show, text)


def format_command(suite: str, chosen: str = "") -> str:
    """Return the command that runs a suite, or what is chosen of it."""
    limit = LIMITS.get(suite)
    out = "runs/leaderboard" if limit is None else f"runs/leaderboard-{limit} --limit {limit}"
    out += f" --seeds {SEEDS[suite]}" if suite in SEEDS else ""
    options = f"--data data --weights weights --out {out} --device cuda --precision bf16 --channels-last"
    return f"```bash\ndriftproof bench run {suite}{chosen} {options}\n```"


def describe_costs(suites: Sequence[Suite], archives: Sequence[Results]) -> str:
    """Sum up the measured time of all runs of the suites, each once, and say how to run them."""
    listed = {run for suite in suites for spec in suite.specs() for each in archives for run in each.seeds(spec)}
    seconds: dict[tuple[str, str], float] = {}
    for results in archives:
        known = {results.runs[run].name for run in listed if run in results.runs}
        for run, time, machine in results.frames.runs.select("run", "seconds", "hardware").iter_rows():
            if run in known:
                seconds[run, machine] = max(seconds.get((run, machine), 0.0), time)
    by_machine: dict[str, float] = {}
    for (_, machine), time in seconds.items():
        by_machine[machine] = by_machine.get(machine, 0.0) + time
    times = "; ".join(f"{format_duration(time)} on {machine}" for machine, time in sorted(by_machine.items()))
    whole = [suite.name for suite in suites if suite.name not in LIMITS]
    return (
        f"The times of all {len(listed)} runs add up to {times or 'nothing yet'}. Runs that share a device wait for "
        "each other, so the device needed less. One command runs all suites that stream all images; those that stream "
        f"some of them need a folder of their own:\n\n{format_command(whole[0], ' ' + ' '.join(whole[1:]))}\n\n"
        "It resumes what is there, and takes any part with `--methods`, `--images`, `--open` or `--closed`, `--rounds` "
        "and `--seeds` (`--seeds 1,2` adds two). `benchmarks/leaderboard.py` runs such parts in several processes on "
        "one device, within a time limit. `driftproof bench leaderboard FOLDER…` writes this page from what was run."
    )


def describe_paper_rows(archives: Sequence[Results]) -> str:
    """Say where runs of the paper's rows stop short of its last round."""
    (table, *_) = paper_suite("table1").tables
    entries = [entry for entry in table.entries if entry.column.startswith("CIFAR")]
    reached = {
        (entry.row, entry.column): max((results.value(entry).round or 0 for results in archives), default=0)
        for entry in entries
    }
    columns = list(dict.fromkeys(entry.column for entry in entries))
    short = [row for row in dict.fromkeys(entry.row for entry in entries) if _is_short(row, reached, entries[0].round)]
    lines = [[row, *(str(reached[row, column] or "not run") for column in columns)] for row in short]
    heading = "## Where the paper's own rows stop"
    if not lines:
        return f"{heading}\n\nAll of them go to round {entries[0].round}."
    text = (
        f"The paper's tables show round {entries[0].round}. These runs of its methods stop before that, at the round "
        "shown; all others go to the end. CoTTA has one round of closed streams. "
        "[Reproducing the paper](reproducing.md) has the numbers."
    )
    return f"{heading}\n\n{text}\n\n{format_markdown(['', *columns], lines)}"


def _is_short(row: str, reached: Mapping[tuple[str, str], int], last: int) -> bool:
    return any(round < last for (name, _), round in reached.items() if name == row)
