"""The paper's numbers against themselves: averages, gains and deviations are computed again from what is printed."""

import statistics

import pytest

from driftproof.errors import ConfigurationError
from driftproof.paper.printed import load_tables, paper_table

LAST_DIGIT = 0.01 + 1e-9  # numbers are printed with two digits, and computed by the authors from unrounded ones
MISPRINT = ("S3b_cotta_seg", "CoTTA")

tables = pytest.mark.parametrize("name", load_tables())


@tables
def test_table_is_complete(name):
    table = paper_table(name)
    assert table.reference
    assert set(table.better.values()) <= {"lower", "higher"}
    for row in table.rows.values():
        assert list(row.values) == list(table.better)
        assert {*row.deltas, *row.bold} <= set(table.better)


@tables
def test_printed_gains_and_averages_follow_from_the_numbers(name):
    table = paper_table(name)
    for method, row in table.rows.items():
        for column, delta in row.deltas.items():
            baseline = table.value(method.partition(" + Ours")[0], column)
            assert delta == pytest.approx(row.values[column] - baseline, abs=LAST_DIGIT), (method, column)
        for average in (column for column in table.better if column.startswith("Average")):
            setting = average.removeprefix("Average")
            parts = [c for c in table.better if not c.startswith("Average") and c.endswith(setting)]
            mean = statistics.fmean(row.values[part] for part in parts)
            if (name, method) == MISPRINT:
                assert (row.values[average], round(mean, 2)) == (33.23, 35.83)
                assert any("33.23" in note and "35.83" in note for note in table.notes)
            else:
                assert row.values[average] == pytest.approx(mean, abs=LAST_DIGIT), (method, average)


@pytest.mark.parametrize("name", ["T8a_lr", "T8b_bs"])
def test_deviations_are_sample_standard_deviations(name):
    for row in paper_table(name).rows.values():
        *errors, deviation = row.values.values()
        assert deviation == pytest.approx(statistics.stdev(errors), abs=LAST_DIGIT)


def test_errors_in_the_cost_table_are_means_of_closed_and_open():
    costs, errors = paper_table("T6_cost_cls"), paper_table("T1_rounds50")
    for method, row in costs.rows.items():
        for images in ("CIFAR-10-C", "CIFAR-100-C"):
            kinds = [errors.value(method, f"{images}/{kind}") for kind in ("Closed", "Open")]
            assert row.values[f"{images} error"] == pytest.approx(statistics.fmean(kinds), abs=LAST_DIGIT)


@pytest.mark.parametrize(
    ("name", "main", "renamed"),
    [
        ("S1_seg_no_openset", "T3a_seg_continual", {}),
        ("S3b_cotta_seg", "T3a_seg_continual", {}),
        ("S3a_cotta_cls", "T6_cost_cls", {}),
        ("S3a_cotta_cls", "T1_rounds50", {"CIFAR-10-C/(b)": "CIFAR-10-C/Closed"}),
        ("S3a_cotta_cls", "T1_rounds50", {"CIFAR-100-C/(c)": "CIFAR-100-C/Closed"}),
        ("S3a_cotta_cls", "T7a_arch_long", {"CIFAR-10-C/(a)": "WRN28/Closed"}),
        ("S5_logit_variant", "T1_rounds50", {"CIFAR-100-C": "CIFAR-100-C/Closed"}),
    ],
)  # fmt: skip
def test_numbers_printed_in_two_tables_agree(name, main, renamed):
    here, there = paper_table(name), paper_table(main)
    columns = {column: column for column in here.better if column in there.better} | renamed
    methods = [method for method in here.rows if method in there.rows]
    assert columns
    assert methods
    for method in methods:
        for column, elsewhere in columns.items():
            assert here.value(method, column) == there.value(method, elsewhere)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ConfigurationError, match="T1_rounds50"):
        paper_table("T1_rounds5")
    with pytest.raises(ConfigurationError, match="CIFAR-10-C/Open"):
        paper_table("T1_rounds50").value("TENT", "CIFAR-10-C/open")
    assert paper_table("T4_seg_fixed").value("CoTTA", "BDD-100K/Round 1") is None
