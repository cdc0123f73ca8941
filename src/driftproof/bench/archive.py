"""Archives: everything that was measured, in a few small Parquet files.

    FOLDER/folder.json           metadata shared by all runs, as in a results folder
    FOLDER/runs.parquet          one row per run: spec, protocol, environment
    FOLDER/measures.parquet      one row per measured number: run, round, domain, measure, value, count
    FOLDER/histograms.parquet    one row per histogram, of the first and the last complete round only
    FOLDER/snapshots/NAME-N.safetensors    optional: the adapter after N visits, to resume the run from

Whatever reads a results folder reads an archive as well. `driftproof.bench.load` reads both as data frames.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from driftproof.bench.frames import FILES, FROM_CONDITIONS, HEALTH_STATES, Frames, merge_frames, pl, read_frames
from driftproof.bench.seal import UNSEALED, seal
from driftproof.bench.spec import Spec
from driftproof.bench.store import Row, Run, Store, merge_metadata
from driftproof.errors import InputError, StateError
from driftproof.files import atomic_write, sha256

__all__ = ["unpack", "write_archive", "write_frames"]

_SNAPSHOTS = "snapshots"


def write_archive(folders: Sequence[Path], out: Path, *, snapshots: bool = False) -> None:
    """Merge results folders or archives, whose metadata must not contradict each other, into one archive.

    Of a run that several folders hold, the longest is archived; of equally long ones, the first, or the one with a
    snapshot if `snapshots` are stored, to resume runs from. An existing archive is replaced.
    """
    if (out / "cells").exists():
        raise InputError(f"Expected a folder of its own for the archive, but {out} is a results folder.")
    metadata: dict[str, Any] = {}
    for folder in folders:
        metadata = merge_metadata(metadata, Store(folder).metadata, folder, "Write a separate archive for them.")
    found = [_with_snapshots(read_frames(folder)) for folder in folders]
    merged = merge_frames(found, *(["has_snapshot"] if snapshots else []))
    runs = merged.runs.filter(pl.col("visits") > 0)
    if runs.is_empty():
        raise InputError(f"Expected results in {', '.join(map(str, folders))}, but there are none.")
    # Read before writing: the archive may be one of the folders.
    measures, histograms = merged.measures.collect(), _without_middle_rounds(merged.histograms, runs).collect()
    copied = {
        out / _SNAPSHOTS / f"{run}-{_position(Path(path))}.safetensors": Path(path)
        for run, path in runs.filter("has_snapshot").select("run", "snapshot").iter_rows()
        if snapshots
    }
    out.mkdir(parents=True, exist_ok=True)
    for target, path in copied.items():
        _copy(path, target)
    write_frames(out, measures, histograms, runs.drop("folder", "snapshot", "has_snapshot"))
    Store(out).write_metadata(metadata)
    for stale in set((out / _SNAPSHOTS).glob("*.safetensors")) - set(copied):
        stale.unlink()


def write_frames(out: Path, measures: pl.DataFrame, histograms: pl.DataFrame, runs: pl.DataFrame) -> None:
    """Write the tables of an archive; a reader sees the old ones, the new ones, or an error, never a mixture."""
    with ExitStack() as stack:
        paths = {name: stack.enter_context(atomic_write(out / name)) for name in reversed(FILES)}
        _write(measures, paths[FILES[0]])
        _write(histograms, paths[FILES[1]])
        checksums = {name: sha256(paths[name]) for name in FILES[:2]}
        _write(runs, paths[FILES[2]], checksums=json.dumps(checksums))


def _write(frame: pl.DataFrame, path: Path, **metadata: str) -> None:
    sealed = UNSEALED if metadata else {}  # the metadata of this table has the checksums of the others
    frame.rechunk().write_parquet(path, compression_level=19, statistics=False, metadata=metadata | sealed)
    if sealed:
        seal(path)


def unpack(archive: Path, out: Path) -> None:
    """Make a results folder, which has to be new or empty, from the runs of an archive that have snapshots."""
    resumable = _with_snapshots(read_frames(archive)) if (archive / FILES[-1]).exists() else None
    runs = [] if resumable is None else resumable.runs.filter("has_snapshot").rows(named=True)
    if resumable is None or not runs:
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
    for archived in runs:
        spec, protocol, rows, conditions = _read_run(resumable, archived)
        run, path = store.run(spec), Path(archived["snapshot"])
        with run.locked():
            _copy(path, run.snapshot_path(_position(path)))
            run.append(rows, conditions)
            run.write_spec(spec, protocol)
    unfinished.replace(out)


def _read_run(frames: Frames, archived: Mapping[str, Any]) -> tuple[Spec, dict[str, str], list[Row], list[Row]]:
    """Return spec, protocol, rows and conditions of an archived run."""
    try:
        spec, protocol = Spec.from_data(json.loads(archived["spec"])), dict(json.loads(archived["protocol"]))
        return spec, protocol, *_visits(frames, archived)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StateError(
            f"Expected spec, rows and conditions of {archived['run']}, but they cannot be read: {error!r}. "
            "Export it again."
        ) from error


def _visits(frames: Frames, archived: Mapping[str, Any]) -> tuple[list[Row], list[Row]]:
    """Return rows and conditions of an archived run as a results folder has them."""
    rows: dict[tuple[int, str], Row] = {}
    costs: dict[tuple[int, str], Row] = {}
    for _, round, domain, name, value, count in frames.measures.filter(run=archived["run"]).collect().iter_rows():
        row = rows.setdefault((round, domain), {"round": round, "domain": domain})
        if name in FROM_CONDITIONS:
            costs.setdefault((round, domain), {})[name] = value
        else:
            row[name] = HEALTH_STATES[int(value)] if name == "health" else value
            if count is not None:
                row.setdefault("counts", {})[name] = count
    for _, round, domain, name, bins in frames.histograms.filter(run=archived["run"]).collect().iter_rows():
        rows[round, domain][name] = [int(count) for count in bins]
    encoded = json.loads(archived["conditions"])
    lengths = [stretch.pop("rows") for stretch in encoded]
    if min(lengths, default=0) < 0 or sum(lengths) != len(rows):  # before any of them is written out
        raise ValueError(f"there are conditions of {sum(lengths):,} rows for {len(rows):,}")
    stretches = [stretch for stretch, length in zip(encoded, lengths, strict=True) for _ in range(length)]
    conditions = [{**costs.get(visit, {}), **stretch} for visit, stretch in zip(rows, stretches, strict=True)]
    for condition in conditions:
        condition.pop("step/milliseconds", None)  # it follows from the seconds
    return list(rows.values()), conditions


def _with_snapshots(frames: Frames) -> Frames:
    """Add to each run the last snapshot that its rows reach."""
    found = [_last_snapshot(*run) for run in frames.runs.select("folder", "run", "visits").iter_rows()]
    paths = pl.Series("snapshot", found, dtype=pl.String)
    return frames._replace(runs=frames.runs.with_columns(paths, has_snapshot=paths.is_not_null()))


def _last_snapshot(folder: str, name: str, visits: int) -> str | None:
    if (Path(folder) / FILES[-1]).exists():
        found = Path(folder, _SNAPSHOTS).glob(f"{name}-*.safetensors")
        snapshots = {_position(path): path for path in found if path.stem.rpartition("-")[2].isdecimal()}
    else:
        snapshots = Run(Path(folder, "cells", name)).snapshots
    reached = max((position for position in snapshots if position <= visits), default=None)
    return None if reached is None else str(snapshots[reached])


def _position(snapshot: Path) -> int:
    """Return the number of visits before a snapshot, which ends its name."""
    return int(snapshot.stem.rpartition("-")[2])


def _without_middle_rounds(histograms: pl.LazyFrame, runs: pl.DataFrame) -> pl.LazyFrame:
    """Keep the histograms of the first and the last complete round of a stream, and all of a shorter one."""
    first_or_last = (pl.col("round") == 1) | (pl.col("round") == pl.col("rounds"))
    kept = (pl.col("task") != "stream") | (pl.col("rounds") == 0) | first_or_last
    facts = runs.lazy().select("run", "task", "rounds")
    return histograms.join(facts, on="run", maintain_order="left").filter(kept).drop("task", "rounds")


def _copy(path: Path, target: Path) -> None:
    if path != target:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as unfinished:
            shutil.copyfile(path, unfinished)
