"""Choose the sentinel's setting for scenes from rows of the held-out corruptions, and print it.

The setting with the largest mIoU in the last round, summed over the networks; of its scores, energy of the sentinel and
entropy of the answer, the one with the larger AUROC of unknown against right pixels. Each folder has the rows of
`sentinel_scenes.py --held-out` for one network.

    python benchmarks/sentinel_choose_scenes.py results/sentinel/scenes/choice results/sentinel/scenes/small-network
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

_SHOWN = ("miou", "auroc_unknown_right", "entropy_unknown_right")


def read_last_round(folder: Path) -> dict[str, dict[str, float]]:
    """The means over the domains in the last round, by setting."""
    found = {}
    for path in sorted(folder.glob("held-out-sentinel*.jsonl")):
        rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        last = max(row["round"] for row in rows[1:])
        domains = [row for row in rows[1:] if row["round"] == last]
        found[rows[0]["method"]] = {name: fmean(row[name] for row in domains) for name in _SHOWN}
    return found


def choose(networks: list[dict[str, dict[str, float]]]) -> tuple[str, str]:
    """The setting, and the score that goes with it.

    Examples:
        >>> row = {"auroc_unknown_right": 80.0, "entropy_unknown_right": 82.0}
        >>> choose([{"a": {"miou": 50.0, **row}, "b": {"miou": 51.0, **row}}])
        ('b', 'entropy_unknown_right')
    """
    shared = set.intersection(*(set(network) for network in networks))
    setting = max(sorted(shared), key=lambda name: sum(network[name]["miou"] for network in networks))
    return setting, max(_SHOWN[1:], key=lambda score: sum(network[setting][score] for network in networks))


def main() -> None:
    """Print every setting, and the chosen one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    networks = [read_last_round(folder) for folder in parser.parse_args().folders]
    for name in networks[0]:
        cells = (f"{network[name][shown]:6.2f}" for network in networks if name in network for shown in _SHOWN)
        print(f"{name:20}", *cells)
    print(*choose(networks))


if __name__ == "__main__":
    main()
