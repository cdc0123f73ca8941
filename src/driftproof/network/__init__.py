"""A private copy of the user's model, and everything that decides how it runs."""

from driftproof.network.batch_norm_hook import BatchNormHook, StatisticsRule
from driftproof.network.logits import LogitsAccessor, read_logits
from driftproof.network.network import Network
from driftproof.network.precision import Precision, tf32_mode

__all__ = ["BatchNormHook", "LogitsAccessor", "Network", "Precision", "StatisticsRule", "read_logits", "tf32_mode"]
