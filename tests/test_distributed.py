"""Several processes against one: the same predictions, the same selection, the same state."""

import json

import pytest
import torch
import torch.multiprocessing as mp

import driftproof as dp
import distributed_worker as at_work
from driftproof.distributed import Distributed

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """What each of three processes had to tell."""
    folder = tmp_path_factory.mktemp("ranks")
    one = at_work.make("eata+crowd")
    at_work.follow(one, at_work.stream(8)[:4])
    one.save(folder / "by-one.safetensors")
    context = mp.get_context("spawn")
    processes = [context.Process(target=at_work.work, args=(rank, str(folder)), daemon=True) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=240)
    for process in processes:
        if process.is_alive():
            process.kill()
    told = {rank: torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(3)}
    told["lost"] = {rank: torch.load(folder / f"lost{rank}.pt", weights_only=False) for rank in (0, 1)}
    return told | {"folder": folder}


def together(told, key):
    """The ranks' rows of every batch, put together again."""
    return [torch.cat(rows) for rows in zip(*(one[key] for one in told), strict=True)]


def assert_like_one_process(told, alone):
    for key in ("logits", "novelty"):
        torch.testing.assert_close(together(told, key), alone[key], equal_nan=True, **TOLERANCE)
    torch.testing.assert_close(together(told, "selected"), alone["selected"])
    for one in told:
        assert one["skipped"] == alone["skipped"]
        for ours, theirs in zip(one["losses"], alone["losses"], strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or ours == pytest.approx(theirs, rel=1e-9, abs=1e-9, nan_ok=True)
        assert one["state"].keys() == alone["state"].keys()
        torch.testing.assert_close(one["state"], alone["state"], **TOLERANCE)


@pytest.mark.parametrize("scene", at_work.SCENES)
def test_ranks_equal_one_process_with_the_whole_batch(heard, scene):
    build_it, images, ranks = at_work.SCENES[scene]
    alone = at_work.follow(build_it(), images())
    assert_like_one_process([heard[rank][scene] for rank in range(ranks)], alone)


@pytest.mark.parametrize("scene", at_work.SCENES)
def test_ranks_agree_to_the_last_bit_on_what_they_learned(heard, scene):
    _, _, ranks = at_work.SCENES[scene]
    first = heard[0][scene]["state"]
    for rank in range(1, ranks):
        other = heard[rank][scene]["state"]
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_the_scenes_are_what_they_say(heard):
    sizes = [[len(range(7)[part]) for part in at_work.shares(index, 7, 2)] for index in range(20)]
    assert {tuple(pair) for pair in sizes} == {(count, 7 - count) for count in range(1, 6)}
    for scene in ("tent+crowd", "eata", "swr+crowd", "three ranks, tent+crowd"):
        kept = torch.cat(together([heard[0][scene], heard[1][scene]], "selected")).double().mean()
        assert 0.05 < kept < 0.99, "a selection that keeps or drops everything shows nothing"
    rejecting = [one["selected"] for one in (heard[0]["one rank rejects all"], heard[1]["one rank rejects all"])]
    assert any(mask.any() for mask in rejecting[0])
    assert not any(mask.any() for mask in rejecting[1])
    assert heard[0]["one rank rejects all"]["skipped"][3] == "nothing was selected"
    assert heard[0]["a NaN"]["skipped"].count("NaN or Inf in the images") == 1


def test_saved_by_ranks_and_continued_by_ranks(heard):
    alone, images = at_work.make("eata+crowd"), at_work.stream(8)
    at_work.follow(alone, images[:4])
    rest = at_work.follow(alone, images[4:])
    for name in ("saved_and_resumed", "loaded_from_one_process"):
        # The shares of a resumed stream are counted anew.
        assert_like_one_process([heard[rank][name] for rank in range(2)], rest)


def test_saved_by_ranks_and_continued_by_one_process(heard):
    alone, images = at_work.make("eata+crowd"), at_work.stream(8)
    at_work.follow(alone, images[:4])
    loaded = at_work.make("eata+crowd").load(heard["folder"] / "by-ranks.safetensors")
    ours, theirs = at_work.follow(loaded, images[4:]), at_work.follow(alone, images[4:])
    torch.testing.assert_close(ours["logits"], theirs["logits"], **TOLERANCE)
    torch.testing.assert_close(ours["state"], theirs["state"], **TOLERANCE)


def test_a_state_that_cannot_be_written_is_an_error_on_every_rank(heard):
    assert heard[0]["nothing_to_write_to"] == "FileNotFoundError"
    assert heard[1]["nothing_to_write_to"] == "DistributedError"


def test_a_bad_batch_on_one_rank_is_named_on_all_and_forgotten(heard):
    (first, logits), (second, more) = heard[0]["bad_batches"], heard[1]["bad_batches"]
    for name in ("empty", "integers", "no tensor"):
        assert first[name][0] == "DistributedError", name
        assert "Rank 1 could not take part" in first[name][1]
        assert second[name][0] == "InputError"
    for name in ("wrong rank", "other precision"):
        assert "DistributedError" in (first[name][0], second[name][0]), name
    assert first["wrong for all"][0] == second["wrong for all"][0] == "ForwardError"
    for errors in (first, second):
        assert errors["other size"] == (
            "DistributedError",
            "Expected the same shape and type of images on every rank, but rank 1 and rank 0 differ. "
            "Nothing was changed.",
        )
    alone, images = at_work.make("tent+crowd"), at_work.stream(3)
    expected = [alone(batch) for batch in images][-1]
    torch.testing.assert_close(torch.cat([logits, more]), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("method", "same method"),
        ("seed", "same method"),
        ("learning rate", "same state"),
        ("weights", "same source weights"),
        ("reset on one", "same"),
        ("prepare", "same method"),
    ],
)
def test_ranks_that_are_not_alike_are_refused_on_all(heard, how, what):
    for rank in (0, 1):
        kind, message = heard[rank]["strangers"][how]
        assert kind == "DistributedError"
        assert what in message
    assert heard[0]["strangers"]["reset on both"] is None


def test_prepare_ends_with_what_the_first_rank_found(heard):
    alone = at_work.adapter_for("eata", at_work.model_of("wide_resnet"), prepared=False, fisher_batch_size=3)
    source = [(images.double(), labels) for images, labels in at_work.source_data()]
    expected = alone.prepare(source).regularizer.importance
    for rank in (0, 1):
        assert torch.equal(heard[rank]["prepared_from_other_orders"], expected)


def test_a_rank_that_cannot_prepare_stops_all(heard):
    (kind, message), prepared = heard[0]["source_data_on_one"]
    assert kind == "DistributedError"
    assert "Rank 1" in message
    assert heard[1]["source_data_on_one"][0][0] == "InputError"
    assert not prepared
    assert not heard[1]["source_data_on_one"][1]


def test_what_ranks_cannot_have_is_refused(heard):
    refused = heard[0]["refusals"]
    assert refused["graph"][0] == refused["compile"][0] == refused["nonsense"][0] == "ConfigurationError"
    assert "eager" in refused["graph"][1]
    assert "rank               0 of 2" in refused["printed"]


@pytest.mark.parametrize("how", ["fails", "dies"])
def test_a_lost_rank_is_a_named_error_and_leaves_the_others_as_they_were(heard, how):
    told = heard["lost"][0][how]
    assert told["error"] == "DistributedError"
    assert told["waited"] < at_work.PATIENCE + 10
    assert told["intact"]
    assert told["next"][0] == "DistributedError"
    assert "lost each other" in told["next"][1]


def test_the_rank_that_failed_says_so_itself_and_is_as_it_was(heard):
    told = heard["lost"][1]["fails"]
    assert told["error"] == "RuntimeError"
    assert told["intact"]
    assert "rank 1 failed between two exchanges with RuntimeError" in told["next"][1]


def test_a_survivor_saves_and_one_process_goes_on(heard):
    told = heard["lost"][0]["dies"]
    select = at_work.Fatal(0, -1, "never") & dp.NonRedundant(0.95)
    adapter = dp.eata(at_work.model_of("wide_resnet"), lr=0.1, fisher=0.0, select=select).load(told["saved"])
    state = adapter.state_dict()
    assert json.loads(bytes(state["meta"].tolist()))["index"] == 2
    assert all(torch.equal(state[name], tensor) for name, tensor in told["after"].items())


# --- alone ----------------------------------------------------------------------------------------------------------


def test_alone_nothing_is_exchanged_and_everything_is_itself():
    alone, x = Distributed(), torch.rand(3, requires_grad=True)
    assert alone.sum(x) == (x,)
    assert alone.broadcast(x) is x
    assert alone.global_count(5) == 5
    assert alone.map_global_batch(x, lambda rows: rows) is x
    assert alone.all_true(torch.tensor(True))
    assert torch.equal(alone.mean(x), x.mean())
    (gradient,) = alone.gradients((x**2).sum(), (x,))
    torch.testing.assert_close(gradient, 2 * x.detach())


def test_ranks_without_a_process_group_are_a_named_error():
    with pytest.raises(dp.errors.CallOrderError, match="torchrun"):
        dp.tent(at_work.model_of("wide_resnet"), process_group="all")
