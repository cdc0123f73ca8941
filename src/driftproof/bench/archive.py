"""Results to keep and to hand on: everything that was measured in one small file.

    FOLDER/folder.json      what all cells share, as in a results folder
    FOLDER/cells.jsonl      one line for each cell: spec, protocol, rows column by column, conditions
    FOLDER/snapshots/NAME-N.safetensors    where asked for, what going on from a cell's N rows needs

Numbers are rounded to five digits after the point. Of histograms, only those of the first and the last complete round
are kept. Whatever reads a results folder reads an archive as well.
"""

import itertools
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from driftproof.bench.spec import Spec, differences
from driftproof.bench.store import ARCHIVE_FILE, Row, Store
from driftproof.errors import InputError, StateError
from driftproof.files import atomic_write

__all__ = ["ArchivedRun", "RunRecord", "read_runs", "unpack", "write_archive"]

_DIGITS = 5
_SNAPSHOTS = "snapshots"


class RunRecord(Protocol):
    """What can be read back of a cell, wherever it is kept."""

    @property
    def spec(self) -> Spec:
        """What the cell measures."""

    @property
    def protocol(self) -> dict[str, str]:
        """The method in its own words."""

    @property
    def rows(self) -> list[Row]:
        """What was measured, in order."""

    @property
    def conditions(self) -> list[Row]:
        """How each row was measured."""

    @property
    def snapshots(self) -> dict[int, Path]:
        """The adapter's states after so many rows, as far as they are kept."""


@dataclass(frozen=True)
class ArchivedRun:
    """A cell in an archive.

    Attributes:
        spec: What it measures.
        protocol: The method in its own words.
        rows: What was measured, in order.
        conditions: How each row was measured; the peak of memory is that of all rows under the same conditions.
        snapshots: The adapter's states after so many rows, as far as they are kept.
    """

    spec: Spec
    protocol: dict[str, str]
    rows: list[Row]
    conditions: list[Row]
    snapshots: dict[int, Path]


def read_runs(folder: Path) -> list[RunRecord]:
    """Every cell of a results folder or of an archive.

    Args:
        folder: Either.
    """
    path = folder / ARCHIVE_FILE
    if not path.exists():
        return [_whole(cell, folder) for cell in Store(folder).runs()]
    try:
        return [_read(json.loads(line), folder) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"Expected one cell on each line of {path}, but it cannot be read: {error!r}.") from error


def _whole(cell: RunRecord, folder: Path) -> RunRecord:
    """A cell as it was found; rows that somebody has damaged since are named."""
    rows, told = cell.rows, len(cell.conditions)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not {"round", "domain"} <= row.keys() or number > told:
            raise StateError(
                f"Expected round and domain of every row of {cell.spec.name} in {folder}, and how it was measured, "
                f"but line {number} lacks some of that."
            )
    return cell


def write_archive(folders: Sequence[Path], out: Path, *, snapshots: bool = False) -> None:
    """Write what was measured into one archive; of a cell that several folders hold, the longest, else the first.

    Args:
        folders: Results folders or archives. What their cells share must not contradict each other.
        out: The archive; made if need be, replaced if there is one.
        snapshots: Whether to keep what going on needs as well, where it is there; of two as long, that one counts.
    """
    if (out / "cells").exists():
        raise InputError(f"Expected a folder of its own for the archive, but {out} holds results to go on from.")
    shared: dict[str, Any] = {}
    longest: dict[Spec, RunRecord] = {}
    for folder in folders:
        shared, cells = _agreeing(shared, Store(folder).metadata, folder), read_runs(folder)
        if not cells:
            raise InputError(f"Expected results in {folder}, but there are none.")
        for cell in cells:
            if cell.rows and (cell.spec not in longest or _extent(cell) > _extent(longest[cell.spec])):
                longest[cell.spec] = cell
    if not longest:
        raise InputError(f"Expected results in {', '.join(map(str, folders))}, but there are none.")
    out.mkdir(parents=True, exist_ok=True)
    kept = {out / _SNAPSHOTS / name: path for name, path in _latest(longest.values() if snapshots else ()).items()}
    for target, path in kept.items():
        _copy(path, target)
    with atomic_write(out / ARCHIVE_FILE) as unfinished:
        cells = sorted(longest.values(), key=lambda cell: cell.spec.name)
        unfinished.write_text("".join(f"{_written(cell)}\n" for cell in cells), encoding="utf-8")
    Store(out).write_metadata(shared)
    for stale in set((out / _SNAPSHOTS).glob("*.safetensors")) - set(kept):
        stale.unlink()


def unpack(archive: Path, out: Path) -> None:
    """Make a results folder of the cells of an archive that can be gone on with.

    Args:
        archive: With snapshots.
        out: A new folder.
    """
    ready = [cell for cell in read_runs(archive) if cell.snapshots]
    if not (archive / ARCHIVE_FILE).exists() or not ready:
        raise InputError(
            f"Expected an archive with snapshots in {archive}, but there is none. "
            "`driftproof bench export --snapshots` makes them of results folders."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"Expected a new folder to unpack into, but {out} is there already.")
    unfinished = out.with_name(f".{out.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    store = Store(unfinished)
    store.update_metadata(Store(archive).metadata)
    for cell in ready:
        place = store.run(cell.spec)
        with place.locked():
            for reached, path in cell.snapshots.items():
                _copy(path, place.snapshot(reached))
            place.append(cell.rows, cell.conditions)
            place.write_spec(cell.spec, cell.protocol)
    unfinished.replace(out)


def _extent(cell: RunRecord) -> tuple[int, bool]:
    return len(cell.rows), bool(cell.snapshots)


def _latest(cells: Iterable[RunRecord]) -> dict[str, Path]:
    """Of each cell the last snapshot that its rows reach, by its name in an archive."""
    found = {}
    for cell in cells:
        reached = max((rows for rows in cell.snapshots if rows <= len(cell.rows)), default=None)
        if reached is not None:
            found[f"{cell.spec.name}-{reached}.safetensors"] = cell.snapshots[reached]
    return found


def _copy(path: Path, target: Path) -> None:
    if path != target:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as unfinished:
            shutil.copyfile(path, unfinished)


def _agreeing(ours: Mapping[str, Any], theirs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    both = ours.keys() & theirs.keys()
    changed = differences({key: theirs[key] for key in both}, {key: ours[key] for key in both})
    if changed:
        raise StateError(f"The results in {folder} were made differently: {'; '.join(changed)}. Archive them apart.")
    return {**ours, **theirs}


def _written(cell: RunRecord) -> str:
    spec, rows, conditions = cell.spec, cell.rows, cell.conditions[: len(cell.rows)]
    placed = [(row["round"], row["domain"]) for row in rows]
    derived = ("round", "domain") if placed == _places(spec, len(rows)) else ()
    names = [name for name in dict.fromkeys(itertools.chain.from_iterable(rows)) if name not in derived]
    told = _in_which_histograms_stay(spec, len(rows))
    content = {
        "spec": spec.as_data(),
        "protocol": cell.protocol,
        "count": len(rows),
        "rows": {name: _column([row.get(name) for row in rows], told) for name in names},
        "seconds": _column([round(row.get("seconds") or 0.0, 2) for row in conditions], told),
        "conditions": list(_stretches(conditions)),
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _read(content: dict[str, Any], folder: Path) -> ArchivedRun:
    spec, count = Spec.from_data(content["spec"]), content["count"]
    columns = {name: _values(column, count) for name, column in content["rows"].items()}
    if "round" not in columns:
        rounds, domains = zip(*_places(spec, count), strict=True)
        columns = {"round": list(rounds), "domain": list(domains), **columns}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    seconds = _values(content["seconds"], count)
    facts = [stretch for stretch in content["conditions"] for _ in range(stretch["rows"])]
    conditions = [
        {"seconds": second} | {key: value for key, value in fact.items() if key != "rows"}
        for second, fact in zip(seconds, facts, strict=True)
    ]
    snapshots = {int(path.stem.rpartition("-")[2]): path for path in folder.glob(f"{_SNAPSHOTS}/{spec.name}-*")}
    return ArchivedRun(spec, content["protocol"], rows, conditions, snapshots)


def _places(spec: Spec, count: int) -> list[tuple[int, str]]:
    """Round and domain of every row of a stream."""
    return [(place // len(spec.domains) + 1, spec.domains[place % len(spec.domains)]) for place in range(count)]


def _in_which_histograms_stay(spec: Spec, count: int) -> range | set[int]:
    each = len(spec.domains)
    last = count // each
    return {*range(each), *range((last - 1) * each, last * each)} if spec.task == "stream" and last else range(count)


def _column(values: Sequence[Any], told: Iterable[int]) -> Any:  # noqa: ANN401  # as JSON has it
    """One value if all are the same; those that are told, by their place, where they are lists; else all."""
    rounded = [_rounded(value) for value in values]
    if any(isinstance(value, list) for value in rounded):
        return {"at": {str(place): rounded[place] for place in told if place < len(rounded)}}
    return rounded[0] if rounded and all(value == rounded[0] for value in rounded) else rounded


def _values(column: Any, count: int) -> list[Any]:  # noqa: ANN401
    if isinstance(column, dict):
        return [column["at"].get(str(place)) for place in range(count)]
    return column if isinstance(column, list) else [column] * count


def _rounded(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def _stretches(conditions: Sequence[Row]) -> Iterable[Row]:
    """Rows in a row that were measured alike."""
    for facts, alike in itertools.groupby(conditions, key=_lasting):
        rows = list(alike)
        peaks = [row["peak_memory"] for row in rows if row.get("peak_memory") is not None]
        yield {"rows": len(rows), "peak_memory": max(peaks, default=None), **dict(facts)}


def _lasting(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in row.items() if key not in ("seconds", "peak_memory"))
