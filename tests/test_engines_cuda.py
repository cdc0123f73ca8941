"""Steps captured in CUDA graphs, against eager ones on the same device."""

import copy
import gc
import importlib
import itertools
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import driftproof as dp
from cases import adapter_for, batches, same_state, source_data, state_of
from driftproof.adapter.engines import AutoEngine, CompiledEngine, FusedCudaGraphEngine
from fault_injection import (
    CAPTURABLE_CASES,
    WITHOUT_LEARNING,
    RejectBright,
    faulty_stream,
    join,
    run,
    selection_with_rejection,
    uses_dynamo,
)
from networks import WideResNet, build, randomize

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
answer_rounds = importlib.import_module("answer_rounds")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make_adapter(case, engine="graph", network="wide_resnet", **settings):
    """An adapter in double precision, in which differences between kernels do not matter."""
    segmentation = network == "segmentation"
    if case.partition("+")[0] not in WITHOUT_LEARNING:
        settings.setdefault("select", selection_with_rejection(case))
        settings.setdefault("lr", 1e-2)  # so that no probability becomes one, where any rounding would decide
    model = build(network).double().cuda()
    adapter = adapter_for(case, model, segmentation=segmentation, prepared=False, engine=engine, **settings)
    source = source_data(segmentation=segmentation)
    return adapter.prepare([(images.double(), labels) for images, labels in source])


def compose_adapter(engine="graph", model=None, **choices):
    """A small method of our own in double precision; any choice can be replaced."""
    defaults = {
        "scope": dp.scopes.norm_affine(),
        "statistics": dp.statistics.Batch(),
        "loss": dp.losses.Entropy(),
        "select": RejectBright(),
        "optimizer": partial(torch.optim.Adam, lr=0.01),
    }
    model = (build("wide_resnet") if model is None else model).double().cuda()
    return dp.Adapter(model, engine=engine, **(defaults | choices))


def to_cuda(stream):
    return [images.double().cuda() for images in stream]


def assert_close(first, second, tolerance=1e-7):
    for one, other in zip(first[0], second[0], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    for (selected, novelty, _), (other_selected, other_novelty, _) in zip(first[1], second[1], strict=True):
        assert torch.equal(selected, other_selected)
        torch.testing.assert_close(novelty, other_novelty, rtol=tolerance, atol=tolerance, equal_nan=True)


def num_graphs(adapter):
    """How many graphs an adapter holds, under any engine."""
    engine = adapter._engine
    if isinstance(engine, AutoEngine):
        engine = engine._captured
    if isinstance(engine, CompiledEngine):
        engine = engine._graph
    return len(getattr(engine, "_graphs", ()))


# --- equal results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "network"),
    [
        *((case, "wide_resnet") for case in CAPTURABLE_CASES),
        *((case, "segmentation") for case in ("ttn", "tent", "eata+crowd", "swr")),
        *((case, "attention") for case in ("tent+crowd", "eata", "swr+crowd")),
    ],
)
def test_captured_steps_equal_eager_steps(case, network):
    stream = to_cuda([*faulty_stream(), *faulty_stream(seed=1)])
    adapter = make_adapter(case, network=network)
    assert_close(run(make_adapter(case, "eager", network), stream), run(adapter, stream))
    assert num_graphs(adapter) == 2


@pytest.mark.parametrize("case", ["tent+crowd", "eata"])
def test_auto_captures_and_equals_eager_steps(case):
    stream, adapter = to_cuda(faulty_stream()), make_adapter(case, "auto", guard=())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = run(adapter, stream)
    assert_close(run(make_adapter(case, "eager", guard=()), stream), actual)
    assert num_graphs(adapter) == 2


@pytest.mark.parametrize("case", ["tent", "tent+crowd", "eata+crowd", "gce"])
def test_captured_steps_round_as_eager_steps(case):
    """Selection asks whether a difference is below zero: in the long run, other rounding selects other samples.

    Where convolutions train as well, two eager runs need not agree either: the gradient of a weight may be summed in
    any order.
    """
    stream = [images.cuda() for images in batches(40, size=16)]
    eager, graph = (
        adapter_for(case, build("wide_resnet").cuda(), engine=engine, lr=1e-2) for engine in ("eager", "graph")
    )
    assert [torch.equal(eager(images), graph(images)) for images in stream] == [True] * len(stream)
    assert num_graphs(graph) == 1


@pytest.mark.parametrize("convolutions", [0.0, 1 / 3])
def test_captured_sentinel_rounds_as_eager_steps(convolutions):
    """Its frozen network runs twice beside the sentinel, and its learner once beside its own gradient.

    Gradients of convolutions' weights may be summed in another order each time.
    """
    stream = [images.cuda() for images in batches(40, size=16)]
    detector = dp.detectors.Sentinel(lr=1e-2, momentum=1.0, images_per_step=1)
    choices = {"convolutions": convolutions, "accumulate": 1}
    eager, graph = (
        dp.sentinel(build("wide_resnet").cuda(), engine=engine, detector=copy.deepcopy(detector), **choices)
        for engine in ("eager", "graph")
    )
    tolerance = {"rtol": 0.0, "atol": 1e-3 if convolutions else 0.0}
    for images in stream:
        torch.testing.assert_close(eager(images), graph(images), **tolerance)
        torch.testing.assert_close(eager.last.novelty, graph.last.novelty, rtol=0.0, atol=0.0)
    assert num_graphs(graph) == 1


@uses_dynamo
@pytest.mark.parametrize("is_closed", [False, True])
def test_captured_and_fused_steps_of_a_proof_round_as_whole_eager_ones(is_closed):
    """Also in rounds that leave out passes, see `test_sentinel_proof.py`; answers are compared in the other rounds."""
    torch._dynamo.reset()
    whole, short = (
        dp.sentinel(
            build("wide_resnet").cuda(), lr=1e-2, engine=engine, precision="bf16", channels_last=True, accumulate=1,
            guard=(), statistics=dp.statistics.WindowedBlend(0.3, 16),
            detector=dp.detectors.Sentinel(lr=1e-2, momentum=1.0, images_per_step=1),
        )
        for engine in ("eager", "graph")
    )  # fmt: skip
    rounds, stream = answer_rounds.AnswerRounds({1, 2, 6}, is_closed=is_closed), batches(10, size=16)
    for number, domain in itertools.product(range(1, 7), (0, 1)):
        prefix = rounds(short, number, str(domain))
        for images in stream[domain::2]:
            answer, ours = whole(images.cuda()), short(images.cuda())
            assert prefix or torch.equal(ours, answer)
            assert is_closed or torch.equal(short.last.novelty, whole.last.novelty)
            assert torch.equal(short.last.selected, whole.last.selected)
    assert isinstance(short._engine, FusedCudaGraphEngine)
    assert num_graphs(short) == 1


@uses_dynamo
@pytest.mark.parametrize("precision", [None, "tf32", "bf16"])
@pytest.mark.parametrize("case", ["bn_adapt", "tent", "tent+crowd", "eata+crowd", "gce"])
def test_fused_and_captured_steps_round_as_eager_steps(case, precision):
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
    assert isinstance(graph._engine, FusedCudaGraphEngine)
    assert num_graphs(graph) == 1


MOVING_BLEND = dp.statistics.Blend(0.5, momentum=0.3)
CHOICES = {
    "output after": {"output": "after"},
    "moving statistics": {"statistics": MOVING_BLEND},
    "moving source statistics": {"source_statistics": MOVING_BLEND, "select": dp.ConfidenceDifference()},
    "accumulate": {"accumulate": 3},
    "sharpness-aware": {"gradient": dp.gradients.SharpnessAware(0.05)},
    "clipped": {"gradient": dp.gradients.Clipped(0.1)},
    "memory": {"memory": dp.memories.LatestImages(8)},
    "teacher": {"teacher": dp.EMA(0.9), "output": "teacher", "loss": dp.losses.Consistency()},
    "restore": {"after": [dp.after.PullToSource(0.1), dp.after.StochasticRestore(0.2)]},
    "reset every": {"after": dp.after.ResetEvery(3)},
    "reset when": {"after": dp.after.ResetWhen(threshold=0.9), "teacher": dp.EMA(0.9)},
    "SGD": {"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9)},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_every_choice_holds_in_captured_steps(choices):
    stream = to_cuda([*faulty_stream(), *faulty_stream(seed=1)])
    adapter = compose_adapter(**choices)
    assert_close(run(compose_adapter("eager", **choices), stream), run(adapter, stream))
    assert num_graphs(adapter) == 2


@uses_dynamo
@pytest.mark.parametrize("case", ["eata", "roid", "stamp", "paf_kip"])  # masked passes, memories and views besides
def test_channels_last_holds_in_captured_steps(case):
    torch._dynamo.reset()
    stream, settings = to_cuda(faulty_stream()), {"channels_last": True}
    adapter = make_adapter(case, **settings)
    assert_close(run(make_adapter(case, "eager", **settings), stream), run(adapter, stream))
    assert num_graphs(adapter) == 1


@uses_dynamo
def test_traced_network_with_norms_that_no_kernel_takes_is_captured():
    """Kernels take no double precision; what torch.compile keeps of these layers in cycles is freed first."""
    torch._dynamo.reset()
    stream, choices = to_cuda(batches(8)), {"channels_last": True, "statistics": dp.statistics.Blend(0.5)}
    adapter = compose_adapter(**choices)
    gc.disable()
    try:
        assert_close(run(compose_adapter("eager", **choices), stream), run(adapter, stream))
    finally:
        gc.enable()
    assert num_graphs(adapter) == 1


@pytest.mark.parametrize("case", ["tent", "tent+crowd", "ttn"])
def test_health_that_replayed_frozen_passes_show_equals_that_of_eager_ones(case):
    """They come after batches 5, 10 and 20; the third time they are replayed, unless statistics have a history."""
    stream = to_cuda(batches(20))
    stream[19][2] = torch.nan
    eager, graph = (make_adapter(case, engine) for engine in ("eager", "graph"))
    for images in stream:
        expected, actual = (adapter.step(images).record.averages for adapter in (eager, graph))
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7, equal_nan=True)
    assert eager.last.quarantined.sum() == 1
    assert len(graph._engine._frozen) == (case != "ttn")
    assert all(graph._engine._frozen.values()), "captured"


@uses_dynamo
@pytest.mark.parametrize("case", ["ttn", "tent+crowd", "eata", "swr+crowd", "cotta"])
def test_compiled_and_captured_steps_agree(case):
    torch._dynamo.reset()
    stream = to_cuda(faulty_stream())
    adapter = make_adapter(case, "compile")
    assert_close(run(make_adapter(case, "eager"), stream), run(adapter, stream))
    assert num_graphs(adapter) == (0 if case == "cotta" else 1)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precisions_hold_in_captured_steps(precision):
    model, stream = build("wide_resnet").cuda(), [images.cuda() for images in batches(8)]
    outputs = []
    for engine in ("eager", "graph"):
        adapter = dp.tent(
            model, lr=1e-3, select=dp.ConfidenceDifference(margin=-1.0), engine=engine, precision=precision
        )
        outputs.append(torch.stack(run(adapter, stream)[0]))
    tolerance = 1e-4 if precision == "fp32" else 5e-2
    torch.testing.assert_close(*outputs, rtol=tolerance, atol=tolerance)


@uses_dynamo
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # inductor's advice
@pytest.mark.parametrize("case", ["tent", "tent+crowd", "eata+crowd"])
def test_compiled_steps_differ_by_rounding_only(case):
    torch._dynamo.reset()
    stream = [images.cuda() for images in batches(8)]
    answers = []
    for engine in ("eager", "compile"):
        settings = {"precision": "fp32", "channels_last": True, "select": selection_with_rejection(case)}
        adapter = adapter_for(case, build("wide_resnet").cuda(), prepared=False, lr=1e-3, engine=engine, **settings)
        adapter.prepare(source_data())
        answers.append(torch.stack([adapter(images) for images in stream]))
    torch.testing.assert_close(*answers, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", ["tent+crowd", "eata", "swr"])
def test_two_thousand_replays_do_not_drift(case):
    # At a large rate, entropy minimization amplifies the smallest difference; here there must be none.
    pool = to_cuda(batches(20))
    stream = [pool[index % 20] for index in range(2000)]
    adapter = make_adapter(case, lr=1e-4)
    expected = run(make_adapter(case, "eager", lr=1e-4), stream)
    allocated, runs = [], []
    for images in stream:
        runs.append(run(adapter, [images]))
        allocated.append(torch.cuda.memory_allocated())
    actual = tuple(answers[0] for answers, _ in runs), [records[0] for _, records in runs]
    assert_close(expected, actual, tolerance=1e-5)
    grown = allocated[-1] - allocated[999]
    kept = sum(answer.numel() * answer.element_size() for answer in actual[0][1000:]) * 8
    assert grown <= kept + 2**22


# --- no host synchronization ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["eager", "graph", "auto"])
@pytest.mark.parametrize("case", ["bn_adapt", "tent", "tent+crowd", "eata", "gce+crowd"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_step_does_not_synchronize(case, engine):
    """Guards wait for the device every tenth batch and at the first few looks; without them nothing does."""
    adapter, stream = make_adapter(case, engine, guard=()), to_cuda(batches(8))
    run(adapter, stream[:4])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images in stream[4:]:
            adapter(images)
            _ = adapter.last
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert adapter.last.skipped is None


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_looks_of_a_guard_that_only_warns_do_not_synchronize(engine):
    adapter, stream = make_adapter("tent", engine), to_cuda(batches(22))
    run(adapter, stream[:4])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images in stream[4:]:
            adapter(images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert adapter.last.skipped is None


def test_warning_of_a_look_comes_with_the_next_batch_and_copies_do_without():
    adapter, stream = compose_adapter("eager", optimizer=partial(torch.optim.SGD, lr=1e6)), to_cuda(batches(6))
    run(adapter, stream[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter(stream[4])
        duplicate = copy.deepcopy(adapter)
        duplicate(stream[5])
    with pytest.warns(RuntimeWarning, match="Adaptation is"):
        adapter(stream[5])


@pytest.mark.parametrize("choice", [name for name in CHOICES if name != "restore"])  # it draws random numbers
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_choice_synchronizes(choice):
    adapter, stream = compose_adapter("eager", **CHOICES[choice], guard=()), to_cuda(batches(6))
    run(adapter, stream[:4])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for images in stream[4:]:
            adapter(images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert adapter.last.skipped is None


# --- teacher, index and schedule --------------------------------------------------------------------------------------


class AgreeWithTeacher(dp.losses.Loss):
    """A user's loss that reads the shared teacher."""

    def per_sample(self, step):
        target = step.teacher_logits.softmax(1)
        return -(target * step.log_probabilities).sum(1)


class OwnTeacher(dp.losses.Loss):
    """A user's loss with a teacher of its own, which it moves after each step."""

    def reset_state(self, network, parameters):
        self.model = network.clone().requires_grad_(False)

    def per_sample(self, step):
        with torch.no_grad():
            target = self.model(step.images).softmax(1)
        return -(target * step.log_probabilities).sum(1)

    def on_step(self, step):
        with torch.no_grad():
            for own, now in zip(self.model.model.parameters(), step.network.model.parameters(), strict=True):
                own.lerp_(now, 0.1)


@pytest.mark.parametrize(
    "choices",
    [{"teacher": dp.EMA(0.9), "loss": AgreeWithTeacher(), "output": "teacher"}, {"loss": OwnTeacher()}],
    ids=["shared", "own"],
)
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_nan_batch_leaves_teacher_unchanged(choices, engine):
    adapter, stream = compose_adapter(engine, **choices), to_cuda(batches(6))
    teacher = (adapter.state.teacher or adapter.method.loss.model).model
    run(adapter, stream[:5])
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    assert not same_state(before, dict(adapter.source.model.state_dict())), "the teacher moves"
    adapter(stream[0] * torch.nan)
    assert adapter.last.skipped.startswith("NaN")
    assert same_state(before, dict(teacher.state_dict()))
    adapter(stream[5])
    assert adapter.last.skipped is None
    assert not same_state(before, dict(teacher.state_dict()))
    assert num_graphs(adapter) == (engine == "graph")


class IndexLog(dp.selection.Selection):
    """Keeps the last six values of `step.index`, and weights samples by a schedule over it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("indices", torch.full((6,), -1))

    def weights(self, step):
        return torch.ones_like(step.weights) * 0.5**step.index

    def on_batch(self, step):
        self.indices = torch.cat([self.indices[1:], step.index.view(1)])


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_index_counts_good_batches(engine):
    adapter, stream = compose_adapter(engine, select=IndexLog()), to_cuda(batches(6))
    stream.insert(4, stream[0] * torch.nan)
    losses = [adapter.step(images).record.loss for images in stream]
    assert adapter.select.indices.tolist() == [0, 1, 2, 3, 4, 5]
    assert losses[6] < 0.1 * losses[0], "the schedule goes on"
    assert num_graphs(adapter) == (engine == "graph")


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.SGD, momentum=0.9)],
    ids=["Adam", "RMSprop", "SGD"],
)
def test_lr_schedule_keeps_the_graph_and_equals_learning_rate_set_by_hand(optimizer):
    scheduled = compose_adapter(optimizer=partial(optimizer, lr=0.25), lr_schedule=lambda steps: 0.5 ** (steps // 2))
    by_hand = compose_adapter("eager", optimizer=partial(optimizer, lr=0.25))
    steps, graphs, sizes, expected = 0, [], Counter(), []
    stream = to_cuda(faulty_stream())
    for images in stream:
        by_hand.optimizer.param_groups[0]["lr"] = 0.25 * 0.5 ** (steps // 2)
        by_hand(images)
        steps += by_hand.last.stepped
        scheduled(images)
        graphs.append(set(scheduled._engine._graphs))
        sizes[len(images)] += 1
        expected.append(sum(count > 2 for count in sizes.values()))  # the third batch of a size is captured
    assert steps == len(stream) - 2, "all but a batch of Inf and one that is rejected"
    for name, parameter in scheduled.trainable_parameters.items():
        torch.testing.assert_close(parameter, by_hand.trainable_parameters[name], rtol=1e-5, atol=1e-5)
    assert [len(held) for held in graphs] == expected
    assert graphs[2] <= graphs[-1], "no graph is captured anew"


def test_learning_rate_set_by_hand_is_heeded():
    adapters = [make_adapter("tent+crowd", engine) for engine in ("eager", "graph")]
    for index, images in enumerate(to_cuda(batches(12))):
        for adapter in adapters:
            adapter.optimizer.param_groups[0]["lr"] = 1e-2 if index < 5 else 1e-3
        torch.testing.assert_close(*(adapter(images) for adapter in adapters), rtol=1e-7, atol=1e-7)


class DropsAGraph(nn.Sequential):
    """Makes garbage of what `held` holds while it is captured, and allocates until the collector would run."""

    held = []  # noqa: RUF012  # copies of the model share it

    def forward(self, images):
        if torch.cuda.is_current_stream_capturing():
            self.held.clear()
            assert len([[] for _ in range(100_000)])
        return super().forward(images)


def test_garbage_of_another_graph_does_not_end_a_capture():
    adapter = dp.tent(DropsAGraph(build("wide_resnet")).double().cuda(), engine="graph")
    first, second, third = to_cuda(batches(3))
    adapter(first)
    adapter(second)
    gc.collect()
    graph, values = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
    with torch.cuda.graph(graph):
        values.add_(1)
    cycle = [graph]
    cycle.append(cycle)
    DropsAGraph.held.append(cycle)
    del graph, cycle
    assert adapter(third).isfinite().all()
    assert not DropsAGraph.held, "it was captured"
    assert num_graphs(adapter) == 1
    assert gc.isenabled()


# --- memory and lifecycle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["tent+crowd", "eata", "swr+crowd"])
def test_graph_owns_all_memory_it_reads(case):
    """Memory that a graph reads but does not own would be overwritten by the NaN allocated here."""
    stream = to_cuda(batches(30, seed=3))
    stream[11] = stream[11][:3]  # an eager step in between
    expected = run(make_adapter(case, "eager"), stream)
    adapter, runs = make_adapter(case), []
    for images in stream:
        runs.append(run(adapter, [images]))
        gc.collect()
        torch.cuda.empty_cache()
        garbage = [torch.full((n,), torch.nan, device="cuda", dtype=torch.float64) for n in (1, 8, 64, 512, 4096) * 20]
        del garbage
    assert_close(expected, join(*runs))


def test_steps_are_captured_again_after_reset_load_and_to():
    stream = to_cuda(batches(8))
    expected = run(make_adapter("eata"), stream)
    adapter = make_adapter("eata")
    run(adapter, stream)
    state = adapter.state_dict()
    assert_close(expected, run(adapter.reset(), stream))
    adapter.load_state_dict(state)
    assert num_graphs(adapter) == 0
    again = run(adapter, stream)
    adapter.load_state_dict(state)
    assert_close(again, run(adapter, stream))
    assert num_graphs(adapter) == 1
    adapter.to("cpu")
    with pytest.raises(dp.errors.ConfigurationError, match="Move the adapter"):
        adapter(stream[0].cpu())
    adapter.to("cuda").load_state_dict(state)
    assert_close(again, run(adapter, stream))


def test_state_moves_between_engines(tmp_path):
    stream = to_cuda(batches(12))
    expected = run(make_adapter("eata+crowd", "eager"), stream)
    for first, second in (("graph", "eager"), ("eager", "graph")):
        adapter = make_adapter("eata+crowd", first)
        begun = run(adapter, stream[:6])
        adapter.save(tmp_path / "state")
        other = make_adapter("eata+crowd", second).load(tmp_path / "state")
        assert bool(other.optimizer.param_groups[0]["capturable"]) == (second == "graph")
        assert_close(expected, join(begun, run(other, stream[6:])))


def test_nan_batches_at_the_start_do_not_prevent_capture():
    """Buffers that a component creates in its first step cannot come into being in a captured one."""
    adapter, stream = make_adapter("eata", statistics=MOVING_BLEND), to_cuda(batches(4))
    run(adapter, [images * torch.nan for images in stream])
    assert num_graphs(adapter) == 0
    expected = run(make_adapter("eata", "eager", statistics=MOVING_BLEND), stream)
    assert_close(expected, run(adapter, stream))
    assert num_graphs(adapter) == 1


def test_recurrent_network_adapts():
    class RecurrentNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(24)
            self.lstm = torch.nn.LSTM(24, 8, batch_first=True)
            self.head = torch.nn.Linear(8, 5)

        def forward(self, x):
            rows = x.transpose(1, 2).flatten(2)  # (N, H, C × W)
            return self.head(self.lstm(self.norm(rows))[0][:, -1])

    torch.manual_seed(1)
    adapter = dp.tent(randomize(RecurrentNet()).cuda(), lr=0.1, engine="eager")
    for images in batches(3):
        adapter(images.cuda())
        assert adapter.last.stepped
    name, parameter = next(iter(adapter.trainable_parameters.items()))
    assert not torch.equal(parameter, adapter.source.model.get_parameter(name))


# --- failing captures -------------------------------------------------------------------------------------------------


class HostCopyNet(WideResNet):
    """Copies from the host in its forward pass, which a capture does not permit."""

    def forward(self, x):
        return super().forward(x + torch.full((1,), 0.1, dtype=x.dtype).to(x.device))


class FetchingSelection(dp.selection.Selection):
    """Branches on the data."""

    def weights(self, step):
        return torch.ones_like(step.weights) if step.weights.sum() > 0 else step.weights


class HungrySelection(dp.selection.Selection):
    """Asks for more memory than there is, but only while a step is captured."""

    def weights(self, step):
        size = 2**45 if torch.cuda.is_current_stream_capturing() else 1
        return torch.ones_like(step.weights) + 0 * torch.zeros(size, device=step.weights.device).sum()


class GrowingBuffer(dp.regularizers.Regularizer):
    """Keeps a larger tensor after every batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.zeros(1))

    def on_batch(self, step):
        self.history = torch.cat([self.history, self.history[:1]])


FAILURES = {
    "host copy": ({"model": HostCopyNet}, "could not be captured"),
    "branch on data": ({"select": FetchingSelection()}, "could not be captured"),
    "out of memory": ({"select": HungrySelection()}, "ran out of memory while the step was captured"),
}


def make_failing_adapter(engine, choices):
    torch.manual_seed(1)
    model = randomize(choices["model"]()) if "model" in choices else None
    return compose_adapter(engine, **(choices | {"model": model}), guard=())


def check_device_works():
    """Check that a failed capture left nothing behind on the device."""
    assert torch.rand(2, device="cuda").isfinite().all()
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    adapter, stream = make_adapter("tent+crowd"), to_cuda(batches(5))
    assert_close(run(make_adapter("tent+crowd", "eager"), stream), run(adapter, stream))
    assert num_graphs(adapter) == 1


@pytest.mark.parametrize(("choices", "message"), FAILURES.values(), ids=FAILURES)
def test_failing_capture_raises_and_changes_nothing(choices, message):
    adapter, stream = make_failing_adapter("graph", choices), to_cuda(batches(4))
    run(adapter, stream[:2])
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match=message):
        adapter(stream[2])
    assert same_state(before, state_of(adapter))
    assert all(parameter.grad is None for parameter in adapter.parameters())
    check_device_works()
    eager = make_failing_adapter("eager", choices)
    eager.load_state_dict(before)
    assert eager(stream[2]).isfinite().all()


@pytest.mark.parametrize(("choices", "message"), FAILURES.values(), ids=FAILURES)
def test_failing_capture_falls_back_to_eager_with_one_warning(choices, message):
    adapter, stream = make_failing_adapter("auto", choices), to_cuda(faulty_stream())
    with pytest.warns(RuntimeWarning, match=message) as caught:
        actual = run(adapter, stream)
    assert [warning.category for warning in caught].count(RuntimeWarning) == 1
    assert_close(run(make_failing_adapter("eager", choices), stream), actual)
    check_device_works()


def test_growing_buffer_is_not_captured():
    """A buffer of another shape moves the state's tensors, so every static step begins anew."""
    stream, choices = to_cuda(batches(6)), {"regularizer": GrowingBuffer()}
    adapter = compose_adapter(**choices)
    assert_close(run(compose_adapter("eager", **choices), stream), run(adapter, stream))
    assert len(adapter.method.regularizer.history) == 7
    assert num_graphs(adapter) == 0


def test_failing_captures_do_not_leak_memory():
    def fail():
        adapter, stream = make_failing_adapter("graph", {"model": HostCopyNet}), to_cuda(batches(3))
        run(adapter, stream[:2])
        with pytest.raises(dp.errors.EngineError):
            adapter(stream[2])

    def measure():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    for _ in range(2):
        fail()
    before = measure()
    for _ in range(10):
        fail()
    assert all(after <= earlier for after, earlier in zip(measure(), before, strict=True))


def test_one_adapter_fails_to_capture_while_another_replays():
    good, stream = make_adapter("tent+crowd"), to_cuda(batches(8))
    expected = run(make_adapter("tent+crowd", "eager"), stream)
    begun = run(good, stream[:4])
    failing = make_failing_adapter("graph", {"model": HostCopyNet})
    run(failing, stream[:2])
    with pytest.raises(dp.errors.EngineError):
        failing(stream[2])
    assert_close(expected, join(begun, run(good, stream[4:])))


def test_optimizer_with_host_counter_cannot_be_captured():
    adapter, images = make_adapter("tent", optimizer=torch.optim.Adagrad), to_cuda(batches(1))[0]
    adapter(images)
    before = state_of(adapter)
    with pytest.raises(dp.errors.EngineError, match="such as Adam or SGD without dampening, but got Adagrad"):
        adapter(images)
    assert same_state(before, state_of(adapter))
