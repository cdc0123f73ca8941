"""Steps recorded in CUDA graphs, against eager ones on the same device."""

import gc

import pytest
import torch

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of
from driftproof.adapter.engines import Compiled, Fused
from networks import build
from fault_injection import FIXED_CASES, faulty_stream, run, traced, with_rejection

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_device(case, engine="graph", network="wide_resnet", **settings):
    """An adapter in double precision, in which differences between kernels do not matter."""
    segmentation = network == "segmentation"
    if case.partition("+")[0] not in ("source", "bn_adapt", "ttn"):
        settings.setdefault("select", with_rejection(case))
        settings.setdefault("lr", 1e-2)  # so that no probability becomes one, where any rounding would decide
    model = build(network).double().cuda()
    adapter = adapter_for(case, model, segmentation=segmentation, prepared=False, engine=engine, **settings)
    source = source_data(segmentation=segmentation)
    return adapter.prepare([(images.double(), labels) for images, labels in source])


def sent(stream):
    return [images.double().cuda() for images in stream]


def assert_close(first, second, tolerance=1e-7):
    for one, other in zip(first[0], second[0], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    for (selected, novelty, _), (also_selected, also_novelty, _) in zip(first[1], second[1], strict=True):
        assert torch.equal(selected, also_selected)
        torch.testing.assert_close(novelty, also_novelty, rtol=tolerance, atol=tolerance, equal_nan=True)


def recorded(adapter):
    inner = adapter._engine._graph if isinstance(adapter._engine, Compiled) else adapter._engine
    return len(inner._graphs)


@on_gpu
@pytest.mark.parametrize("network", ["wide_resnet", "segmentation", "attention"])
@pytest.mark.parametrize("case", FIXED_CASES)
def test_replayed_steps_equal_eager_ones(case, network):
    stream = sent(faulty_stream())
    adapter = on_device(case, network=network)
    assert_close(run(on_device(case, "eager", network), stream), run(adapter, stream))
    assert recorded(adapter) >= 1


@on_gpu
@pytest.mark.parametrize("case", ["tent", "tent+crowd", "eata+crowd", "gce"])
def test_replayed_steps_round_as_eager_ones_do(case):
    """Selection asks whether a difference is below zero: whoever rounds otherwise selects others in the long run.

    Where convolutions move as well, two eager runs need not agree either: the gradient of a weight may be added up in
    any order.
    """
    stream = [images.cuda() for images in batches(40, size=16)]
    eager, graph = (
        adapter_for(case, build("wide_resnet").cuda(), engine=engine, lr=1e-2) for engine in ("eager", "graph")
    )
    assert [torch.equal(eager(images), graph(images)) for images in stream] == [True] * len(stream)
    assert recorded(graph) == 1


@on_gpu
@traced
@pytest.mark.parametrize("precision", [None, "tf32", "bf16"])
@pytest.mark.parametrize("case", ["bn_adapt", "tent", "tent+crowd", "eata+crowd", "gce"])
def test_fused_and_replayed_steps_round_as_eager_ones_do(case, precision):
    torch._dynamo.reset()
    stream = [images.cuda() for images in batches(40, size=16)]
    stream[20][0, 0, 0, 0] = torch.nan
    settings = {"channels_last": True, "precision": precision} | ({} if case == "bn_adapt" else {"lr": 1e-2})
    eager, graph = (
        adapter_for(case, build("wide_resnet").cuda(), engine=engine, **settings) for engine in ("eager", "graph")
    )
    for images in stream:
        assert torch.equal(eager(images).nan_to_num(7), graph(images).nan_to_num(7))
        assert eager.last.skipped == graph.last.skipped
    assert isinstance(graph._engine, Fused)
    assert recorded(graph) == 1


@on_gpu
@traced
@pytest.mark.parametrize("settings", [{"accumulate": 3}, {"output": "after"}, {"channels_last": True}], ids=str)
@pytest.mark.parametrize("case", ["tent+crowd", "eata"])
def test_settings_hold_in_a_replayed_step(case, settings):
    stream = sent(faulty_stream())
    adapter = on_device(case, **settings)
    assert_close(run(on_device(case, "eager", **settings), stream), run(adapter, stream))
    assert recorded(adapter) >= 1


@on_gpu
@pytest.mark.parametrize("case", ["bn_adapt", "tent", "tent+crowd", "eata", "gce+crowd"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_replay_makes_nobody_wait(case):
    adapter, stream = on_device(case), sent(batches(8))
    run(adapter, stream[:4])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images in stream[4:]:
            adapter(images)
            _ = adapter.last
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert adapter.last.skipped is None


@on_gpu
@pytest.mark.parametrize("case", ["tent+crowd", "eata", "swr+crowd"])
def test_a_graph_owns_all_it_reads(case):
    """What a recording reads and somebody freed would be overwritten by the garbage allocated here."""
    stream = sent(batches(30, seed=3))
    stream[11] = stream[11][:3]  # an eager step, which replaces buffers
    expected = run(on_device(case, "eager"), stream)
    adapter = on_device(case)
    answers, records = [], []
    for images in stream:
        some_answers, some_records = run(adapter, [images])
        answers += some_answers
        records += some_records
        gc.collect()
        torch.cuda.empty_cache()
        garbage = [torch.full((n,), torch.nan, device="cuda", dtype=torch.float64) for n in (1, 8, 64, 512, 4096) * 20]
        del garbage
    assert_close(expected, (tuple(answers), records))


@on_gpu
def test_recordings_are_made_anew_after_reset_load_and_to():
    stream = sent(batches(8))
    expected = run(on_device("eata"), stream)
    adapter = on_device("eata")
    run(adapter, stream)
    state = adapter.state_dict()
    assert_close(expected, run(adapter.reset(), stream))
    adapter.load_state_dict(state)
    assert recorded(adapter) == 0
    again = run(adapter, stream)
    adapter.load_state_dict(state)
    assert_close(again, run(adapter, stream))
    assert recorded(adapter) == 1
    adapter.to("cpu")
    with pytest.raises(dp.errors.ConfigurationError, match="Move the adapter"):
        adapter(stream[0].cpu())
    adapter.to("cuda").load_state_dict(state)
    assert_close(again, run(adapter, stream))


@on_gpu
def test_states_travel_between_graph_and_eager(tmp_path):
    stream = sent(batches(12))
    expected = run(on_device("eata+crowd", "eager"), stream)
    for first, second in (("graph", "eager"), ("eager", "graph")):
        adapter = on_device("eata+crowd", first)
        begun = run(adapter, stream[:6])
        adapter.save(tmp_path / "state")
        ended = run(on_device("eata+crowd", second).load(tmp_path / "state"), stream[6:])
        assert_close(expected, (begun[0] + ended[0], begun[1] + ended[1]))


class Fetching(dp.selection.Selection):
    """Branches on the data."""

    def weights(self, step):
        return torch.ones_like(step.weights) if step.weights.sum() > 0 else step.weights


@on_gpu
def test_a_part_that_fetches_cannot_be_recorded_and_nothing_is_lost():
    adapter, stream = on_device("tent", select=Fetching()), sent(batches(4))
    run(adapter, stream[:2])
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match="could not be recorded"):
        adapter(stream[2])
    assert same_state(before, state_of(adapter))
    eager = on_device("tent", "eager", select=Fetching())
    eager.load_state_dict(before)
    assert eager(stream[2]).isfinite().all()


@on_gpu
def test_out_of_memory_while_recording_is_a_named_error():
    class Hungry(dp.selection.Selection):
        def weights(self, step):
            size = 2**45 if torch.cuda.is_current_stream_capturing() else 1
            return torch.ones_like(step.weights) + 0 * torch.zeros(size, device=step.weights.device).sum()

    adapter, stream = on_device("tent", select=Hungry()), sent(batches(4))
    run(adapter, stream[:2])
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match="ran out of memory while the step was recorded"):
        adapter(stream[2])
    assert same_state(before, state_of(adapter))


@on_gpu
def test_an_optimizer_that_counts_on_the_host_cannot_be_recorded():
    adapter = on_device("tent", optimizer=torch.optim.Adagrad)
    adapter(sent(batches(1))[0])
    before = state_of(adapter)
    with pytest.raises(dp.errors.ConfigurationError, match="Adagrad keeps `step` on the host"):
        adapter(sent(batches(1))[0])
    assert same_state(before, state_of(adapter))


@on_gpu
@traced
@pytest.mark.parametrize("case", ["ttn", "tent+crowd", "eata", "swr+crowd", "cotta"])
def test_compiled_and_recorded_steps_agree(case):
    torch._dynamo.reset()
    stream = sent(faulty_stream())
    adapter = on_device(case, "compile")
    assert_close(run(on_device(case, "eager"), stream), run(adapter, stream))
    assert recorded(adapter) == (0 if case == "cotta" else 1)


@on_gpu
@pytest.mark.parametrize("case", ["tent+crowd", "eata", "swr"])
def test_two_thousand_replays_do_not_drift(case):
    # Entropy minimization runs away from the smallest difference at a large rate; here it must not have one.
    pool = sent(batches(20))
    stream = [pool[index % 20] for index in range(2000)]
    adapter = on_device(case, lr=1e-4)
    expected = run(on_device(case, "eager", lr=1e-4), stream)
    allocated = []
    answers, records = [], []
    for images in stream:
        some_answers, some_records = run(adapter, [images])
        answers += some_answers
        records += some_records
        allocated.append(torch.cuda.memory_allocated())
    assert_close(expected, (tuple(answers), records), tolerance=1e-5)
    grown = allocated[-1] - allocated[999]
    kept = sum(t.numel() * t.element_size() for t in answers[1000:]) * 8
    assert grown <= kept + 2**22


@on_gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precisions_can_be_recorded(precision):
    model, stream = build("wide_resnet").cuda(), [images.cuda() for images in batches(8)]
    outputs = []
    for engine in ("eager", "graph"):
        adapter = dp.tent(
            model, lr=1e-3, select=dp.ConfidenceDifference(margin=-1.0), engine=engine, precision=precision
        )
        outputs.append(torch.stack(run(adapter, stream)[0]))
    tolerance = 1e-4 if precision == "fp32" else 5e-2
    torch.testing.assert_close(*outputs, rtol=tolerance, atol=tolerance)


@on_gpu
@traced
@pytest.mark.parametrize("case", ["tent", "tent+crowd", "eata+crowd"])
def test_fused_layers_change_rounding_alone(case):
    torch._dynamo.reset()
    stream = [images.cuda() for images in batches(8)]
    answers = []
    for engine in ("eager", "compile"):
        settings = {"engine": engine, "precision": "fp32", "channels_last": True, "select": with_rejection(case)}
        adapter = adapter_for(case, build("wide_resnet").cuda(), prepared=False, lr=1e-3, **settings)
        adapter.prepare(source_data())
        answers.append(torch.stack([adapter(images) for images in stream]))
    torch.testing.assert_close(*answers, rtol=1e-3, atol=1e-3)
