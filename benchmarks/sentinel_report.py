"""What sentinels and learners reached, for `sentinel_research.py`."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from sentinel_jobs import Job, LearnerJob, SentinelJob


def auroc(scores: Tensor, known: int) -> float:
    """The area under the ROC curve of (steps, N) scores whose first `known` columns are known."""
    low, high = scores[:, :known].flatten().double(), scores[:, known:].flatten().double()
    both = torch.cat([low, high])
    ranks = torch.empty_like(both)
    ranks[both.argsort()] = torch.arange(1, len(both) + 1, device=both.device, dtype=both.dtype)
    total = ranks[len(low) :].sum() - len(high) * (len(high) + 1) / 2
    return 100 * float(total / (len(low) * len(high)))


def by_round(job: Job, log_p: Tensor) -> list[float]:
    """The error of each round."""
    stream = job.stream
    labels = stream.labels.repeat(job.rounds, 1)
    wrong = (log_p[:, : stream.known].argmax(dim=2) != labels).float()
    return [round(100 * float(part.mean()), 2) for part in wrong.chunk(job.rounds)]


def auroc_by_round(job: Job, scores: Tensor) -> list[float]:
    """The AUROC of each round, mean over corruptions."""
    if job.stream.known == job.stream.batches.shape[1]:
        return []
    found = []
    for part in scores.chunk(job.rounds):
        domains = torch.split(part, job.stream.per_domain)
        found.append(round(sum(auroc(one, job.stream.known) for one in domains) / len(domains), 2))
    return found


def shares(job: Job, mask: Tensor) -> dict[str, list[float]]:
    """The share of samples in a mask, by round."""
    known = [round(float(part[:, : job.stream.known].float().mean()), 3) for part in mask.chunk(job.rounds)]
    if job.stream.known == job.stream.batches.shape[1]:
        return {"known": known}
    return {
        "known": known,
        "unknown": [round(float(part[:, job.stream.known :].float().mean()), 3) for part in mask.chunk(job.rounds)],
    }


def combine(parts: dict[str, Tensor], letters: str) -> Tensor | None:
    """The sum of log-probabilities; None if one is missing."""
    if any(letter not in parts for letter in letters):
        return None
    return torch.stack([parts[letter] for letter in letters]).sum(dim=0)


COMBINATIONS = (
    "l", "x", "f", "g", "s", "e", "lx", "lg", "xg", "lf", "ls", "lgs", "fs", "lsf", "lsfg",
    "lxg", "lxf", "lxs", "lxsf", "lxfg", "lxsfg",
    "fg", "fgs", "em", "emg", "emfg", "emlx", "emlxfg", "eg",
    "fh", "fk", "fhk", "fgh", "ly", "lyfg", "lxfh", "lyfh", "lyfk", "lxyfgk", "lxlxfg", "lxlxfgfgfg",
    "lylyfk", "lyfkfk", "lxyfghk", "lk", "lfk", "lyf", "lyk", "llfk", "lllfk",
)  # fmt: skip
"""A letter that stands twice counts twice."""

SHARES = (0.3, 0.4, 0.6, 0.7)
"""Of the learner in an answer of learner and frozen network."""

BALANCES = tuple((strength, window) for strength in (0.25, 0.5, 0.75, 1.0) for window in (200, 1000, 2000, 4000))
"""How strongly the frequencies of classes are evened out, and over how many images they are counted."""


def report_sentinel(job: SentinelJob) -> dict[str, Any]:
    """What a sentinel reached."""
    log_p = job.results["logits"].log_softmax(dim=2)
    frozen = job.stream.frozen[(1.0, 1.0), 0]["none"].log_softmax(dim=2).repeat(job.rounds, 1, 1)
    errors = {"sentinel": by_round(job, log_p), "bn_adapt": by_round(job, frozen)[:1]}
    found: dict[str, Any] = {"errors": errors, "auroc_energy": auroc_by_round(job, job.results["energy"])}
    energy = job.results["energy"]
    # Of the source network with the sentinel's statistics.
    stored = job.stream.frozen.get(job.choice.rule, {})
    for name, view in (("frozen", "none"), ("mirrored", "flip")):
        if view in stored:
            mixed = energy - stored[view].logsumexp(dim=2).repeat(job.rounds, 1)
            found[f"auroc_with_{name}"] = auroc_by_round(job, mixed)
    found["auroc_entropy"] = auroc_by_round(job, -(log_p.exp() * log_p).sum(dim=2))
    if "teacher" in job.results:
        teacher = job.results["teacher"].log_softmax(dim=2)
        errors["teacher"] = by_round(job, teacher)
        errors["sum3"] = by_round(job, log_p + teacher + frozen)
        found["auroc_teacher"] = auroc_by_round(job, -job.results["teacher"].logsumexp(dim=2))
        found["auroc_with_teacher"] = auroc_by_round(job, energy - job.results["teacher"].logsumexp(dim=2))
    for name in ("not_repelled", "attract", "below_cut"):
        found[name] = shares(job, job.results[name])
    separation = job.results["separation"]
    found["separation"] = [
        [round(float(part.quantile(q)), 2) for q in (0.05, 0.5, 0.95)] for part in separation.chunk(job.rounds)
    ]
    return found


def report_learner(job: LearnerJob, *, mixtures: bool = False) -> dict[str, Any]:
    """What a learner reached, alone and with others.

    Args:
        job: The learner, at the end of its stream.
        mixtures: Whether other mixtures of the default answer's opinions are reported too, which takes time.
    """
    parts = {"l": job.results["learner"].log_softmax(dim=2), "x": job.results["flipped"].log_softmax(dim=2)}
    stored = job.stream.frozen.get(job.choice.frozen_rule, {})
    letters_of = {"none": "f", "flip": "g", "shift": "h", "shift_back": "k"}
    parts |= {letter: _repeat(stored[view], job.rounds) for view, letter in letters_of.items() if view in stored}
    if "shift" in job.results:
        parts["y"] = job.results["shift"].log_softmax(dim=2)
    if job.sentinel is not None:
        parts["s"] = job.sentinel.results["logits"].log_softmax(dim=2)
    if "average" in job.results:
        parts |= {"e": job.results["average"], "m": job.results["mirrored"]}
    errors = {}
    for letters in COMBINATIONS:
        mixed = combine(parts, letters)
        if mixed is not None:
            errors[letters] = by_round(job, mixed)
    if mixtures:
        errors |= report_answers(job, parts)
    if len(job.choice.views) > 1:
        errors |= report_views(job, stored)
    domains = {}
    for letters in ("l", "f", "lx", "fg", "lxg", "lxfg", "em", "emfg"):
        mixed = combine(parts, letters)
        if mixed is not None:
            wrong = (mixed[-job.stream.steps :, : job.stream.known].argmax(dim=2) != job.stream.labels).float()
            domains[letters] = [
                round(100 * float(part.mean()), 2) for part in torch.split(wrong, job.stream.per_domain)
            ]
    found: dict[str, Any] = {"errors": errors, "domains": domains, "kept": shares(job, job.results["kept"])}
    found["auroc_energy"] = auroc_by_round(job, -job.results["learner"].logsumexp(dim=2))
    if job.sentinel is not None:
        energy = job.sentinel.results["energy"]
        found["auroc_sentinel"] = auroc_by_round(job, energy)
        mixed = energy - job.results["learner"].logsumexp(dim=2)
        found["auroc_sum"] = auroc_by_round(job, mixed)
    return found


def balance(log_p: Tensor, strength: float, window: int, counted: str) -> Tensor:
    """Even out how often each class is predicted.

    From the log-probabilities of each batch, (steps, N, C), the logarithm of a running mean of the predictions is
    subtracted, times `strength`. The mean is of "all" predictions, of "sure" ones, or weighted by how sure ("exp").
    """
    classes, limit = log_p.shape[2], 0.4 * math.log(log_p.shape[2])
    mean, balanced = log_p.new_full((classes,), 1 / classes), []
    for batch in log_p:
        p = batch.exp()
        margin = limit + (p * batch).sum(dim=1)  # τ − h
        weights = {"all": torch.ones_like(margin), "sure": (margin > 0).float(), "exp": margin.clamp(-10, 10).exp()}
        seen = (p * weights[counted].unsqueeze(1)).sum(dim=0) / weights[counted].sum().clamp(min=1e-6)
        mean = torch.lerp(mean, seen, min(1.0, len(batch) / window))
        balanced.append(batch - strength * (mean * classes).clamp(min=1e-3).log())
    return torch.stack(balanced)


def balance_batch(log_p: Tensor, strength: float, iterations: int = 6) -> Tensor:
    """Shift the classes of each batch until they are predicted about equally often, and apply a share of the shift."""
    shift = log_p.new_zeros(len(log_p), 1, log_p.shape[2])
    for _ in range(iterations):
        mean = (log_p + shift).softmax(dim=2).mean(dim=1, keepdim=True)
        shift = shift - 0.5 * (mean * log_p.shape[2]).clamp(min=1e-3).log()
    return log_p + strength * shift


def report_answers(job: LearnerJob, parts: dict[str, Tensor]) -> dict[str, list[float]]:
    """Errors of other mixtures of the default answer's four opinions."""
    learner, frozen = parts["l"] + parts["y"], parts["f"] + parts["k"]
    found = {f"lyfk/learner {share}": by_round(job, share * learner + (1 - share) * frozen) for share in SHARES}
    found["lyfk/probabilities"] = by_round(job, torch.stack([parts[letter] for letter in "lyfk"]).logsumexp(dim=0))
    mean = ((learner + frozen) / 4).log_softmax(dim=2)
    for counted in ("all", "sure", "exp"):
        for strength, window in BALANCES:
            name = f"lyfk/balanced {strength} {window}" + ("" if counted == "exp" else f" {counted}")
            found[name] = by_round(job, balance(mean, strength, window, counted))
    for strength in (0.5, 1.0):
        found[f"lyfk/balanced in the batch {strength}"] = by_round(job, balance_batch(mean, strength))
    return found


def report_views(job: LearnerJob, stored: dict[str, Tensor]) -> dict[str, list[float]]:
    """Errors of answers with the learner and the frozen network on the images, and each on another view of them."""
    ours = {view: job.results[view].log_softmax(dim=2) for view in job.choice.views}
    theirs = {view: _repeat(stored[view], job.rounds) for view in stored}
    plain = ours["none"] + theirs["none"]
    found = {}
    for first, second in itertools.product(ours, theirs):
        found[f"lf {first} {second}"] = by_round(job, plain + ours[first] + theirs[second])
    for view in ours:
        found[f"l {view}"] = by_round(job, ours[view])
        found[f"f {view}"] = by_round(job, theirs[view])
    return found


def _repeat(logits: Tensor, rounds: int) -> Tensor:
    return logits.log_softmax(dim=2).repeat(rounds, 1, 1)
