"""Several ranks against a single process: same predictions, same selection, same state."""

import json

import pytest
import torch
import torch.multiprocessing as mp

import distributed_worker as worker
import driftproof as dp
from cases import same_state
from driftproof.distributed import Distributed

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run three processes once; the results of each rank."""
    folder = tmp_path_factory.mktemp("distributed")
    single = worker.make_adapter("eata+crowd")
    worker.adapt_to(single, worker.make_stream(8)[:4])
    single.save(folder / "single.safetensors")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "driftproof.methods"])  # imported once, not by each process
    processes = [context.Process(target=worker.run_worker, args=(rank, str(folder)), daemon=True) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=240)
    for process in processes:
        if process.is_alive():
            process.kill()
    by_rank = {rank: torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(3)}
    failed = {rank: torch.load(folder / f"failed{rank}.pt", weights_only=False) for rank in (0, 1)}
    return by_rank | {"failed": failed, "folder": folder}


def concatenate(by_rank, key):
    """Concatenate the ranks' rows of every batch."""
    return [torch.cat(rows) for rows in zip(*(result[key] for result in by_rank), strict=True)]


def assert_equal_to_single_process(by_rank, single):
    for key in ("logits", "novelty"):
        torch.testing.assert_close(concatenate(by_rank, key), single[key], equal_nan=True, **TOLERANCE)
    torch.testing.assert_close(concatenate(by_rank, "selected"), single["selected"])
    for result in by_rank:
        assert result["skipped"] == single["skipped"]
        for actual, expected in zip(result["loss"], single["loss"], strict=True):
            assert (actual is None) == (expected is None)
            assert actual is None or actual == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
        assert result["state"].keys() == single["state"].keys()
        torch.testing.assert_close(result["state"], single["state"], equal_nan=True, **TOLERANCE)


@pytest.mark.parametrize("scenario", worker.SCENARIOS)
def test_ranks_equal_single_process_with_whole_batch(results, scenario):
    make, stream, world_size = worker.SCENARIOS[scenario]
    single = worker.adapt_to(make(), stream())
    assert_equal_to_single_process([results[rank][scenario] for rank in range(world_size)], single)


@pytest.mark.parametrize("scenario", worker.SCENARIOS)
def test_state_is_bitwise_equal_on_all_ranks(results, scenario):
    _, _, world_size = worker.SCENARIOS[scenario]
    first = results[0][scenario]["state"]
    for rank in range(1, world_size):
        assert same_state(first, results[rank][scenario]["state"])


def test_scenarios_cover_uneven_splits_partial_selection_and_skips(results):
    sizes = [[len(range(7)[rows]) for rows in worker.split_rows(index, 7, 2)] for index in range(worker.BATCHES)]
    assert {tuple(pair) for pair in sizes} == {(count, 7 - count) for count in range(1, 6)}
    for scenario in ("uneven splits", "three ranks, eata", "three ranks, swr+crowd", "three ranks, tent+crowd"):
        selected = torch.cat(concatenate([results[0][scenario], results[1][scenario]], "selected"))
        assert 0.05 < selected.double().mean() < 0.99, "neither all nor nothing is selected"
    first, second = (results[rank]["rank 1 selects nothing"] for rank in (0, 1))
    assert any(mask.any() for mask in first["selected"])
    assert not any(mask.any() for mask in second["selected"])
    assert first["skipped"][3] == "nothing was selected"
    reasons = [reason for reason in results[0]["NaN"]["skipped"] if reason is not None]
    assert sum(reason.startswith("NaN or Inf in the images") for reason in reasons) == 1


def test_ranks_with_bad_images_keep_the_same_state(results):
    first, second = (results[rank]["adapt_to_bad_images"] for rank in (0, 1))
    assert same_state(first["state"], second["state"])
    assert first["skipped"] == second["skipped"]
    assert [reason is not None for reason in first["skipped"]] == [False, False, False, True, False]
    assert first["logits"][1].isfinite().all()
    assert second["logits"][1][:-1].isfinite().all()
    assert second["logits"][1][-1].isnan().all()
    assert first["logits"][3].isnan().all()


def test_ranks_resume_from_states_of_ranks_and_of_single_process(results):
    single, stream = worker.make_adapter("eata+crowd"), worker.make_stream(8)
    worker.adapt_to(single, stream[:4])
    rest = worker.adapt_to(single, stream[4:])
    for case in ("save_and_resume", "load_from_single_process"):
        assert_equal_to_single_process([results[rank][case] for rank in range(2)], rest)


def test_single_process_resumes_from_state_of_ranks(results):
    single, stream = worker.make_adapter("eata+crowd"), worker.make_stream(8)
    worker.adapt_to(single, stream[:4])
    loaded = worker.make_adapter("eata+crowd").load(results["folder"] / "two-ranks.safetensors")
    actual, expected = worker.adapt_to(loaded, stream[4:]), worker.adapt_to(single, stream[4:])
    torch.testing.assert_close(actual["logits"], expected["logits"], **TOLERANCE)
    torch.testing.assert_close(actual["state"], expected["state"], **TOLERANCE)


def test_failed_save_raises_on_every_rank(results):
    assert results[0]["save_to_missing_folder"] == "FileNotFoundError"
    assert results[1]["save_to_missing_folder"] == "DistributedError"


def test_invalid_batch_on_one_rank_raises_on_all_and_changes_nothing(results):
    (first, logits), (second, more) = results[0]["pass_invalid_batches"], results[1]["pass_invalid_batches"]
    for name in ("empty", "integers", "no tensor"):
        assert first[name][0] == "DistributedError", name
        assert "Rank 1 failed before the first collective" in first[name][1]
        assert second[name][0] == "InputError"
    for name in ("wrong ndim", "other dtype"):
        assert "DistributedError" in (first[name][0], second[name][0]), name
    assert first["wrong channels on all"][0] == second["wrong channels on all"][0] == "ForwardError"
    for errors in (first, second):
        assert errors["other size"] == (
            "DistributedError",
            "Expected the same image shape and dtype on every rank, but rank 1 and rank 0 differ. Nothing was changed.",
        )
    single, stream = worker.make_adapter("tent+crowd"), worker.make_stream(3)
    expected = [single(images) for images in stream][-1]
    torch.testing.assert_close(torch.cat([logits, more]), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ("method", "same method"),
        ("seed", "same method"),
        ("learning rate", "same state"),
        ("weights", "same source weights"),
        ("reset on one", "same"),
        ("prepare", "same method"),
    ],
)
def test_ranks_that_differ_raise_on_all(results, difference, message):
    for rank in (0, 1):
        error = results[rank]["disagree"][difference]
        assert error[0] == "DistributedError"
        assert message in error[1]
    assert results[0]["disagree"]["reset on both"] is None


def test_prepare_keeps_result_of_rank_zero(results):
    single = worker.adapter_for("eata", worker.make_model("wide_resnet"), prepared=False, fisher_batch_size=3)
    source = [(images.double(), labels) for images, labels in worker.source_data()]
    expected = single.prepare(source).method.regularizer.importance
    for rank in (0, 1):
        assert torch.equal(results[rank]["prepare_in_different_order"], expected)


def test_failed_prepare_on_one_rank_raises_on_all(results):
    (first, prepared), (second, also_prepared) = (results[rank]["prepare_without_data_on_rank_one"] for rank in (0, 1))
    assert first[0] == "DistributedError"
    assert "Rank 1" in first[1]
    assert second[0] == "InputError"
    assert not prepared
    assert not also_prepared


def test_unsupported_configurations_raise(results):
    cases = results[0]["configure"]
    assert cases["graph"][0] == cases["compile"][0] == cases["unknown group"][0] == "ConfigurationError"
    assert "eager" in cases["graph"][1]
    assert "rank               0 of 2" in cases["repr"]


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_rank_failing_mid_step_raises_on_others_and_leaves_state_unchanged(results, how):
    survivor = results["failed"][0][how]
    assert survivor["error"] == "DistributedError"
    assert survivor["waited"] < worker.TIMEOUT + 10
    assert survivor["unchanged"]
    assert survivor["next"][0] == "DistributedError"
    assert "communication failed earlier" in survivor["next"][1]


def test_failing_rank_raises_its_own_error_and_keeps_its_state(results):
    failed = results["failed"][1]["raises"]
    assert failed["error"] == "RuntimeError"
    assert failed["unchanged"]
    assert "rank 1 raised RuntimeError between two collectives" in failed["next"][1]


def test_state_saved_after_failure_loads_in_single_process(results):
    survivor = results["failed"][0]["exits"]
    select = worker.FailingSelection(0, -1, "never") & dp.NonRedundant(0.95)
    adapter = dp.eata(worker.make_model("wide_resnet"), lr=0.1, fisher=0.0, select=select).load(survivor["path"])
    state = adapter.state_dict()
    assert json.loads(bytes(state["meta"].tolist()))["counters"]["index"] == 2
    assert same_state({name: state[name] for name in survivor["state"]}, survivor["state"])


# --- single process -------------------------------------------------------------------------------------------------


def test_single_process_collectives_are_identities():
    single, x = Distributed(), torch.rand(3, requires_grad=True)
    assert single.sum(x) == (x,)
    assert single.broadcast(x) is x
    assert single.max(x) is x
    assert single.global_count(5) == 5
    assert single.map_global_batch(x, lambda rows: rows) is x
    assert single.all_true(torch.tensor(True))
    assert torch.equal(single.mean(x), x.mean())
    (gradient,) = single.gradients((x**2).sum(), (x,))
    torch.testing.assert_close(gradient, 2 * x.detach())


def test_process_group_without_init_raises():
    with pytest.raises(dp.errors.CallOrderError, match="torchrun"):
        dp.tent(worker.make_model("wide_resnet"), process_group="all")
