"""The paper's numbers against themselves: averages, gains and deviations are computed again from what is printed."""

import dataclasses
import json
import statistics
from importlib import resources

import pytest

from driftproof.errors import ConfigurationError
from driftproof.paper.printed import PAPER_TABLES, paper_table

LAST_DIGIT = 0.01 + 1e-9  # numbers are printed with two digits, and computed by the authors from unrounded ones
MISPRINT = ("S3b_cotta_seg", "CoTTA")

tables = pytest.mark.parametrize("table", [*map(paper_table, PAPER_TABLES)], ids=PAPER_TABLES)


def baseline_of(method):
    return method.partition(" + Ours")[0]


def averaged(table, average):
    """The columns whose mean the column `average` is."""
    kind = average.removeprefix("Average")
    return [column for column in table.columns if not column.startswith("Average") and column.endswith(kind)]


def test_table_names_match_the_file():
    text = resources.files("driftproof.paper").joinpath("printed.json").read_text(encoding="utf-8")
    assert len(text.encode()) < 45_000
    assert tuple(entry["id"] for entry in json.loads(text)["tables"]) == PAPER_TABLES


@tables
def test_table_is_complete(table):
    assert table is paper_table(table.id)
    assert all([table.reference, table.caption, table.setting])
    assert set(table.units) == set(table.better) == set(table.columns)
    assert set(table.better.values()) <= {"lower", "higher"}
    assert len(set(table.columns)) == len(table.columns)
    for method, row in table.rows.items():
        assert method == row.method
        assert tuple(row.values) == table.columns
        assert {*row.deltas, *row.bold} <= set(table.columns)
        assert [table.value(method, column) for column in table.columns] == list(row.values.values())
        assert [table.delta(method, column) for column in row.deltas] == list(row.deltas.values())


@tables
def test_printed_gains_are_differences_from_the_baseline(table):
    for row in table.rows.values():
        for column, delta in row.deltas.items():
            baseline = table.value(baseline_of(row.method), column)
            assert delta == pytest.approx(row.values[column] - baseline, abs=LAST_DIGIT), (row.method, column)


@tables
def test_averages_are_column_means_except_one_misprint(table):
    for row in table.rows.values():
        for column in (column for column in table.columns if column.startswith("Average")):
            mean = statistics.fmean(row.values[part] for part in averaged(table, column))
            if (table.id, row.method) == MISPRINT:
                assert (row.values[column], round(mean, 2)) == (33.23, 35.83)
                assert any("33.23" in note and "35.83" in note for note in table.notes)
            else:
                assert row.values[column] == pytest.approx(mean, abs=LAST_DIGIT), (row.method, column)


@pytest.mark.parametrize("name", ["T8a_lr", "T8b_bs"])
def test_deviations_are_sample_standard_deviations(name):
    for row in paper_table(name).rows.values():
        *errors, deviation = row.values.values()
        assert deviation == pytest.approx(statistics.stdev(errors), abs=LAST_DIGIT)


def test_errors_in_the_cost_table_are_means_of_closed_and_open():
    costs, errors = paper_table("T6_cost_cls"), paper_table("T1_rounds50")
    for row in costs.rows.values():
        for images in ("CIFAR-10-C", "CIFAR-100-C"):
            kinds = [errors.value(row.method, f"{images}/{kind}") for kind in ("Closed", "Open")]
            assert row.values[f"{images} error"] == pytest.approx(statistics.fmean(kinds), abs=LAST_DIGIT)


@pytest.mark.parametrize(
    ("name", "main", "renamed"),
    [
        ("S1_seg_no_openset", "T3a_seg_continual", {}),
        ("S3b_cotta_seg", "T3a_seg_continual", {}),
        ("S3a_cotta_cls", "T6_cost_cls", {}),
        (
            "S3a_cotta_cls",
            "T1_rounds50",
            {"CIFAR-10-C/(b)": "CIFAR-10-C/Closed", "CIFAR-100-C/(c)": "CIFAR-100-C/Closed"},
        ),
        ("S3a_cotta_cls", "T7a_arch_long", {"CIFAR-10-C/(a)": "WRN28/Closed"}),
        ("S5_logit_variant", "T1_rounds50", {"CIFAR-100-C": "CIFAR-100-C/Closed"}),
    ],
)
def test_numbers_printed_in_two_tables_agree(name, main, renamed):
    here, there = paper_table(name), paper_table(main)
    columns = {column: column for column in here.columns if column in there.columns} | renamed
    methods = [method for method in here.rows if method in there.rows]
    assert columns
    assert methods
    for method in methods:
        for column, elsewhere in columns.items():
            assert here.value(method, column) == there.value(method, elsewhere)


def test_missing_values_are_none():
    table = paper_table("T4_seg_fixed")
    assert table.delta("TENT + Ours", "BDD-100K/Round 1") is None
    assert table.delta("TENT", "BDD-100K/Round 10") is None
    assert table.value("CoTTA", "BDD-100K/Round 1") is None
    assert table.delta("CoTTA", "BDD-100K/Round 1") is None


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ConfigurationError, match="T1_rounds50"):
        paper_table("T1_rounds5")
    with pytest.raises(ConfigurationError, match="CIFAR-10-C/Open"):
        paper_table("T1_rounds50").value("TENT", "CIFAR-10-C/open")
    with pytest.raises(ConfigurationError, match="column of T8a_lr"):
        paper_table("T8a_lr").delta("TENT", "lr=1")


def test_tables_are_immutable():
    table = paper_table("T8a_lr")
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.caption = "another"
    with pytest.raises(TypeError):
        table.rows["TENT"].values["Std"] = 0.0
