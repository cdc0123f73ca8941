"""Tables 6 to 8 and the supplement's tables on classification.

Costs, other networks, learning rates, batch sizes, ImageNet-C, CoTTA, and selection by logits.
"""

from dataclasses import replace

from driftproof.bench.spec import Spec
from driftproof.bench.tables import Suite, Summary
from driftproof.paper.suites.layout import PaperEntry, make_table
from driftproof.paper.suites.settings import PAPER_NAMES, make_spec

__all__ = ["s2", "s3", "s5", "table6", "table7", "table8"]

_COMPARED = ("source", "bn_adapt", "tent", "tent+crowd", "swr", "swr+crowd")


def _closed_and_open(method: str, images: str, model: str, unknown: str, batch_size: int = 200) -> dict[str, Spec]:
    return {
        setting: make_spec(method, images, model, unknown=mixed_in, batch_size=batch_size)
        for setting, mixed_in in (("Closed", None), ("Open", unknown))
    }


def _costs(methods: str, trials: int, warm_up: int) -> Spec:
    spec = Spec(methods, "cifar10-c", "wrn40_2", domains=("gaussian_noise",), measures=(), task="costs")
    return spec.with_options(trials=trials, warm_up=warm_up)


def _cost_entries(methods: dict[str, Spec], round: int = 1) -> list[PaperEntry]:
    columns = {"Memory (MB)": "memory", "Time (ms)": "milliseconds"}
    return [
        PaperEntry(method, column, (spec,), metric=metric, round=round, domain=method, paper_row=PAPER_NAMES[method])
        for method, spec in methods.items()
        for column, metric in columns.items()
    ]


def table6() -> Suite:
    """Table 6: error, memory and time on CIFAR."""
    methods = ("ent", "swr", "tent", "eata", "tent+crowd")
    costs = _costs(",".join(methods), trials=5000, warm_up=50)
    entries = [
        PaperEntry(
            method, f"{column} error", tuple(_closed_and_open(method, images, "wrn40_2", "svhn-c").values()),
            round=50, paper_row=PAPER_NAMES[method],
        )
        for method in methods
        for column, images in (("CIFAR-10-C", "cifar10-c"), ("CIFAR-100-C", "cifar100-c"))
    ]  # fmt: skip
    title = "Error (mean of closed and open after 50 rounds), memory and time of a step"
    table = make_table(
        "table6", title, (*entries, *_cost_entries(dict.fromkeys(methods, costs))), "T6_cost_cls", unit="mixed"
    )
    return Suite("table6", title, (table,), 50, "Shares its runs with table1.")


def table7() -> Suite:
    """Table 7: other networks."""
    networks = {"ResNet50": "resnet50_cifar", "WRN28": "wrn28_10"}

    def entries(round: int) -> tuple[PaperEntry, ...]:
        return tuple(
            PaperEntry(method, f"{shown}/{setting}", (spec,), round=round, paper_row=PAPER_NAMES[method])
            for method in _COMPARED
            for shown, model in networks.items()
            for setting, spec in _closed_and_open(method, "cifar10-c", model, "svhn-c").items()
        )

    tables = (
        make_table("table7a", "Other networks after 50 rounds", entries(50), "T7a_arch_long"),
        make_table("table7b", "Other networks after one round", entries(1), "T7b_arch_short"),
    )
    return Suite("table7", "Other networks on CIFAR-10-C", tables, 50)


def table8() -> Suite:
    """Table 8: learning rates, and batch sizes with gradient accumulation."""
    rounds, methods = 10, ("source", "tent", "tent+crowd")

    def spec_for(method: str, batch_size: int = 200, **options: float) -> Spec:
        if method == "source":  # independent of learning rate and batch size
            return make_spec(method, "tiny-imagenet-c", "resnet50")
        return make_spec(method, "tiny-imagenet-c", "resnet50", batch_size=batch_size).with_options(**options)

    rates = {f"lr={rate:g}": rate for rate in (5e-3, 1e-3, 5e-4, 1e-4)}
    sizes = {f"bs={size}": size for size in (64, 32, 16, 8)}
    by_rate = [
        PaperEntry(method, column, (spec_for(method, lr=rate),), round=rounds, paper_row=PAPER_NAMES[method])
        for method in methods
        for column, rate in rates.items()
    ]
    by_size = [
        PaperEntry(
            method, column, (spec_for(method, size, lr=1e-4, accumulate=200 // size),),
            round=rounds, paper_row=PAPER_NAMES[method],
        )
        for method in methods
        for column, size in sizes.items()
    ]  # fmt: skip
    tables = (
        make_table("table8a", "Learning rates", tuple(by_rate), "T8a_lr", (Summary("Std", tuple(rates), "deviation"),)),
        make_table("table8b", "Batch sizes", tuple(by_size), "T8b_bs", (Summary("Std", tuple(sizes), "deviation"),)),
    )
    return Suite(
        "table8", "Robustness to learning rate and batch size", tables, rounds,
        "The paper does not say how many rounds: ten here. Small batches accumulate the gradients of 200 images.",
    )  # fmt: skip


def s2() -> Suite:
    """Supplement, table 2: ImageNet-C."""

    def entries(round: int) -> tuple[PaperEntry, ...]:
        return tuple(
            PaperEntry(method, setting, (spec,), round=round, paper_row=PAPER_NAMES[method])
            for method in _COMPARED
            for setting, spec in _closed_and_open(
                method, "imagenet-c", "resnet50", "imagenet-o-c-224", batch_size=64
            ).items()
        )

    average = (Summary("Average", ("Closed", "Open")),)
    tables = (
        make_table("s2a", "ImageNet-C after ten rounds", entries(10), "S2a_imagenetc_long", average),
        make_table("s2b", "ImageNet-C after one round", entries(1), "S2b_imagenetc_short", average),
    )
    return Suite("s2", "ImageNet-C", tables, 10)


def s3() -> Suite:
    """Supplement, table 3: CoTTA on its own networks, on ours, and with a derived threshold."""
    methods = ("tent", "cotta", "tent+crowd")
    variants = {
        "CIFAR-10-C/(a)": ("cifar10-c", "wrn28_10", False),
        "CIFAR-10-C/(b)": ("cifar10-c", "wrn40_2", False),
        "CIFAR-10-C/(c)": ("cifar10-c", "wrn40_2", True),
        "CIFAR-100-C/(a)": ("cifar100-c", "resnext29", False),
        "CIFAR-100-C/(b)": ("cifar100-c", "wrn40_2", False),
        "CIFAR-100-C/(c)": ("cifar100-c", "wrn40_2", True),
    }

    def spec_for(method: str, images: str, model: str, derived: bool) -> Spec:
        spec = make_spec(method, images, model)
        return spec.with_options(threshold=None) if derived and method == "cotta" else spec

    entries = [
        PaperEntry(method, column, (spec_for(method, *variant),), round=50, paper_row=PAPER_NAMES[method])
        for method in methods
        for column, variant in variants.items()
    ]
    costs = _costs(",".join(methods), trials=500, warm_up=50)
    title = "CoTTA, closed, 50 rounds: (a) its own networks, (b) WRN-40-2 with its threshold, (c) with one derived anew"
    table = make_table(
        "s3a", title, (*entries, *_cost_entries(dict.fromkeys(methods, costs))),
        "S3a_cotta_cls", unit="mixed",
    )  # fmt: skip
    return Suite("s3", "Comparison with CoTTA on classification", (table,), 50)


def s5() -> Suite:
    """Supplement, table 5: selection by logits instead of softmax."""
    columns = {
        "CIFAR-10-C": ("cifar10-c", "wrn40_2"),
        "CIFAR-100-C": ("cifar100-c", "wrn40_2"),
        "TinyImageNet-C": ("tiny-imagenet-c", "resnet50"),
    }
    rows = {
        "source": ("source", "Source"),
        "bn_adapt": ("bn_adapt", "BN Adapt"),
        "tent": ("tent", "TENT"),
        "tent+crowd (logits)": ("tent+crowd", "TENT + Ours (logit)"),
        "tent+crowd": ("tent+crowd", "TENT + Ours (softmax)"),
    }

    def spec_for(row: str, method: str, images: str, model: str) -> Spec:
        spec = make_spec(method, images, model)
        return spec.with_options(on="logits") if "logits" in row else spec

    entries = tuple(
        PaperEntry(row, column, (spec_for(row, method, images, model),), round=50, paper_row=paper_row)
        for row, (method, paper_row) in rows.items()
        for column, (images, model) in columns.items()
    )
    title = "Selection by softmax and by logits, closed, 50 rounds"
    rejected = tuple(
        replace(entry, metric="rejected", paper_row=None) for entry in entries if entry.row.startswith("tent+crowd")
    )
    tables = (
        make_table("s5", title, entries, "S5_logit_variant"),
        make_table("s5_rejected", "What selection rejects", rejected, unit="share of images", lower_is_better=None),
    )
    return Suite("s5", title, tables, 50, "Shares its runs with table1.")
