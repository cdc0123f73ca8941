"""Archives: everything that was measured, in one small file.

    FOLDER/folder.json      metadata shared by all runs, as in a results folder
    FOLDER/cells.jsonl      one line per run: spec, protocol, rows column by column, conditions
    FOLDER/snapshots/NAME-N.safetensors    optional: the adapter after N rows, to resume the run from

Numbers are rounded to five decimals. Of histograms, only those of the first and the last complete round are stored.
Whatever reads a results folder reads an archive as well.
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

_DECIMALS = 5
_SNAPSHOTS = "snapshots"


class RunRecord(Protocol):
    """Results of one run, from a results folder or an archive."""

    @property
    def spec(self) -> Spec:
        """What the run measures."""

    @property
    def protocol(self) -> dict[str, str]:
        """Description of the adapter, component by component."""

    @property
    def rows(self) -> list[Row]:
        """Measured values in order."""

    @property
    def conditions(self) -> list[Row]:
        """Versions, hardware, time and memory of each row."""

    @property
    def snapshots(self) -> dict[int, Path]:
        """Saved adapter states that exist, by the number of rows before them."""


@dataclass(frozen=True)
class ArchivedRun:
    """A run in an archive.

    Attributes:
        spec: What it measures.
        protocol: Description of the adapter, component by component.
        rows: Measured values in order.
        conditions: Versions, hardware, time and memory of each row. The peak memory is that of all consecutive rows
            under the same conditions.
        snapshots: Saved adapter states that exist, by the number of rows before them.
    """

    spec: Spec
    protocol: dict[str, str]
    rows: list[Row]
    conditions: list[Row]
    snapshots: dict[int, Path]


def read_runs(folder: Path) -> list[RunRecord]:
    """Read every run of a results folder or an archive.

    Args:
        folder: Either.
    """
    path = folder / ARCHIVE_FILE
    if not path.exists():
        return [_validate(run, folder) for run in Store(folder).runs()]
    try:
        return [_deserialize(json.loads(line), folder) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"Expected one run on each line of {path}, but it cannot be read: {error!r}.") from error


def _validate(run: RunRecord, folder: Path) -> RunRecord:
    """Return the run; raise a StateError that names the first damaged row."""
    rows, described = run.rows, len(run.conditions)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not {"round", "domain"} <= row.keys() or number > described:
            raise StateError(
                f"Expected round, domain and conditions for every row of {run.spec.name} in {folder}, "
                f"but line {number} lacks some of that."
            )
    return run


def write_archive(folders: Sequence[Path], out: Path, *, snapshots: bool = False) -> None:
    """Merge results into one archive.

    Of a run that several folders hold, the longest is archived; of equally long ones, the first.

    Args:
        folders: Results folders or archives whose metadata do not contradict each other.
        out: The archive; created or replaced.
        snapshots: Whether to store existing snapshots, to resume runs from. Of equally long runs, the one with a
            snapshot is then preferred.
    """
    if (out / "cells").exists():
        raise InputError(f"Expected a folder of its own for the archive, but {out} is a results folder.")
    metadata: dict[str, Any] = {}
    longest: dict[Spec, RunRecord] = {}
    for folder in folders:
        metadata, runs = _merge_metadata(metadata, Store(folder).metadata, folder), read_runs(folder)
        if not runs:
            raise InputError(f"Expected results in {folder}, but there are none.")
        for run in runs:
            if run.rows and (run.spec not in longest or _extent(run) > _extent(longest[run.spec])):
                longest[run.spec] = run
    if not longest:
        raise InputError(f"Expected results in {', '.join(map(str, folders))}, but there are none.")
    out.mkdir(parents=True, exist_ok=True)
    copied = {
        out / _SNAPSHOTS / name: path for name, path in _last_snapshots(longest.values() if snapshots else ()).items()
    }
    for target, path in copied.items():
        _copy(path, target)
    with atomic_write(out / ARCHIVE_FILE) as unfinished:
        runs = sorted(longest.values(), key=lambda run: run.spec.name)
        unfinished.write_text("".join(f"{_serialize(run)}\n" for run in runs), encoding="utf-8")
    Store(out).write_metadata(metadata)
    for stale in set((out / _SNAPSHOTS).glob("*.safetensors")) - set(copied):
        stale.unlink()


def unpack(archive: Path, out: Path) -> None:
    """Make a results folder from the runs of an archive that have snapshots.

    Args:
        archive: An archive with snapshots.
        out: A new or empty folder.
    """
    resumable = [run for run in read_runs(archive) if run.snapshots]
    if not (archive / ARCHIVE_FILE).exists() or not resumable:
        raise InputError(
            f"Expected an archive with snapshots in {archive}, but there is none. "
            "`driftproof bench export --snapshots` makes one from results folders."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"Expected a new folder to unpack into, but {out} already exists.")
    unfinished = out.with_name(f".{out.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    store = Store(unfinished)
    store.update_metadata(Store(archive).metadata)
    for archived in resumable:
        run = store.run(archived.spec)
        with run.locked():
            for reached, path in archived.snapshots.items():
                _copy(path, run.snapshot_path(reached))
            run.append(archived.rows, archived.conditions)
            run.write_spec(archived.spec, archived.protocol)
    unfinished.replace(out)


def _extent(run: RunRecord) -> tuple[int, bool]:
    return len(run.rows), bool(run.snapshots)


def _last_snapshots(runs: Iterable[RunRecord]) -> dict[str, Path]:
    """Return for each run the last snapshot that its rows reach, by its name in an archive."""
    found = {}
    for run in runs:
        reached = max((rows for rows in run.snapshots if rows <= len(run.rows)), default=None)
        if reached is not None:
            found[f"{run.spec.name}-{reached}.safetensors"] = run.snapshots[reached]
    return found


def _copy(path: Path, target: Path) -> None:
    if path != target:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as unfinished:
            shutil.copyfile(path, unfinished)


def _merge_metadata(ours: Mapping[str, Any], theirs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    both = ours.keys() & theirs.keys()
    changed = differences({key: theirs[key] for key in both}, {key: ours[key] for key in both})
    if changed:
        raise StateError(
            f"The results in {folder} were made differently: {'; '.join(changed)}. Write a separate archive for them."
        )
    return {**ours, **theirs}


def _serialize(run: RunRecord) -> str:
    spec, rows, conditions = run.spec, run.rows, run.conditions[: len(run.rows)]
    visits = [(row["round"], row["domain"]) for row in rows]
    derived = ("round", "domain") if visits == _visits(spec, len(rows)) else ()
    names = [name for name in dict.fromkeys(itertools.chain.from_iterable(rows)) if name not in derived]
    kept = _rows_with_histograms(spec, len(rows))
    content = {
        "spec": spec.as_data(),
        "protocol": run.protocol,
        "count": len(rows),
        "rows": {name: _to_column([row.get(name) for row in rows], kept) for name in names},
        "seconds": _to_column([round(row.get("seconds") or 0.0, 2) for row in conditions], kept),
        "conditions": list(_run_length_encode(conditions)),
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def _deserialize(content: dict[str, Any], folder: Path) -> ArchivedRun:
    spec, count = Spec.from_data(content["spec"]), content["count"]
    columns = {name: _from_column(column, count) for name, column in content["rows"].items()}
    if "round" not in columns:
        rounds, domains = zip(*_visits(spec, count), strict=True)
        columns = {"round": list(rounds), "domain": list(domains), **columns}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    seconds = _from_column(content["seconds"], count)
    decoded = [stretch for stretch in content["conditions"] for _ in range(stretch["rows"])]
    conditions = [
        {"seconds": second} | {key: value for key, value in stretch.items() if key != "rows"}
        for second, stretch in zip(seconds, decoded, strict=True)
    ]
    snapshots = {int(path.stem.rpartition("-")[2]): path for path in folder.glob(f"{_SNAPSHOTS}/{spec.name}-*")}
    return ArchivedRun(spec, content["protocol"], rows, conditions, snapshots)


def _visits(spec: Spec, count: int) -> list[tuple[int, str]]:
    """Return round and domain of the first `count` rows of a stream."""
    return [(index // len(spec.domains) + 1, spec.domains[index % len(spec.domains)]) for index in range(count)]


def _rows_with_histograms(spec: Spec, count: int) -> range | set[int]:
    """Return the indices of the rows whose histograms are archived."""
    each = len(spec.domains)
    last = count // each
    return {*range(each), *range((last - 1) * each, last * each)} if spec.task == "stream" and last else range(count)


def _to_column(values: Sequence[Any], kept: Iterable[int]) -> Any:  # noqa: ANN401  # as JSON has it
    """Encode a column: one value if all are equal, the kept rows by index if they are lists, else all values."""
    rounded = [_round(value) for value in values]
    if any(isinstance(value, list) for value in rounded):
        return {"at": {str(index): rounded[index] for index in kept if index < len(rounded)}}
    return rounded[0] if rounded and all(value == rounded[0] for value in rounded) else rounded


def _from_column(column: Any, count: int) -> list[Any]:  # noqa: ANN401
    if isinstance(column, dict):
        return [column["at"].get(str(index)) for index in range(count)]
    return column if isinstance(column, list) else [column] * count


def _round(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_round(inner) for inner in value]
    return round(value, _DECIMALS) if isinstance(value, float) else value


def _run_length_encode(conditions: Sequence[Row]) -> Iterable[Row]:
    """Merge consecutive rows with the same conditions; time is stored per row, memory as the maximum."""
    for constant, group in itertools.groupby(conditions, key=_constant_fields):
        rows = list(group)
        peaks = [row["peak_memory"] for row in rows if row.get("peak_memory") is not None]
        yield {"rows": len(rows), "peak_memory": max(peaks, default=None), **dict(constant)}


def _constant_fields(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in row.items() if key not in ("seconds", "peak_memory"))
