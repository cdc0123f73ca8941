"""Streams against plain loops over lists."""

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
from driftproof.streams import Batch, Continual, Domain, LabelShifted, OpenSet, Prefetched, Shuffled, Stored

ORDERS = [None, Stored(), Shuffled(seed=3), LabelShifted(0.1, seed=3, slots=4)]


class Numbered:
    """Images that carry their set's number and their own place in their colors, and remember what was read."""

    def __init__(self, number, count, size=(2, 2), classes=3):
        self.name = f"set {number}"
        self.number = number
        self.labels = torch.arange(count) * 7 % classes
        self.size = size
        self.asked = []

    def __len__(self):
        return len(self.labels)

    def batch(self, indices):
        places = torch.as_tensor(indices)
        self.asked += places.tolist()
        colors = torch.stack([torch.full_like(places, self.number), places // 256, places % 256], dim=1)
        return colors.to(torch.uint8)[:, :, None, None].expand(-1, -1, *self.size)


def domains(counts, first=0, prefix=""):
    return [Domain(f"{prefix}d{k}", Numbered(first + k, count)) for k, count in enumerate(counts)]


def contents(batch):
    """The (set, place) of each image of a batch."""
    colors = batch.images[:, :, 0, 0] * 255
    assert torch.equal(colors, colors.round())
    return [(int(number), int(high) * 256 + int(low)) for number, high, low in colors]


def summary(batch):
    return contents(batch), batch.labels.tolist(), batch.known.tolist(), batch.domain, batch.round


def cut(places, size):
    return [places[start : start + size] for start in range(0, len(places), size)]


def by_loops(closed, unknown, *, rounds, batch_size, ratio, order, limit, drop_last):
    """The stream's batches, from lists."""
    order = order or Stored()
    unknown_size = round(ratio * batch_size)
    closed_size = batch_size - unknown_size
    batches = []
    for turn in range(1, rounds + 1):
        for k, domain in enumerate(closed):
            labels = domain.images.labels
            blocks = cut(order(labels, domain.name, turn).tolist()[:limit], closed_size)
            beside = [[] for _ in blocks]
            if unknown:
                other = unknown[k].images
                whole_blocks = cut(range(len(labels)), closed_size)
                sizes = [round(unknown_size * len(block) / closed_size) for block in whole_blocks]
                repeated = [place % len(other) for place in range(sum(sizes))]
                names = order(other.labels[repeated], unknown[k].name, turn).tolist()
                arranged = [repeated[place] for place in names]
                beside = cut(arranged, unknown_size) if unknown_size else beside
                beside += [[]] * len(blocks)
            for block, extra in zip(blocks, beside, strict=False):
                extra = extra[: round(unknown_size * len(block) / closed_size)]
                if drop_last and len(block) < closed_size:
                    continue
                items = [(k, place) for place in block] + [(100 + k, place) for place in extra]
                classes = [int(labels[place]) for place in block] + [-1] * len(extra)
                known = [True] * len(block) + [False] * len(extra)
                batches.append((items, classes, known, domain.name, turn))
    return batches


@st.composite
def settings_of_a_stream(draw):
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
    """A stream with what it should hold."""
    counts, options = draw(settings_of_a_stream())
    closed = domains(counts, prefix="known/")
    if draw(st.booleans()):
        ratio, unknown = 0.0, []
    else:
        ratio = draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 0.9]))
        options["batch_size"] += 5  # at a share of 0.9, room for one closed image
        others = draw(st.lists(st.integers(1, 60), min_size=len(counts), max_size=len(counts)))
        unknown = domains(others, first=100, prefix="unknown/")
    expected = by_loops(closed, unknown, ratio=ratio, **options)
    if not expected:
        options["drop_last"] = False
        expected = by_loops(closed, unknown, ratio=ratio, **options)
    return OpenSet(closed, unknown, ratio=ratio, **options) if unknown else Continual(closed, **options), expected


@given(streams())
def test_batches_equal_plain_loops(stream_and_expected):
    stream, expected = stream_and_expected
    assert [summary(batch) for batch in stream] == expected
    assert len(stream) == len(expected)
    assert [summary(batch) for batch in stream] == expected, "a second pass differs"


@given(streams())
def test_batches_are_what_they_say(stream_and_expected):
    stream, _ = stream_and_expected
    for batch in stream:
        assert batch.images.dtype == torch.float32
        assert batch.labels.dtype == torch.int64
        assert batch.known.dtype == torch.bool
        assert batch.closed == sum(label >= 0 for label in batch.labels.tolist())
        assert 0 <= batch.images.min() <= batch.images.max() <= 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 15), st.sampled_from(ORDERS))
def test_every_closed_image_comes_exactly_once_per_round(counts, batch_size, order):
    closed, unknown = domains(counts, prefix="a/"), domains([5] * len(counts), first=100, prefix="b/")
    seen = {}
    for batch in OpenSet(closed, unknown, rounds=2, batch_size=batch_size + 1, order=order):
        seen.setdefault(batch.round, []).extend(item for item in contents(batch) if item[0] < 100)
    everything = [(k, place) for k, count in enumerate(counts) for place in range(count)]
    assert sorted(seen) == [1, 2]
    assert all(sorted(items) == everything for items in seen.values())


@given(streams(), st.data())
def test_a_resumed_stream_is_the_tail_of_the_whole(stream_and_expected, data):
    stream, expected = stream_and_expected
    skipped = data.draw(st.integers(0, len(expected)))
    rest = stream.skip(skipped)
    assert [summary(batch) for batch in rest] == expected[skipped:]
    assert len(rest) == len(expected) - skipped
    again = data.draw(st.integers(0, len(rest)))
    assert [summary(batch) for batch in rest.skip(again)] == expected[skipped + again :]
    assert len(stream) == len(expected), "the stream itself was moved"


@given(streams(), st.data())
def test_starting_at_finds_the_batch_with_these_numbers(stream_and_expected, data):
    stream, expected = stream_and_expected
    position = data.draw(st.integers(0, len(expected) - 1))
    domain, turn = expected[position][3:]
    domain_index = [each.name for each in stream.domains].index(domain)
    same = [place for place, item in enumerate(expected) if item[3:] == (domain, turn)]
    rest = stream.skip(data.draw(st.integers(0, len(expected)))).starting_at(turn, domain_index, same.index(position))
    assert [summary(batch) for batch in rest] == expected[position:]


def test_what_is_skipped_is_neither_read_nor_ordered():
    ordered = []

    def order(labels, domain, turn):
        ordered.append((domain, turn))
        return Stored()(labels, domain, turn)

    closed = domains([10, 10])
    stream = Continual(closed, rounds=3, batch_size=4, order=order).starting_at(3, 1, 2)
    for domain in closed:
        domain.images.asked.clear()
    assert [contents(batch) for batch in stream] == [[(1, 8), (1, 9)]]
    assert closed[0].images.asked == []
    assert closed[1].images.asked == [8, 9]
    assert ordered == [("d1", 3)]


@given(streams(), st.integers(1, 3))
def test_a_limited_stream_begins_like_the_whole_one(stream_and_expected, blocks):
    stream, _ = stream_and_expected
    options = {"batch_size": stream.batch_size, "order": stream.order}
    if isinstance(stream, OpenSet):
        size = stream.batch_size - round(stream.ratio * stream.batch_size)
        pair = (stream.domains[:1], stream.unknown[:1])
        limited = OpenSet(*pair, ratio=stream.ratio, limit=blocks * size, **options)
        whole = OpenSet(*pair, ratio=stream.ratio, **options)
    else:
        limited = Continual(stream.domains[:1], limit=blocks * stream.batch_size, **options)
        whole = Continual(stream.domains[:1], **options)
    assert [summary(batch) for batch in limited] == [summary(batch) for batch in whole][:blocks]


def test_the_protocols_numbers():
    closed, unknown = domains([1000], prefix="cifar10-c/"), domains([2603], first=100, prefix="svhn-c/")
    stream = OpenSet(closed, unknown)
    assert len(stream) == 10
    assert {(len(batch.images), batch.closed) for batch in stream} == {(200, 100)}
    other_reading = OpenSet(closed, unknown, batch_size=400)
    assert [(len(batch.images), batch.closed) for batch in other_reading] == [(400, 200)] * 5
    assert len(Continual(closed, rounds=50)) == 250


def test_short_unknown_sets_are_repeated_as_a_whole():
    stream = OpenSet(domains([100]), domains([20], first=100), batch_size=20, order=Shuffled())
    unknown = [place for batch in stream for number, place in contents(batch) if number == 100]
    assert all(unknown.count(place) == 5 for place in range(20))


@pytest.mark.parametrize("order", ORDERS[1:], ids=lambda order: type(order).__name__)
@given(st.integers(1, 60), st.integers(1, 8), st.sampled_from(["fog", "snow/5"]), st.integers(1, 50))
def test_orders_are_permutations_and_the_same_every_time(order, count, classes, domain, turn):
    labels = torch.arange(count) % classes
    places = order(labels, domain, turn)
    assert sorted(places.tolist()) == list(range(count))
    assert torch.equal(places, order(labels, domain, turn + 1))


@pytest.mark.parametrize("make", [Shuffled, lambda seed: LabelShifted(1.0, seed=seed)])
def test_random_orders_depend_on_the_seed_and_on_the_domain_alone(make):
    labels = torch.arange(100) % 5
    torch.manual_seed(1)
    first = make(0)(labels, "fog", 1)
    torch.manual_seed(2)
    assert torch.equal(first, make(0)(labels, "fog", 1))
    assert not torch.equal(first, make(1)(labels, "fog", 1))
    assert not torch.equal(first, make(0)(labels, "snow", 1))


def runs(labels):
    """Number of runs of equal labels."""
    return 1 + sum(before != after for before, after in pairwise(labels.tolist()))


def shifted(concentration, seed, classes=10, each=100, **options):
    labels = torch.arange(classes * each) // each
    return labels[LabelShifted(concentration, seed=seed, **options)(labels, "fog", 1)]


@pytest.mark.parametrize("concentration", [1e-6, 1e-12, 1e-200])
def test_a_small_concentration_gives_one_class_after_the_other(concentration):
    # Each class falls into one slot; two of 10 classes share one of 1,000 slots in fewer than 5 of 100 streams.
    counts = [runs(shifted(concentration, seed, slots=1000)) for seed in range(8)]
    assert sum(count == 10 for count in counts) >= 6


def test_a_large_concentration_is_like_shuffled():
    # A random permutation of 10 classes with 100 images each has 1 + 999 × 900/999 = 901 runs on average.
    counts = [runs(shifted(1e6, seed)) for seed in range(20)]
    assert abs(statistics.mean(counts) - 901) < 4 * 10 / math.sqrt(20)


def test_more_concentration_mixes_more():
    means = [statistics.mean(runs(shifted(c, seed)) for seed in range(8)) for c in (0.001, 0.01, 0.1, 1.0, 10.0)]
    assert means == sorted(means)
    assert means[0] < 0.5 * means[-1]


@pytest.mark.parametrize("concentration", [0.05, 0.5, 1.0, 5.0])
def test_classes_are_as_bunched_as_the_dirichlet_distribution_says(concentration):
    # Two images of a class share one of S slots with probability q = E Σ p² = (δ + 1) / (S δ + 1). Their distance in
    # time is then 1/(3S) of the stream on average; that of images in different slots is (S + 1)/(3S).
    slots, classes, each = 5, 400, 20
    labels = torch.arange(classes * each) % classes
    order = LabelShifted(concentration, slots=slots)
    distances = []
    for domain in "abcd":
        when = order(labels, domain, 1).argsort().view(each, classes).T.double() / len(labels)
        distances += [torch.nn.functional.pdist(times[:, None], p=1).mean().item() for times in when]
    q = (concentration + 1) / (slots * concentration + 1)
    expected = q / (3 * slots) + (1 - q) * (slots + 1) / (3 * slots)
    assert abs(statistics.mean(distances) - expected) < 0.006  # three standard errors


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("driftproof-prefetch")]


@settings(max_examples=25)
@given(streams(), st.integers(1, 5), st.sampled_from([None, "cpu"]))
def test_prefetched_batches_are_the_same(stream_and_expected, ahead, device):
    stream, expected = stream_and_expected
    prefetched = Prefetched(stream, ahead=ahead, device=device)
    assert len(prefetched) == len(stream)
    for _ in range(2):
        assert [summary(batch) for batch in prefetched] == expected
        assert prefetch_threads() == []


class Watched(Numbered):
    """Fails at one image, and notes how many batches were begun and in which thread."""

    def __init__(self, count, fails_at=-1):
        super().__init__(0, count)
        self.fails_at = fails_at
        self.begun = 0
        self.pause = 0.0
        self.threads = set()

    def batch(self, indices):
        if self.fails_at in torch.as_tensor(indices).tolist():
            raise InputError(f"image {self.fails_at} is damaged")
        self.begun += 1
        self.threads.add(threading.current_thread())
        time.sleep(self.pause)
        return super().batch(indices)


def watched_stream(images, **options):
    stream = Continual([Domain("fog", images)], batch_size=1, **options)
    images.begun = 0
    images.threads.clear()
    return stream


@pytest.mark.parametrize("ahead", [1, 3])
def test_never_more_than_asked_for_is_read_ahead(ahead):
    images = Watched(12)
    for taken, _ in enumerate(Prefetched(watched_stream(images), ahead=ahead), start=1):
        wanted = min(taken + ahead, 12)
        until = time.monotonic() + 5
        while images.begun < wanted and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.005)
        assert images.begun == wanted
    assert threading.main_thread() not in images.threads
    assert len(images.threads) == 1


def test_batches_that_were_let_go_are_freed():
    alive = weakref.WeakSet()
    iterator = iter(Prefetched(watched_stream(Watched(8)), ahead=2))
    for _ in range(5):
        batch = next(iterator)
        assert isinstance(batch, Batch)
        alive.add(batch)
        del batch
        assert len(alive) == 0
    iterator.close()


@pytest.mark.parametrize("ahead", [1, 2, 20])
def test_errors_come_where_the_batch_would_have(ahead):
    seen = []
    stream = Prefetched(watched_stream(Watched(10, fails_at=5)), ahead=ahead)
    with pytest.raises(InputError, match="image 5 is damaged"):
        seen.extend(item for batch in stream for item in contents(batch))
    assert seen == [(0, place) for place in range(5)]
    assert prefetch_threads() == []


def test_errors_of_an_order_come_where_the_domain_would_have():
    def order(labels, domain, turn):
        return torch.zeros(4) if domain == "d1" else torch.arange(4)

    seen = []
    stream = Prefetched(Continual(domains([4, 4]), batch_size=1, order=order), ahead=3)
    with pytest.raises(ConfigurationError, match="4 images of domain d1 exactly once"):
        seen.extend(item for batch in stream for item in contents(batch))
    assert seen == [(0, place) for place in range(4)]
    assert prefetch_threads() == []


def test_the_thread_ends_when_the_caller_leaves():
    stream = watched_stream(Watched(1000))
    for _ in Prefetched(stream):
        break
    assert prefetch_threads() == []

    iterator = iter(Prefetched(stream))
    next(iterator)
    assert len(prefetch_threads()) == 1
    iterator.close()
    assert prefetch_threads() == []

    with pytest.raises(KeyError):
        raise_in_the_middle(stream)
    assert prefetch_threads() == []


def test_leaving_waits_for_one_reading_at_most():
    images = Watched(100)
    stream = watched_stream(images)
    images.pause = 0.02
    iterator = iter(Prefetched(stream, ahead=50))
    next(iterator)
    iterator.close()
    assert images.begun < 10


def raise_in_the_middle(stream):
    for batch in Prefetched(stream):
        raise KeyError(batch.domain)


def test_the_thread_ends_with_a_forgotten_iteration():
    iterator = iter(Prefetched(watched_stream(Watched(1000))))
    next(iterator)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert prefetch_threads() == []


def test_an_iteration_that_never_began_starts_no_thread():
    iterator = iter(Prefetched(watched_stream(Watched(3))))
    assert prefetch_threads() == []
    del iterator


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_prefetched_batches_are_the_same_on_a_gpu():
    closed = [Domain("fog", Numbered(0, 3000, size=(64, 64)))]
    stream = Continual(closed, rounds=3, batch_size=64, order=Shuffled())
    busy = torch.rand(2048, 2048, device="cuda")
    for plain, moved in zip(stream, Prefetched(stream, device="cuda"), strict=True):
        busy = (busy @ busy).softmax(dim=1)
        assert moved.images.device == moved.labels.device == moved.known.device == busy.device
        kept = moved.images.clone()
        torch.testing.assert_close(moved.images.cpu(), plain.images, rtol=1e-6, atol=0)  # a GPU may divide otherwise
        assert torch.equal(moved.labels.cpu(), plain.labels)
        assert torch.equal(kept, moved.images)
    assert prefetch_threads() == []


class Odd(Numbered):
    def __init__(self, labels=None, pixels=None):
        super().__init__(0, 4)
        self.labels = self.labels if labels is None else labels
        self.pixels = pixels

    def __len__(self):
        return 4

    def batch(self, indices):
        return super().batch(indices) if self.pixels is None else self.pixels


def test_unusable_sets_are_refused():
    with pytest.raises(InputError, match="fog to hold at least one image"):
        Domain("fog", Numbered(0, 0))
    for labels in (torch.zeros(3).long(), torch.zeros(4, 1).long(), torch.zeros(4)):
        with pytest.raises(InputError, match="one integer label for each of the 4 images of domain fog"):
            Domain("fog", Odd(labels=labels))
    for pixels in (torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, 2, 3).byte(), torch.zeros(3, 2, 2).byte()):
        with pytest.raises(InputError, match=r"uint8 images of shape \(1, 3, H, W\)"):
            Continual([Domain("fog", Odd(pixels=pixels))])


def test_images_of_different_sizes_are_refused():
    small, large = Domain("fog", Numbered(0, 4)), Domain("snow", Numbered(1, 4, size=(2, 3)))
    with pytest.raises(InputError, match=r"\(2, 2\) in domain fog and \(2, 3\) in domain snow"):
        Continual([small, large])
    with pytest.raises(InputError, match=r"\(2, 2\) in domain fog and \(2, 3\) in domain fog"):
        OpenSet([small], [Domain("fog", large.images)])
    changing = Numbered(0, 4)
    stream = Continual([Domain("fog", changing)])
    changing.size = (3, 3)
    with pytest.raises(InputError, match=r"shape \(4, 3, 2, 2\), but got torch.uint8 of shape \(4, 3, 3, 3\)"):
        list(stream)


@pytest.mark.parametrize("name", ["rounds", "batch_size", "limit"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ConfigurationError, match=f"Expected `{name}` to be at least 1, but got 0"):
        Continual(domains([3]), **{name: 0})
    with pytest.raises(ConfigurationError, match=f"Expected `{name}` to be at least 1, but got 0"):
        OpenSet(domains([3]), domains([3]), **{name: 0})


def test_impossible_streams_are_refused():
    with pytest.raises(ConfigurationError, match="at least one domain"):
        Continual([])
    with pytest.raises(ConfigurationError, match="at least one domain"):
        OpenSet([], [])
    with pytest.raises(ConfigurationError, match="fill at least one batch of 4"):
        Continual(domains([3]), batch_size=4, drop_last=True)
    for ratio in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="`ratio`"):
            OpenSet(domains([3]), domains([3]), ratio=ratio)
    with pytest.raises(ConfigurationError, match=r"leave room for closed images at a ratio of 0\.9, but got 4"):
        OpenSet(domains([3]), domains([3]), ratio=0.9, batch_size=4)
    with pytest.raises(ConfigurationError, match="each of the 2 closed ones, but got 1"):
        OpenSet(domains([3, 3]), domains([3]))
    with pytest.raises(ConfigurationError, match="a/fog/5 was paired with b/fog/3"):
        OpenSet([Domain("a/fog/5", Numbered(0, 3))], [Domain("b/fog/3", Numbered(1, 3))])


def test_places_outside_a_stream_are_refused():
    stream = Continual(domains([3, 4]), rounds=2, batch_size=2)
    for batches in (-1, 9):
        with pytest.raises(ConfigurationError, match=r"`batches` to be in 0..8"):
            stream.skip(batches)
    for place, name in [((0,), "round"), ((3,), "round"), ((1, 2), "domain_index"), ((1, 1, 2), "batch_index")]:
        with pytest.raises(ConfigurationError, match=f"`{name}`"):
            stream.starting_at(*place)


def test_other_unusable_settings_are_refused():
    for concentration in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="`concentration`"):
            LabelShifted(concentration)
    with pytest.raises(ConfigurationError, match="`slots`"):
        LabelShifted(1.0, slots=0)
    with pytest.raises(ConfigurationError, match="`ahead`"):
        Prefetched(Continual(domains([3])), ahead=0)


def test_an_order_that_is_no_permutation_is_refused():
    for places in ([0, 0, 1], [0, 1], [1, 2, 3]):
        stream = Continual(domains([3]), order=lambda *_, places=places: torch.tensor(places))
        with pytest.raises(ConfigurationError, match="exactly once"):
            list(stream)
