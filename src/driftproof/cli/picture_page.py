"""A page of the images of a run that deserve a look."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from driftproof.cli.prediction_rows import Row
from driftproof.cli.run_summary import RunSummary

__all__ = ["write_picture_page"]

_WIDTH, _MAX_PICTURES = 160, 60


def write_picture_page(
    out: Path, columns: Iterable[str], rows: Mapping[Path, Row], summary: RunSummary, method: str
) -> Path:
    """Write a page of the images that the steps did not learn from, that were quarantined, or that raised alarms.

    The page is self-contained: it has small copies of the 60 most novel images of each group, and counts all.
    """
    from driftproof.optional import require
    from driftproof.report.pictures import embed, scale_down
    from driftproof.report.text import write_page

    groups: dict[str, list[tuple[float, Path, str]]]
    groups = {"Alarms": [], "Quarantined": [], "Refused: not learned from": []}
    for path, row in rows.items():
        cells = dict(zip(columns, row, strict=True))
        if cells["error"] is not None:
            continue
        novelty, predicted = cells["novelty"], cells.get("class", cells["predicted"])
        rank = novelty if isinstance(novelty, float) else float("inf")
        caption = f"{predicted}, novelty {rank:.3g}" if isinstance(novelty, float) else "no prediction"
        chosen = (cells["alarm"], cells["quarantined"], summary.selected and not cells["selected"])
        for group, is_member in zip(groups.values(), chosen, strict=True):
            group.extend([(rank, path, caption)] * bool(is_member))
    read, shown = require("PIL.Image", "Writing a page of images").open, {}
    for heading, found in groups.items():
        first = sorted(found, key=lambda picture: -picture[0])[:_MAX_PICTURES]
        copies = [embed(scale_down(read(path).convert("RGB"), _WIDTH), "JPEG") for _, path, _ in first]
        if found:
            shown[f"{heading}: {len(found)}"] = [(*each[1:], url) for each, url in zip(first, copies, strict=True)]
    facts = {"Images": str(summary.images), "Method": method, "Learned from": str(summary.selected)}
    state = f"The run ended {summary.state}." if summary.state else "Health was not measured."
    content = {"title": f"Images seen by {method}", "summary": state, "groups": shown, "facts": facts}
    return write_page("pictures.html", out, package="driftproof.cli", **content)
