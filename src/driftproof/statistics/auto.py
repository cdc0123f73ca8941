"""Statistics that choose their own share of the batch."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from driftproof.components import Step, flatten
from driftproof.distributed import Distributed
from driftproof.errors import ConfigurationError
from driftproof.network import Network
from driftproof.predictions import entropy, log_probabilities, mean_prediction, upcast
from driftproof.statistics.base import ProbedLogits
from driftproof.statistics.blend import BlendHook, InterpolatedStatistics

__all__ = ["Auto"]

_START, _RISE, _LOW = 0.05, 0.4, 0.15
_MOVED, _SETTLES, _FEW = 0.1, 0.03, 32
_ALIKE = 0.15
_ASKS = 0.25
_SHIFT = 0.03
_MEMORY, _VOUCHED_MEMORY = 5000.0, 1000.0
_JUMP, _JUMP_WITHIN, _HOLD = 0.06, 4.0, 10.0
_BALANCED, _ALLOWED = 0.03, 2.0
_VOUCH, _SURER = 0.05, 0.02
_CHANGED, _FOLLOWS, _BACKOFF, _LONGEST = 1.3, 0.3, 4.0, 256.0
_ENDS = 2  # batches before trust ends: what is asked for comes a batch later
_PIXELS = 32 * 32
_TINY = 1e-5


class Auto(InterpolatedStatistics):
    """A mixture of source, running and batch statistics for streams that nobody has looked at.

    Batch statistics assume many images and all classes in every batch. A batch of one or a folder read class by class
    breaks that assumption, and half of the predictions with it. Two rules guard against this:

    - Batches of fewer than `window` images enter running statistics that remember about `window` images, with the
      variance between batches. In a layer with more than 32 × 32 positions an image counts for more.
    - The share α of these statistics starts at 0.05 and rises by 0.4 with every balanced batch, up to a cap; the first
      batch is tried before it is answered. Balanced means that the entropy of the mean prediction is close to that of a
      stream half as the one so far, half uniform. The further it falls below, the further α falls, to zero: the
      statistics of training. When the mean prediction moves from batch to batch by more than chance explains, by 0.1 +
      √(C / πN) in total variation, α does not rise for a while either: one batch for every 0.03 beyond. That needs
      batches of 32. In smaller ones, α falls to zero while two images of a batch have the same class more often than
      two of the stream, by 0.15. Predictions are those of the frozen network where the method runs it. A mixture mixes
      classes up and hides that they were ordered, so the threshold is higher for a larger α: 0.985 − 0.285 exp(−α /
      0.12) of the expected entropy. If the surer half of the predictions becomes much less sure just after α has risen,
      by 0.06 ln C, α falls to zero for ten batches, the next time for twenty, and so on: more of the batch's statistics
      should have helped. Strong noise does the same to a weak network, but leaves its predictions balanced, so twice
      what the balance is above its threshold, at most 0.03, is added to the 0.06.

    A shift may drive the frozen network itself into few classes, which looks the same. So the guards' extra passes also
    try α = 1 and α = `share`. If the frozen network is hardly less sure with α = 1, by less than 0.05 ln C, and mean
    predictions have hardly moved from batch to batch, the mean prediction of that moment is taken as normal, and the
    next ones are compared with it instead of a uniform one.

    In batches of more than half a window, sureness decides more. Batches of one class make the frozen network less sure
    then, shifted ones surer. If it is surer in the surer half, by 0.02 ln C, α rises to its cap at once, and the cap to
    1 if α = 1 makes it surer than α = `share` by as much again. α does not fall for few classes then until there was
    another such pass: 4 batches later, then 16, and so on. If it is much less sure with the α at hand, as above, α
    falls to zero, and the batch is answered with training's statistics. As long as α is held back where the cap is 0.25
    of `share` or more, such passes are asked for: with the batch after the shift of the first layer has changed by more
    than 1.3 times, then after 4 batches more, after 16 more, and so on.

    The cap is `share` times r min(1, 2 r) with r = d² / (d² + 0.03²), where d is how far the stream is from training:
    the divergence KL(stream ‖ training) of normal distributions per channel, averaged over channels, then over layers,
    in the frozen network where the method runs it. Statistics that have hardly moved are better left alone. A larger α
    makes d smaller, so the cap moves half of the way with each batch; else both would swing.

    Nothing is learned while α is below half of its cap: steps on batches of one class forget the others. Nothing is
    learned either while the cap is below `least_cap` of `share`, since where little has shifted learning can only do
    harm, nor while one extra pass alone speaks for the stream's statistics. Meanwhile the frozen network answers, if
    the method runs it: what was learned with one share predicts badly with another. The weight of the mean-entropy term
    follows α too, and falls with the number of images below `window`.

    Label maps hold many samples each, and the classes in view change from scene to scene, so α is always at its cap
    there.

    Open choices taken: share, window and threshold come from two networks (WRN-40-2 with AugMix and a small ResNet) on
    clean CIFAR-10 images and the four held-out corruptions, shuffled and sorted by class.

    Args:
        share: The largest α in a stream far from training, in [0, 1].
        window: How many images make good statistics.
        least_cap: Learn nothing while the cap is below this part of `share`, in [0, 1].

    Attributes:
        alpha: α, as a tensor of one element.
        cap: The largest α for now, likewise.
        vouched: Whether the last extra pass spoke for the stream's statistics, likewise.
        moved: How much more the mean prediction moves from batch to batch than chance explains, or two images of a
            small batch are alike, likewise.
        pace: The usual shift of the first layer, the batches since the last extra pass, how many to wait for the next,
            how many are left in which α does not fall for few classes, how many there were, and whether the cap is 1
            in them, (6,).
        asked: Whether this batch asks for an extra pass, and whether the one before did, (2,).
    """

    alpha: Tensor
    cap: Tensor
    vouched: Tensor
    doubts: Tensor
    moved: Tensor
    pace: Tensor
    asked: Tensor
    recent: Tensor | None
    overall: Tensor | None

    pools_variance = True
    probes = True

    def __init__(self, share: float = 0.6, window: int = 128, least_cap: float = 0.5) -> None:
        super().__init__(momentum=1.0, start="source")
        if not 0.0 <= share <= 1.0:
            raise ConfigurationError(f"Expected `share` to be in 0..1, but got {share}.")
        if window < 1:
            raise ConfigurationError(f"Expected `window` to be at least 1, but got {window}.")
        if not 0.0 <= least_cap <= 1.0:
            raise ConfigurationError(f"Expected `least_cap` to be in 0..1, but got {least_cap}.")
        self.share = share
        self.window = window
        self.least_cap = least_cap
        self._weights: tuple[tuple[int, ...], Tensor] | None = None  # of channels in the shift, by sizes of layers
        self.register_buffer("alpha", torch.full((1,), min(_START, share)))
        self.register_buffer("cap", torch.full((1,), share))
        self.register_buffer("vouched", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("doubts", torch.zeros(6))
        self.register_buffer("moved", torch.zeros(1))
        self.register_buffer("pace", torch.zeros(6))
        self.register_buffer("asked", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("recent", None)
        self.register_buffer("overall", None)

    def reset_state(self, network: Network, parameters: tuple[nn.Parameter, ...]) -> None:
        """Start with a small share and a uniform stream."""
        self.alpha = torch.full_like(self.alpha, min(_START, self.share))
        self.cap = torch.full_like(self.cap, self.share)
        self.vouched = torch.zeros_like(self.vouched)
        self.doubts = torch.zeros_like(self.doubts)
        self.moved = torch.zeros_like(self.moved)
        self.pace, self.asked = torch.zeros_like(self.pace), torch.zeros_like(self.asked)
        self.recent = self.overall = None

    @property
    def wants_trial(self) -> bool:  # type: ignore[override]  # a class attribute for other rules
        """Whether no batch has been seen."""
        return self.recent is None

    def alpha_for(self, index: int) -> Tensor:
        """The same for all layers."""
        return self.alpha

    def momentum_for(self, x: Tensor, distributed: Distributed) -> float:
        """The number of images over `window`, at most 1."""
        positions = math.prod(x.shape[2:])
        return min(1.0, _count_images(x, distributed) * max(1.0, positions / _PIXELS) / self.window)

    def trust(self, step: Step) -> Tensor | float:
        """α relative to its cap, and less for fewer than `window` images."""
        images = _count_images(step.images, step.distributed)
        size = min(1.0, (images - 1) / max(1, self.window - 1))
        return size * (self.alpha[0] / self.cap[0].clamp(min=_TINY))

    def find_holds(self) -> Tensor:
        """Whether the stream is close to training, α is below half of its cap, and a single pass alone speaks for it.

        Where the stream is close to training, the others say nothing.
        """
        unshifted = self.cap[0] < self.least_cap * self.share
        unbalanced = (self.alpha[0] < 0.5 * self.cap[0]) & ~unshifted
        unconfirmed = (self.pace[3] > 0) & (self.pace[4] <= _BACKOFF) & ~unshifted
        return torch.stack([unshifted, unbalanced, unconfirmed])

    @property
    def probed_shares(self) -> tuple[float, ...]:  # type: ignore[override]  # a class attribute for other rules
        """The stream's statistics alone, and as much of them as is usual."""
        return 1.0, self.share

    @contextmanager
    def probing(self, share: float) -> Iterator[None]:
        """Pass with another α."""
        alpha = self.alpha
        self.alpha = torch.full_like(alpha, share)
        try:
            yield
        finally:
            self.alpha = alpha

    def judge_probe(self, logits: ProbedLogits, distributed: Distributed) -> Tensor:
        """Compare how sure the frozen network is, and answer the batch as α is now chosen."""
        alone, shared = logits.probed
        largest = math.log(max(2, alone.shape[1]))
        trained, with_1 = (_entropy_of_surest(each, distributed) / largest for each in (logits.trained, alone))
        is_full = self.doubts[-1] >= 2  # until then running statistics are mostly those of training
        vouches = is_full & (with_1 - trained < _VOUCH) & (self.moved[0] <= 0)
        if alone.ndim > 2 or not self._is_large(len(alone), distributed):
            self._vouch(vouches)
            return logits.answered
        with_share = _entropy_of_surest(shared, distributed) / largest
        is_surer = trained - torch.minimum(with_1, with_share) > _SURER
        falls = torch.zeros_like(is_surer)
        if logits.same is not None:
            mean = mean_prediction(upcast(logits.same).softmax(dim=1), distributed)
            limit = _limit_jump(self._measure_margin(mean, _count_images(alone, distributed)))
            falls = (_entropy_of_surest(logits.same, distributed) / largest - trained > limit) & ~is_surer
        _, _, wait, left, trusted, was_lifted = self.pace.unbind()
        lifts = with_share - with_1 > _SURER
        cap = torch.where(lifts, 1.0, torch.where(was_lifted > 0, self.share, self.cap[0]))
        rises = is_surer & ((self.alpha[0] < 0.5 * cap) | (cap > self.cap[0]))
        self._vouch((vouches | is_surer) & ~falls)
        self.cap.copy_(torch.where(is_surer, cap, self.cap))
        self.alpha.copy_(torch.where(rises, cap, torch.where(falls, 0.0, self.alpha)))
        self.moved.copy_(torch.where(rises, 0.0, self.moved))
        jumps = self.doubts[4] + falls
        hold = torch.where(rises, 0.0, torch.where(falls, _HOLD * jumps, self.doubts[3]))
        self.doubts[3:5].copy_(torch.stack([hold, jumps]))
        wait = torch.where(self.vouched[0], 1.0, (_BACKOFF * wait).clamp(max=_LONGEST))
        longer = torch.where(left <= _ENDS, (_BACKOFF * trusted).clamp(max=_LONGEST), trusted)
        trusted = torch.where(is_surer, torch.where(left > 0, longer, _BACKOFF), 0.0)
        pace = [torch.zeros_like(wait), wait, trusted + _ENDS * (trusted > 0), trusted, lifts.to(wait.dtype)]
        self.pace[1:].copy_(torch.stack(pace))
        instead = torch.where(rises, torch.where(lifts, alone, shared), logits.trained)
        return torch.where(rises | (self.alpha[0] == 0), instead, logits.answered)

    def _vouch(self, vouches: Tensor) -> None:
        """Take the mean prediction of the moment as normal if the extra passes newly speak for it."""
        if self.recent is not None and self.overall is not None:
            self.overall.copy_(torch.where(vouches & ~self.vouched, self.recent, self.overall))
        self.vouched.copy_(vouches.reshape(1))

    def on_batch(self, step: Step) -> None:
        """Compare the batch's mean prediction with the stream's, and choose the next α."""
        frozen = step.source if step.used_source else step.network  # learning moves statistics too
        shift = self._measure_shift(frozen)
        distant = shift**2 / (shift**2 + _SHIFT**2)
        cap = torch.full_like(self.cap, self.share) * distant * (2 * distant).clamp(max=1.0)
        self.cap = cap if self.recent is None else 0.5 * (self.cap.clamp(max=self.share) + cap)
        is_large = self._is_large(len(step.images), step.distributed)
        if is_large:
            is_lifted = (self.pace[3] > 0) & (self.pace[5] > 0)
            self.cap = torch.where(is_lifted, 1.0, self.cap)
        logits = upcast(step.source_logits if step.used_source else step.logits.detach())
        if logits.ndim > 2:
            self.alpha = self.cap
            self.recent = logits.new_zeros(logits.shape[1])  # not compared, but a batch has been seen
            return
        count, largest = _count_images(logits, step.distributed), math.log(logits.shape[1])
        size = min(1.0, count / self.window)
        margin = self._measure_balance(logits.softmax(dim=1), count, step.distributed)
        change = size * _RISE * torch.where(margin > 0, margin / 0.07, margin / 0.01).clamp(-4.0, 1.0)
        change = torch.where(self.moved > 0, change.clamp(max=0.0 if count >= _FEW else -4.0 * size * _RISE), change)
        if is_large:
            change = torch.where(self.pace[3] > 0, change.clamp(min=0.0), change)
        alpha = torch.minimum((self.alpha + change).clamp(min=0.0), self.cap).to(self.alpha.dtype)
        doubts = self._doubt(_entropy_of_surest(logits, step.distributed), _limit_jump(margin) * largest, size)
        self.alpha = torch.where(doubts, 0.0, alpha)
        self.vouched = self.vouched & ~doubts
        if is_large:
            self._ask(self._measure_first_shift(frozen), doubts)
        else:
            self.asked = torch.zeros_like(self.asked)

    def _is_large(self, images: int, distributed: Distributed) -> bool:
        """Whether most of the statistics are the batch's own; those of fewer images are too coarse to be probed."""
        return 2 * (distributed.global_count(images) // distributed.copies) > self.window

    def _ask(self, shift: Tensor, doubts: Tensor) -> None:
        """Ask for an extra pass while α is held back in a shifted stream, the less often the more were in vain."""
        usual, since, wait, left, trusted, lifted = self.pace.unbind()
        changed = (shift > _CHANGED * usual) | (_CHANGED * shift < usual)
        usual = torch.where(changed, shift, torch.lerp(usual, shift, _FOLLOWS))
        wait = torch.where(changed & ~doubts, 1.0, wait)
        left = torch.where(doubts, 0.0, torch.where(changed, left.clamp(max=_ENDS + 1), left) - 1).clamp(min=0.0)
        self.pace = torch.stack([usual, since + 1, wait, left, trusted, lifted])
        is_held = (self.alpha[0] < 0.5 * self.cap[0]) & (self.cap[0] >= _ASKS * self.share)
        ends = (left > 0) & (left <= _ENDS)
        self.asked = torch.stack([(is_held & (since + 1 >= wait)) | ends, self.asked[0]])

    def _measure_balance(self, p: Tensor, count: int, distributed: Distributed) -> Tensor:
        """How far the entropy of the recent mean prediction is above what α asks for, relative to what is expected."""
        now = mean_prediction(p, distributed)
        uniform = torch.full_like(now, 1.0 / len(now))
        memory = torch.where(self.vouched, _VOUCHED_MEMORY, _MEMORY)
        overall = uniform if self.overall is None else self.overall
        self.overall = torch.lerp(overall, now, (count / (count + memory)).to(now.dtype))
        recent, size = now if self.recent is None else self.recent, min(1.0, count / self.window)
        if count >= _FEW:  # the mean prediction of fewer images moves anyway
            moved = 0.5 * (now - recent).abs().sum() - _MOVED - math.sqrt(len(now) / (math.pi * count))
            moved = torch.maximum(moved, self.moved - _SETTLES)
            self.moved = torch.where(self.doubts[-1] < 2 * size, 0.0, moved)  # the first batch comes twice
        self.recent = torch.lerp(recent, now, size)
        if 1 < count < _FEW:
            (same,) = distributed.sum(p.square().sum())
            alike = (count**2 * now.square().sum() - same / distributed.copies) / (count * (count - 1))
            excess = alike - self.recent.square().sum() - _ALIKE
            self.moved = torch.lerp(self.moved, excess.to(self.moved.dtype), size)
        return self._measure_margin(self.recent, count)

    def _measure_margin(self, mean: Tensor, count: int) -> Tensor:
        """How far the entropy of a mean prediction is above what α asks for, relative to what is expected."""
        assert self.overall is not None  # a batch has been seen
        uniform = torch.full_like(mean, 1.0 / len(mean))
        usual = _entropy(torch.where(self.vouched, self.overall, 0.5 * self.overall + 0.5 * uniform))
        # A few samples of many classes have less entropy than the classes have.
        expected = usual - torch.log1p((usual.exp() - 1) / (2 * max(count, self.window)))
        threshold = 0.985 - 0.285 * torch.exp(-self.alpha / 0.12)
        return _entropy(mean) / expected.clamp(min=1e-3) - threshold

    def _measure_shift(self, network: Network) -> Tensor:
        """How far the statistics of the current pass are from those of training."""
        hooks = _find_hooks(network)
        if not hooks:  # no batch norm: α changes no statistics, but still tells whether batches are fit to learn from
            return torch.ones_like(self.cap)
        mean, variance, source_mean, source_variance = _flatten_statistics(hooks)
        divergence = _divergence(mean, variance, source_mean, source_variance)
        return (self._weigh_channels(hooks) * divergence).sum().to(self.cap.dtype).reshape(1)

    def _measure_first_shift(self, network: Network) -> Tensor:
        """The same for the first layer, which does not depend on α."""
        hooks = _find_hooks(network)[:1]
        if not hooks:
            return torch.ones_like(self.cap[0])
        return _divergence(*_flatten_statistics(hooks)).mean().to(self.cap.dtype)

    def _weigh_channels(self, hooks: list[BlendHook]) -> Tensor:
        """The weight of each channel in a mean over channels, then layers."""
        sizes = tuple(len(hook.seen[0]) for hook in hooks if hook.seen is not None)
        if self._weights is None or self._weights[0] != sizes or self._weights[1].device != self.cap.device:
            per_channel = [torch.full((size,), 1.0 / (size * len(sizes)), device=self.cap.device) for size in sizes]
            self._weights = (sizes, torch.cat(per_channel))
        return self._weights[1]

    def _doubt(self, entropies: Tensor, limit: Tensor, size: float) -> Tensor:
        """Whether the entropy of the surest predictions jumped after α had risen, now or in the last batches.

        `doubts` holds its moving mean, the one at the last low α, the batches since then, how many batches to
        hold α at zero, how often it jumped, and the batches so far; a batch of fewer than `window` images counts as a
        part of one.
        """
        average, level, since, hold, jumps, number = self.doubts.unbind()
        average = torch.where(average > 0, torch.lerp(average, entropies.to(average.dtype), size), entropies)
        is_low = self.alpha[0] < _LOW
        level, since = torch.where(is_low, average, level), torch.where(is_low, 0.0, since + size)
        jumped = ~is_low & (since <= _JUMP_WITHIN) & (average - level > limit)
        jumps = jumps + jumped
        hold = torch.where(jumped, _HOLD * jumps, (hold - size).clamp(min=0.0))
        self.doubts = torch.stack([average, level, since, hold, jumps, number + size])
        return hold > 0


def _entropy_of_surest(logits: Tensor, distributed: Distributed) -> Tensor:
    """The mean entropy of the surer half of all ranks' samples.

    What a network does not know, no statistics make it sure of.
    """
    values = distributed.gather_rows(entropy(log_probabilities(logits))).flatten()
    return values.sort().values[: (len(values) + 1) // 2].mean()


def _limit_jump(margin: Tensor) -> Tensor:
    """How much less sure the stream's statistics may make predictions; more where these are balanced all the same."""
    return _JUMP + _ALLOWED * margin[0].clamp(0.0, _BALANCED)


def _count_images(rows: Tensor, distributed: Distributed) -> int:
    return distributed.global_count(len(rows)) // distributed.copies


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum()


def _find_hooks(network: Network) -> list[BlendHook]:
    """Of the layers that the current pass has reached."""
    return [hook for hook in network.hooks if isinstance(hook, BlendHook) and hook.seen is not None]


def _flatten_statistics(hooks: list[BlendHook]) -> list[Tensor]:
    """Mean and variance of the current pass, then of training; each is one vector of all layers' channels."""
    columns = zip(*[(*hook.seen, *hook.source_statistics) for hook in hooks if hook.seen is not None], strict=True)
    return [flatten(column) for column in columns]


def _divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """KL of two normal distributions, for each channel."""
    scale = other_variance.clamp(min=_TINY)
    ratio = variance.clamp(min=_TINY) / scale
    return 0.5 * (ratio + (mean - other_mean) ** 2 / scale - 1 - ratio.log())
