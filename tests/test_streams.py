"""Streams, orders and prefetching, compared with plain loops over lists."""

import gc
import math
import statistics
import threading
import time
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftproof.errors import ConfigurationError, InputError
from driftproof.streams import (
    Continual,
    Domain,
    LabelShifted,
    OpenSet,
    Prefetcher,
    Shuffled,
    Stored,
    StreamBatch,
    prefetch,
)

ORDERS = [None, Stored(), Shuffled(seed=3), LabelShifted(0.1, seed=3, slots=4)]


class NumberedImages:
    """Images whose colors encode the number of the set and the index; records which indices were read."""

    def __init__(self, number, count, size=(2, 2), classes=3):
        self.name = f"set {number}"
        self.number = number
        self.labels = torch.arange(count) * 7 % classes
        self.size = size
        self.read_indices = []

    def __len__(self):
        return len(self.labels)

    def batch(self, indices):
        indices = torch.as_tensor(indices)
        self.read_indices += indices.tolist()
        colors = torch.stack([torch.full_like(indices, self.number), indices // 256, indices % 256], dim=1)
        return colors.to(torch.uint8)[:, :, None, None].expand(-1, -1, *self.size)


def make_domains(counts, first=0, prefix=""):
    return [Domain(f"{prefix}d{k}", NumberedImages(first + k, count)) for k, count in enumerate(counts)]


def decode(batch):
    """Return the (set, index) of each image of a batch."""
    colors = batch.images[:, :, 0, 0] * 255
    assert torch.equal(colors, colors.round())
    return [(number, high * 256 + low) for number, high, low in colors.int().tolist()]


def as_plain(batch):
    return decode(batch), batch.labels.tolist(), batch.known.tolist(), batch.domain, batch.round


def chunk(items, size):
    return [items[start : start + size] for start in range(0, len(items), size)]


def reference_batches(known_domains, unknown_domains, *, rounds, batch_size, ratio, order, limit, drop_last):
    """The batches of a stream, computed with lists."""
    order = order or Stored()
    unknown_size = round(ratio * batch_size)
    known_size = batch_size - unknown_size
    batches = []
    for turn in range(1, rounds + 1):
        for k, domain in enumerate(known_domains):
            labels = domain.images.labels.tolist()
            blocks = chunk(order(domain.images.labels, domain.name, turn).tolist()[:limit], known_size)
            unknown_blocks = [[] for _ in blocks]
            if unknown_domains:
                other = unknown_domains[k].images
                full_blocks = chunk(range(len(labels)), known_size)
                sizes = [round(unknown_size * len(block) / known_size) for block in full_blocks]
                repeated = [index % len(other) for index in range(sum(sizes))]
                permutation = order(other.labels[repeated], unknown_domains[k].name, turn).tolist()
                indices = [repeated[index] for index in permutation]
                unknown_blocks = chunk(indices, unknown_size) if unknown_size else unknown_blocks
                unknown_blocks += [[]] * len(blocks)
            for block, extra in zip(blocks, unknown_blocks, strict=False):
                extra = extra[: round(unknown_size * len(block) / known_size)]
                if drop_last and len(block) < known_size:
                    continue
                items = [(k, index) for index in block] + [(100 + k, index) for index in extra]
                classes = [labels[index] for index in block] + [-1] * len(extra)
                known = [True] * len(block) + [False] * len(extra)
                batches.append((items, classes, known, domain.name, turn))
    return batches


@st.composite
def stream_settings(draw):
    counts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    options = {
        "rounds": draw(st.integers(1, 3)),
        "batch_size": draw(st.integers(1, 15)),
        "order": draw(st.sampled_from(ORDERS)),
        "limit": draw(st.none() | st.integers(1, 45)),
        "drop_last": draw(st.booleans()),
    }
    return counts, options


@st.composite
def streams(draw):
    """A stream and its expected batches."""
    counts, options = draw(stream_settings())
    known = make_domains(counts, prefix="known/")
    if draw(st.booleans()):
        ratio, unknown = 0.0, []
    else:
        ratio = draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 0.9]))
        options["batch_size"] += 5  # room for one known image at a ratio of 0.9
        others = draw(st.lists(st.integers(1, 60), min_size=len(counts), max_size=len(counts)))
        unknown = make_domains(others, first=100, prefix="unknown/")
    expected = reference_batches(known, unknown, ratio=ratio, **options)
    if not expected:
        options["drop_last"] = False
        expected = reference_batches(known, unknown, ratio=ratio, **options)
    return OpenSet(known, unknown, ratio=ratio, **options) if unknown else Continual(known, **options), expected


@given(streams())
def test_batches_equal_plain_loops(stream_and_expected):
    stream, expected = stream_and_expected
    batches = list(stream)
    assert [as_plain(batch) for batch in batches] == expected
    assert len(stream) == len(expected)
    assert [as_plain(batch) for batch in stream] == expected, "a second pass differs"
    for batch in batches:
        assert batch.images.dtype == torch.float32
        assert batch.labels.dtype == torch.int64
        assert batch.known.dtype == torch.bool
        assert batch.num_known == sum(label >= 0 for label in batch.labels.tolist())
        assert 0 <= batch.images.min() <= batch.images.max() <= 1


@settings(max_examples=20)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 15), st.sampled_from(ORDERS))
def test_every_known_image_appears_once_per_round(counts, batch_size, order):
    known, unknown = make_domains(counts, prefix="a/"), make_domains([5] * len(counts), first=100, prefix="b/")
    seen = {}
    for batch in OpenSet(known, unknown, rounds=2, batch_size=batch_size + 1, order=order):
        seen.setdefault(batch.round, []).extend(item for item in decode(batch) if item[0] < 100)
    everything = [(k, index) for k, count in enumerate(counts) for index in range(count)]
    assert sorted(seen) == [1, 2]
    assert all(sorted(items) == everything for items in seen.values())


@settings(max_examples=40)
@given(streams(), st.data())
def test_skip_returns_the_tail_of_the_stream(stream_and_expected, data):
    stream, expected = stream_and_expected
    skipped = data.draw(st.integers(0, len(expected)))
    rest = stream.skip(skipped)
    assert [as_plain(batch) for batch in rest] == expected[skipped:]
    assert len(rest) == len(expected) - skipped
    again = data.draw(st.integers(0, len(rest)))
    assert [as_plain(batch) for batch in rest.skip(again)] == expected[skipped + again :]
    assert len(stream) == len(expected), "the stream itself changed"


@settings(max_examples=40)
@given(streams(), st.data())
def test_start_from_returns_the_tail_from_the_given_batch(stream_and_expected, data):
    stream, expected = stream_and_expected
    position = data.draw(st.integers(0, len(expected) - 1))
    domain, turn = expected[position][3:]
    domain_index = [each.name for each in stream.domains].index(domain)
    same = [index for index, item in enumerate(expected) if item[3:] == (domain, turn)]
    rest = stream.skip(data.draw(st.integers(0, len(expected)))).start_from(turn, domain_index, same.index(position))
    assert [as_plain(batch) for batch in rest] == expected[position:]


def test_skipped_batches_are_not_read_and_not_ordered():
    ordered = []

    def order(labels, domain, turn):
        ordered.append((domain, turn))
        return Stored()(labels, domain, turn)

    known = make_domains([10, 10])
    stream = Continual(known, rounds=3, batch_size=4, order=order).start_from(3, 1, 2)
    for domain in known:
        domain.images.read_indices.clear()
    assert [decode(batch) for batch in stream] == [[(1, 8), (1, 9)]]
    assert known[0].images.read_indices == []
    assert known[1].images.read_indices == [8, 9]
    assert ordered == [("d1", 3)]


@settings(max_examples=40)
@given(streams(), st.integers(1, 3))
def test_limited_stream_starts_like_the_full_one(stream_and_expected, blocks):
    stream, _ = stream_and_expected
    options = {"batch_size": stream.batch_size, "order": stream.order}
    if isinstance(stream, OpenSet):
        size = stream.batch_size - round(stream.ratio * stream.batch_size)
        pair = (stream.domains[:1], stream.unknown[:1])
        limited = OpenSet(*pair, ratio=stream.ratio, limit=blocks * size, **options)
        full = OpenSet(*pair, ratio=stream.ratio, **options)
    else:
        limited = Continual(stream.domains[:1], limit=blocks * stream.batch_size, **options)
        full = Continual(stream.domains[:1], **options)
    assert [as_plain(batch) for batch in limited] == [as_plain(batch) for batch in full][:blocks]


def test_batch_counts_of_the_papers_protocol():
    known, unknown = make_domains([1000], prefix="cifar10-c/"), make_domains([2603], first=100, prefix="svhn-c/")
    stream = OpenSet(known, unknown)
    assert len(stream) == 10
    assert {(len(batch.images), batch.num_known) for batch in stream} == {(200, 100)}
    other_reading = OpenSet(known, unknown, batch_size=400)
    assert [(len(batch.images), batch.num_known) for batch in other_reading] == [(400, 200)] * 5
    assert len(Continual(known, rounds=50)) == 250


@pytest.mark.parametrize("limit", [None, 30])
def test_random_mixing_shows_every_image_once_in_batches_of_varying_share(limit):
    known, unknown = make_domains([50, 47]), make_domains([60, 60], first=100)
    options = {"batch_size": 10, "order": Shuffled(seed=1), "limit": limit}
    even, mixed = (OpenSet(known, unknown, mixing=mixing, **options) for mixing in ("even", "random"))
    assert len(even) == len(mixed)

    def images_by_domain(stream):
        found = {}
        for batch in stream:
            for one, is_known in zip(decode(batch), batch.known.tolist(), strict=True):
                found.setdefault(batch.domain, []).append((one, is_known))
        return {name: sorted(each) for name, each in found.items()}

    assert images_by_domain(mixed) == images_by_domain(even)
    assert [len(batch.labels) for batch in mixed] == [len(batch.labels) for batch in even]
    assert len({batch.num_known for batch in mixed}) > 2
    skipped = [decode(batch) for batch in mixed.skip(7)]
    assert skipped == [decode(batch) for batch in mixed][7:]


def test_short_unknown_sets_are_repeated_evenly():
    stream = OpenSet(make_domains([100]), make_domains([20], first=100), batch_size=20, order=Shuffled())
    unknown = [index for batch in stream for number, index in decode(batch) if number == 100]
    assert all(unknown.count(index) == 5 for index in range(20))


@pytest.mark.parametrize("order", ORDERS[1:], ids=lambda order: type(order).__name__)
@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 8), st.sampled_from(["fog", "snow/5"]), st.integers(1, 50))
def test_orders_are_deterministic_permutations(order, count, classes, domain, turn):
    labels = torch.arange(count) % classes
    indices = order(labels, domain, turn)
    assert sorted(indices.tolist()) == list(range(count))
    assert torch.equal(indices, order(labels, domain, turn + 1))


@pytest.mark.parametrize("make", [Shuffled, lambda seed: LabelShifted(1.0, seed=seed)])
def test_random_orders_depend_only_on_seed_and_domain(make):
    labels = torch.arange(100) % 5
    torch.manual_seed(1)
    first = make(0)(labels, "fog", 1)
    torch.manual_seed(2)
    assert torch.equal(first, make(0)(labels, "fog", 1))
    assert not torch.equal(first, make(1)(labels, "fog", 1))
    assert not torch.equal(first, make(0)(labels, "snow", 1))


def count_runs(labels):
    """Return the number of runs of equal labels."""
    return 1 + sum(before != after for before, after in pairwise(labels.tolist()))


def shifted_labels(concentration, seed, classes=10, each=100, **options):
    labels = torch.arange(classes * each) // each
    return labels[LabelShifted(concentration, seed=seed, **options)(labels, "fog", 1)]


@pytest.mark.parametrize("concentration", [1e-6, 1e-12, 1e-200])
def test_small_concentration_gives_one_class_after_the_other(concentration):
    # Each class falls into one slot; two of 5 classes share one of 300 slots in fewer than 4 of 100 streams.
    counts = [count_runs(shifted_labels(concentration, seed, classes=5, each=20, slots=300)) for seed in range(8)]
    assert sum(count == 5 for count in counts) >= 6


def test_large_concentration_is_like_shuffled():
    # A random permutation of 10 classes with 100 images each has 1 + 999 × 900/999 = 901 runs on average.
    counts = [count_runs(shifted_labels(1e6, seed)) for seed in range(20)]
    assert abs(statistics.mean(counts) - 901) < 4 * 10 / math.sqrt(20)


def test_higher_concentration_mixes_classes_more():
    means = [
        statistics.mean(count_runs(shifted_labels(c, seed)) for seed in range(8)) for c in (0.001, 0.01, 0.1, 1.0, 10.0)
    ]
    assert means == sorted(means)
    assert means[0] < 0.5 * means[-1]


@pytest.mark.parametrize("concentration", [0.05, 1.0, 5.0])
def test_class_bursts_match_the_dirichlet_distribution(concentration):
    # Two images of a class share one of S slots with probability q = E Σ p² = (δ + 1) / (S δ + 1). Their mean distance
    # in time is then 1/(3S) of the stream; for images in different slots it is (S + 1)/(3S).
    slots, classes, each = 5, 400, 20
    labels = torch.arange(classes * each) % classes
    order = LabelShifted(concentration, slots=slots)
    rank_weights = 2 * torch.arange(each) - each + 1  # Σ_{i<j} |t_i − t_j| = Σ_k weight_k t_(k) over sorted times
    distances = []
    for domain in "abcd":
        times = order(labels, domain, 1).argsort().view(each, classes).T.double() / len(labels)
        distances += ((times.sort().values * rank_weights).sum(dim=1) / math.comb(each, 2)).tolist()
    q = (concentration + 1) / (slots * concentration + 1)
    expected = q / (3 * slots) + (1 - q) * (slots + 1) / (3 * slots)
    assert abs(statistics.mean(distances) - expected) < 0.006  # three standard errors


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("driftproof-prefetch")]


@settings(max_examples=25)
@given(streams(), st.integers(1, 5), st.sampled_from([None, "cpu"]))
def test_prefetched_batches_equal_the_stream(stream_and_expected, ahead, device):
    stream, expected = stream_and_expected
    prefetched = Prefetcher(stream, ahead=ahead, device=device)
    assert len(prefetched) == len(stream)
    for _ in range(2):
        assert [as_plain(batch) for batch in prefetched] == expected
        assert prefetch_threads() == []


class WatchedImages(NumberedImages):
    """Fails at one image, and records how many batches were started and in which thread."""

    def __init__(self, count, fails_at=-1):
        super().__init__(0, count)
        self.fails_at = fails_at
        self.started = 0
        self.pause = 0.0
        self.threads = set()

    def batch(self, indices):
        if self.fails_at in torch.as_tensor(indices).tolist():
            raise InputError(f"image {self.fails_at} is damaged")
        self.started += 1
        self.threads.add(threading.current_thread())
        time.sleep(self.pause)
        return super().batch(indices)


def watched_stream(images, **options):
    stream = Continual([Domain("fog", images)], batch_size=1, **options)
    images.started = 0
    images.threads.clear()
    return stream


@pytest.mark.parametrize("ahead", [1, 3])
def test_at_most_ahead_batches_are_read_in_advance(ahead):
    images = WatchedImages(12)
    for taken, _ in enumerate(Prefetcher(watched_stream(images), ahead=ahead), start=1):
        expected = min(taken + ahead, 12)
        until = time.monotonic() + 5
        while images.started < expected and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.005)
        assert images.started == expected
    assert threading.main_thread() not in images.threads
    assert len(images.threads) == 1


def test_released_batches_are_freed():
    alive = weakref.WeakSet()
    iterator = iter(Prefetcher(watched_stream(WatchedImages(8)), ahead=2))
    for _ in range(5):
        batch = next(iterator)
        assert isinstance(batch, StreamBatch)
        alive.add(batch)
        del batch
        assert len(alive) == 0
    iterator.close()


@pytest.mark.parametrize("ahead", [1, 2, 20])
def test_read_error_is_raised_in_place_of_the_batch(ahead):
    seen = []
    stream = Prefetcher(watched_stream(WatchedImages(10, fails_at=5)), ahead=ahead)
    with pytest.raises(InputError, match="image 5 is damaged"):
        seen.extend(item for batch in stream for item in decode(batch))
    assert seen == [(0, index) for index in range(5)]
    assert prefetch_threads() == []


def test_order_error_is_raised_in_place_of_the_domain():
    def order(labels, domain, turn):
        return torch.zeros(4) if domain == "d1" else torch.arange(4)

    seen = []
    stream = Prefetcher(Continual(make_domains([4, 4]), batch_size=1, order=order), ahead=3)
    with pytest.raises(ConfigurationError, match="4 images of domain d1 exactly once"):
        seen.extend(item for batch in stream for item in decode(batch))
    assert seen == [(0, index) for index in range(4)]
    assert prefetch_threads() == []


def test_thread_stops_when_the_caller_stops_iterating():
    stream = watched_stream(WatchedImages(1000))
    for _ in Prefetcher(stream):
        break
    assert prefetch_threads() == []

    iterator = iter(Prefetcher(stream))
    next(iterator)
    assert len(prefetch_threads()) == 1
    iterator.close()
    assert prefetch_threads() == []

    with pytest.raises(KeyError):
        raise_during_iteration(stream)
    assert prefetch_threads() == []


def test_closing_waits_for_at_most_one_read():
    images = WatchedImages(100)
    stream = watched_stream(images)
    images.pause = 0.02
    iterator = iter(Prefetcher(stream, ahead=50))
    next(iterator)
    iterator.close()
    assert images.started < 10


def raise_during_iteration(stream):
    for batch in Prefetcher(stream):
        raise KeyError(batch.domain)


def test_thread_stops_when_the_iterator_is_garbage_collected():
    iterator = iter(Prefetcher(watched_stream(WatchedImages(1000))))
    next(iterator)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert prefetch_threads() == []


def test_unstarted_iterator_starts_no_thread():
    iterator = iter(Prefetcher(watched_stream(WatchedImages(3))))
    assert prefetch_threads() == []
    del iterator


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_are_copied_on_no_stream_that_steps_may_be_captured_on():
    """Streams come from a pool, by turns: two runs in a hundred failed with "invalid argument" while they captured."""
    others = {torch.cuda.Stream().cuda_stream for _ in range(64)}
    readers = [prefetch._SideStreamReader(torch.device("cuda")) for _ in range(64)]
    assert not others & {reader.side.cuda_stream for reader in readers}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_prefetched_batches_equal_the_stream_on_cuda():
    known = [Domain("fog", NumberedImages(0, 3000, size=(64, 64)))]
    stream = Continual(known, rounds=3, batch_size=64, order=Shuffled())
    busy = torch.rand(2048, 2048, device="cuda")
    for plain, moved in zip(stream, Prefetcher(stream, device="cuda"), strict=True):
        busy = (busy @ busy).softmax(dim=1)
        assert moved.images.device == moved.labels.device == moved.known.device == busy.device
        copy = moved.images.clone()
        torch.testing.assert_close(
            moved.images.cpu(), plain.images, rtol=1e-6, atol=0
        )  # division may round differently on a GPU
        assert torch.equal(moved.labels.cpu(), plain.labels)
        assert torch.equal(copy, moved.images)
    assert prefetch_threads() == []


class BadImages(NumberedImages):
    def __init__(self, labels=None, pixels=None):
        super().__init__(0, 4)
        self.labels = self.labels if labels is None else labels
        self.pixels = pixels

    def __len__(self):
        return 4

    def batch(self, indices):
        return super().batch(indices) if self.pixels is None else self.pixels


def test_invalid_image_sets_raise_input_error():
    with pytest.raises(InputError, match="fog to hold at least one image"):
        Domain("fog", NumberedImages(0, 0))
    for labels in (torch.zeros(3).long(), torch.zeros(4, 1).long(), torch.zeros(4)):
        with pytest.raises(InputError, match="one integer label for each of the 4 images of domain fog"):
            Domain("fog", BadImages(labels=labels))
    for pixels in (torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, 2, 3).byte(), torch.zeros(3, 2, 2).byte()):
        with pytest.raises(InputError, match=r"uint8 images of shape \(1, 3, H, W\)"):
            Continual([Domain("fog", BadImages(pixels=pixels))])


def test_images_of_different_sizes_raise_input_error():
    small, large = Domain("fog", NumberedImages(0, 4)), Domain("snow", NumberedImages(1, 4, size=(2, 3)))
    with pytest.raises(InputError, match=r"\(2, 2\) in domain fog and \(2, 3\) in domain snow"):
        Continual([small, large])
    with pytest.raises(InputError, match=r"\(2, 2\) in domain fog and \(2, 3\) in domain fog"):
        OpenSet([small], [Domain("fog", large.images)])
    changing = NumberedImages(0, 4)
    stream = Continual([Domain("fog", changing)])
    changing.size = (3, 3)
    with pytest.raises(InputError, match=r"shape \(4, 3, 2, 2\), but got torch.uint8 of shape \(4, 3, 3, 3\)"):
        list(stream)


@pytest.mark.parametrize("name", ["rounds", "batch_size", "limit"])
def test_counts_below_one_raise_configuration_error(name):
    with pytest.raises(ConfigurationError, match=f"Expected `{name}` to be at least 1, but got 0"):
        Continual(make_domains([3]), **{name: 0})
    with pytest.raises(ConfigurationError, match=f"Expected `{name}` to be at least 1, but got 0"):
        OpenSet(make_domains([3]), make_domains([3]), **{name: 0})


def test_invalid_streams_raise_configuration_error():
    with pytest.raises(ConfigurationError, match="at least one domain"):
        Continual([])
    with pytest.raises(ConfigurationError, match="at least one domain"):
        OpenSet([], [])
    with pytest.raises(ConfigurationError, match="fill at least one batch of 4"):
        Continual(make_domains([3]), batch_size=4, drop_last=True)
    for ratio in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="`ratio`"):
            OpenSet(make_domains([3]), make_domains([3]), ratio=ratio)
    with pytest.raises(ConfigurationError, match=r"leave room for unknown images at a ratio of 0\.5, but got 1"):
        OpenSet(make_domains([3]), make_domains([3]), batch_size=1)
    with pytest.raises(ConfigurationError, match=r"leave room for known images at a ratio of 0\.9, but got 4"):
        OpenSet(make_domains([3]), make_domains([3]), ratio=0.9, batch_size=4)
    with pytest.raises(ConfigurationError, match="each of the 2 known ones, but got 1"):
        OpenSet(make_domains([3, 3]), make_domains([3]))
    with pytest.raises(ConfigurationError, match="a/fog/5 was paired with b/fog/3"):
        OpenSet([Domain("a/fog/5", NumberedImages(0, 3))], [Domain("b/fog/3", NumberedImages(1, 3))])


def test_positions_outside_the_stream_raise_configuration_error():
    stream = Continual(make_domains([3, 4]), rounds=2, batch_size=2)
    for batches in (-1, 9):
        with pytest.raises(ConfigurationError, match=r"`batches` to be in 0..8"):
            stream.skip(batches)
    for position, name in [((0,), "round"), ((3,), "round"), ((1, 2), "domain_index"), ((1, 1, 2), "batch_index")]:
        with pytest.raises(ConfigurationError, match=f"`{name}`"):
            stream.start_from(*position)


def test_invalid_order_and_prefetch_settings_raise_configuration_error():
    for concentration in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="`concentration`"):
            LabelShifted(concentration)
    with pytest.raises(ConfigurationError, match="`slots`"):
        LabelShifted(1.0, slots=0)
    with pytest.raises(ConfigurationError, match="`ahead`"):
        Prefetcher(Continual(make_domains([3])), ahead=0)


def test_order_that_is_no_permutation_raises_configuration_error():
    for indices in ([0, 0, 1], [0, 1], [1, 2, 3]):
        stream = Continual(make_domains([3]), order=lambda *_, indices=indices: torch.tensor(indices))
        with pytest.raises(ConfigurationError, match="exactly once"):
            list(stream)
