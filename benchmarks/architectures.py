"""Run third-party architectures through `tent` with selection, on the engines "eager" and "auto".

    python benchmarks/architectures.py [--device cuda] [--only NAME ...] [--out DIR]

Every architecture has random weights and takes six steps on random images. Per engine the result is one of:

- adapted: the parameters moved.
- fell back: the parameters moved, but "auto" warned that it uses the eager engine.
- refused: driftproof raised one of its own errors.
- failed: anything else. The script then exits with 1.

After each run the device must still draw random numbers, use its default stream and capture a CUDA graph. Where timm or
torchvision is missing, or does not have an architecture, the name is listed as skipped.
"""

import argparse
import gc
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.errors import DriftproofError
from tables import format_protocol, write_results
from third_party import import_timm, import_torchvision

TIMM = (
    # convolutional networks
    "resnet18", "resnet50", "resnext26ts", "wide_resnet50_2", "seresnet18", "ecaresnet26t", "skresnet18",
    "res2net50_26w_4s", "resnest14d", "resnet50_gn", "tresnet_m", "cspresnet50", "darknet17", "regnetx_002",
    "efficientnet_b0", "mobilenetv3_small_050", "mobilenetv4_conv_small", "hardcorenas_a", "fbnetc_100", "ghostnet_050",
    "rexnet_100", "repvgg_a0", "vovnet39a", "densenet121", "dla34", "dpn48b", "hrnet_w18_small", "inception_v3",
    "xception41", "convnext_tiny", "convnextv2_atto", "inception_next_atto", "focalnet_tiny_srf", "mambaout_femto",
    # no normalization that can be adapted
    "nf_resnet26", "dm_nfnet_f0",
    # transformers
    "vit_tiny_patch16_224", "vit_small_patch32_224", "deit_tiny_patch16_224", "deit3_small_patch16_224",
    "eva02_tiny_patch14_224", "beit_base_patch16_224", "cait_xxs24_224", "xcit_nano_12_p16_224", "crossvit_tiny_240",
    "tnt_s_patch16_224", "volo_d1_224", "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224", "hiera_tiny_224",
    "davit_tiny", "mvitv2_tiny", "pvt_v2_b0", "twins_svt_small", "nest_tiny",
    # both at once
    "coat_tiny", "edgenext_small", "levit_128s", "visformer_tiny", "maxvit_nano_rw_256", "maxxvit_rmlp_nano_rw_256",
    "efficientformer_l1", "efficientvit_b0", "fastvit_t8", "tiny_vit_5m_224", "convformer_s18",
    # multilayer perceptrons, pooling and recurrence in place of attention
    "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224", "poolformer_s12", "sequencer2d_s",
)  # fmt: skip
SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")
"""Networks of torchvision; they return a dictionary with the logits under "out"."""

ENGINES = ("eager", "auto")
STEPS = 6  # a CUDA graph is captured within the first three
BATCH = 4
SMALL = 128
"""Height and width of the images of a network that accepts any size."""


@dataclass(frozen=True)
class Architecture:
    """A network and what it takes to run it.

    Attributes:
        model: The network.
        size: Height and width of its images.
        logits: The adapter's option `logits`.
    """

    model: nn.Module
    size: int = SMALL
    logits: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of one architecture on one engine.

    Attributes:
        result: "adapted", "fell back", "refused" or "failed".
        reason: The warning or the error; empty for "adapted".
        seconds: Time for building the adapter and for all steps.
    """

    result: str
    reason: str
    seconds: float


def build_timm(name: str) -> Architecture | None:
    """Build a network of timm; None if timm does not have it."""
    timm = import_timm()
    if not timm.is_model(name):
        return None
    model = timm.create_model(name, pretrained=False)
    settings = model.pretrained_cfg
    return Architecture(model, settings["input_size"][-1] if settings["fixed_input_size"] else SMALL)


def build_segmentation(name: str) -> Architecture | None:
    """Build a segmentation network of torchvision; None if torchvision does not have it."""
    build = getattr(import_torchvision("torchvision.models.segmentation"), name, None)
    return build and Architecture(build(weights=None, weights_backbone=None, num_classes=19), logits="out")


LIBRARIES: dict[str, tuple[tuple[str, ...], Callable[[str], Architecture | None]]] = {
    "timm": (TIMM, build_timm),
    "torchvision": (SEGMENTATION, build_segmentation),
}


def fill_zero_weights(model: nn.Module) -> None:
    """Draw weights that are initialized to zero: behind a zero head no parameter has a gradient."""
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)


def has_moved(model: nn.Module, adapter: dp.Adapter) -> bool:
    """Whether a parameter differs from the source model's."""
    pairs = zip(model.parameters(), adapter.unwrap().parameters(), strict=True)
    return any(not torch.equal(before, after) for before, after in pairs)


def run_engine(
    architecture: Architecture, batches: list[Tensor], engine: str, collected: list[Tensor]
) -> tuple[str, str]:
    """Adapt one architecture and return the result and its reason; the logits go into `collected`."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"engine": engine, "logits": architecture.logits}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            adapter = dp.tent(architecture.model, select=dp.ConfidenceDifference(), **options)
            collected.extend(adapter(images).clone() for images in batches)
            moved = has_moved(architecture.model, adapter)
        except DriftproofError as error:
            return "refused", f"{type(error).__name__}: {error}"
        except Exception as error:  # one bad model must not end the run
            return "failed", f"{type(error).__name__}: {error}"
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
    fallbacks = [message for message in messages if "eager" in message]
    if not moved:
        return "failed", f"No parameter moved. {adapter.last.skipped or ''}".strip()
    if len(fallbacks) > 1:
        return "failed", f"{len(fallbacks)} warnings instead of one: {fallbacks[0]}"
    return ("fell back", fallbacks[0]) if fallbacks else ("adapted", "")


def check_device(device: torch.device) -> None:
    """Raise if random numbers, the default stream or CUDA graphs no longer work."""
    draws = torch.rand(2, device=device)
    if device.type == "cuda":
        if torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
            raise RuntimeError("The current stream is not the default stream.")
        static, graph = torch.ones(1024, device=device), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = static.sum()
        graph.replay()
        if total.item() != len(static):
            raise RuntimeError("A CUDA graph captured afterwards computes something else.")
    if not draws.isfinite().all().item():
        raise RuntimeError("The random numbers are not finite.")


def collect_garbage(device: torch.device) -> None:
    """Free what the last model left on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def run_safely(architecture: Architecture, batches: list[Tensor], engine: str, collected: list[Tensor]) -> Outcome:
    """Run one engine, then free its memory and check the device."""
    start = time.perf_counter()
    result, reason = run_engine(architecture, batches, engine, collected)
    seconds = time.perf_counter() - start
    try:
        collect_garbage(batches[0].device)
        check_device(batches[0].device)
    except Exception as error:
        result, reason = "failed", f"The device is unusable after {result!r}: {error} {reason}".strip()
    return Outcome(result, reason, seconds)


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float | None:
    """Return the largest difference of the logits of all steps; 0.0 is bit-equal, None is not comparable."""
    if len(ours) != STEPS or len(theirs) != STEPS:
        return None
    if all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        return 0.0
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


def measure_architecture(architecture: Architecture, device: torch.device) -> dict[str, Any]:
    """Run one architecture on all engines and return its row."""
    size = architecture.size
    batches = [torch.rand(BATCH, 3, size, size, device=device) for _ in range(STEPS)]
    fill_zero_weights(architecture.model)
    architecture.model.to(device).eval()
    logits: dict[str, list[Tensor]] = {engine: [] for engine in ENGINES}
    outcomes = {engine: run_safely(architecture, batches, engine, logits[engine]) for engine in ENGINES}
    eager, auto = (outcomes[engine] for engine in ENGINES)
    if auto.result == "refused" and eager.result == "adapted":
        outcomes["auto"] = Outcome("failed", f"Refused what the eager engine adapts. {auto.reason}", auto.seconds)
    return {
        "images": f"{BATCH} × 3 × {size} × {size}",
        **{engine: asdict(outcome) for engine, outcome in outcomes.items()},
        "difference": largest_difference(*logits.values()),
    }


def measure_safely(library: str, name: str, device: torch.device) -> dict[str, Any] | None:
    """Build and run one architecture; None if the library does not have it."""
    row: dict[str, Any] = {"library": library, "name": name}
    try:
        architecture = LIBRARIES[library][1](name)
        return None if architecture is None else row | measure_architecture(architecture, device)
    except Exception as error:  # one bad model must not end the run
        failed = asdict(Outcome("failed", f"Outside the steps: {type(error).__name__}: {error}", 0.0))
        return {**row, "images": "", **dict.fromkeys(ENGINES, failed), "difference": None}


def list_architectures(only: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return library and name of the architectures to run, and the names that a missing library skips."""
    found, skipped = [], []
    for library, (names, _) in LIBRARIES.items():
        wanted = [name for name in names if not only or any(part in name for part in only)]
        try:
            import_timm() if library == "timm" else import_torchvision()
        except ImportError as error:
            print(f"Skipped {len(wanted)} architectures of {library}: {error}. `pip install {library}` installs it.")
            skipped += wanted
        else:
            found += [(library, name) for name in wanted]
    return found, skipped


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all architectures and print a line for each; yields all results so far after each."""
    device = torch.device(arguments.device)
    start = time.perf_counter()
    architectures, skipped = list_architectures(arguments.only)
    rows: list[dict[str, Any]] = []
    torch.manual_seed(0)
    for number, (library, name) in enumerate(architectures, 1):
        row = measure_safely(library, name, device)
        if row is None:
            skipped.append(name)
            results = f"skipped, not in {library}"
        else:
            rows.append(row)
            each = (f"{engine} {row[engine]['result']} ({row[engine]['seconds']:.1f} s)" for engine in ENGINES)
            results = "; ".join(each)
        print(f"[{number}/{len(architectures)}] {name}: {results}", flush=True)
        collect_garbage(device)
        protocol = {
            "hardware": hardware(device),
            "torch": torch.__version__,
            **{name: str(getattr(sys.modules.get(name), "__version__", "missing")) for name in LIBRARIES},
            "driftproof": dp.__version__,
            "method": "tent+crowd",
            "steps": STEPS,
            "seconds": round(time.perf_counter() - start),
        }
        yield {"protocol": protocol, "counts": count_results(rows), "architectures": rows, "skipped": skipped}


def count_results(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the results of every engine."""
    kinds = ("adapted", "fell back", "refused", "failed")
    return {engine: {kind: sum(row[engine]["result"] == kind for row in rows) for kind in kinds} for engine in ENGINES}


def format_tables(found: dict[str, Any]) -> str:
    """Return the counts, one row per architecture, and every reason as Markdown."""
    kinds = list(found["counts"]["eager"])
    lines = ["| engine | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    lines += [f"| {engine} | {' | '.join(map(str, each.values()))} |" for engine, each in found["counts"].items()]
    lines += [
        "",
        "| architecture | images | eager | auto | difference of the logits |",
        "|---|---|---|---|---:|",
    ]
    for row in found["architectures"]:
        shown = " | ".join(row[engine]["result"] for engine in ENGINES)
        lines.append(f"| {row['name']} | {row['images']} | {shown} | {_format_difference(row['difference'])} |")
    reasons = [
        f"- {row['name']}, {engine}, {row[engine]['result']}: {' '.join(row[engine]['reason'].split())}"
        for row in found["architectures"]
        for engine in ENGINES
        if row[engine]["reason"]
    ]
    lines += ["", *reasons] if reasons else []
    lines += ["", "Skipped: " + ", ".join(found["skipped"]) + "."] if found["skipped"] else []
    return "\n".join([*lines, *format_protocol(found["protocol"])])


def _format_difference(difference: float | None) -> str:
    if difference is None:
        return ""
    return "none, bit-equal" if difference == 0 else "not finite" if math.isnan(difference) else f"{difference:.1e}"


def main() -> int:
    """Run, print, write, and return 1 if an architecture failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="architectures whose name contains this")
    parser.add_argument("--out", type=Path, help="folder for architectures.json and the tables in architectures.md")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"architectures": []}
    for found in measure(arguments):
        if arguments.out:
            write_results(arguments.out, "architectures", found, architectures=format_tables(found))
    if not found["architectures"]:
        print("No architecture was run.")
        return 2
    print("", format_tables(found), sep="\n")
    return 1 if any(counts["failed"] for counts in found["counts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
