"""Measure the share of known images that an alarm flags, against the share that was asked for.

    python benchmarks/alarms.py --data data --weights weights [--limit N] [--device cuda] [--out FOLDER]

The alarm is calibrated on clean images: on those of training, or, for the default score, on the second half of the test
set, and then the stream holds the first half. It follows a stream of corrupted images, domain after domain, with and
without unknown ones. Its scores are the frozen network's, under batch statistics; with `--method`, the default score of
an adapter that goes through the images of training, is reset, and goes through the stream. The constants of the alarm
were fitted under the held-out corruptions (`alarm_lines.py`), not the five. Two others are compared: one whose
threshold stays (`track=False`), and one calibrated on the beginning of the stream, unknown images included. Whether the
scores of a stream alone tell that it holds unknown images is shown by a fit of two Gaussians to the scores of a domain.

`--scores FILE` keeps the scores, or reads them where the file exists: then only the alarms run.

With `--known-first` the stream begins with 2,000 known images under a corruption that is not among the domains, the
alarm of the stream is calibrated on them, and then a tenth or half of the images are unknown. With `--method` a tenth
is left out.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

import driftproof as dp
from driftproof.bench.environment import hardware
from driftproof.bench.local_files import LocalFiles
from driftproof.bench.spec import Spec
from driftproof.corruptions import HELD_OUT
from driftproof.data import cifar10
from driftproof.paper.suites import make_spec
from driftproof.scores import energy, msp
from driftproof.two_groups import fit_mixture
from tables import format_protocol, write_results

DOMAINS = {"five": ("gaussian_noise", "glass_blur", "fog", "contrast", "jpeg_compression"), "held-out": HELD_OUT}
BEFORE = {"five": "speckle_noise", "held-out": "shot_noise"}
"""The corruption of the images that the stream of `--known-first` begins with."""

TENTH = "a tenth unknown"
STREAMS: dict[str, dict[str, Any]] = {
    "known only": {"unknown": None},
    TENTH: {"unknown": "svhn-c", "unknown_share": 0.1},
    "half unknown": {"unknown": "svhn-c"},
}
SCORES = ("default", "energy", "msp")
RATES = (0.01, 0.02, 0.05, 0.1)
METHODS: dict[str, Callable[..., dp.Adapter]] = {"source": dp.source, "adapt": dp.adapt, "sentinel": dp.sentinel}
FIRST = 2000
"""Known images that the stream of `--known-first` begins with: the window of an alarm."""

HALF = 5000
"""Images of half of the test set."""

FACTOR = 1.5
"""The measured rate may be at most this many times larger or smaller than the asked one."""


class Predicted(NamedTuple):
    """The novelty of a batch by score; the label of an unknown image is −1."""

    domain: str
    novelty: dict[str, Tensor]
    labels: Tensor


class Scores(NamedTuple):
    """The novelty of images of training, and of streams by name; then of new images, and of streams without them."""

    calibration: list[dict[str, Tensor]]
    streams: dict[str, list[Predicted]]
    new: list[dict[str, Tensor]]
    halves: dict[str, list[Predicted]]


def make_alarms(calibration: Tensor, rate: float, score: str) -> dict[str, dp.Alarm]:
    """Return the alarm, by what it is calibrated on, and the two it is compared with."""
    named = None if score == "default" else score
    return {
        "source images": dp.Alarm.from_false_alarm_rate(rate, calibration, trained_on=True, score=named),
        "source images, fixed": dp.Alarm.from_false_alarm_rate(rate, calibration, track=False, score=named),
        "the stream": dp.Alarm.from_false_alarm_rate(rate, score=named),
    }


def measure(alarm: dp.Alarm, stream: Iterable[Predicted], score: str) -> dict[str, dict[str, float | None]]:
    """Return the shares of known and unknown images that the alarm flags, by domain."""
    counts: dict[str, Tensor] = {}
    for batch in stream:
        novelty = batch.novelty[score]
        flagged = torch.zeros(len(novelty), dtype=torch.bool)
        flagged[[event.sample for event in alarm(novelty)]] = True
        known = batch.labels >= 0
        found = [(flagged & known).sum(), known.sum(), (flagged & ~known).sum(), (~known).sum()]
        counts[batch.domain] = counts.get(batch.domain, torch.zeros(4)) + torch.stack(found)
    return {
        domain: {"known": float(known / all_known), "unknown": float(unknown / all_unknown) if all_unknown else None}
        for domain, (known, all_known, unknown, all_unknown) in counts.items()
    }


def measure_all(
    calibration: Sequence[dict[str, Tensor]],
    streams: dict[str, list[Predicted]],
    make: Callable[[Tensor, float, str], dict[str, dp.Alarm]],
    scores: Sequence[str] = SCORES,
) -> list[dict[str, Any]]:
    """Run every alarm that `make` returns over every stream."""
    rows = []
    for score in scores:
        novelty = torch.cat([batch[score] for batch in calibration])
        for name, stream in streams.items():
            for rate in RATES:
                for kind, alarm in make(novelty, rate, score).items():
                    by_domain = measure(alarm, stream, score)
                    rows.append({"score": score, "stream": name, "rate": rate, "alarm": kind, "domains": by_domain})
    return rows


def split_scores(streams: dict[str, list[Predicted]], score: str) -> list[dict[str, Any]]:
    """Fit two groups to the scores of each domain, and return how many known and unknown images the upper one holds."""
    rows = []
    for name, stream in streams.items():
        for domain in dict.fromkeys(batch.domain for batch in stream):
            batches = [batch for batch in stream if batch.domain == domain]
            scores = torch.cat([batch.novelty[score] for batch in batches]).double()
            known = torch.cat([batch.labels for batch in batches]) >= 0
            groups = fit_mixture(scores)
            is_upper = groups.first_probability(scores) < 0.5
            shares = [float(is_upper[mask].double().mean()) if mask.any() else None for mask in (known, ~known)]
            found = {"score": score, "stream": name, "domain": domain, "known": shares[0], "unknown": shares[1]}
            rows.append(found | {"separation": float(groups.separation)})
    return rows


def compute_scores(network: dp.Adapter, images: Tensor) -> dict[str, Tensor]:
    """Return the novelty of a batch by score; the logits are those of a network that does not adapt, or not used."""
    logits = network(images)
    scores = {"default": network.last.novelty, "energy": energy(logits), "msp": msp(logits)}
    return {name: scores[name].cpu() for name in SCORES}


def make_new(calibration: Tensor, rate: float, score: str) -> dict[str, dp.Alarm]:
    """Return the alarm that is calibrated on images that the network was not trained on."""
    return {"new images": dp.Alarm.from_false_alarm_rate(rate, calibration)}


def predict(files: LocalFiles, network: dp.Adapter, specs: Iterable[Spec], device: str) -> list[Predicted]:
    """Return the novelty of a stream made of several; the network starts anew."""
    network.reset()
    return [
        Predicted(batch.domain, compute_scores(network, batch.images.to(device)), batch.labels)
        for spec in specs
        for batch in files.stream(spec, rounds=1)
    ]


def make_specs(domains: tuple[str, ...], limit: int | None) -> dict[str, Spec]:
    """Return the streams by name."""
    known = make_spec("bn_adapt", "cifar10-c", "wrn40_2", unknown=None)
    return {name: replace(known, domains=domains, limit=limit, **options) for name, options in STREAMS.items()}


def predict_all(files: LocalFiles, arguments: argparse.Namespace) -> Scores:
    """Run the network over all images."""
    specs, method, device = make_specs(DOMAINS[arguments.domains], arguments.limit), arguments.method, arguments.device
    known = specs["known only"]
    make = dp.bn_adapt if method is None else METHODS[method]
    network = make(files.model(known).to(device), channels_last=True)
    batches = islice(files.source(known, device), arguments.sources // 200)
    calibration = [compute_scores(network, images) for images, _ in batches]
    if method is not None:
        del specs[TENTH]
    parts: dict[str, list[Spec]] = {name: [spec] for name, spec in specs.items()}
    if arguments.known_first:
        start = replace(known, domains=(BEFORE[arguments.domains],), limit=FIRST)
        parts = {f"{name}, known first": [start, spec] for name, spec in specs.items() if spec.unknown}
    streams = {name: predict(files, network, each, device) for name, each in parts.items()}
    if method is not None or arguments.known_first:
        return Scores(calibration, streams, [], {})
    new = torch.split(cifar10(files.data).batch(torch.arange(HALF, HALF + arguments.sources)).float() / 255, 200)
    halves = {
        name: predict(files, network, [replace(spec, limit=min(HALF, spec.limit or HALF))], device)
        for name, spec in specs.items()
        if name != TENTH
    }
    network.reset()
    return Scores(calibration, streams, [compute_scores(network, images.to(device)) for images in new], halves)


def read_scores(path: Path) -> Scores:
    """Read what `write_scores` wrote."""
    calibration, streams, new, halves = torch.load(path, weights_only=True)
    streams, halves = (
        {name: [Predicted(*batch) for batch in stream] for name, stream in each.items()} for each in (streams, halves)
    )
    return Scores(calibration, streams, new, halves)


def write_scores(scores: Scores, path: Path) -> None:
    """Write scores as plain lists."""
    streams, halves = (
        {name: [tuple(batch) for batch in stream] for name, stream in each.items()}
        for each in (scores.streams, scores.halves)
    )
    torch.save((scores.calibration, streams, scores.new, halves), path)


def format_page(rows: list[dict[str, Any]], groups: list[dict[str, Any]], protocol: dict[str, Any]) -> str:
    """Return the measured rates as a page of Markdown, bold outside the factor, and the groups of scores."""
    domains = list(rows[0]["domains"])
    lines = [f"Share of known images flagged, in %; **bold** is not within a factor {FACTOR} of the asked share.", ""]
    lines.append("| score | stream | calibrated on | asked | " + " | ".join(domains) + " | unknown flagged |")
    lines.append("|---|---|---|---:|" + "---:|" * (len(domains) + 1))
    for row in rows:
        shares = [row["domains"][domain]["known"] for domain in domains]
        cells = [f"{100 * share:.1f}" if is_near(share, row["rate"]) else f"**{100 * share:.1f}**" for share in shares]
        unknown = [found["unknown"] for found in row["domains"].values() if found["unknown"] is not None]
        cells.append(f"{100 * fmean(unknown):.1f}" if unknown else "–")
        cells = [row["score"], row["stream"], row["alarm"], f"{100 * row['rate']:g}", *cells]
        lines.append(f"| {' | '.join(cells)} |")
    for kind in dict.fromkeys(row["alarm"] for row in rows):
        shares = [(row, each["known"]) for row in rows if row["alarm"] == kind for each in row["domains"].values()]
        near = sum(is_near(share, row["rate"]) for row, share in shares)
        lines += ["", f"Calibrated on {kind}: {near} of {len(shares)} within the factor."]
    lines += [
        "",
        f"Two Gaussians fitted to the {groups[0]['score']} of each domain; separation is in standard deviations.",
        "",
    ]
    lines += [
        "| stream | domain | separation | known in the upper group, % | unknown in it, % |",
        "|---|---|---:|---:|---:|",
    ]
    for row in groups:
        shares = [f"{100 * row[kind]:.0f}" if row[kind] is not None else "–" for kind in ("known", "unknown")]
        lines.append(f"| {row['stream']} | {row['domain']} | {row['separation']:.2f} | {' | '.join(shares)} |")
    return "\n".join([*lines, *format_protocol(protocol)])


def is_near(share: float, rate: float) -> bool:
    """Whether a measured share is within the factor of the asked one."""
    return rate / FACTOR <= share <= rate * FACTOR


def main() -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="folder of the source weights")
    parser.add_argument("--method", choices=tuple(METHODS), help="otherwise the frozen network, batch statistics")
    parser.add_argument("--domains", choices=tuple(DOMAINS), default="five")
    parser.add_argument("--known-first", action="store_true", help="begin the stream with known images")
    parser.add_argument("--limit", type=int, help="only the first so many known images of each domain")
    parser.add_argument("--sources", type=int, default=5000, help="images to calibrate on, at most 5,000")
    parser.add_argument("--scores", type=Path, help="file of the scores, to write or to read")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for alarms-DOMAINS.json and .md")
    arguments = parser.parse_args()
    method, path = arguments.method, arguments.scores
    if path is not None and path.exists():
        scores = read_scores(path)
    else:
        scores = predict_all(LocalFiles(arguments.data, arguments.weights, device=arguments.device), arguments)
        if path is not None:
            write_scores(scores, path)
    names = SCORES if method is None else SCORES[:1]
    rows = measure_all(scores.calibration, scores.streams, make_alarms, names)
    groups = split_scores(scores.streams, SCORES[0])
    if scores.new:
        rows += measure_all(scores.new, scores.halves, make_new, SCORES[:1])
    protocol = {
        "images": "cifar10-c",
        "of each domain": arguments.limit or "all",
        "unknown": "svhn-c",
        "severity": 5,
        "calibrated on": f"{arguments.sources} images"
        + "; new ones: test set's second half, streams of the first" * bool(scores.new),
        "network": f"wrn40_2, {method or 'frozen, batch statistics'}",
        "batch": 200,
        "torch": torch.__version__,
        "driftproof": dp.__version__,
        "machine": hardware(torch.device(arguments.device)),
    }
    page = format_page(rows, groups, protocol)
    print(page)
    if arguments.out:
        chosen = [arguments.domains, method, "known-first" if arguments.known_first else None]
        name = "-".join(["alarms", *filter(None, chosen)])
        write_results(arguments.out, name, {"protocol": protocol, "rows": rows, "groups": groups}, **{name: page})
    return 0


if __name__ == "__main__":
    sys.exit(main())
