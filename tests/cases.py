"""Every method, with and without the paper's selection, at settings small enough to run hundreds of times."""

import json

import torch

import driftproof as dp
from driftproof.optimizers import iter_tensors
from networks import CLASSES, CONTRACT_NETWORKS

PAPER_METHODS = ("ent", "tent", "eata", "swr", "gce", "conjugate", "cotta")
RECENT_METHODS = ("sar", "rdumb", "come", "roid", "cmf", "deyo", "asr", "paf_kip", "sentinel")
BANK_METHODS = ("rotta", "sotta", "stamp")
GRADIENT_METHODS = (*PAPER_METHODS, *RECENT_METHODS, *BANK_METHODS)
IMAGE_METHODS = ("lame", "t3a", "ttaug", "memo")  # one prediction per image, none per pixel
ALL_METHODS = ("source", "bn_adapt", "ttn", "norm_ema", *GRADIENT_METHODS, *IMAGE_METHODS)
DRAWING_METHODS = ("swr", "roid", "cmf", "deyo", "paf_kip", "ttaug", "memo", *BANK_METHODS)
"""Methods that draw random numbers in every step."""
CASES = (*ALL_METHODS, *(f"{name}+crowd" for name in PAPER_METHODS), "tent+unient", "eata+unient_plus")

# The covering design of the contract tests. Two methods of one kind run the same code of the core with other numbers.
# So a pair of a method and a network says something new only if the kind or the network is new: every case meets the
# wide ResNet, and every other network meets one case of each kind. Kinds that differ after the comma only count as one
# there: `rotate_kinds` takes them by turns, and gives different networks different cases. So a method that joins a kind
# costs one pass of each contract, and a method that begins one costs a pass more on each other network.
KINDS = {
    "predicts only": ("bn_adapt", "ttn", "source", "norm_ema"),
    "learns": ("tent", "gce", "ent", "conjugate", "sar", "rdumb", "come", "roid", "cmf", "deyo"),
    "learns, compares with the frozen network": (
        *("ent+crowd", "tent+crowd", "conjugate+crowd", "gce+crowd", "asr", "tent+unient"),
    ),
    "prepared regularizer": ("eata", "swr"),
    "prepared regularizer, compares with the frozen network": ("swr+crowd", "eata+crowd", "eata+unient_plus"),
    "teacher": ("cotta",),
    "teacher, compares with the frozen network": ("cotta+crowd", "paf_kip"),
    "bank": BANK_METHODS,
    "detector": ("sentinel",),
}


def rotate_kinds(number):
    """One case of each kind; consecutive numbers give different cases, and by turns those that compare."""
    variants = [[KINDS[kind] for kind in KINDS if kind.partition(",")[0] == name] for name in KINDS if "," not in name]
    turns = [(each[(number + place) % len(each)], number // len(each)) for place, each in enumerate(variants)]
    return tuple(cases[turn % len(cases)] for cases, turn in turns)


_OTHER_NETWORKS = tuple(name for name in CONTRACT_NETWORKS if name != "wide_resnet")
_OTHER_PAIRS = (
    *((case, network) for number, network in enumerate(_OTHER_NETWORKS) for case in rotate_kinds(number)),
    *(("lame", "group_norm"), ("t3a", "attention")),
)
PAIRS = (*((case, "wide_resnet") for case in CASES), *_OTHER_PAIRS)


_ONLY_OF_THEIR_KIND = tuple(cases[0] for cases in KINDS.values() if len(cases) == 1)


def split_pairs(contract, *, every_case=False):
    """Return the pairs that a contract meets, by its number, and those left to the slow tests.

    Every second pair, by turns, and those cases on the wide ResNet that are the only ones of their kind. So each
    contract meets each network and each kind, and each pair meets every second contract. With `every_case` those on
    the wide ResNet are all chosen.
    """
    always = {(case, "wide_resnet") for case in (CASES if every_case else _ONLY_OF_THEIR_KIND)}
    chosen = [pair for place, pair in enumerate(PAIRS) if (place + contract) % 2 == 0 or pair in always]
    return chosen, [pair for pair in PAIRS if pair not in chosen]


# The paper's segmentation network is deep and slow.
SLOW_PAIRS = tuple((case, "deeplab") for case in ("bn_adapt", "ttn", "tent", "tent+crowd", "swr+crowd", "cotta"))

_LR = {"ent": 1e-2, "swr": 1e-2, "cotta": 1e-2}


def adapter_for(case, model, *, segmentation=False, prepared=True, **settings):
    """An adapter for a case such as `tent` or `eata+crowd`."""
    name, _, selection = case.partition("+")
    options = dict(settings)
    if name in GRADIENT_METHODS:
        options.setdefault("lr", _LR.get(name, 1e-1))
    if selection.startswith("unient"):
        score = "entropy" if segmentation else "cosine"
        split = dp.selection.Split(score, soft=selection == "unient_plus", window=10, min_separation=0.0)
        options.setdefault("select", split)
    elif selection:
        options.setdefault("select", dp.ConfidenceDifference(margin=-0.2 if segmentation else 0.0))
    if name == "ttn":
        options.setdefault(
            "statistics", dp.statistics.TTN(momentum=0.3, prior_batches=2, epochs=1, batch_size=8, augment=shifted)
        )
    if name in ("eata", "rdumb", "asr"):
        options.setdefault("redundancy", 0.95)
    if name in ("eata", "rdumb", "asr", "sar", "deyo"):
        options.setdefault("entropy_threshold", 1.5)
    if name == "rdumb":
        options.setdefault("reset_every", 2)
    if name == "asr":
        options.setdefault("start", 0.25)
    if name == "deyo":
        options.setdefault("drop", -0.05)
    if name in ("roid", "cmf", "deyo"):
        options.setdefault("augment", shifted)
    if name == "swr":
        task = dp.regularizers.NearestPrototypes(epochs=1, batch_size=8, dimensions=6, augment=shifted)
        options.setdefault("prototypes", False if segmentation else task)
        options.setdefault("augment", shifted)
    if name == "cotta":
        options.setdefault("threshold", 0.7)
        options.setdefault("views", dp.outputs.RandomViews(2, augment=shifted))
        options.setdefault("scales", dp.outputs.MultiScale((0.75, 1.0)))
        options.setdefault("restore", 0.2)
        options.setdefault("momentum", 0.9)
    if name in ("ttaug", "memo"):
        options.setdefault("views", 2)
        options.setdefault("augment", shifted)
    if name == "lame":
        options.setdefault("iterations", 5)
    if name == "t3a":
        options.setdefault("capacity", 3)
    if name in BANK_METHODS:
        options.setdefault("capacity", 8)
    if name in ("rotta", "sotta"):
        options.setdefault("update_every", 6)
    if name == "rotta":
        options.setdefault("augment", shifted)
        options.setdefault("momentum", 0.9)
    if name == "sotta":
        options.setdefault("confidence", 0.25)
    if name == "stamp":
        options.setdefault("entropy_share", 0.95)
        options.setdefault("augment", shifted)
        options.setdefault("num_views", 1)
        options.setdefault("lr_schedule", None)  # a learning rate in a tensor cannot be recorded on a CPU
    if name == "paf_kip":
        options.setdefault("view", shifted)
        options.setdefault("entropy_threshold", 1.2)
        options.setdefault("momentum", 0.9)
    if name == "sentinel":
        options.setdefault("detector", dp.detectors.Sentinel(lr=1e-1, threshold=0.85, momentum=0.9, images_per_step=12))
        options.setdefault("statistics", dp.statistics.Batch())
        options.setdefault("accumulate", 1)
        options.setdefault("select", dp.selection.Known() & dp.ConfidenceDifference())
    adapter = getattr(dp, name)(model, **options)
    return adapter.prepare(source_data(segmentation=segmentation)) if prepared else adapter


def shifted(images, generator):
    """A random view of inputs of any shape."""
    shape = (len(images), *([1] * (images.ndim - 1)))
    return images * (0.5 + torch.rand(shape, generator=generator, device=generator.device)).to(images.dtype)


def batches(count=4, size=6, seed=0, shape=(3, 8, 8)):
    """Images that differ from each other in color, so that a network can tell them apart."""
    generator = torch.Generator().manual_seed(seed)
    color = (size, shape[0], *([1] * (len(shape) - 1)))
    return [
        torch.rand(color, generator=generator) * torch.rand(size, *shape, generator=generator) for _ in range(count)
    ]


def source_data(*, segmentation=False, shape=(3, 8, 8), seed=7):
    generator = torch.Generator().manual_seed(seed)
    label_shape = (8, *shape[1:]) if segmentation else (8,)
    return [
        (torch.rand(8, *shape, generator=generator), torch.randint(0, CLASSES, label_shape, generator=generator))
        for _ in range(2)
    ]


def state_of(adapter):
    """Copy everything an adapter remembers, for comparison."""
    return {name: tensor.clone() for name, tensor in adapter.state_dict().items()}


def tensors_of(adapter):
    """Every tensor that a step may change, itself: all slots, the optimizer's state and the counters."""
    state = adapter.state
    slots = [slot.tensor for slot in state.slots() if slot.tensor is not None]
    optimizer = [] if state.optimizer is None else list(iter_tensors(state.optimizer))
    return [*slots, *optimizer, state.index, state.num_steps, state.accumulated_batches]


def same_state(first, second):
    """Whether two states have the same names and bit-equal values."""
    return first.keys() == second.keys() and all(_is_equal(first[name], second[name]) for name in first)


def same_but_bookkeeping(first, second):
    """Whether two states are the same but for what skipped batches change too: their number, the scale of images."""
    return same_state(_without_bookkeeping(first), _without_bookkeeping(second))


def _without_bookkeeping(state):
    meta = json.loads(bytes(state["meta"].tolist()))
    del meta["digest"]
    meta["guard_counters"].pop("num_batches", None)
    meta["tensors"].pop("quarantine.log_scale", None)
    state = {name: tensor for name, tensor in state.items() if not name.startswith("quarantine.")}
    return state | {"meta": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}


def _is_equal(one, other):
    if one.dtype != other.dtype or not one.is_floating_point():
        return one.dtype == other.dtype and torch.equal(one, other)
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
