"""The published methods, each a function that fills in the sentence.

All are called as `method(model, *, …) -> Adapter`; the defaults are the settings of the paper this library implements
(batch 200, CIFAR-size images). What they have in common:

- `lr` is the learning rate, `optimiser` is called as `optimiser(parameters, lr=lr)`;
- `select` picks the samples to learn from, `ConfidenceDifference()` being the paper's addition to every method;
- `statistics` is what batch norm uses (None: the method's own), `scope` what moves (None: the method's own);
- `mean_entropy` is λ_max (None: 0.5 with `ConfidenceDifference`, the method's own otherwise);
- further keywords are those of `Adapter`.
"""

from driftproof.methods.bn_adapt import bn_adapt
from driftproof.methods.conjugate import conjugate
from driftproof.methods.cotta import cotta
from driftproof.methods.eata import eata
from driftproof.methods.ent import ent
from driftproof.methods.gce import gce
from driftproof.methods.source import source
from driftproof.methods.swr import swr
from driftproof.methods.tent import tent
from driftproof.methods.ttn import ttn

__all__ = ["bn_adapt", "conjugate", "cotta", "eata", "ent", "gce", "source", "swr", "tent", "ttn"]
