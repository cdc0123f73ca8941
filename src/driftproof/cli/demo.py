"""`driftproof demo`: train, adapt and report on bundled digits."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from driftproof.cli.options import MAX_SEED

__all__ = ["demo_command"]


def demo_command(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Results folder; finished runs are not repeated.")] = Path("demo"),
    rounds: Annotated[int | None, typer.Option(help="Number of rounds over the corruptions; five by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the network and its training.")] = 0,
) -> None:
    """Train a small network on digits, then adapt it to corrupted digits mixed with unknown ones.

    Six methods run over fifteen corruptions for several rounds. Half of every batch are digits the network was not
    trained on. Takes a minute or two and ends with a table and the path of a report.
    """
    from driftproof.bench.execute import execute
    from driftproof.bench.local_files import LocalFiles
    from driftproof.bench.plan import RunFilter, plan_runs
    from driftproof.bench.runner import RunSettings, report_to
    from driftproof.cli.bench_progress import progress_display
    from driftproof.paper import suite
    from driftproof.training.digits import train_digits

    run_filter = RunFilter(rounds=rounds, seeds=[seed])
    jobs = plan_runs(suite("demo"), run_filter)
    with progress_display(job.spec for job in jobs) as on_progress:
        weights = train_digits(
            out / f"five_layers_digits-{seed}.safetensors",
            seed=seed,
            progress=report_to(on_progress, jobs[0].spec),
        )
        files = LocalFiles(out, weights, use_procedural_frost=True)
        execute(
            jobs, files, out,
            settings=RunSettings(), callback=on_progress, metadata=run_filter.metadata() | files.metadata(),
            command=shlex.join(["driftproof", *context.obj]),
        )  # fmt: skip
    _show(out)


def _show(out: Path) -> None:
    from driftproof.bench.frames import read_frames
    from driftproof.report.page import write_report
    from driftproof.report.sections import result_table
    from driftproof.report.series import label_measures, label_runs
    from driftproof.report.tables import frame_table

    frames = read_frames(out)
    table, _ = result_table(label_measures(frames.measures, label_runs(frames.runs)))
    Console().print(frame_table(table, title="Error in % on known digits, in the last round"), "")
    typer.echo(f"Report: {write_report(out, out / 'report.html')}")
