"""Results on disk: kept whole, added to, gone on from.

    FOLDER/folder.json                    what all cells in the folder share
    FOLDER/cells/NAME/spec.json           what the cell measures, and the method in its own words
                     /rows.jsonl          what was measured: one line per visit of a domain, from the spec alone
                     /conditions.jsonl    how: versions, hardware, time and memory, one line for each row
                     /snapshot-N.safetensors   the adapter after N visits
    FOLDER/prepared/NAME/state.safetensors     what one cell has prepared and others need alike

Every file is replaced in one act. A snapshot is written before the rows that lead up to it, and the one before it is
removed after them. So whenever a process is killed, there is a snapshot that the rows reach, and what comes after it
comes out the same again.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from driftproof.adapter import Adapter
from driftproof.bench.spec import Spec, differences
from driftproof.errors import StateError
from driftproof.files import atomic_write

__all__ = ["ARCHIVE_FILE", "Run", "Row", "Store"]

Row = dict[str, Any]

ARCHIVE_FILE = "cells.jsonl"
"""The file that makes a folder an archive."""

_FORMAT = 1


class Store:
    """A folder of results.

    Args:
        folder: Made when something is first written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def run(self, spec: Spec) -> "Run":
        """The place of one cell, whether or not there is anything yet."""
        return Run(self.folder / "cells" / spec.name)

    def runs(self) -> Iterator["Run"]:
        """Every cell in the folder, by name."""
        for path in sorted(self.folder.glob("cells/*/spec.json")):
            yield Run(path.parent)

    @property
    def metadata(self) -> dict[str, Any]:
        """What all cells of the folder share; empty for a new one."""
        path = self.folder / "folder.json"
        if not path.exists():
            return {}
        data = _read_json(path)
        if data.get("format") != _FORMAT:
            raise StateError(f"Expected {path} in format {_FORMAT}, but got {data.get('format')!r}.")
        return {key: value for key, value in data.items() if key != "format"}

    def update_metadata(self, facts: Mapping[str, Any]) -> None:
        """ProgressEvent what every cell shares; refuse what contradicts it.

        Args:
            facts: For example the limit on images, and the checksums of weights.
        """
        if (self.folder / ARCHIVE_FILE).exists():  # whoever reads the folder would read that, and never what is added
            raise StateError(
                f"Expected a folder to measure in, but {self.folder} is an archive. Choose another folder: "
                "`driftproof bench unpack` makes one of an archive with snapshots, `bench export` joins the two later."
            )
        if self._sharing(facts) == self.metadata:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        # Between reading and writing, nobody else may add a fact.
        with FileLock(self.folder / ".lock"):
            self.write_metadata(self._sharing(facts))

    def write_metadata(self, facts: Mapping[str, Any]) -> None:
        """Say anew what every cell shares, whatever was said before."""
        _write_json(self.folder / "folder.json", {"format": _FORMAT, **facts})

    def _sharing(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        before = self.metadata
        known = {key: before[key] for key in facts if key in before}
        changed = differences({key: facts[key] for key in known}, known)
        if changed:
            raise StateError(
                f"The results in {self.folder} were made differently: {'; '.join(changed)}. Choose another folder."
            )
        return {**before, **facts}


class Run:
    """The results of one spec.

    Args:
        folder: Its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def spec(self) -> Spec:
        """What the cell measures."""
        return Spec.from_data(self._described("spec"))

    @property
    def protocol(self) -> dict[str, str]:
        """The method in its own words."""
        return self._described("protocol")

    @property
    def rows(self) -> list[Row]:
        """What was measured, in order; a line that was being written when the process died does not count."""
        return _lines(self.folder / "rows.jsonl")

    @property
    def length(self) -> int:
        """The number of rows."""
        path = self.folder / "rows.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def conditions(self) -> list[Row]:
        """How each row was measured."""
        return _lines(self.folder / "conditions.jsonl")

    @property
    def snapshots(self) -> dict[int, Path]:
        """The adapter's states after so many rows."""
        found = (
            (re.fullmatch(r"snapshot-(\d+)", path.stem), path) for path in self.folder.glob("snapshot-*.safetensors")
        )
        return {int(match[1]): path for match, path in found if match}

    def snapshot(self, rows: int) -> Path:
        """Where the adapter's state after so many rows is kept."""
        return self.folder / f"snapshot-{rows}.safetensors"

    @contextmanager
    def locked(self, timeout: float = 0.0) -> Iterator[None]:
        """Nobody else works on the cell meanwhile.

        Args:
            timeout: Seconds to wait for whoever does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / ".lock", timeout=timeout):
                _sweep(self.folder)
                yield
        except Timeout as error:
            raise StateError(f"Another process is at work on {self.folder.name}. Wait for it or stop it.") from error

    @contextmanager
    def shared_artifact(self, name: str) -> Iterator[Path]:
        """The place of a state that all cells of the folder share; whoever wants it meanwhile waits."""
        home = self.folder.parents[1] / "prepared" / name
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"):
            _sweep(home)
            yield home / "state.safetensors"

    def write_spec(self, spec: Spec, protocol: Mapping[str, str]) -> None:
        """Say what the cell measures; refuse if it measures something else."""
        path = self.folder / "spec.json"
        description = {"spec": spec.as_data(), "protocol": dict(protocol)}
        if path.exists():
            found = _read_json(path)
            changed = [line for key, ours in description.items() for line in differences(ours, found.get(key, {}))]
            if changed:
                raise StateError(
                    f"The rows in {self.folder} were made differently: {'; '.join(changed)}. Choose another folder."
                )
        else:
            _write_json(path, description)

    def resume(self, adapter: Adapter) -> int:
        """Bring the adapter to where the rows end, and say how many there are."""
        rows, snapshots = self.length, self.snapshots
        reached = max((position for position in snapshots if position <= rows), default=0)
        if rows and not reached:
            raise StateError(
                f"Expected a snapshot beside the {rows} rows of {self.folder.name} to go on from, but there is none. "
                "Choose another folder to measure the cell from its beginning."
            )
        if reached:
            adapter.load(snapshots[reached])
        for name in ("rows.jsonl", "conditions.jsonl"):
            _keep(self.folder / name, reached)
        return reached

    def commit(self, rows: Sequence[Row], conditions: Sequence[Row], adapter: Adapter) -> None:
        """Add rows, with the adapter's state after them; all or nothing, as far as a later `resume` can tell."""
        reached = self.length + len(rows)
        adapter.save(self.snapshot(reached))
        self.append(rows, conditions)
        for position, path in self.snapshots.items():
            if position != reached:
                path.unlink(missing_ok=True)

    def append(self, rows: Sequence[Row], conditions: Sequence[Row]) -> None:
        """Add rows, all or none, that nothing has to go on from."""
        before = self.length
        _keep(self.folder / "conditions.jsonl", before, conditions)
        _keep(self.folder / "rows.jsonl", before, rows)

    def _described(self, part: str) -> dict[str, Any]:
        path = self.folder / "spec.json"
        content = _read_json(path).get(part)
        if not isinstance(content, dict):
            raise StateError(f"Expected {path} to say what the cell measures, but it has no `{part}`.")
        return content


def _sweep(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def _lines(path: Path) -> list[Row]:
    if not path.exists():
        return []
    *whole, _ = path.read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in whole]
    except ValueError as error:
        raise StateError(f"Expected a row on each line of {path}, but it cannot be read: {error}.") from error


def _keep(path: Path, count: int, more: Sequence[Row] = ()) -> None:
    """Leave the first lines of a file, and add to them, in one act."""
    before = path.read_bytes() if path.exists() else b""
    lines = [line + b"\n" for line in before.split(b"\n")[:count]]
    after = b"".join([*lines, *(json.dumps(row).encode() + b"\n" for row in more)])
    if after != before:
        with atomic_write(path) as unfinished:
            unfinished.write_bytes(after)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StateError(f"Expected results in {path}, but it cannot be read: {error}.") from error
    if not isinstance(data, dict):
        raise StateError(f"Expected results in {path}, but it holds something else.")
    return data


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(data, indent=2) + "\n")
