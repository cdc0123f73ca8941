"""`driftproof demo`: train, adapt and report on bundled digits."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from driftproof.cli.options import MAX_SEED

__all__ = ["demo_command"]


def demo_command(
    out: Annotated[Path, typer.Option(help="Results folder; finished runs are not repeated.")] = Path("demo"),
    rounds: Annotated[int | None, typer.Option(help="Number of rounds over the corruptions; five by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the network and its training.")] = 0,
) -> None:
    """Train a small network on digits, then adapt it to corrupted digits mixed with unknown ones.

    Six methods run over fifteen corruptions for several rounds. Half of every batch are digits the network was not
    trained on. Takes a minute or two and ends with a table, a plot and the path of a report.
    """
    from driftproof.bench import Store
    from driftproof.paper import suite
    from driftproof.bench.digits import Digits
    from driftproof.bench.executors import run_locally
    from driftproof.bench.plan import RunFilter, plan_runs
    from driftproof.bench.runner import RunSettings, stage_progress
    from driftproof.cli.bench_progress import progress_display

    run_filter = RunFilter(rounds=rounds, seeds=[seed])
    jobs, files, store = plan_runs(suite("demo"), run_filter), Digits(out, seed), Store(out)
    with progress_display(job.spec for job in jobs) as on_progress:
        spec = jobs[0].spec
        fingerprints = files.fingerprints(spec, stage_progress(spec, on_progress))
        store.update_metadata(run_filter.metadata() | fingerprints)
        run_locally(jobs, out, files, RunSettings(), on_progress)
    _show(out)


def _show(out: Path) -> None:
    from driftproof.bench import Results
    from driftproof.paper import suite
    from driftproof.report import plot_text, summary_sentences, table_text, write_report

    results, console = Results(out), Console()
    for table in results.tables(suite("demo").tables):
        console.print(table_text(table), "")
    curves = {spec.method: results.per_round(spec) for spec in results.runs}
    console.print("Error in % on known digits, round by round", "", plot_text(curves), "", sep="\n", highlight=False)
    for sentence in summary_sentences(results):
        console.print(sentence, highlight=False)
    typer.echo(f"\nReport: {write_report(results, out / 'report')}")
