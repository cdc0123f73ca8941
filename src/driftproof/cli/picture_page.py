"""A page of the images of a run that deserve a look."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from driftproof.cli.prediction_rows import Row
from driftproof.cli.run_summary import RunSummary

__all__ = ["write_picture_page"]


def write_picture_page(
    out: Path, columns: Iterable[str], rows: Mapping[Path, Row], summary: RunSummary, method: str
) -> Path:
    """Write a page of the images that the steps did not learn from, that were quarantined, or that raised alarms."""
    from driftproof.report.pictures import Picture, write_pictures

    groups: dict[str, list[Picture]] = {"Alarms": [], "Quarantined": [], "Refused: not learned from": []}
    for path, row in rows.items():
        cells = dict(zip(columns, row, strict=True))
        if cells["error"] is not None:
            continue
        novelty = cells["novelty"]
        predicted = cells.get("class", cells["predicted"])
        picture = Picture(
            path,
            f"{predicted}, novelty {novelty:.3g}" if isinstance(novelty, float) else "no prediction",
            novelty if isinstance(novelty, float) else float("inf"),
        )
        chosen = (cells["alarm"], cells["quarantined"], summary.selected and not cells["selected"])
        for group, is_member in zip(groups.values(), chosen, strict=True):
            group.extend([picture] * bool(is_member))
    facts = {"Images": str(summary.images), "Method": method, "Learned from": str(summary.selected)}
    state = f"The run ended {summary.state}." if summary.state else "Health was not measured."
    shown = {heading: pictures for heading, pictures in groups.items() if pictures}
    return write_pictures(shown, out, title=f"Images seen by {method}", summary=state, facts=facts)
