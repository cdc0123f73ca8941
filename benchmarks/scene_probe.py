"""How well unknown pixels can be told from right ones at all, by a detector that was shown unknown pixels.

A linear detector of the network's last features and logits learns, with labels, which pixels are unknown in half of the
frames of a stream, and ranks the pixels of the other half; then the other way round. No method has these labels, so one
that reads the same network can hardly do better. Beside it, scores without labels on the same pixels.

    python benchmarks/scene_probe.py --data data --weights deeplabv3plus_small_camvid.safetensors --out probe.json
"""

import argparse
import copy
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.corruptions import find_frost_photos, procedural_frost
from driftproof.metrics import BinnedScores
from driftproof.models import build_from_checkpoint
from driftproof.network import Network
from driftproof.scores import energy, entropy, msp
from driftproof.statistics import WindowedBlend
from novelty_streams import scenes
from tables import write_json

_SCORES = {"energy": energy, "entropy": entropy, "msp": msp}
_STEPS, _PIXELS, _LR = 1500, 2048, 3e-3


def read_pixels(network: Network, stream: Any, frames: int) -> dict[str, Tensor]:  # noqa: ANN401  # of `scenes`
    """Features of right and of unknown pixels, at the resolution of the last layer, and which half they are of."""
    last = [module for module in network.model.modules() if isinstance(module, nn.Conv2d)][-1]
    entered: list[Tensor] = []
    last.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    found: dict[str, list[Tensor]] = {name: [] for name in ("features", "logits", "unknown", "second_half")}
    seen: dict[str, int] = {}
    for batch in stream():
        entered.clear()
        with torch.no_grad():
            network(batch.images)
            network.commit()
            features = entered[0].float()
            logits = last(features)
        labels = F.interpolate(batch.labels[:, None].float(), size=features.shape[2:], mode="nearest")[:, 0].long()
        chosen = (labels == -1) | (labels == logits.argmax(dim=1))
        first = seen.get(batch.domain, 0)
        seen[batch.domain] = first + len(batch.images)
        found["features"].append(features.permute(0, 2, 3, 1)[chosen])
        found["logits"].append(logits.permute(0, 2, 3, 1)[chosen])
        found["unknown"].append((labels == -1)[chosen])
        found["second_half"].append(torch.full_like(found["unknown"][-1], 2 * first >= frames))
    return {name: torch.cat(parts) for name, parts in found.items()}


def fit_probe(inputs: Tensor, unknown: Tensor) -> nn.Linear:
    """A logistic regression; as many unknown as right pixels are drawn for each step."""
    torch.manual_seed(0)
    probe = nn.Linear(inputs.shape[1], 1, device=inputs.device)
    optimizer = torch.optim.Adam(probe.parameters(), lr=_LR)
    groups = [(unknown == value).nonzero().flatten() for value in (True, False)]
    targets = torch.tensor([1.0, 0.0], device=inputs.device).repeat_interleave(_PIXELS // 2)
    for _ in range(_STEPS):
        drawn = [group[torch.randint(len(group), (_PIXELS // 2,), device=inputs.device)] for group in groups]
        loss = F.binary_cross_entropy_with_logits(probe(inputs[torch.cat(drawn)])[:, 0], targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return probe


def find_area(scores: Tensor, unknown: Tensor) -> float:
    """AUROC of unknown against right pixels, in percent."""
    kept = BinnedScores(2, device=scores.device)
    kept.update(-scores, unknown.long())
    return 100 * kept.auroc(0, 1)


def main() -> None:
    """Fit on each half, and write the areas on the other one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weather", action="store_true", help="in place of the held-out corruptions")
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--height", type=int)
    parser.add_argument("--share", type=float, default=0.3, help="of the stream in the statistics")
    parser.add_argument("--frost", type=Path)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device, kind = torch.device(arguments.device), "camvid-c" if arguments.weather else "camvid-held-out"
    photos = find_frost_photos(arguments.frost) if arguments.weather else procedural_frost()
    chosen: dict[str, Any] = {"batch": 2, "limit": arguments.images, "height": arguments.height}
    stream = scenes(kind, arguments.data, device=device, photos=photos, **chosen)
    model = build_from_checkpoint(arguments.weights).to(device)
    network = Network(copy.deepcopy(model), WindowedBlend(arguments.share, 16))
    network.reset_statistics()
    pixels = read_pixels(network, stream, arguments.images)
    inputs = torch.cat([pixels["features"], pixels["logits"]], dim=1)
    inputs = (inputs - inputs.mean(dim=0)) / inputs.std(dim=0).clamp(min=1e-6)
    areas: dict[str, list[float]] = {"labels of the other half": [], "labels of the same half": []}
    for half in (False, True):
        own = pixels["second_half"] == half
        probe = fit_probe(inputs[~own], pixels["unknown"][~own])
        with torch.no_grad():
            for name, part in zip(areas, (own, ~own), strict=True):
                areas[name].append(find_area(probe(inputs[part])[:, 0], pixels["unknown"][part]))
    found = {name: round(fmean(values), 2) for name, values in areas.items()}
    for name, score in _SCORES.items():
        halves = [pixels["second_half"] == half for half in (False, True)]
        values = [find_area(score(pixels["logits"][part]), pixels["unknown"][part]) for part in halves]
        found[name] = round(fmean(values), 2)
    protocol = {"stream": kind, "frames": arguments.images, "height": arguments.height, "severity": 3}
    protocol |= {"share": arguments.share, "features": inputs.shape[1], "pixels": len(inputs)}
    protocol |= {"unknown": round(float(pixels["unknown"].float().mean()), 4), "weights": arguments.weights.stem}
    protocol |= {"hardware": hardware(device), "torch": torch.__version__, "driftproof": dp.__version__}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, {"protocol": protocol, "auroc": found})
    print(found)


if __name__ == "__main__":
    main()
