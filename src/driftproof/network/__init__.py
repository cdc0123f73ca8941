"""A private copy of the user's model, and all that decides how it runs."""

from driftproof.network.logits import LogitsAccessor, read_logits
from driftproof.network.network import Network
from driftproof.network.precision import Precision, rounding
from driftproof.network.rules import LayerRule, NormalisationRule

__all__ = ["LayerRule", "LogitsAccessor", "Network", "NormalisationRule", "Precision", "read_logits", "rounding"]
