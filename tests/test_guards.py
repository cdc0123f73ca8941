"""What guards do when a network trained on digits collapses under a huge learning rate."""

import warnings
from functools import partial

import pytest
import torch

import driftproof as dp
from cases import batches, same_state, state_of
from driftproof import guards
from fault_injection import run
from networks import build

HUGE = 1.0
SICK = dp.Health(disagreement=0.5)
COLLAPSED = dp.Health(disagreement=0.9, mean_entropy_ratio=0.1)
WRONG_STATISTICS = dp.Health(statistics_gap=0.2)


@pytest.fixture(scope="module")
def model(trained):
    return trained[0]


@pytest.fixture(scope="module")
def stream(trained):
    """Eight batches of 64 shuffled digits, again and again."""
    return 4 * trained[1][:512].split(64)


@pytest.fixture(scope="module")
def sorted_stream(trained):
    """Batches that hold one or two classes."""
    _, images, labels = trained
    return images[labels.argsort(stable=True)].split(32)[:16]


def weights(adapter):
    return [parameter.detach().clone() for parameter in adapter.state.trainable]


def optimizer_state(adapter):
    state = adapter.optimizer.state_dict()["state"]
    return {f"{number}.{name}": one.clone() for number, values in state.items() for name, one in values.items()}


def are_equal(first, second):
    return all(map(torch.equal, first, second))


# --- real collapses ---------------------------------------------------------------------------------------------------


def test_warn_warns_once_with_reason_and_remedy(model, stream):
    adapter = dp.tent(model, lr=HUGE)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="Adaptation is") as caught:
            run(adapter, stream)
        (message,) = [str(one.message) for one in caught]
        assert message.startswith(
            "Adaptation is collapsed after 5 batches: predictions concentrate on few classes, and"
        )
        assert "differ from the frozen network's. Lower the learning rate" in message
        assert "`guard=guards.RollBack()`" in message
        adapter.reset()


@pytest.mark.parametrize("call", ["__call__", "step"])
def test_warning_points_at_the_line_that_called_the_adapter(model, stream, call):
    adapt = getattr(dp.tent(model, lr=HUGE), call)
    with pytest.warns(RuntimeWarning, match="Adaptation is") as caught:
        _ = [adapt(images) for images in stream]
    assert caught[0].filename == __file__


def test_warn_blames_statistics_of_class_ordered_batches(model, sorted_stream):
    adapter = dp.bn_adapt(model)
    with pytest.warns(
        RuntimeWarning, match='statistics of its training.*Shuffle the stream, or pass `statistics="auto"`'
    ):
        run(adapter, sorted_stream)
    assert adapter.last.health.blames_statistics


def test_pause_stops_the_weights_and_reset_starts_them_again(model, stream):
    adapter = dp.tent(model, lr=HUGE, guard=dp.guards.Pause())
    start = weights(adapter)
    for _ in range(2):
        run(adapter, stream[:5])
        assert adapter.last.actions == ("paused",)
        assert adapter.last.stepped, "the pause begins after this batch"
        reached = weights(adapter)
        assert not are_equal(start, reached)
        for images in stream[5:]:
            adapter(images)
            assert not adapter.last.stepped
            assert adapter.last.kept == 0
            assert adapter.last.skipped.startswith("learning is held back: a guard")
        assert are_equal(reached, weights(adapter))
        assert are_equal(start, weights(adapter.reset()))


@pytest.mark.parametrize(("size", "expected"), [(65, [*range(1, 11), 20]), (64, [5, 10, 20])])
def test_health_of_large_batches_is_looked_at_in_each_of_the_first_ten(model, stream, size, expected):
    looks = []

    class Look(guards.Guard):
        def act(self, health, control):
            looks.append(control.num_batches)

    images = torch.cat(stream[:2])[:size]
    run(dp.tent(model, select=dp.ConfidenceDifference(), guard=Look()), 20 * [images])
    assert looks == expected


def test_fall_back_answers_what_the_frozen_network_answers(model, stream):
    adapter, frozen = dp.tent(model, lr=HUGE, guard=dp.guards.FallBack()), dp.bn_adapt(model)
    for number, images in enumerate(stream, start=1):
        answer, expected = adapter(images), frozen(images)
        assert torch.equal(answer, expected) == (number == 1 or number >= 5)
        assert ("fell back" in adapter.last.actions) == (number >= 5)


def test_fall_back_uses_statistics_of_training_where_those_of_the_stream_are_at_fault(model, sorted_stream):
    adapter, source = dp.bn_adapt(model, guard=dp.guards.FallBack()), dp.source(model)
    for number, images in enumerate(sorted_stream, start=1):
        answer, expected = adapter(images), source(images)
        assert torch.equal(answer, expected) == (number >= 10), "two measurements show that the classes change"
    assert "fell back" in adapter.last.actions


@pytest.mark.parametrize("select", [None, dp.ConfidenceDifference()])
@pytest.mark.parametrize("act", ["reset", "restore"])
def test_statistics_that_collapsed_weights_have_spoiled_are_replaced(model, stream, select, act):
    statistics = dp.statistics.Blend(0.5, momentum=0.1, start="source")
    adapter = dp.tent(model, statistics=statistics, select=select, guard=())
    healthy = adapter._watch.take_snapshot()
    run(adapter, stream[:4])
    for hook in adapter.network.hooks:
        hook.variance.mul_(1e4)
    if act == "reset":
        adapter._watch.reset_weights(1.0)
    else:
        adapter._watch.restore(healthy)
    assert torch.equal(adapter.predict(stream[4]).logits, adapter.source(stream[4]))


def test_roll_back_restores_weights_and_optimizer_and_goes_further_back_each_time(model, stream, monkeypatch):
    monkeypatch.setattr(guards, "_PAUSE", 1)
    monkeypatch.setattr(guards, "_PAUSE_FACTOR", 1)
    choices = {"teacher": dp.EMA(0.9), "novelty": "confidence_difference"}  # compares with the frozen network
    adapter = dp.tent(model, lr=1e-3, guard=dp.guards.RollBack(keep=2, every=10), **choices)
    taken = []
    for number, images in enumerate(stream[:30], start=1):
        adapter(images)
        if number % 10 == 0:
            teacher = {name: one.clone() for name, one in adapter.state.teacher.model.state_dict().items()}
            taken.append((weights(adapter), optimizer_state(adapter), teacher))
    guard = adapter.method.guards[0]
    guard._last = 10**9  # takes no further ones
    for images in stream[30:50]:  # until all three are old enough
        adapter(images)
    for expected in (*reversed(taken), None):
        guard._last = 10**9
        collapse_until(adapter, stream, "reset" if expected is None else "rolled back")
        if expected is None:
            assert all(map(torch.equal, adapter.state.trainable, adapter.state.source_parameters))
            assert not any(one.any() for one in optimizer_state(adapter).values())
        else:
            assert are_equal(expected[0], weights(adapter))
            assert same_state(expected[1], optimizer_state(adapter))
            assert same_state(expected[2], dict(adapter.state.teacher.model.state_dict()))
        assert not adapter.state.health.averages[:-2].any(), "health starts anew"


def collapse_until(adapter, stream, action):
    for images in 4 * stream:
        for group in adapter.optimizer.param_groups:
            group["lr"] = 30 * HUGE
        adapter(images)
        if action in adapter.last.actions:
            return
    pytest.fail(f"never {action}")


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_reset_lands_where_its_share_says(model, stream, share):
    adapter, free = dp.tent(model, lr=HUGE, guard=dp.guards.Reset(share)), dp.tent(model, lr=HUGE, guard=())
    run(adapter, stream[:5]), run(free, stream[:5])
    assert adapter.last.actions == ("reset",)
    for now, collapsed, start in zip(
        adapter.state.trainable, free.state.trainable, adapter.state.source_parameters, strict=True
    ):
        assert torch.equal(now, torch.lerp(collapsed, start, share))
        assert torch.equal(now, start) == (share == 1.0) or torch.equal(collapsed, start)
    fresh = dp.tent(model, lr=HUGE, guard=())
    fresh(stream[5]), adapter(stream[5])
    if share == 1.0:
        assert are_equal(weights(fresh), weights(adapter)), "the optimizer is new as well"


def test_adapt_ends_no_lower_than_the_source_under_a_huge_learning_rate(model, trained, stream):
    """Guards undo it; without them nearly everything is wrong."""
    labels = 4 * trained[2][:512].split(64)

    def accuracy(adapter):
        right = [
            (adapter(images).argmax(1) == truth).float().mean() for images, truth in zip(stream, labels, strict=True)
        ]
        return float(torch.stack(right[8:]).mean())

    source = accuracy(dp.source(model))
    assert accuracy(dp.tent(model, lr=HUGE, guard=())) < source - 0.5
    assert accuracy(dp.tent(model, lr=HUGE, guard=(dp.guards.FallBack(), dp.guards.RollBack()))) > source - 0.02
    assert accuracy(dp.adapt(model, lr=HUGE)) > source - 0.02


# --- healthy streams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", [None, dp.ConfidenceDifference()], ids=["tent", "tent+crowd"])
def test_guards_change_nothing_on_a_healthy_stream(model, stream, select):
    makers = {"none": (), "warn": None, "all": (dp.guards.Pause(), dp.guards.FallBack(), dp.guards.RollBack(every=5))}
    adapters = {name: dp.tent(model, select=select, guard=guard) for name, guard in makers.items()}
    passes = dict.fromkeys(adapters, 0)

    def count(name, *_):
        passes[name] += 1

    for name, adapter in adapters.items():
        adapter.source.register_forward_hook(partial(count, name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for images in stream[:24]:
            first, *others = (adapter.step(images) for adapter in adapters.values())
            assert all(torch.equal(first.logits, other.logits) for other in others)
            assert all(torch.equal(first.record.selected, other.record.selected) for other in others)
            assert not any(result.record.actions for result in (first, *others))
    states = [
        {k: v for k, v in state_of(one).items() if k.startswith(("model.", "optimizer."))} for one in adapters.values()
    ]
    assert same_state(states[0], states[1])
    assert same_state(states[0], states[2])
    steps = 0 if select is None else 24
    assert passes == {"none": steps, "warn": steps + 6, "all": steps + 6}, "two after batches 5, 10 and 20"


def test_adapter_that_cannot_go_wrong_is_not_watched(model, stream):
    adapter = dp.source(model)
    run(adapter, stream[:6])
    assert adapter.state.guard_counters == {}


# --- saving and reset -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [dp.guards.Pause(), dp.guards.FallBack(), dp.guards.Reset(0.5)], ids=repr)
def test_saving_amid_guard_actions_continues_bit_equal(model, stream, guard, tmp_path):
    make = partial(dp.tent, model, lr=HUGE, guard=guard)
    adapter = make()
    answers, records = run(adapter, stream[:24])
    run(adapter.reset(), stream[:7])
    adapter.save(tmp_path / "state")
    other = make().load(tmp_path / "state")
    assert same_state(state_of(adapter), state_of(other))
    resumed, resumed_records = run(other, stream[7:24])
    assert are_equal(resumed, answers[7:])
    assert [text for *_, text in resumed_records] == [text for *_, text in records[7:]]
    assert any("paused" in text or "reset" in text for *_, text in resumed_records)


def test_reset_makes_guards_forget(model, stream):
    guard = dp.guards.RollBack(every=10)
    adapter = dp.tent(model, lr=1e-3, guard=guard)
    answers, _ = run(adapter, stream[:22])
    (own,) = adapter.method.guards
    assert len(own._snapshots) == 2
    assert guard._snapshots == [], "an adapter has guards of its own"
    again, _ = run(adapter.reset(), stream[:22])
    assert are_equal(answers, again)
    assert len(own._snapshots) == 2


# --- decisions of single guards ---------------------------------------------------------------------------------------


class Log:
    """Writes down what a guard does, as `guards.Control`."""

    def __init__(self):
        self.num_batches, self.calls = 0, []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return self.num_batches

        return call

    def look(self, guard, health, num_batches=None):
        """Let a guard act; returns what it did besides warning."""
        self.num_batches = self.num_batches + 10 if num_batches is None else num_batches
        self.calls = []
        guard.act(health, self)
        return [call for call in self.calls if call[0] != "warn"]


@pytest.mark.parametrize(
    ("guard", "sick", "collapsed", "wrong_statistics"),
    [
        (dp.guards.Warn(), [], [], []),
        (dp.guards.Pause(), *(3 * [[("pause", 10)]])),
        (dp.guards.FallBack(), [], *(2 * [[("fall_back", 10), ("pause", 10)]])),
        (dp.guards.Reset(0.3), [], [("reset_weights", 0.3)], []),
        (dp.guards.RollBack(), [], [("reset_weights", 1.0), ("pause", 1000)], []),
    ],
    ids=repr,
)
def test_decisions(guard, sick, collapsed, wrong_statistics):
    log = Log()
    assert log.look(guard, dp.Health()) == []
    assert log.look(guard, SICK) == sick
    assert log.look(guard, WRONG_STATISTICS) == wrong_statistics
    assert log.look(guard, COLLAPSED) == collapsed
    assert log.calls[0] == ("warn", COLLAPSED)


def test_roll_back_keeps_the_latest_snapshots_and_pauses_ever_longer():
    guard, log = dp.guards.RollBack(keep=2, every=50), Log()
    taken = [number for number in range(10, 201, 10) if log.look(guard, dp.Health(), number)]
    assert taken == [50, 100, 150, 200]
    assert log.look(guard, COLLAPSED) == [("restore", 100), ("pause", 1000)], "the last two are too young"
    assert log.look(guard, COLLAPSED, 1300) == [("restore", 50), ("pause", 4000)]
    assert log.look(guard, COLLAPSED) == [("reset_weights", 1.0), ("pause", 16000)]
    assert log.look(guard, dp.Health(), log.num_batches + 40) == []
    assert log.look(guard, dp.Health()) == [("take_snapshot",)]


def test_roll_back_returns_to_the_source_if_a_snapshot_was_at_fault():
    guard, log = dp.guards.RollBack(keep=2, every=50), Log()
    for number in (50, 100, 150, 200):
        log.look(guard, dp.Health(), number)
    assert log.look(guard, COLLAPSED, 210) == [("restore", 100), ("pause", 1000)]
    assert log.look(guard, COLLAPSED, 300) == [("reset_weights", 1.0), ("pause", 4000)], "during the pause"
    guard.reset()
    assert log.look(guard, COLLAPSED) == [("reset_weights", 1.0), ("pause", 1000)], "forgotten"


def test_several_guards_act_in_their_order():
    calls = []

    class Named(dp.guards.Guard):
        def __init__(self, name):
            self.name = name

        def act(self, health, control):
            calls.append((self.name, control.num_batches))

    run(dp.tent(build("wide_resnet"), guard=[Named("a"), Named("b")]), batches(21))
    assert calls == [(name, number) for number in (5, 10, 20) for name in "ab"]


@pytest.mark.parametrize("wrong", [dp.guards.Warn, "warn", [dp.guards.Warn(), 3]])
def test_guard_of_another_kind_raises(wrong):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected `guard` to be"):
        dp.tent(build("wide_resnet"), guard=wrong)


@pytest.mark.parametrize(
    "make",
    [
        partial(dp.guards.RollBack, keep=0),
        partial(dp.guards.RollBack, every=0),
        partial(dp.guards.Reset, 0.0),
        partial(dp.guards.Reset, 1.1),
    ],
)
def test_invalid_setting_raises(make):
    with pytest.raises(dp.errors.ConfigurationError, match="Expected"):
        make()


def test_repr_shows_settings():
    assert repr(dp.guards.RollBack(keep=3)) == "RollBack(keep=3, every=50)"
    assert repr(dp.guards.Warn()) == "Warn()"
