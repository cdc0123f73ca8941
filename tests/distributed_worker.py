"""What the processes of the tests of data-parallel adaptation do; imported by each of them, so it imports little."""

import datetime
import itertools
import os
import time

import torch
import torch.distributed as dist

import driftproof as dp
from cases import CASES, adapter_for, batches, source_data
from networks import build, lively

EVERY_CASE = tuple(case for case in CASES if case != "source")
BATCHES = 20
PATIENCE = 5.0


class Dark(dp.selection.Selection):
    """Learn from dark images alone."""

    def weights(self, step):
        return (step.images.mean(dim=(1, 2, 3)) < 0.5).to(step.weights.dtype)


def model_of(network):
    return build(network).double()


def make(case, network="wide_resnet", **settings):
    segmentation = network == "segmentation"
    adapter = adapter_for(case, model_of(network), segmentation=segmentation, prepared=False, **settings)
    source = [(images.double(), labels) for images, labels in source_data(segmentation=segmentation)]
    return adapter if adapter.prepared else adapter.prepare(source)


def stream(count=BATCHES, size=7):
    return [images.double() for images in batches(count, size=size)]


def shares(index, size, ranks):
    """An uneven split of a batch that changes from batch to batch."""
    cuts = sorted((index * 3 + rank * 5) % (size - ranks) for rank in range(ranks - 1))
    edges = [0, *(cut + rank + 1 for rank, cut in enumerate(cuts)), size]
    return [slice(start, end) for start, end in itertools.pairwise(edges)]


def follow(adapter, images_of_all, rank=0, ranks=1):
    """Run a rank's share of a stream; everything that can be compared with one process."""
    logits, selected, losses, novelty, skipped = [], [], [], [], []
    for index, images in enumerate(images_of_all):
        logits.append(adapter(images[shares(index, len(images), ranks)[rank]]))
        for kept, value in zip(
            (selected, novelty, losses, skipped),
            (adapter.last.selected, adapter.last.novelty, adapter.last.loss, adapter.last.skipped),
            strict=True,
        ):
            kept.append(value)
    state = {name: tensor for name, tensor in adapter.state_dict().items() if name != "meta"}
    return {
        "logits": logits,
        "selected": selected,
        "novelty": novelty,
        "losses": losses,
        "skipped": skipped,
        "state": state,
    }


def bright_on_the_last_rank():
    """The last image of each batch, which the last rank always has, is bright; every fourth batch is all bright."""
    images = stream(8)
    for index, batch in enumerate(images):
        start = 0 if index % 4 == 3 else shares(index, len(batch), 2)[1].start
        batch[start:] = 0.5 + 0.5 * batch[start:]
    return images


def with_a_nan():
    images = stream(6)
    images[2][-1, 0, 3, 3] = float("nan")
    return images


# Name: how to make the adapter, which stream, among how many ranks.
SCENES = {case: (lambda case=case, **more: make(case, **more), stream, 2) for case in EVERY_CASE}
SCENES |= {
    "three ranks, tent+crowd": (lambda **more: make("tent+crowd", **more), lambda: stream(8), 3),
    "three ranks, eata": (lambda **more: make("eata", **more), lambda: stream(8), 3),
    "three ranks, swr+crowd": (lambda **more: make("swr+crowd", **more), lambda: stream(8), 3),
    "pixels, tent+crowd": (lambda **more: make("tent+crowd", "segmentation", **more), lambda: stream(6), 2),
    "pixels, cotta": (lambda **more: make("cotta", "segmentation", **more), lambda: stream(4), 2),
    "pixels, ttn": (lambda **more: make("ttn", "segmentation", **more), lambda: stream(6), 2),
    "group norm": (lambda **more: make("tent+crowd", "group_norm", **more), lambda: stream(6), 2),
    "accumulate": (lambda **more: make("tent+crowd", accumulate=3, **more), lambda: stream(8), 2),
    "answer after the step": (lambda **more: make("tent", output="after", **more), lambda: stream(6), 2),
    "over the batch": (
        lambda **more: make("eata", average_over="batch", mean_entropy=0.3, mean_entropy_over="selected", **more),
        lambda: stream(8),
        2,
    ),
    "blend": (
        lambda **more: make("tent", statistics=dp.statistics.Blend(0.4, momentum=0.3), **more),
        lambda: stream(8),
        2,
    ),
    "no running statistics": (
        lambda **more: dp.tent(_without_statistics(), lr=0.1, **more),
        lambda: stream(6),
        2,
    ),
    "one rank rejects all": (
        lambda **more: make("tent", select=Dark(), **more),
        bright_on_the_last_rank,
        2,
    ),
    "one rank rejects all, eata": (
        lambda **more: make("eata", select=Dark() & dp.NonRedundant(0.9), **more),
        bright_on_the_last_rank,
        2,
    ),
    "one rank rejects all, swr": (
        lambda **more: make("swr", select=Dark(), **more),
        bright_on_the_last_rank,
        2,
    ),
    "a NaN": (lambda **more: make("eata", **more), with_a_nan, 2),
    "a NaN, nothing moves": (lambda **more: make("ttn", **more), with_a_nan, 2),
}


def _without_statistics():
    torch.manual_seed(3)
    norm = torch.nn.BatchNorm2d(8, track_running_stats=False)
    head = torch.nn.Linear(8, 5)
    pool = torch.nn.AdaptiveAvgPool2d(1)
    return lively(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), norm, pool, torch.nn.Flatten(), head)).double()


def work(rank, folder):
    """One of three processes: play every scene, then get into trouble."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=3,
        timeout=datetime.timedelta(seconds=120),
    )
    pair = dist.new_group([0, 1])
    results = {}
    for name, (build_it, images, ranks) in SCENES.items():
        if rank < ranks:
            results[name] = follow(build_it(process_group="all" if ranks == 3 else pair), images(), rank, ranks)
    if rank < 2:
        results |= {check.__name__: check(rank, pair, folder) for check in CHECKS}
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    losing = dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=PATIENCE))
    torch.save(lose_a_rank(rank, losing, folder), f"{folder}/lost{rank}.pt")
    os._exit(0)  # no farewell: the group is broken


# --- trouble, and what comes of it ----------------------------------------------------------------------------------


def error_of(call):
    try:
        call()
    except dp.errors.DriftproofError as error:
        return type(error).__name__, str(error)
    return None


def own(images, rank):
    return images[:3] if rank == 0 else images[3:]


def saved_and_resumed(rank, pair, folder):
    """Half the stream, a file, and the rest in another adapter."""
    adapter, images = make("eata+crowd", process_group=pair), stream(8)
    follow(adapter, images[:4], rank, 2)
    adapter.save(f"{folder}/by-ranks.safetensors")
    return follow(make("eata+crowd", process_group=pair).load(f"{folder}/by-ranks.safetensors"), images[4:], rank, 2)


def loaded_from_one_process(rank, pair, folder):
    adapter = make("eata+crowd", process_group=pair).load(f"{folder}/by-one.safetensors")
    return follow(adapter, stream(8)[4:], rank, 2)


def nothing_to_write_to(rank, pair, folder):
    adapter = make("tent", process_group=pair)
    try:
        adapter.save(f"{folder}/no/such/folder/state.safetensors")
    except (OSError, dp.errors.DistributedError) as error:
        return type(error).__name__
    return None


def bad_batches(rank, pair, _):
    """One rank has a batch that cannot be used; then all go on as if it had not been."""
    adapter, images = make("tent+crowd", process_group=pair), stream(3)
    adapter(own(images[0], rank))
    good = images[1]
    bad = {
        "empty": good[:0],
        "integers": good.int(),
        "no tensor": good.tolist(),
        "wrong rank": good.flatten(1),
        "other precision": good.float(),
    }
    errors = {
        name: error_of(lambda batch=batch: adapter(own(good, rank) if rank == 0 else batch))
        for name, batch in bad.items()
    }
    errors["wrong for all"] = error_of(lambda: adapter(own(good, rank)[:, :2]))
    errors["other size"] = error_of(lambda: adapter(own(good, rank)[..., : 8 - 2 * rank]))
    adapter(own(images[1], rank))
    return errors, adapter(own(images[2], rank))


def strangers(rank, pair, _):
    """Ranks that are not alike; a cure where there is one."""
    images = own(stream(1)[0], rank)
    other = model_of("wide_resnet")
    if rank == 1:
        with torch.no_grad():
            other.fc.bias.add_(1e-3)
    ahead = make("tent", process_group=pair)
    ahead(images)
    if rank == 1:
        ahead.reset()
    return {
        "method": error_of(lambda: make("tent" if rank == 0 else "gce", process_group=pair)(images)),
        "seed": error_of(lambda: make("tent", seed=rank, process_group=pair)(images)),
        "learning rate": error_of(lambda: make("tent", lr=0.1 + rank, process_group=pair)(images)),
        "weights": error_of(lambda: dp.tent(other, process_group=pair)(images)),
        "reset on one": error_of(lambda: ahead(images)),
        "reset on both": error_of(lambda: ahead.reset()(images)),
        "prepare": error_of(lambda: make("eata" if rank == 0 else "swr", process_group=pair)),
    }


def prepared_from_other_orders(rank, pair, _):
    """The source data of each rank is in another order; what they know afterwards is the first rank's."""
    source = [(images.double(), labels) for images, labels in source_data()]
    adapter = adapter_for("eata", model_of("wide_resnet"), prepared=False, fisher_batch_size=3, process_group=pair)
    return adapter.prepare(source[::-1] if rank else source).regularizer.importance


def source_data_on_one(rank, pair, _):
    adapter = adapter_for("eata", model_of("wide_resnet"), prepared=False, process_group=pair)
    failed = error_of(lambda: adapter.prepare([] if rank else [(stream(1)[0], torch.arange(7) % 5)]))
    return failed, adapter.prepared


def refusals(rank, pair, _):
    return {
        "graph": error_of(lambda: make("tent", engine="graph", process_group=pair)),
        "compile": error_of(lambda: make("tent", engine="compile", process_group=pair)),
        "nonsense": error_of(lambda: make("tent", process_group="both")),
        "printed": repr(make("tent", process_group=pair)),
    }


CHECKS = (
    saved_and_resumed,
    loaded_from_one_process,
    nothing_to_write_to,
    bad_batches,
    strangers,
    prepared_from_other_orders,
    source_data_on_one,
    refusals,
)


class Fatal(dp.selection.Selection):
    """Ends the process, or just fails, when parts are told that a batch went well: parameters have moved by then."""

    def __init__(self, rank, at, how):
        super().__init__()
        self.rank, self.at, self.how = rank, at, how

    def weights(self, step):
        return torch.ones_like(step.weights)

    def on_batch(self, step):
        if dist.get_rank() == self.rank and step.index == self.at:
            if self.how == "dies":
                os._exit(0)
            raise RuntimeError("a part gave up")

    def __repr__(self):
        return "Fatal()"


def lose_a_rank(rank, group, folder):
    """Rank 1 leaves the others in the middle of the third step; later rank 2 dies."""
    images, heard = stream(4, size=9), {}
    for how, victim in (("fails", 1), ("dies", 2)):
        others = group if how == "fails" else dist.new_group([0, 2], timeout=datetime.timedelta(seconds=PATIENCE))
        place = {0: 0, 1: 1, 2: 2} if how == "fails" else {0: 0, 2: 1}
        if rank not in place:
            return heard
        select = Fatal(victim, 2, how) & dp.NonRedundant(0.95)
        adapter = dp.eata(model_of("wide_resnet"), lr=0.1, fisher=0.0, select=select, process_group=others)
        rows = [batch.tensor_split(len(place))[place[rank]] for batch in images]
        for batch in rows[:2]:
            adapter(batch)
        before = adapter.state_dict()
        started = time.monotonic()
        error = "none"
        try:
            adapter(rows[2])
        except (dp.errors.DistributedError, RuntimeError) as failure:
            error = type(failure).__name__
        waited = time.monotonic() - started
        after = adapter.state_dict()
        intact = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        path = f"{folder}/{how}{rank}.safetensors"
        adapter.save(path)
        heard[how] = {
            "error": error,
            "waited": waited,
            "intact": intact,
            "next": error_of(lambda adapter=adapter, batch=rows[3]: adapter(batch)),
            "saved": path,
            "after": after,
        }
    return heard
