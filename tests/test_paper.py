"""The paper's numbers against themselves: averages, gains and deviations are computed again from what is printed."""

import itertools
import statistics

import pytest

from driftproof.paper.printed import load_tables, paper_table

LAST_DIGIT = 0.01 + 1e-9  # numbers are printed with two digits, and computed by the authors from unrounded ones
MISPRINT = ("S3b_cotta_seg", "CoTTA")


@pytest.mark.parametrize("name", load_tables())
def test_tables_are_complete_and_gains_and_averages_follow_from_the_numbers(name):
    table = paper_table(name)
    assert table.reference
    assert set(table.better.values()) <= {"lower", "higher"}
    for method, row in table.rows.items():
        assert list(row) == list(table.better)
        for column, gain in table.gains.get(method, {}).items():
            baseline = table.rows[method.partition(" + Ours")[0]][column]
            assert gain == pytest.approx(row[column] - baseline, abs=LAST_DIGIT), (method, column)
        for average in (column for column in table.better if column.startswith("Average")):
            setting = average.removeprefix("Average")
            parts = [c for c in table.better if not c.startswith("Average") and c.endswith(setting)]
            mean = statistics.fmean(row[part] for part in parts)
            if (name, method) == MISPRINT:
                assert (row[average], round(mean, 2)) == (33.23, 35.83)
                assert any("33.23" in note and "35.83" in note for note in table.notes)
            else:
                assert row[average] == pytest.approx(mean, abs=LAST_DIGIT), (method, average)


def test_deviations_are_those_of_samples_and_errors_in_the_cost_table_means_of_closed_and_open():
    for row in (*paper_table("T8a_lr").rows.values(), *paper_table("T8b_bs").rows.values()):
        *each, deviation = row.values()
        assert deviation == pytest.approx(statistics.stdev(each), abs=LAST_DIGIT)
    costs, errors = paper_table("T6_cost_cls"), paper_table("T1_rounds50")
    for method, row in costs.rows.items():
        for images in ("CIFAR-10-C", "CIFAR-100-C"):
            kinds = [errors.rows[method][f"{images}/{kind}"] for kind in ("Closed", "Open")]
            assert row[f"{images} error"] == pytest.approx(statistics.fmean(kinds), abs=LAST_DIGIT)


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
    for method, (column, elsewhere) in itertools.product(methods, columns.items()):
        assert here.rows[method][column] == there.rows[method][elsewhere]
