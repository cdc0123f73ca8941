"""Results as data frames: one tidy table of numbers, one table of runs, one of histograms.

The frames are polars': one wheel without dependencies, native Parquet, and plotting and table libraries take them as
they are. `.to_pandas()` converts them. Results folders (JSON lines) and archives (Parquet) give the same frames.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftproof.bench.store import ARCHIVE_FILE, Store
from driftproof.bench.tabulate import HEALTH_STATES, RUNS, SPEC_COLUMNS, Frames, tabulate_runs
from driftproof.errors import InputError, StateError
from driftproof.files import sha256
from driftproof.optional import require

if TYPE_CHECKING:
    import polars as pl
else:
    pl = require("polars", "Reading results as tables", "'driftproof[report]'")

__all__ = [
    "FILES",
    "HEALTH_STATES",
    "Frames",
    "load",
    "load_histograms",
    "load_metadata",
    "load_runs",
    "merge_frames",
    "read_frames",
]

FILES = ("measures.parquet", "histograms.parquet", ARCHIVE_FILE)
"""The tables of an archive. The last one, that of the runs, holds the checksums of the others."""

_COLUMNS = ("run", *SPEC_COLUMNS[:-1], "round", "domain", "seed", "measure", "value", "count")


def load(folder: Path | str, *more: Path | str) -> "pl.DataFrame":
    """Return every measured number of results folders or archives, one row each.

    Columns are `run`, `method`, `model`, `stream`, `unknown`, `setting` (open or closed), `task`, `round`, `domain`,
    `seed`, `measure`, `value` and `count`. `driftproof bench list` says what the measures are.

    - `value` is null where a number could not be measured. That of `health` is an index into `HEALTH_STATES`.
    - `count` is the number of samples that the value is over: the known images for `error`, the selected samples for
      `precision`, the steps for `step/milliseconds`. It is null for what is itself a count or not over samples.
      Archives made before driftproof stored counts have it only where it follows: for `rejected` on image streams, and
      for `error` on closed ones. Their values are rounded to five decimals.
    - `seconds`, `peak_memory` and `step/milliseconds` depend on the machine, all other measures on the spec alone. In
      those older archives the peak is that of all visits under the same conditions.

    Of a run that several folders hold, the longest counts.

    Args:
        folder: A results folder or an archive.
        more: Further ones.
    """
    frames = read_frames(folder, *more)
    runs = frames.runs.lazy().select("run", *SPEC_COLUMNS)
    return frames.measures.join(runs, on="run", maintain_order="left").select(_COLUMNS).collect()


def load_runs(folder: Path | str, *more: Path | str) -> "pl.DataFrame":
    """Return the runs of results folders or archives, one row each.

    Columns are the fields of the spec (`options` as JSON), `protocol` (JSON), the number of `visits` of a domain and of
    complete `rounds`, `seconds` in all, the largest `peak_memory`, and the environment of the last visit. `spec` is the
    whole spec as JSON, `conditions` the environment of all visits (JSON, run-length encoded), `folder` where it was
    read.
    """
    return read_frames(folder, *more).runs


def load_histograms(folder: Path | str, *more: Path | str) -> "pl.DataFrame":
    """Return the histograms of results folders or archives: run, round, domain, measure and bins.

    Archives hold those of the first and the last complete round. The matrices of the task `gradients` are flattened,
    row by row.
    """
    return read_frames(folder, *more).histograms.collect()


def load_metadata(folder: Path | str) -> dict[str, Any]:
    """Return what all runs of a folder share, such as the limit on images."""
    return Store(Path(folder)).metadata


def read_frames(folder: Path | str, *more: Path | str) -> Frames:
    """Return the tables of results folders or archives, of each run the longest."""
    found = [_read_folder(Path(each)) for each in (folder, *more)]
    return found[0] if len(found) == 1 else merge_frames(found)


def merge_frames(found: Sequence[Frames], *prefer: str) -> Frames:
    """Merge tables; of a run that several hold, the longest counts, and of equally long ones the first.

    Args:
        found: The tables.
        prefer: Columns of `runs` by which to prefer one of equally long runs.
    """
    runs = pl.concat([frames.runs.with_columns(source=pl.lit(index)) for index, frames in enumerate(found)])
    runs = runs.sort("visits", *prefer, descending=True, maintain_order=True).unique("run", keep="first").sort("run")
    chosen = [runs.lazy().filter(source=index).select("run") for index in range(len(found))]

    def merge(*tables: "pl.LazyFrame") -> "pl.LazyFrame":
        pairs = zip(tables, chosen, strict=True)
        kept = [table.join(names, on="run", how="semi", maintain_order="left") for table, names in pairs]
        return pl.concat(kept).sort("run", maintain_order=True)

    measures, histograms = merge(*(each.measures for each in found)), merge(*(each.histograms for each in found))
    return Frames(runs.drop("source"), measures, histograms)


def _read_folder(folder: Path) -> Frames:
    is_archive = (folder / ARCHIVE_FILE).exists()
    frames = _read_archive(folder) if is_archive else tabulate_runs(Store(folder).runs(), str(folder))
    if frames.runs.is_empty():
        below = sorted(str(path.parent) for name in (ARCHIVE_FILE, "cells") for path in folder.glob(f"*/{name}"))
        choose = f"Choose one of its subfolders with results: {', '.join(below)}."
        advice = choose if below else "Run `driftproof bench run` first."
        raise InputError(f"Expected results in {folder}, but there are none. {advice}")
    return frames._replace(runs=frames.runs.with_columns(folder=pl.lit(str(folder))))


def _read_archive(folder: Path) -> Frames:
    measures, histograms, runs = (folder / name for name in FILES)
    try:
        table = pl.read_parquet(runs)
        checksums = json.loads(pl.read_parquet_metadata(runs)["checksums"])
        changed = [path.name for path in (measures, histograms) if sha256(path) != checksums[path.name]]
        changed += [name for name, kind in RUNS.items() if table.schema[name] != kind]
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        raise StateError(
            f"Expected an archive in {folder}, but it cannot be read: {error!r}. Export it again."
        ) from error
    if changed:
        raise StateError(f"Expected {folder} as it was written, but {', '.join(changed)} changed. Export it again.")
    return Frames(table, pl.scan_parquet(measures), pl.scan_parquet(histograms))
