"""The pages on security and interoperability quote what was measured."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_page(name):
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def read_results(name):
    return json.loads((ROOT / "results" / name / f"{name}.json").read_text(encoding="utf-8"))


def test_page_quotes_the_measured_unwrapping():
    page, rows = read_page("interoperability.md"), read_results("unwrapping")["runs"]
    short = [row["adapter"] - row["stream"] for row in rows if row["stream"] < row["adapter"] - 1]
    assert f"in {len(rows) - len(short)} of {len(rows)} rows" in page
    assert [f"{value:.1f} points below" in page for value in short] == [True]
    assert f"up to {max(row['adapter'] - row['training'] for row in rows):.0f} points below" in page


def test_fuzzing_read_a_hundred_thousand_files_of_every_kind_without_a_failure():
    readers = read_results("fuzz")["readers"]
    assert sum(reader["inputs"] for reader in readers.values()) >= 100_000
    assert all(reader["inputs"] >= 1000 and reader["failures"] == [] for reader in readers.values())
    assert {"state files", "weights", "CIFAR-10 batches", "MATLAB files", "suites"} <= readers.keys()
