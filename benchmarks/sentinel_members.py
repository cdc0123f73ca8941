"""Errors of each opinion in the sentinel's answer, after a run of many rounds.

Loads the last snapshot of a run of the suite `sentinel`, and answers one batch of each of the fifteen corruptions,
half of it SVHN-C where the run is an open one, without learning: the learner on the images (l) and on their mirror
images (x), the frozen network likewise (f, g), the sentinel on the mirror images (s), and means of their
log-probabilities.

    python benchmarks/sentinel_members.py --run runs/all/cells/NAME --data data --weights weights --out members.json
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import CORRUPTIONS, corrupt, find_frost_photos
from driftproof.data import cifar10, cifar100
from driftproof.data.svhn import svhn
from driftproof.models import build_from_checkpoint
from tables import write_json

ANSWERS = ("l", "x", "f", "g", "s", "lxsf", "lxf", "lxfg")
"""Means of log-probabilities; `lxfg` is the default answer, `lxsf` an earlier one."""


@torch.no_grad()
def predict(adapter: dp.Adapter, images: Tensor) -> dict[str, Tensor]:
    """The log-probabilities of every opinion."""
    state, detector, mirrored = adapter.state, adapter.method.detector, images.flip(-1)
    assert isinstance(detector, dp.detectors.Sentinel)
    assert state.detector is not None
    found = {"l": state.network(images), "x": state.network(mirrored)}
    found |= {"f": state.source(images), "g": state.source(mirrored)}
    with state.detector.replace_parameters(detector._split(detector.affine)):
        found["s"] = state.detector(mirrored)
    for network in state.networks.values():
        network.rollback()
    return {name: logits.log_softmax(dim=1) for name, logits in found.items()}


def main() -> None:
    """Answer one batch of each corruption, and write the errors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True, help="folder of a run, with its snapshot")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100, help="known images in a batch")
    parser.add_argument("--members", default="network+mirror+source+source_mirror", help="of the answer that was run")
    arguments = parser.parse_args()
    spec = json.loads((arguments.run / "spec.json").read_text(encoding="utf-8"))["spec"]
    name, count = spec["images"].removesuffix("-c"), arguments.images
    known = {"cifar10": cifar10, "cifar100": cifar100}[name](arguments.data)
    images, labels = known.batch(range(count)), known.labels[:count]
    sources, photos = [(images, name)], find_frost_photos()
    if spec["unknown"] is not None:
        sources.append((svhn(arguments.data, limit=count).batch(range(count)), "svhn"))
    model = build_from_checkpoint(arguments.weights / f"wrn40_2_{name}.pt")
    adapter = dp.sentinel(model, members=arguments.members)
    (snapshot,) = arguments.run.glob("snapshot-*.safetensors")
    adapter.load(snapshot)
    wrong = dict.fromkeys(ANSWERS, 0)
    for corruption in CORRUPTIONS:
        parts = [corrupt(pixels, corruption, 5, dataset=kind, frost_photos=photos) for pixels, kind in sources]
        opinions = predict(adapter, torch.cat(parts).float() / 255)
        for answer in ANSWERS:
            mean = torch.stack([opinions[letter] for letter in answer]).mean(dim=0)[:count]
            wrong[answer] += int((mean.argmax(dim=1) != labels).sum())
        print(corruption, wrong, flush=True)
    total = count * len(CORRUPTIONS)
    found = {
        "images": spec["images"],
        "unknown": spec["unknown"],
        "rounds": int(snapshot.stem.removeprefix("snapshot-")) / len(CORRUPTIONS),
        "known_images": total,
        "error": {answer: round(100 * number / total, 2) for answer, number in wrong.items()},
        "hardware": hardware(torch.device("cpu")),
        "torch": torch.__version__,
        "driftproof": dp.__version__,
    }
    write_json(arguments.out, found)


if __name__ == "__main__":
    main()
