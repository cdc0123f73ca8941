"""Compare novelty scores: how well each tells unknown images and objects from known ones while a method adapts.

    python benchmarks/novelty.py --data DIR --weights DIR --out DIR [--only cifar10-c] [--methods tent] [--device cuda]
    python benchmarks/novelty.py --summarize DIR

The first form goes through a stream of changing domains for five rounds with each method, and writes
SET-METHOD.jsonl: the protocol, then one line per domain of the first and of the last round. The second form reads all
these files and writes novelty.md next to them. Images are CIFAR-10-C and CIFAR-100-C of severity 5; half of each batch
(`--unknown-share`) is SVHN-C. Pixels are CamVid in six kinds of weather; pedestrians, bicyclists and signs are unknown
to its network.
Defaults were chosen under the held-out corruptions (`--only cifar10-held-out`, `camvid-held-out`, and so on).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.spec import Spec
from driftproof.corruptions import CORRUPTIONS, find_frost_photos, procedural_frost
from driftproof.methods.by_name import METHODS, SELECTIONS, parse_method
from driftproof.metrics import BinnedScores, ConfusionMatrix, auroc, fpr_at_tpr
from driftproof.metrics.ranking import auroc_from_counts, fpr_from_counts
from driftproof.paper.suites import options_for
from novelty_candidates import CENTERED, SINGLE, AllScores, PixelScores, watch_features
from novelty_streams import LabeledBatch, open_images, scenes
from tables import format_protocol

MAIN = ("cifar10-c", "cifar100-c", "camvid-c")
SETS = (*MAIN, *(name.replace("-c", "-held-out") for name in MAIN))
METHOD_NAMES = ("source", "bn_adapt", "tent", "tent+crowd", "eata+crowd", "swr+crowd", "adapt")
STATELESS = ("source", "bn_adapt")
"""Methods that learn nothing: every round is like the first."""

_BATCH_STATISTICS = ("tent", "tent+crowd", "eata+crowd", "swr+crowd")
"""On images these normalize as `bn_adapt` does, so their frozen scores are equal to its."""

_BLEND = {"lr": 1e-5, "statistics": dp.statistics.Blend(0.5, momentum=0.1)}
_PIXEL_OPTIONS: dict[str, dict[str, Any]] = {
    "source": {},
    "bn_adapt": {},
    "adapt": {"lr": 1e-5},
    "tent": _BLEND,
    "tent+crowd": _BLEND | {"mean_entropy": 0.5},
    "eata+crowd": _BLEND | {"mean_entropy": 0.5, "fisher_samples": 100, "fisher_batch_size": 2},
    "swr+crowd": _BLEND | {"mean_entropy": 0.2, "prototypes": False, "drift_samples": 100, "drift_batch_size": 2},
}
_MARGIN = -0.2
_AGAINST = {"known": "all known", "right": "right"}
"""What unknown ones are told from: everything known, or what is predicted right."""

_MEASURES = {"auroc": "AUROC", "fpr": "FPR@TPR95"}
_INTRODUCTION = (
    "How well each score tells unknown images or pixels from known ones, in percent: the mean over the domains of a",
    "round. Scores without a prefix are the frozen network's, equal for all methods with the same batch-norm",
    "statistics. So the centered score, the default for images, was measured with `source`, `bn_adapt` and `adapt`",
    "alone; against all known images, the others have `bn_adapt`'s. `a + b` sums scores that are standardized over the",
    "batch. The best single score of a method is bold. The last column is how far a score is from it at worst.",
    "– was not measured. `benchmarks/novelty.py` measures it.",
)


def build_adapter(
    name: str, spec: Spec, files: LocalFiles, device: torch.device, settings: dict[str, Any]
) -> dp.Adapter:
    """Return the method with the paper's hyper-parameters, prepared, with every score as its novelty."""
    base, selections = parse_method(name)
    pixels = spec.images.startswith("camvid")
    options: dict[str, Any] = dict(_PIXEL_OPTIONS[name]) if pixels else dict(options_for(name, spec.images))
    if selections:
        (selection,) = selections
        options["select"] = SELECTIONS[selection](**({"margin": _MARGIN} if pixels else {}))
    novelty = PixelScores() if pixels else AllScores()
    adapter = METHODS[base](files.model(spec).to(device), **options, novelty=novelty, **settings)
    if pixels:
        watch_features(adapter)
    return adapter if adapter.prepared else adapter.prepare(files.source(spec, str(device)))


def run_rounds(
    adapter: dp.Adapter, stream: Callable[[], Iterator[LabeledBatch]], rounds: int
) -> Iterator[dict[str, Any]]:
    """Adapt for several rounds, and yield the scores of each domain of the first and the last."""
    for number in range(1, rounds + 1):
        for domain, batches in groupby(stream(), key=lambda batch: batch.domain):
            measure: _Images | _Pixels | None = None
            for batch in batches:
                logits = adapter(batch.images)
                if number in (1, rounds):
                    measure = measure or (_Images() if logits.ndim == 2 else _Pixels(logits))
                    measure.update(logits.argmax(dim=1), batch.labels, adapter.last.novelty)
            if measure is not None:
                yield {"round": number, "domain": domain, **measure.compute()}


class _Images:
    """Error, and exact AUROC and FPR@TPR95 of every score in percent."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, ...]] = []

    def update(self, predicted: Tensor, labels: Tensor, novelty: Tensor) -> None:
        self._parts.append((predicted, labels, novelty))

    def compute(self) -> dict[str, Any]:
        predicted, labels, novelty = (torch.cat(parts).cpu() for parts in zip(*self._parts, strict=True))
        answered = ~novelty.isnan().any(dim=1)
        predicted, labels, novelty = predicted[answered], labels[answered], novelty[answered]
        known, right = labels >= 0, predicted == labels
        found = {"error": 100 * float((~right)[known].float().mean()), "quarantined": int((~answered).sum())}
        for name, familiarity in zip(AllScores.names, -novelty.T, strict=True):
            for positives, mask in (("known", known), ("right", right)):
                pair = familiarity[mask], familiarity[~known]
                found[f"{name}/{positives}/auroc"] = 100 * auroc(*pair)
                found[f"{name}/{positives}/fpr"] = 100 * fpr_at_tpr(*pair)
        return _round(found)


class _Pixels:
    """One hundred minus the mean IoU, and AUROC and FPR@TPR95 of every score in percent, from histograms."""

    def __init__(self, logits: Tensor) -> None:
        self._confusion = ConfusionMatrix(logits.shape[1], device=logits.device)
        self._scores: BinnedScores | None = None

    def update(self, predicted: Tensor, labels: Tensor, novelty: Tensor) -> None:
        self._confusion.update(predicted, labels.masked_fill(labels < 0, 255))
        count = novelty.shape[-1]
        self._scores = self._scores or BinnedScores(3 * count, device=novelty.device)
        kinds = torch.where(predicted == labels, 0, 1).masked_fill(labels < 0, 2)  # right, wrong, unknown
        groups = kinds.unsqueeze(-1) + 3 * torch.arange(count, device=novelty.device)
        groups = groups.masked_fill((labels == 255).unsqueeze(-1) | novelty.isnan(), -1)
        self._scores.update(-novelty, groups)

    def compute(self) -> dict[str, Any]:
        assert self._scores is not None  # no domain is empty
        found: dict[str, Any] = {"error": 100 - 100 * self._confusion.mean_iou()}
        for index, name in enumerate(PixelScores.names):
            counts = torch.stack([self._scores.histogram(3 * index + kind) for kind in range(3)])
            right, wrong, unknown = counts[:, counts.sum(dim=0) > 0]
            for positives, accepted in (("known", right + wrong), ("right", right)):
                found[f"{name}/{positives}/auroc"] = 100 * auroc_from_counts(accepted, unknown)
                found[f"{name}/{positives}/fpr"] = 100 * fpr_from_counts(accepted, unknown)
        return _round(found)


def _round(found: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in found.items()}


def run(arguments: argparse.Namespace) -> None:
    """Run every chosen method on every chosen set, and write one file for each."""
    device = torch.device(arguments.device)
    photos = procedural_frost() if arguments.procedural_frost else find_frost_photos(arguments.frost)
    files = LocalFiles(arguments.data, arguments.weights)
    settings = {name: getattr(arguments, name) for name in ("engine", "precision", "channels_last")}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for images in arguments.only:
        pixels = images.startswith("camvid")
        batch = arguments.batch or (2 if pixels else 200)
        common: dict[str, Any] = {"batch": batch, "limit": arguments.images, "device": device, "photos": photos}
        if pixels:
            stream = scenes(images, arguments.data, height=arguments.height, **common)
        else:
            stream = open_images(images, arguments.data, unknown_share=arguments.unknown_share, **common)
        network = arguments.network or ("deeplabv3plus_resnet50" if pixels else "wrn40_2")
        clean = images.replace("-held-out", "-c")
        home = f"{clean}-{arguments.height}" if pixels and arguments.height else clean
        protocol = {
            "images": home.replace(clean, images),
            "unknown": "pedestrians, bicyclists and signs" if pixels else _name_unknown(arguments.unknown_share),
            "of each set": arguments.images or "all",
            "severity": 3 if pixels else 5,
            "frost": photos.origin,
            "network": network,
            "batch": batch,
            "rounds": arguments.rounds,
            **settings,
            "torch": torch.__version__,
            "driftproof": dp.__version__,
            "hardware": hardware(device),
        }
        for name in arguments.methods:
            began = time.perf_counter()
            adapter = build_adapter(name, Spec(name, home, network, domains=CORRUPTIONS), files, device, settings)
            rows = list(run_rounds(adapter, stream, 1 if name in STATELESS else arguments.rounds))
            lines = [{"method": name, **protocol}, *rows]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (arguments.out / f"{images}-{name}.jsonl").write_text(text, encoding="utf-8")
            print(f"{images} {name}: error {rows[-1]['error']:.1f}, {time.perf_counter() - began:.0f} s", flush=True)


def _name_unknown(share: float) -> str:
    return "svhn-c, half of each batch" if share == 0.5 else f"svhn-c, {100 * share:g} % of each batch"


def summarize(folder: Path) -> str:
    """Return tables of all results in a folder, as Markdown."""
    lines = ["# Novelty scores", "", *_INTRODUCTION]
    for images in SETS:
        runs = {name: _read(path) for name in METHOD_NAMES if (path := folder / f"{images}-{name}.jsonl").exists()}
        missing = [name for name in METHOD_NAMES if name not in runs]
        lines += ["", f"Not measured on {images}: {', '.join(missing)}."] if missing else []
        if not runs:
            continue
        protocol = next(iter(runs.values()))[0]
        last = protocol["rounds"]
        for number in sorted({1, last}):
            # A method that learns nothing is the same in every round.
            columns = {
                name: _mean([row for row in rows if row["round"] == (1 if name in STATELESS else number)])
                for name, (_, *rows) in runs.items()
            }
            for name in columns.keys() & _BATCH_STATISTICS:
                same = {key: value for key, value in columns["bn_adapt"].items() if key.startswith(f"{CENTERED}/known")}
                columns[name] = same | columns[name]
            for against, words in _AGAINST.items():
                for measure, title in _MEASURES.items():
                    lines += ["", f"## {images}, round {number}: {title}, unknown against {words}", ""]
                    lines += _format_table(columns, f"{against}/{measure}", lowest=measure == "fpr")
        lines += format_protocol({key: value for key, value in protocol.items() if key != "method"})
    return "\n".join(lines)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _mean(rows: list[dict[str, Any]]) -> dict[str, float]:
    # A default that was measured is, or was, one of the named scores.
    names = [key for key in rows[0] if key not in ("round", "domain") and not key.startswith("default/")]
    return {name: fmean(row[name] for row in rows) for name in names}


def _format_table(columns: dict[str, dict[str, float]], measure: str, *, lowest: bool) -> list[str]:
    """One row per score, one column per method; the best single score is bold, and the last column is the worst gap."""
    known = dict.fromkeys(key for values in columns.values() for key in values if key.endswith(f"/{measure}"))
    names = [key.removesuffix(f"/{measure}") for key in known]
    sign = -1 if lowest else 1
    best = {
        method: max((sign * values[key], name) for name in SINGLE if (key := f"{name}/{measure}") in values)[1]
        for method, values in columns.items()
    }
    lines = ["| | " + " | ".join(columns) + " | furthest from the best single score |"]
    lines.append("|---|" + "---:|" * (len(columns) + 1))
    lines.append("| error, % | " + " | ".join(f"{values['error']:.2f}" for values in columns.values()) + " | |")
    for name in names:
        cells, gaps = [], []
        for method, values in columns.items():
            value = values.get(f"{name}/{measure}")
            if value is None:
                cells.append("–")
                continue
            gaps.append(sign * (values[f"{best[method]}/{measure}"] - value))
            cells.append(f"**{value:.2f}**" if name == best[method] else f"{value:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} | {max(gaps):.2f} |")
    return lines


def main() -> int:
    """Run, or summarize what was run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--summarize", type=Path, metavar="DIR", help="write DIR/novelty.md from the results in DIR")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=MAIN)
    parser.add_argument("--methods", nargs="+", choices=METHOD_NAMES, default=METHOD_NAMES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, help="only the first so many images of each set, or evenly spaced frames")
    parser.add_argument("--batch", type=int, help="otherwise 200 images or 2 frames")
    parser.add_argument("--network", help="otherwise wrn40_2, and deeplabv3plus_resnet50 for CamVid")
    parser.add_argument("--unknown-share", type=float, default=0.5, help="share of unknown images in a batch")
    parser.add_argument("--height", type=int, help="height to resize CamVid's frames to")
    parser.add_argument("--frost", type=Path, help="folder of frost photos; otherwise the installed package's")
    parser.add_argument("--procedural-frost", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision")
    parser.add_argument("--channels-last", action="store_true")
    arguments = parser.parse_args()
    if arguments.summarize:
        page = summarize(arguments.summarize)
        (arguments.summarize / "novelty.md").write_text(page, encoding="utf-8")
        print(page)
        return 0
    missing = [name for name in ("data", "weights", "out") if getattr(arguments, name) is None]
    if missing:
        parser.error(f"--{missing[0]} is required")
    run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
