"""Archives: everything that was measured, in a few small Parquet files.

    FOLDER/folder.json           metadata shared by all runs, as in a results folder
    FOLDER/runs.parquet          one row per run: spec, protocol, environment
    FOLDER/measures.parquet      one row per measured number: run, round, domain, measure, value, count
    FOLDER/histograms.parquet    one row per histogram, of the first and the last complete round only

Whatever reads a results folder reads an archive as well. `driftproof.bench.load` reads both as data frames. Runs are
resumed from results folders, which can be copied to another machine.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftproof.bench.frames import FILES, Frames, merge_frames, pl, read_frames
from driftproof.bench.seal import UNSEALED, seal
from driftproof.bench.store import Store, merge_metadata
from driftproof.errors import InputError
from driftproof.files import atomic_write, sha256

__all__ = ["write_archive", "write_frames"]


def write_archive(folders: Sequence[Path], out: Path) -> None:
    """Merge results folders or archives, whose metadata must not contradict each other, into one archive.

    Of a run that several folders hold, the longest is archived, or else the first. An existing archive is replaced; it
    may be one of the folders.
    """
    if (out / "cells").exists():
        raise InputError(f"Expected a folder of its own for the archive, but {out} is a results folder.")
    metadata: dict[str, Any] = {}
    for folder in folders:
        metadata = merge_metadata(metadata, Store(folder).metadata, folder, "Write a separate archive for them.")
    merged = merge_frames([read_frames(folder) for folder in folders])
    runs = merged.runs.filter(pl.col("visits") > 0)
    if runs.is_empty():
        raise InputError(f"Expected results in {', '.join(map(str, folders))}, but there are none.")
    histograms = _without_middle_rounds(merged.histograms, runs)
    out.mkdir(parents=True, exist_ok=True)
    Store(out).write_metadata(metadata)
    write_frames(out, Frames(runs.drop("folder"), merged.measures, histograms))


def write_frames(out: Path, frames: Frames) -> None:
    """Write the tables of an archive; a reader sees the old ones or the new ones, whenever the process dies.

    The table of runs names the checksums of the others, which wait under another name until it is replaced.
    """
    waiting = {name: out / f"{name}.next" for name in FILES[:2]}
    for path, table in zip(waiting.values(), (frames.measures, frames.histograms), strict=True):
        _write(table.collect(), path)
    checksums = {name: sha256(path) for name, path in waiting.items()}
    _write(frames.runs, out / FILES[2], checksums=json.dumps(checksums))
    for name, path in waiting.items():
        path.replace(out / name)


def _write(frame: pl.DataFrame, path: Path, **metadata: str) -> None:
    sealed = UNSEALED if metadata else {}  # the metadata of this table has the checksums of the others
    with atomic_write(path) as unfinished:
        frame.rechunk().write_parquet(unfinished, compression_level=19, statistics=False, metadata=metadata | sealed)
        if sealed:
            seal(unfinished)


def _without_middle_rounds(histograms: pl.LazyFrame, runs: pl.DataFrame) -> pl.LazyFrame:
    """Keep the histograms of the first and the last complete round of a stream, and all of a shorter one."""
    first_or_last = (pl.col("round") == 1) | (pl.col("round") == pl.col("rounds"))
    kept = (pl.col("task") != "stream") | (pl.col("rounds") == 0) | first_or_last
    facts = runs.lazy().select("run", "task", "rounds")
    return histograms.join(facts, on="run", maintain_order="left").filter(kept).drop("task", "rounds")
