"""The sentinel on driving scenes: mean IoU over rounds, and how well it finds unknown and wrong pixels.

CamVid's test frames in six kinds of weather, or with `--held-out` under the four held-out corruptions, severity 3.
Pedestrians, bicyclists and signs are unknown to the network. One JSON line per method, round and domain. Unknown pixels
are ranked against all known ones (`auroc_unknown`) and, as the CamVid suites do, against those that the answer gets
right (`auroc_unknown_right`); `entropy_…`, `msp_…` and `local_…` are the same for the answer's entropy, one minus its
largest probability, and its local entropy in squares of several sides. With `--alarm-rate`, rows have the shares of
known, right, wrong and unknown pixels that an alarm flags, calibrated on training frames.

    python benchmarks/sentinel_scenes.py --data data --weights deeplabv3plus_resnet50_camvid.safetensors --out DIR
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import find_frost_photos, procedural_frost
from driftproof.data.scenes import UNKNOWN, VOID
from driftproof.data.scenes.driving import camvid_scenes
from driftproof.metrics import BinnedScores, ConfusionMatrix
from driftproof.models import build_from_checkpoint
from driftproof.scores import entropy, local_entropy, msp
from driftproof.training import load_labeled_scenes
from novelty_streams import LabeledBatch, scenes

_BLEND = {"lr": 1e-5, "statistics": dp.statistics.Blend(0.5, momentum=0.1), "mean_entropy": 0.5}
SIDES = (0.08, 0.17, 0.25, 0.33)
"""Of squares, as a share of the height of a frame."""
METHODS: dict[str, tuple[Callable[..., dp.Adapter], dict[str, Any]]] = {
    "source": (dp.source, {"novelty": "msp"}),
    "tent+crowd": (dp.tent, {"select": dp.ConfidenceDifference(margin=-0.2), "novelty": "msp", **_BLEND}),
    "sentinel": (dp.sentinel, {}),
}


def parse_setting(text: str) -> tuple[str, float | str]:
    """Read NAME=VALUE.

    Examples:
        >>> parse_setting("lr=1e-4")
        ('lr', 0.0001)
        >>> parse_setting("members=source")
        ('members', 'source')
    """
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        return name, value


def choose_statistics(settings: dict[str, Any]) -> dict[str, Any]:
    """Replace a `window` by the statistics that have it."""
    others = dict(settings)
    if "window" not in others:
        return others
    window = int(others.pop("window"))
    return others | {"statistics": dp.statistics.WindowedBlend(others.pop("share", 0.3), window)}


def calibrate(adapter: dp.Adapter, frames: Tensor, maps: Tensor, rate: float) -> dp.Alarm:
    """Return an alarm for this share of the known pixels, by what an adapter says of those of training frames."""
    novelty = []
    for images, labels in zip(torch.split(frames, 2), torch.split(maps, 2), strict=True):
        adapter(images.float() / 255)
        novelty.append(adapter.last.novelty[(labels != UNKNOWN) & (labels != VOID)].cpu())
    return dp.Alarm.from_false_alarm_rate(rate, torch.cat(novelty), trained_on=True)


def run(
    adapter: dp.Adapter,
    stream: Callable[[], Iterator[LabeledBatch]],
    rounds: int,
    classes: int,
    alarm: dp.Alarm | None = None,
) -> Iterator[dict[str, Any]]:
    """Adapt for several rounds, and yield what each domain came to."""
    for number in range(1, rounds + 1):
        for domain, batches in groupby(stream(), key=lambda batch: batch.domain):
            confusion, scores, flagged = None, dict[str, BinnedScores](), torch.zeros(2, 3)
            for batch in batches:
                answer, labels = adapter(batch.images), batch.labels
                predicted = answer.argmax(dim=1)
                confusion = confusion or ConfusionMatrix(classes, device=labels.device)
                confusion.update(predicted, labels.masked_fill(labels < 0, 255))
                kinds = torch.where(predicted == labels, 0, 1).masked_fill(labels < 0, 2)  # right, wrong, unknown
                for name, novelty in (
                    ("auroc", adapter.last.novelty),
                    ("entropy", entropy(answer)),
                    ("msp", msp(answer)),
                    *((f"local_{side}", local_entropy(answer, side)) for side in SIDES),
                ):
                    kept = scores.setdefault(name, BinnedScores(3, device=labels.device))
                    kept.update(-novelty, kinds.masked_fill((labels == 255) | novelty.isnan(), -1))
                if alarm is not None:
                    flagged += count_flagged(alarm, adapter.last.novelty, kinds.masked_fill(labels == 255, -1))
            assert confusion is not None  # no domain is empty
            row = {"round": number, "domain": domain, "miou": round(100 * confusion.mean_iou(), 3)}
            for name, kept in scores.items():
                row[f"{name}_unknown"] = round(100 * _auroc(kept, (0, 1), 2), 3)
                row[f"{name}_unknown_right"] = round(100 * kept.auroc(0, 2), 3)
                row[f"{name}_wrong"] = round(100 * kept.auroc(0, 1), 3)
            if alarm is not None:
                right, wrong, unknown = (100 * flagged[0] / flagged[1]).tolist()
                known = 100 * float(flagged[0, :2].sum() / flagged[1, :2].sum())
                row |= {"flagged_known": round(known, 2), "flagged_right": round(right, 2)}
                row |= {"flagged_wrong": round(wrong, 2), "flagged_unknown": round(unknown, 2)}
            yield row | {"kept": round(float(adapter.last.kept), 4)}


def count_flagged(alarm: dp.Alarm, novelty: Tensor, kinds: Tensor) -> Tensor:
    """Count the flagged pixels, and all pixels, that are right, wrong and unknown: (2, 3)."""
    alarm(novelty)  # the threshold follows the stream
    is_flagged = novelty > alarm.threshold
    counted = (is_flagged, novelty.isfinite())
    return torch.tensor([[float((mask & (kinds == kind)).sum()) for kind in range(3)] for mask in counted])


def _auroc(scores: BinnedScores, positives: tuple[int, ...], negative: int) -> float:
    """The area for several groups of positives, weighted by how many samples each has."""
    sizes = [int(scores.histogram(group).sum()) for group in positives]
    areas = [size * scores.auroc(group, negative) for group, size in zip(positives, sizes, strict=True) if size]
    return sum(areas) / max(1, sum(sizes))


def main() -> None:
    """Run every chosen method, and write each row as it comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--set", nargs="+", type=parse_setting, default=[], help="of the sentinel: lr=1e-4 window=16")
    parser.add_argument("--name", help="of the sentinel with these settings; its file is named so")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=80)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--height", type=int)
    parser.add_argument("--alarm-rate", type=float, help="share of known pixels that an alarm should flag")
    parser.add_argument("--frost", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision")
    parser.add_argument("--channels-last", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    photos = procedural_frost() if arguments.held_out else find_frost_photos(arguments.frost)
    options: dict[str, Any] = {"batch": arguments.batch, "limit": arguments.images, "height": arguments.height}
    images = "camvid-held-out" if arguments.held_out else "camvid-c"
    stream = scenes(images, arguments.data, device=device, photos=photos, **options)
    model = build_from_checkpoint(arguments.weights).to(device)
    with torch.no_grad():
        classes = int(model(next(stream()).images[:1]).shape[1])
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.alarm_rate is not None:
        training = load_labeled_scenes(camvid_scenes(arguments.data, split="train", height=arguments.height))
        frames, maps = (tensor.to(device) for tensor in training)
    protocol = {
        "stream": "held-out" if arguments.held_out else "weather",
        "severity": 3,
        "frames": arguments.images,
        "batch": arguments.batch,
        "height": arguments.height,
        "alarm rate": arguments.alarm_rate,
        "weights": arguments.weights.stem,
        "precision": arguments.precision,
        "hardware": hardware(device),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
    }
    for name in arguments.methods:
        make, chosen = METHODS[name]
        shown = name
        if name == "sentinel" and arguments.set:
            chosen, shown = choose_statistics(dict(arguments.set)), arguments.name or name
        file_name = f"{protocol['stream']}-{shown}.jsonl".replace("+", "-")
        settings = {key: getattr(arguments, key) for key in ("engine", "precision", "channels_last")}
        alarm = None
        if arguments.alarm_rate is not None:
            alarm = calibrate(make(model, **settings, **chosen), frames, maps, arguments.alarm_rate)
        adapter = make(model, **settings, **chosen)
        begun = time.perf_counter()
        described = {"method": shown, "options": {key: str(value) for key, value in chosen.items()}}
        with (arguments.out / file_name).open("w") as file:
            file.write(json.dumps(described | protocol) + "\n")
            for row in run(adapter, stream, 1 if name == "source" else arguments.rounds, classes, alarm):
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(shown, row, f"{time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
