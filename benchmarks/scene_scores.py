"""Which score of a sentinel finds unknown pixels, on CamVid under the four held-out corruptions.

Energies, entropies and largest probabilities of the frozen network, of the sentinel and of the answer; smoothed,
standardized for each predicted class, with the stream's class frequencies as prior, and added up. AUROC of unknown
pixels against all known ones, against those away from borders, and against those that the answer gets right. And what
a sentinel would repel: pixels of which the frozen network is unsure.

    python benchmarks/scene_scores.py --data data --weights deeplabv3plus_small_camvid.safetensors --out scores.json
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import procedural_frost
from driftproof.metrics import BinnedScores
from driftproof.models import build_from_checkpoint
from driftproof.predictions import entropy
from driftproof.scores import msp
from novelty_streams import scenes

_BORDER = 2
_SEVERAL = {"sentinel + answer entropy": 1.0, "sentinel + 2 answer entropies": 2.0}


def compare(
    adapter: dp.Adapter, images: Tensor, frequencies: Tensor | None
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Adapt to a batch; return the answer, every score of its pixels, and how often each class was predicted."""
    answer = adapter(images).detach().float()
    sentinel = adapter.last.novelty.float()
    with torch.no_grad():
        frozen = adapter.state.source(images).float()
    adapter.state.source.rollback()  # the batch is in its statistics already
    now = frozen.softmax(dim=1).mean(dim=(0, 2, 3))
    frequencies = now if frequencies is None else torch.lerp(frequencies, now, 0.1)
    prior = frequencies.clamp(min=1e-4).log().view(1, -1, 1, 1)
    log_p, log_q = frozen.log_softmax(dim=1), answer.log_softmax(dim=1)
    scores = {
        "sentinel": sentinel,
        "energy": -frozen.logsumexp(dim=1),
        "max_logit": -frozen.amax(dim=1),
        "entropy": entropy(log_p),
        "msp": msp(frozen),
        "answer entropy": entropy(log_q),
        "answer msp": msp(answer),
        "energy, class frequencies as prior": -(frozen + prior).logsumexp(dim=1),
        "energy, standardized by class": standardize(-frozen.logsumexp(dim=1), frozen.argmax(dim=1)),
    }
    scores |= {name: sentinel + weight * scores["answer entropy"] for name, weight in _SEVERAL.items()}
    for name in ("sentinel", "sentinel + 2 answer entropies"):
        scores[f"{name}, smoothed over 15"] = avg_pool2d(scores[name], 15, 1, 7, count_include_pad=False)
    return answer, scores, frequencies


def standardize(score: Tensor, classes: Tensor) -> Tensor:
    """Subtract the mean of the predicted class in the batch, and divide by its standard deviation."""
    standardized = torch.zeros_like(score)
    for number in range(int(classes.max()) + 1):
        own = classes == number
        if not own.any():
            continue
        standardized[own] = (score[own] - score[own].mean()) / score[own].std(correction=0).clamp(min=1e-3)
    return standardized


def is_at_border(labels: Tensor) -> Tensor:
    """Whether another label is at most so many pixels away."""
    maps, size = labels.float().unsqueeze(1), 2 * _BORDER + 1
    return (max_pool2d(maps, size, 1, _BORDER) != -max_pool2d(-maps, size, 1, _BORDER)).squeeze(1)


def rank(kept: dict[tuple[str, str], BinnedScores]) -> Iterator[tuple[str, dict[str, float]]]:
    """The areas of every score, mean over the domains."""
    for name in dict.fromkeys(name for name, _ in kept):
        domains = [scores for (other, _), scores in kept.items() if other == name]
        areas: dict[str, list[float]] = {"unknown, all known": [], "unknown, right": []}
        areas["unknown, known away from borders"] = []
        for scores in domains:
            sizes = [int(scores.histogram(group).sum()) for group in range(4)]
            single = [scores.auroc(group, 4) for group in range(4)]
            for what, groups in zip(areas, ((0, 1, 2, 3), (0, 2), (0, 1)), strict=True):
                whole = sum(sizes[group] for group in groups)
                areas[what].append(100 * sum(sizes[group] * single[group] for group in groups) / whole)
        yield name, {what: round(fmean(found), 2) for what, found in areas.items()}


def share(counts: Tensor) -> dict[str, float]:
    """How many pixels are unknown, and how many known ones are at borders, in percent."""
    known, border, unknown = counts.tolist()
    return {
        "unknown": round(100 * unknown / (known + unknown), 2),
        "border": round(100 * border / (known + unknown), 2),
    }


def main() -> None:
    """Adapt for one round and write the areas."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--height", type=int, default=96)
    arguments = parser.parse_args()
    device = torch.device("cpu")
    chosen = {"batch": 2, "limit": arguments.images, "height": arguments.height}
    stream = scenes("camvid-held-out", arguments.data, device=device, photos=procedural_frost(), **chosen)
    adapter = dp.sentinel(build_from_checkpoint(arguments.weights), guard=())
    frequencies, kept = None, dict[tuple[str, str], BinnedScores]()
    pixels, unsure = (torch.zeros(3, dtype=torch.int64) for _ in range(2))  # known, of these at borders, unknown
    for batch in stream():
        answer, scores, frequencies = compare(adapter, batch.images, frequencies)
        wrong, border = answer.argmax(dim=1) != batch.labels, is_at_border(batch.labels)
        kinds = (wrong.long() + 2 * border.long()).masked_fill(batch.labels < 0, 4).masked_fill(batch.labels == 255, -1)
        repels = scores["entropy"] >= 0.4 * math.log(answer.shape[1])
        for counts, among in ((pixels, kinds >= 0), (unsure, repels & (kinds >= 0))):
            counts += torch.stack([(among & of).sum() for of in (kinds < 4, (kinds < 4) & (kinds >= 2), kinds == 4)])
        for name, score in scores.items():
            kept.setdefault((name, batch.domain), BinnedScores(5, device=device)).update(-score, kinds)
    facts = {"frames": arguments.images, "height": arguments.height, "severity": 3, "batch": 2, "border": _BORDER}
    facts |= {"weights": arguments.weights.stem, "hardware": hardware(device)}
    facts |= {"torch": torch.__version__, "driftproof": dp.__version__}
    shares = {"all pixels": share(pixels), "unsure ones": share(unsure)}
    shares["unsure ones"]["of all"] = round(100 * int(unsure[0] + unsure[2]) / int(pixels[0] + pixels[2]), 2)
    found = {"protocol": facts, "auroc": dict(rank(kept)), "percent": shares}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, areas in dict(rank(kept)).items():
        print(f"{name:48}", areas)
    print(shares)


if __name__ == "__main__":
    main()
