"""Show what methods did on trial."""

from collections.abc import Sequence

import typer

from driftproof.cli.output import print_table
from driftproof.cli.recommendation import Outcome, Recommendation, format_p, paired_test
from driftproof.cli.run_summary import count_of
from driftproof.cli.trial import Trial

__all__ = ["print_trials", "to_json"]


def to_json(trials: Sequence[Trial], outcomes: Sequence[Outcome], advice: Recommendation) -> dict[str, object]:
    """Return the results of `driftproof try` as JSON."""
    rows = [
        {
            "method": trial.method,
            "images": trial.summary.images,
            "accuracy": trial.summary.accuracy,
            "p": paired_test(outcomes[0].correct, outcome.correct) if outcome.correct else None,
            "health": outcome.state,
            "agreement": outcome.agreement,
            "novelty": trial.novelty,
            "novelty_auroc": trial.auroc,
            "guards": dict(trial.summary.actions),
            "quarantined": trial.summary.quarantined,
            "milliseconds": trial.milliseconds,
        }
        for trial, outcome in zip(trials, outcomes, strict=True)
    ]
    return {"methods": rows, "recommendation": {"method": advice.method, "reason": advice.reason}}


def print_trials(trials: Sequence[Trial], outcomes: Sequence[Outcome], advice: Recommendation) -> None:
    """Print the results of `driftproof try` as a table, and the recommendation."""
    columns: dict[str, list[str]] = {"method": [trial.method for trial in trials]}
    if outcomes[0].correct:
        columns["accuracy"] = [f"{outcome.accuracy:.1%}" for outcome in outcomes]
        gains = [100 * (outcome.accuracy - outcomes[0].accuracy) for outcome in outcomes[1:]]
        columns["gain"] = ["", *(f"{gain:+.1f}" for gain in gains)]
        columns["p"] = ["", *(format_p(paired_test(outcomes[0].correct, each.correct)) for each in outcomes[1:])]
    columns["health"] = [outcome.state or "–" for outcome in outcomes]
    columns["agreement"] = [f"{outcome.agreement:.1%}" for outcome in outcomes]
    columns["novelty"] = [f"{trial.novelty:.3f}" for trial in trials]
    if any(trial.auroc is not None for trial in trials):
        columns["AUROC"] = ["–" if trial.auroc is None else f"{trial.auroc:.1%}" for trial in trials]
    if any(trial.summary.actions for trial in trials):
        columns["guards"] = [_format_actions(trial) for trial in trials]
    columns["ms/image"] = [f"{trial.milliseconds:.1f}" for trial in trials]
    print_table(list(columns), list(zip(*columns.values(), strict=True)))
    if quarantined := trials[-1].summary.quarantined:
        typer.echo(f"{count_of(quarantined, 'image')} quarantined: not finite, or far from all the others.")
    typer.echo(f"Recommended: {advice.method}. {advice.reason}")
    if advice.method != "source":
        typer.echo(f"Run it: driftproof adapt … --method {advice.method} --out predictions.csv")


def _format_actions(trial: Trial) -> str:
    return ", ".join(f"{action} {count}×" for action, count in trial.summary.actions.items()) or "–"
