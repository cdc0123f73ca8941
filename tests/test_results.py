"""Tables show comparable numbers: the same round and the same seeds."""

import dataclasses
import itertools

import numpy as np
import pytest

from driftproof.bench import Results, Spec, Store, fill_table
from driftproof.bench.tables import Summary, Table, TableEntry
from driftproof.errors import InputError
from rows_on_disk import write_rows

DOMAINS = ("fog", "frost", "snow")


def tiny(method, **more):
    return Spec(method, "cifar10-c", "wrn40_2", domains=DOMAINS, **more)


def random_errors(seed, rounds):
    return np.random.default_rng(seed).uniform(5, 95, (rounds, 3)).tolist()


def write_run(folder, spec, errors, *, protocol=None, precisions=("fp32",), **more):
    """Write a run with given errors: one list per round, one number per domain."""
    rows = [
        {"round": index // len(spec.domains) + 1, "domain": spec.domains[index % len(spec.domains)], "error": error}
        | {name: values[index] for name, values in more.items()}
        for index, error in enumerate(itertools.chain(*errors))
    ]
    each = itertools.islice(itertools.cycle(precisions), len(rows))
    conditions = [{"seconds": 1.0, "engine": "eager", "precision": precision} for precision in each]
    write_rows(folder, spec, rows, conditions, protocol)


def entry(spec, **more):
    return TableEntry(spec.method, "here", (spec,), **more)


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_value_is_mean_over_domains_of_requested_or_last_complete_round(tmp_path, begun):
    errors = random_errors(0, rounds=4)
    write_run(tmp_path, tiny("tent"), [*errors, [1.0] * begun], precision=list(range(14)))
    results = Results(tmp_path)
    for round in range(1, 5):
        value = results.value(entry(tiny("tent"), round=round, reference=30.0))
        assert value.ours == pytest.approx(np.mean(errors[round - 1]))
        assert value.difference == pytest.approx(np.mean(errors[round - 1]) - 30)
        assert (value.round, value.wanted, value.seeds, value.deviation) == (round, round, 1, None)
        assert value.complete
    assert results.per_round(tiny("tent")) == pytest.approx([np.mean(row) for row in errors])
    assert results.per_round(tiny("tent"), "precision") == pytest.approx([1, 4, 7, 10])
    assert results.value(entry(tiny("tent"), round=2, domain="frost")).ours == errors[1][1]
    last = results.value(entry(tiny("tent"), round=50))
    assert (last.ours, last.round, last.wanted, last.complete) == (pytest.approx(np.mean(errors[3])), 4, 50, False)


def test_missing_value_is_none(tmp_path):
    write_run(tmp_path, tiny("tent"), [[1.0, 2.0]])
    results = Results(tmp_path)
    assert results.seeds(tiny("tent")) == [], "no round is complete"
    for spec in (tiny("tent"), tiny("eata")):
        value = results.value(entry(spec, round=3, reference=7.0))
        assert (value.ours, value.reference, value.round, value.wanted, value.seeds) == (None, 7.0, None, 3, 0)
        assert (value.difference, value.complete) == (None, False)
    assert results.tables([Table("t", "T", (entry(tiny("tent")),))]) == []
    with pytest.raises(InputError, match="bench run"):
        Results(tmp_path / "elsewhere")


def test_value_is_mean_and_deviation_of_seeds_that_reached_the_round_and_compared_values_share_them(tmp_path):
    rounds = {("tent", 3): 3, ("tent", 4): 4, ("tent", 7): 7, ("eata", 4): 3, ("eata", 5): 9}
    errors = {place: random_errors(index, rounds[place]) for index, place in enumerate(rounds)}
    for (method, seed), each in errors.items():
        write_run(tmp_path, tiny(method, seed=seed), each)
    write_run(tmp_path, tiny("tent", seed=8), [[1.0]])
    results = Results(tmp_path)
    for round, seeds in ((3, (3, 4, 7)), (4, (4, 7)), (7, (7,))):
        value = results.value(entry(tiny("tent"), round=round))
        means = [np.mean(errors["tent", seed][round - 1]) for seed in seeds]
        assert value.ours == pytest.approx(np.mean(means))
        assert value.deviation == (pytest.approx(np.std(means, ddof=1)) if len(seeds) > 1 else None)
        assert (value.round, [run.seed for run in value.runs]) == (round, list(seeds))
    found = results.compare([entry(tiny(method), round=50) for method in ("tent", "eata")])
    assert [value.ours for value in found] == pytest.approx([np.mean(errors[name, 4][2]) for name in ("tent", "eata")])
    assert all((value.round, value.wanted, value.seeds) == (3, 50, 1) for value in found)


def test_several_runs_of_a_seed_are_averaged_by_their_mean(tmp_path):
    """Of three runs, the median is another number."""
    specs = [tiny("tent", batch_size=size) for size in (50, 100, 200)]
    for spec, error in zip(specs, (10.0, 20.0, 60.0), strict=True):
        write_run(tmp_path, spec, [[error] * 3])
    assert Results(tmp_path).value(TableEntry("tent", "all", tuple(specs))).ours == pytest.approx(30)


def test_several_runs_are_averaged_per_seed_that_all_have(tmp_path):
    closed, opened = tiny("tent"), tiny("tent", unknown="svhn-c")
    errors = {
        (spec, seed): random_errors(seed + 10 * (spec is opened), 1) for spec in (closed, opened) for seed in range(6)
    }
    for (spec, seed), rounds in errors.items():
        if seed != (0 if spec is closed else 5):
            write_run(tmp_path, dataclasses.replace(spec, seed=seed), rounds)
    value = Results(tmp_path).value(TableEntry("tent", "both", (closed, opened)))
    means = [np.mean([errors[closed, seed], errors[opened, seed]]) for seed in (1, 2, 3, 4)]
    assert (value.seeds, value.ours) == (4, pytest.approx(np.mean(means)))
    assert value.deviation == pytest.approx(np.std(means, ddof=1))
    write_run(tmp_path / "apart", dataclasses.replace(closed, seed=1), errors[closed, 1])
    write_run(tmp_path / "apart", dataclasses.replace(opened, seed=2), errors[opened, 2])
    assert Results(tmp_path / "apart").value(TableEntry("tent", "both", (closed, opened))).ours is None


def test_table_with_missing_numbers_references_and_summaries(tmp_path):
    specs = {f"lr={lr}": tiny("tent").with_options(lr=lr) for lr in (1e-3, 1e-2, 1e-1)}
    errors = {column: random_errors(index, 2) for index, column in enumerate(specs)}
    for index, (column, spec) in enumerate(specs.items()):
        write_run(tmp_path, spec, errors[column][: 2 - (index == 1)])
    write_run(tmp_path, tiny("gce"), [[1.0, None, 3.0]])
    entries = [TableEntry("tent", column, (spec,), round=2, reference=5.0) for column, spec in specs.items()]
    entries += [TableEntry("gce", "lr=0.001", (tiny("gce"),)), TableEntry("gce", "lr=0.1", (tiny("gce"),), "oddity")]
    summaries = (Summary("Mean", tuple(specs), references={"tent": 9.0}), Summary("Std", tuple(specs), "deviation"))
    filled = fill_table(Results(tmp_path), Table("t", "T", tuple(entries), summaries=summaries))
    assert (filled.rows, filled.columns) == (("tent", "gce"), (*specs, "Mean", "Std"))
    common = [np.mean(errors[column][0]) for column in specs]
    values = filled.values
    assert values["tent", "lr=0.1"].ours == pytest.approx(np.mean(errors["lr=0.1"][1]))
    assert values["tent", "Mean"].ours == pytest.approx(np.mean(common)), "the last common round"
    assert values["tent", "Mean"].difference == pytest.approx(np.mean(common) - 9)
    assert values["tent", "Std"].ours == pytest.approx(np.std(common, ddof=1))
    assert (values["tent", "Std"].round, values["tent", "Std"].wanted, values["tent", "Std"].complete) == (1, 2, False)
    for column in ("lr=0.001", "lr=0.1", "Mean"):
        assert values["gce", column].ours is None, "a domain without a number, a metric or a column that is missing"
    frame = filled.frame
    assert frame.columns == ["row", "column", "ours", "reference", "round", "wanted", "seeds", "deviation", "runs"]
    assert frame.height == len(values)
    for row in frame.rows(named=True):
        value = values[row["row"], row["column"]]
        assert row["runs"] == [run.name for run in value.runs]
        assert all(row[name] == getattr(value, name) for name in frame.columns[2:-1])


def test_stateless_run_is_complete_after_one_round(tmp_path):
    errors, stateless, learning = random_errors(3, 2), tiny("bn_adapt"), tiny("tent")
    for spec, scope in ((stateless, "nothing()"), (learning, "norm_affine()")):
        write_run(tmp_path, spec, errors, protocol={"scope": scope, "statistics": "Batch()"})
    results = Results(tmp_path)
    found = {spec: results.value(entry(spec, round=50)) for spec in (stateless, learning)}
    assert (found[stateless].round, found[stateless].complete) == (50, True)
    assert (found[learning].round, found[learning].complete) == (2, False)
    assert found[stateless].ours == found[learning].ours == pytest.approx(np.mean(errors[1]))
    assert results.per_round(stateless) == pytest.approx(np.mean(errors, axis=1)), "measured rounds are kept"
    assert results.value(TableEntry("both", "", (stateless, learning), round=50)).round == 2


def test_limit_and_replaced_datasets_of_folder_are_applied(tmp_path):
    here = tiny("tent", unknown="other-c", limit=40)
    write_run(tmp_path, here, random_errors(0, 1))
    write_run(tmp_path, dataclasses.replace(here, seed=1), random_errors(1, 1))
    wanted = entry(tiny("tent", unknown="svhn-c"))
    assert Results(tmp_path).value(wanted).ours is None, "without the folder's metadata, these are other runs"
    Store(tmp_path).update_metadata({"limit": 40, "replaced": {"svhn-c": "other-c"}})
    value = Results(tmp_path).value(wanted)
    assert value.ours == pytest.approx(np.mean([random_errors(0, 1), random_errors(1, 1)]))
    assert (value.seeds, Results(tmp_path).is_subset) == (2, True)


def test_costs_are_read_by_method_and_with_the_most_trials(tmp_path):
    spec = Spec("swr,eata", "x", "y", domains=("fog",), measures=(), task="costs")
    for trials in (300, 20):
        rows = [{"round": 1, "domain": n, "milliseconds": trials + 1.0 * (n == "eata")} for n in ("swr", "eata")]
        write_rows(tmp_path, spec.with_options(trials=trials, warm_up=2), rows)
    wanted = entry(spec.with_options(trials=200, warm_up=2), metric="milliseconds", domain="eata")
    assert Results(tmp_path).value(wanted).ours == 301
