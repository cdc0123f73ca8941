"""The published methods, each a function that makes an `Adapter` with the method's choices.

All are called as `method(model, *, …) -> Adapter`; the defaults are the settings of the paper this library implements
(batch 200, CIFAR-size images). Those that train parameters share these keywords:

- `lr`, the learning rate;
- `select`, the samples to learn from: `ConfidenceDifference()` is the paper's addition to every method;
- `statistics`, what batch norm uses (None: the batch's own statistics);
- `mean_entropy`, λ_max (None: 0.5 with `ConfidenceDifference`, the method's own otherwise);
- `scope`, what trains (None: the method's own);
- `optimizer`, called as `optimizer(parameters, lr=lr)`, or without `lr` if it has a learning rate of its own (Adam
  unless told otherwise);
- and the other keywords of `Adapter`.

`adapt` is the cautious choice for a stream that nobody has looked at.
"""

from driftproof.methods.adapt import adapt
from driftproof.methods.asr import asr
from driftproof.methods.bn_adapt import bn_adapt
from driftproof.methods.cmf import cmf
from driftproof.methods.come import come
from driftproof.methods.conjugate import conjugate
from driftproof.methods.cotta import cotta
from driftproof.methods.deyo import deyo
from driftproof.methods.eata import eata
from driftproof.methods.ent import ent
from driftproof.methods.gce import gce
from driftproof.methods.lame import lame
from driftproof.methods.memo import memo
from driftproof.methods.norm_ema import norm_ema
from driftproof.methods.paf_kip import paf_kip
from driftproof.methods.rdumb import rdumb
from driftproof.methods.roid import roid
from driftproof.methods.rotta import rotta
from driftproof.methods.sar import sar
from driftproof.methods.sentinel import sentinel
from driftproof.methods.sotta import sotta
from driftproof.methods.source import source
from driftproof.methods.stamp import stamp
from driftproof.methods.swr import swr
from driftproof.methods.t3a import t3a
from driftproof.methods.tent import tent
from driftproof.methods.ttaug import ttaug
from driftproof.methods.ttn import ttn

__all__ = [
    "adapt",
    "asr",
    "bn_adapt",
    "cmf",
    "come",
    "conjugate",
    "cotta",
    "deyo",
    "eata",
    "ent",
    "gce",
    "lame",
    "memo",
    "norm_ema",
    "paf_kip",
    "rdumb",
    "roid",
    "rotta",
    "sar",
    "sentinel",
    "sotta",
    "source",
    "stamp",
    "swr",
    "t3a",
    "tent",
    "ttaug",
    "ttn",
]
