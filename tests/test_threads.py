"""Threads that share one adapter: copies and states never mix two steps, and each batch gets its own record."""

import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

import driftproof as dp
from cases import batches, same_state, state_of
from networks import build

NUM_STEPS = 15
IMAGES = batches(1)[0]


@pytest.fixture(autouse=True)
def switch_threads_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def make_adapter():
    return dp.Adapter(
        build("wide_resnet"),
        scope=dp.scopes.norm_affine(),
        statistics=dp.statistics.Blend(0.5, momentum=0.3),
        loss=dp.losses.Entropy(),
        select=dp.ConfidenceDifference() & dp.NonRedundant(2.0),
        optimizer=partial(torch.optim.Adam, lr=1e-2),
        teacher=dp.EMA(0.9),
        after=dp.after.PullToSource(0.01),
    )


@pytest.fixture(scope="module")
def expected():
    """The state after each number of steps, from one thread."""
    adapter = make_adapter()
    states = [state_of(adapter)]
    for _ in range(NUM_STEPS):
        adapter(IMAGES)
        states.append(state_of(adapter))
    return states


COPIES = {
    "state_dict": lambda adapter: adapter.state_dict(),
    "deepcopy": lambda adapter: copy.deepcopy(adapter).state_dict(),
    "pickle": lambda adapter: pickle.loads(pickle.dumps(adapter)).state_dict(),
}


@pytest.mark.parametrize("name", COPIES)
def test_copy_taken_while_another_thread_steps_is_of_one_step(expected, name):
    adapter, started = make_adapter(), threading.Event()

    def step_through():
        for _ in range(NUM_STEPS):
            adapter(IMAGES)
            started.set()

    thread = threading.Thread(target=step_through)
    thread.start()
    taken = []
    try:
        started.wait(timeout=30)
        while thread.is_alive() or not taken:
            taken.append(COPIES[name](adapter))
    finally:
        thread.join()
    assert all(any(same_state(state, one) for one in expected) for state in taken)
    assert len({state["model.norm.weight"].sum().item() for state in taken}) > 1, "copies were taken between steps"
    assert same_state(adapter.state_dict(), expected[-1])


def test_step_returns_the_record_of_its_own_batch():
    adapter = make_adapter()

    def serve(size):
        results = [adapter.step(batches(1, size=size, seed=number)[0]) for number in range(12)]
        return [(len(result.logits), result.record.seen, len(result.record.novelty)) for result in results]

    with ThreadPoolExecutor(3) as threads:
        for size, seen in zip((2, 3, 5), threads.map(serve, (2, 3, 5)), strict=True):
            assert set(seen) == {(size, size, size)}
    assert int(adapter.state.index) == 36


class StepOnRelease:
    """A lock that lets another caller step as soon as it is released."""

    def __init__(self, adapter, images):
        self.lock, self.adapter, self.images = adapter._lock, adapter, images

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *error):
        self.lock.__exit__(*error)
        if self.images is not None:
            images, self.images = self.images, None
            self.adapter(images)


def test_record_is_read_before_another_caller_can_step():
    adapter = make_adapter()
    adapter._lock = StepOnRelease(adapter, IMAGES)
    result = adapter.step(IMAGES[:2])
    assert result.record.seen == len(result.logits) == 2
    assert adapter.last.seen == len(IMAGES), "the other caller stepped in between"
