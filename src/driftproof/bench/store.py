"""Results on disk: crash-safe, append-only, resumable.

    FOLDER/folder.json                    metadata shared by all runs in the folder
    FOLDER/cells/NAME/spec.json           what the run measures, and a description of its method
                     /rows.jsonl          measured values: one line per visit of a domain, determined by the spec
                     /conditions.jsonl    versions, hardware, time and memory, one line per row
                     /snapshot-N.safetensors   the adapter after N visits
    FOLDER/prepared/NAME/state.safetensors     prepared state that several runs share

Every file is replaced atomically. A snapshot is written before the rows that lead up to it, and the previous snapshot
is removed after them. So whenever a process is killed, the rows reach at least one snapshot, and resuming from it
reproduces the rows that follow.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from driftproof.adapter import Adapter
from driftproof.bench.spec import Spec, differences
from driftproof.errors import StateError
from driftproof.files import atomic_write, check_regular_file

__all__ = ["ARCHIVE_FILE", "Row", "Run", "Store", "merge_metadata"]

Row = dict[str, Any]

ARCHIVE_FILE = "runs.parquet"
"""The file that makes a folder an archive."""

_FORMAT = 1


class Store:
    """A results folder; created on the first write."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def run(self, spec: Spec) -> "Run":
        """Return the run of a spec, whether or not it has any results yet."""
        return Run(self.folder / "cells" / spec.name)

    def runs(self) -> Iterator["Run"]:
        """Iterate over the runs in the folder, sorted by name."""
        for path in sorted(self.folder.glob("cells/*/spec.json")):
            yield Run(path.parent)

    @property
    def metadata(self) -> dict[str, Any]:
        """What all runs of the folder share; empty for a new folder."""
        path = self.folder / "folder.json"
        if not path.exists():
            return {}
        data = _read_json(path)
        if data.get("format") != _FORMAT:
            raise StateError(f"Expected {path} in format {_FORMAT}, but got {data.get('format')!r}.")
        return {key: value for key, value in data.items() if key != "format"}

    def update_metadata(self, facts: Mapping[str, Any]) -> None:
        """Add facts, such as checksums of weights, to the metadata; raise a StateError if one contradicts it."""
        if (self.folder / ARCHIVE_FILE).exists():  # readers would read the archive and never see new runs
            raise StateError(
                f"Expected a results folder, but {self.folder} is an archive. Choose another folder; "
                "`driftproof bench export` merges the two."
            )
        advice = "Choose another folder."
        if merge_metadata(self.metadata, facts, self.folder, advice) == self.metadata:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        # Another process may update the metadata between our read and our write.
        with FileLock(self.folder / ".lock"):
            self.write_metadata(merge_metadata(self.metadata, facts, self.folder, advice))

    def write_metadata(self, facts: Mapping[str, Any]) -> None:
        """Replace the metadata."""
        _write_json(self.folder / "folder.json", {"format": _FORMAT, **facts})


def merge_metadata(before: Mapping[str, Any], new: Mapping[str, Any], folder: Path, advice: str) -> dict[str, Any]:
    """Return the metadata of both; raise a StateError if they contradict each other.

    Commands are no contradiction: those that differ from the recorded ones in more than their date are appended.
    """
    both = (before.keys() & new.keys()) - {"commands"}
    changed = differences({key: new[key] for key in new if key in both}, {key: before[key] for key in both})
    if changed:
        raise StateError(f"The results in {folder} were made differently: {'; '.join(changed)}. {advice}")
    recorded = before.get("commands", [])
    known = [{**command, "date": ""} for command in recorded]
    commands = [*recorded, *(command for command in new.get("commands", []) if {**command, "date": ""} not in known)]
    return {**before, **new} | ({"commands": commands} if commands else {})


class Run:
    """Results of one spec, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def spec(self) -> Spec:
        """What the run measures."""
        return Spec.from_data(self._read_description("spec"))

    @property
    def protocol(self) -> dict[str, str]:
        """Description of the adapter, component by component."""
        return self._read_description("protocol")

    @property
    def rows(self) -> list[Row]:
        """Measured values in order; a partially written last line is ignored."""
        return _read_lines(self.folder / "rows.jsonl")

    @property
    def length(self) -> int:
        """Number of rows."""
        path = self.folder / "rows.jsonl"
        return _read_bytes(path).count(b"\n") if path.exists() else 0

    @property
    def conditions(self) -> list[Row]:
        """Versions, hardware, time and memory of each row."""
        return _read_lines(self.folder / "conditions.jsonl")

    @property
    def snapshots(self) -> dict[int, Path]:
        """Saved adapter states, by the number of rows before them."""
        paths = {path.stem.removeprefix("snapshot-"): path for path in self.folder.glob("snapshot-*.safetensors")}
        return {int(rows): path for rows, path in paths.items() if rows.isdecimal()}

    @contextmanager
    def locked(self, timeout: float = 0.0) -> Iterator[None]:
        """Hold the run's lock, after waiting for `timeout` seconds: no other process works on it meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / ".lock", timeout=timeout):
                _remove_partial(self.folder)
                yield
        except Timeout as error:
            raise StateError(
                f"Expected {self.folder.name} to be free, but another process works on it. Wait for it or stop it."
            ) from error

    @contextmanager
    def shared_artifact(self, name: str) -> Iterator[Path]:
        """Lock and yield the path of a state that the runs of the folder share."""
        home = self.folder.parents[1] / "prepared" / name
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"):
            _remove_partial(home)
            yield home / "state.safetensors"

    def write_spec(self, spec: Spec, protocol: Mapping[str, str]) -> None:
        """Write what the run measures; raise a StateError if the folder holds another run."""
        path = self.folder / "spec.json"
        description = {"spec": spec.as_data(), "protocol": dict(protocol)}
        if not path.exists():
            _write_json(path, description)
            return
        stored = _read_json(path)
        changed = [line for key, ours in description.items() for line in differences(ours, stored.get(key, {}))]
        if changed:
            found = "; ".join(changed)
            raise StateError(f"The rows in {self.folder} were made differently: {found}. Choose another folder.")

    def resume(self, adapter: Adapter) -> int:
        """Load the last snapshot that the rows reach; return the number of rows it stands for.

        Rows after the snapshot are dropped, because they will be measured again.
        """
        rows, snapshots = self.length, self.snapshots
        reached = max((position for position in snapshots if position <= rows), default=0)
        if rows and not reached:
            raise StateError(
                f"Expected a snapshot for the {rows} rows of {self.folder.name}, but there is none. "
                "Choose another folder to start the run from its beginning."
            )
        if reached:
            adapter.load(snapshots[reached])
        for name in ("rows.jsonl", "conditions.jsonl"):
            _truncate_and_append(self.folder / name, reached)
        return reached

    def commit(self, rows: Sequence[Row], conditions: Sequence[Row], adapter: Adapter) -> None:
        """Append rows with the adapter's state after them; a later `resume` sees all of it or nothing."""
        reached = self.length + len(rows)
        adapter.save(self.folder / f"snapshot-{reached}.safetensors")
        self.append(rows, conditions)
        for position, path in self.snapshots.items():
            if position != reached:
                path.unlink(missing_ok=True)

    def append(self, rows: Sequence[Row], conditions: Sequence[Row]) -> None:
        """Append rows atomically, without a snapshot."""
        before = self.length
        _truncate_and_append(self.folder / "conditions.jsonl", before, conditions)
        _truncate_and_append(self.folder / "rows.jsonl", before, rows)

    def _read_description(self, key: str) -> dict[str, Any]:
        path = self.folder / "spec.json"
        content = _read_json(path).get(key)
        if not isinstance(content, dict):
            raise StateError(f"Expected {path} to describe a run, but it has no `{key}`.")
        return content


def _remove_partial(folder: Path) -> None:
    """Remove files that a killed process left unfinished."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def _read_lines(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        *complete, _ = _read_bytes(path).split(b"\n")
        return [json.loads(line) for line in complete]
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"Expected a row on each line of {path}, but it cannot be read: {error}.") from error


def _truncate_and_append(path: Path, count: int, rows: Sequence[Row] = ()) -> None:
    """Keep the first `count` lines of a file and append rows, in one atomic write."""
    before = _read_bytes(path) if path.exists() else b""
    lines = [line + b"\n" for line in before.split(b"\n")[:count]]
    after = b"".join([*lines, *(json.dumps(row).encode() + b"\n" for row in rows)])
    if after != before:
        with atomic_write(path) as unfinished:
            unfinished.write_bytes(after)


def _read_bytes(path: Path) -> bytes:
    check_regular_file(path)
    return path.read_bytes()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"Expected results in {path}, but it cannot be read: {error}.") from error
    if not isinstance(data, dict):
        raise StateError(f"Expected a JSON object in {path}, but got {type(data).__name__}.")
    return data


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(data, indent=2) + "\n")
