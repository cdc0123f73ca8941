"""Worker processes for the tests of data-parallel adaptation. Every process imports this module: keep it light."""

import datetime
import itertools
import os
import time

import torch
import torch.distributed as dist

import driftproof as dp
from cases import CASES, adapter_for, batches, same_state, source_data
from networks import build, randomize

BATCHES = 5
TIMEOUT = 3.0


class DarkImages(dp.selection.Selection):
    """Select dark images only."""

    def weights(self, step):
        return (step.images.mean(dim=(1, 2, 3)) < 0.5).to(step.weights.dtype)


def make_model(network):
    return build(network).double()


def make_adapter(case, network="wide_resnet", **settings):
    segmentation = network == "segmentation"
    if "+" not in case:  # a single process runs the frozen network for the default score, several ranks do not
        settings.setdefault("novelty", "adapted_energy")
    adapter = adapter_for(case, make_model(network), segmentation=segmentation, prepared=False, **settings)
    source = [(images.double(), labels) for images, labels in source_data(segmentation=segmentation)]
    return adapter if adapter.prepared else adapter.prepare(source)


def make_stream(count=BATCHES, size=7):
    return [images.double() for images in batches(count, size=size)]


def make_short_stream():
    """Enough for what differs between methods: a step from the source, one from what it left, and one more."""
    return make_stream(3)


def split_rows(index, size, world_size):
    """Split a batch unevenly; the split changes from batch to batch."""
    cuts = sorted((index * 3 + rank * 5) % (size - world_size) for rank in range(world_size - 1))
    edges = [0, *(cut + rank + 1 for rank, cut in enumerate(cuts)), size]
    return [slice(start, end) for start, end in itertools.pairwise(edges)]


def adapt_to(adapter, stream, rank=0, world_size=1):
    """Adapt to one rank's rows of a stream; return all that is comparable with a single process."""
    results = {"logits": [], "selected": [], "novelty": [], "loss": [], "skipped": []}
    for index, images in enumerate(stream):
        results["logits"].append(adapter(images[split_rows(index, len(images), world_size)[rank]]))
        for name in ("selected", "novelty", "loss", "skipped"):
            results[name].append(getattr(adapter.last, name))
    state = {name: tensor for name, tensor in adapter.state_dict().items() if name != "meta"}
    return results | {"state": state}


def stream_with_bright_last_rank():
    """Return batches whose rows of rank 1 are all bright; in every fourth batch all images are."""
    stream = make_stream()
    for index, images in enumerate(stream):
        start = 0 if index % 4 == 3 else split_rows(index, len(images), 2)[1].start
        images[start:] = 0.5 + 0.5 * images[start:]
    return stream


def stream_with_nan():
    stream = make_stream()
    stream[2][:, 0, 3, 3] = float("nan")
    return stream


def stream_with_bad_images():
    """Return batches of which one has a bad image on rank 1, and one has no good image on rank 0."""
    stream = make_stream()
    stream[1][-1, 0, 3, 3] = float("nan")
    stream[3][: split_rows(3, 7, 2)[0].stop, 0, 3, 3] = 1e8
    return stream


def make_model_without_running_statistics():
    torch.manual_seed(3)
    norm = torch.nn.BatchNorm2d(8, track_running_stats=False)
    head = torch.nn.Linear(8, 5)
    pool = torch.nn.AdaptiveAvgPool2d(1)
    return randomize(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), norm, pool, torch.nn.Flatten(), head)).double()


# Ranks exchange the same numbers for methods that differ in a loss per sample or in the scope only, and some methods
# are in scenarios of their own.
_COVERED = ("source", "bn_adapt", "ent", "ent+crowd", "gce", "gce+crowd", "conjugate", "conjugate+crowd", "tent")
_COVERED += ("tent+crowd", "tent+unient", "eata", "swr", "swr+crowd", "come", "rdumb", "cmf", "ttaug")
_COVERED += ("ttn", "cotta", "cotta+crowd", "rotta", "stamp", "eata+crowd")
# Name -> (make the adapter, make the stream, number of ranks).
SCENARIOS = {
    case: (lambda case=case, **more: make_adapter(case, **more), make_short_stream, 2)
    for case in CASES
    if case not in _COVERED
}
SCENARIOS |= {
    "uneven splits": (lambda **more: make_adapter("eata+crowd", **more), make_stream, 2),
    "three ranks, tent+crowd": (lambda **more: make_adapter("tent+crowd", **more), make_stream, 3),
    "three ranks, eata": (lambda **more: make_adapter("eata", **more), make_stream, 3),
    "three ranks, swr+crowd": (lambda **more: make_adapter("swr+crowd", **more), make_stream, 3),
    "pixels, tent+crowd": (
        lambda **more: make_adapter("tent+crowd", "segmentation", **more),
        make_stream,
        2,
    ),
    "pixels, cotta": (lambda **more: make_adapter("cotta", "segmentation", **more), make_short_stream, 2),
    "pixels, ttn": (lambda **more: make_adapter("ttn", "segmentation", **more), make_short_stream, 2),
    "group norm": (lambda **more: make_adapter("tent+crowd", "group_norm", **more), make_stream, 2),
    "accumulate, output after the step": (
        lambda **more: make_adapter("tent+crowd", accumulate=3, output="after", **more),
        make_stream,
        2,
    ),
    "average over the batch": (
        lambda **more: make_adapter(
            "eata", average_over="batch", mean_entropy=0.3, mean_entropy_over="selected", **more
        ),
        make_stream,
        2,
    ),
    "blend": (
        lambda **more: make_adapter("tent", statistics=dp.statistics.Blend(0.4, momentum=0.3), **more),
        make_stream,
        2,
    ),
    "auto": (
        lambda **more: make_adapter("tent+crowd", statistics="auto", accumulate="auto", **more),
        make_stream,
        2,
    ),
    "bank, auto": (lambda **more: make_adapter("rotta", statistics="auto", **more), make_short_stream, 2),
    "bank, average over the batch": (
        lambda **more: make_adapter(
            "stamp", average_over="batch", select=dp.selection.Split("entropy", window=10, min_separation=0.0), **more
        ),
        make_short_stream,
        2,
    ),
    "no running statistics": (
        lambda **more: dp.tent(make_model_without_running_statistics(), lr=0.1, novelty="adapted_energy", **more),
        make_stream,
        2,
    ),
    "rank 1 selects nothing": (
        lambda **more: make_adapter("eata", select=DarkImages() & dp.NonRedundant(0.9), **more),
        stream_with_bright_last_rank,
        2,
    ),
    "rank 1 selects nothing, swr": (
        lambda **more: make_adapter("swr", select=DarkImages(), **more),
        stream_with_bright_last_rank,
        2,
    ),
    "NaN": (lambda **more: make_adapter("eata", **more), stream_with_nan, 2),
    "NaN, nothing trained": (lambda **more: make_adapter("ttn", **more), stream_with_nan, 2),
}


def run_worker(rank, folder):
    """Run one of three processes: all scenarios, then the failure cases."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=3,
        timeout=datetime.timedelta(seconds=120),
    )
    pair = dist.new_group([0, 1])
    results = {}
    for name, (make, stream, world_size) in SCENARIOS.items():
        if rank < world_size:
            group = "all" if world_size == 3 else pair
            results[name] = adapt_to(make(process_group=group), stream(), rank, world_size)
    if rank < 2:
        results |= {case.__name__: case(rank, pair, folder) for case in PAIR_CASES}
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    group = dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=TIMEOUT))
    torch.save(fail_mid_step(rank, group, folder), f"{folder}/failed{rank}.pt")
    os._exit(0)  # the process group is broken and cannot be destroyed


# --- cases with two ranks -------------------------------------------------------------------------------------------


def catch_error(call):
    try:
        call()
    except dp.errors.DriftproofError as error:
        return type(error).__name__, str(error)
    return None


def local_rows(images, rank):
    return images[:3] if rank == 0 else images[3:]


def save_and_resume(rank, pair, folder):
    """Adapt to half the stream, save, and continue in a new adapter."""
    adapter, stream = make_adapter("eata+crowd", process_group=pair), make_stream(8)
    adapt_to(adapter, stream[:4], rank, 2)
    adapter.save(f"{folder}/two-ranks.safetensors")
    resumed = make_adapter("eata+crowd", process_group=pair).load(f"{folder}/two-ranks.safetensors")
    return adapt_to(resumed, stream[4:], rank, 2)


def load_from_single_process(rank, pair, folder):
    adapter = make_adapter("eata+crowd", process_group=pair).load(f"{folder}/single.safetensors")
    return adapt_to(adapter, make_stream(8)[4:], rank, 2)


def adapt_to_bad_images(rank, pair, folder):
    adapter = make_adapter("tent", statistics=dp.statistics.Blend(0.4, momentum=0.3), process_group=pair)
    return adapt_to(adapter, stream_with_bad_images(), rank, 2)


def save_to_missing_folder(rank, pair, folder):
    adapter = make_adapter("tent", process_group=pair)
    try:
        adapter.save(f"{folder}/no/such/folder/state.safetensors")
    except (OSError, dp.errors.DistributedError) as error:
        return type(error).__name__
    return None


def pass_invalid_batches(rank, pair, _):
    """Pass an invalid batch on rank 1, then continue with valid ones."""
    adapter, stream = make_adapter("tent+crowd", process_group=pair), make_stream(3)
    adapter(local_rows(stream[0], rank))
    valid = stream[1]
    invalid = {
        "empty": valid[:0],
        "integers": valid.int(),
        "no tensor": valid.tolist(),
        "wrong ndim": valid.flatten(1),
        "other dtype": valid.float(),
    }
    errors = {
        name: catch_error(lambda batch=batch: adapter(local_rows(valid, rank) if rank == 0 else batch))
        for name, batch in invalid.items()
    }
    errors["wrong channels on all"] = catch_error(lambda: adapter(local_rows(valid, rank)[:, :2]))
    errors["other size"] = catch_error(lambda: adapter(local_rows(valid, rank)[..., : 8 - 2 * rank]))
    adapter(local_rows(stream[1], rank))
    return errors, adapter(local_rows(stream[2], rank))


def disagree(rank, pair, _):
    """Build adapters that differ between the ranks; resetting both makes them agree again."""
    images = local_rows(make_stream(1)[0], rank)
    model = make_model("wide_resnet")
    if rank == 1:
        with torch.no_grad():
            model.fc.bias.add_(1e-3)
    adapter = make_adapter("tent", process_group=pair)
    adapter(images)
    if rank == 1:
        adapter.reset()
    return {
        "method": catch_error(lambda: make_adapter("tent" if rank == 0 else "gce", process_group=pair)(images)),
        "seed": catch_error(lambda: make_adapter("tent", seed=rank, process_group=pair)(images)),
        "learning rate": catch_error(lambda: make_adapter("tent", lr=0.1 + rank, process_group=pair)(images)),
        "weights": catch_error(lambda: dp.tent(model, process_group=pair)(images)),
        "reset on one": catch_error(lambda: adapter(images)),
        "reset on both": catch_error(lambda: adapter.reset()(images)),
        "prepare": catch_error(lambda: make_adapter("eata" if rank == 0 else "swr", process_group=pair)),
    }


def prepare_in_different_order(rank, pair, _):
    """Prepare with source data in another order on each rank; rank 0's result is kept."""
    source = [(images.double(), labels) for images, labels in source_data()]
    adapter = adapter_for("eata", make_model("wide_resnet"), prepared=False, fisher_batch_size=3, process_group=pair)
    return adapter.prepare(source[::-1] if rank else source).method.regularizer.importance


def prepare_without_data_on_rank_one(rank, pair, _):
    adapter = adapter_for("eata", make_model("wide_resnet"), prepared=False, process_group=pair)
    error = catch_error(lambda: adapter.prepare([] if rank else [(make_stream(1)[0], torch.arange(7) % 5)]))
    return error, adapter.prepared


def configure(rank, pair, _):
    return {
        "graph": catch_error(lambda: make_adapter("tent", engine="graph", process_group=pair)),
        "compile": catch_error(lambda: make_adapter("tent", engine="compile", process_group=pair)),
        "unknown group": catch_error(lambda: make_adapter("tent", process_group="both")),
        "repr": repr(make_adapter("tent", process_group=pair)),
    }


PAIR_CASES = (
    save_and_resume,
    load_from_single_process,
    adapt_to_bad_images,
    save_to_missing_folder,
    pass_invalid_batches,
    disagree,
    prepare_in_different_order,
    prepare_without_data_on_rank_one,
    configure,
)


# --- failure after the handshake ------------------------------------------------------------------------------------


class FailingSelection(dp.selection.Selection):
    """Raises, or ends the process, in `on_batch`: the parameters are already updated by then."""

    def __init__(self, rank, at, how):
        super().__init__()
        self.rank, self.at, self.how = rank, at, how

    def weights(self, step):
        return torch.ones_like(step.weights)

    def on_batch(self, step):
        if dist.get_rank() == self.rank and step.index == self.at:
            if self.how == "exits":
                os._exit(0)
            raise RuntimeError("failed on purpose")

    def __repr__(self):
        return "FailingSelection()"


def fail_mid_step(rank, group, folder):
    """Let rank 1 raise in the third step; then, in a group of the other two, let rank 2 exit."""
    stream, results = make_stream(4, size=9), {}
    for how, failing, ranks in (("raises", 1, [0, 1, 2]), ("exits", 2, [0, 2])):
        if how == "exits":
            group = dist.new_group(ranks, timeout=datetime.timedelta(seconds=TIMEOUT))
        if rank not in ranks:
            return results
        select = FailingSelection(failing, 2, how) & dp.NonRedundant(0.95)
        adapter = dp.eata(make_model("wide_resnet"), lr=0.1, fisher=0.0, select=select, process_group=group)
        rows = [images.tensor_split(len(ranks))[ranks.index(rank)] for images in stream]
        for images in rows[:2]:
            adapter(images)
        before = adapter.state_dict()
        started = time.monotonic()
        error = "none"
        try:
            adapter(rows[2])
        except (dp.errors.DistributedError, RuntimeError) as failure:
            error = type(failure).__name__
        waited = time.monotonic() - started
        after = adapter.state_dict()
        path = f"{folder}/{how}{rank}.safetensors"
        adapter.save(path)
        results[how] = {
            "error": error,
            "waited": waited,
            "unchanged": same_state(before, after),
            "next": catch_error(lambda adapter=adapter, images=rows[3]: adapter(images)),
            "path": path,
            "state": after,
        }
    return results
