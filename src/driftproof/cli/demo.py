"""`driftproof demo`: the whole story, on data that comes along."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from driftproof.cli.options import MAX_SEED

__all__ = ["demo_command"]


def demo_command(
    out: Annotated[Path, typer.Option(help="The results folder; what is there is not run again.")] = Path("demo"),
    rounds: Annotated[int | None, typer.Option(help="How often the corruptions come by; five times.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the network and its training.")] = 0,
) -> None:
    """Train a small network on some digits, then adapt it to changed ones with unknown digits among them.

    Six methods meet fifteen corruptions, round after round, half of every batch being digits the network was never
    taught. Takes a minute or two, and ends with a table, a plot and the path of a report.
    """
    from driftproof.bench import Store, suite
    from driftproof.bench.digits import Digits
    from driftproof.bench.executors import run_locally
    from driftproof.bench.plan import RunFilter, plan_runs
    from driftproof.bench.runner import RunSettings, stage_progress
    from driftproof.cli.bench_progress import progress_display

    choice = RunFilter(rounds=rounds, seeds=[seed])
    jobs, workbench, store = plan_runs(suite("demo"), choice), Digits(out, seed), Store(out)
    with progress_display(job.spec for job in jobs) as told:
        spec = jobs[0].spec
        facts = workbench.fingerprints(spec, stage_progress(spec, told))
        store.update_metadata(choice.metadata() | facts)
        run_locally(jobs, out, workbench, RunSettings(), told)
    _show(out)


def _show(out: Path) -> None:
    from driftproof.bench import Results
    from driftproof.report import plot_text, summary_sentences, table_text, write_report

    results, console = Results(out), Console()
    for measured in results.tables():
        console.print(table_text(measured), "")
    curves = {spec.method: results.per_round(spec) for spec in results.runs}
    console.print("Error in % on known digits, round by round", "", plot_text(curves), "", sep="\n", highlight=False)
    for sentence in summary_sentences(results):
        console.print(sentence, highlight=False)
    typer.echo(f"\nReport: {write_report(results, out / 'report')}")
