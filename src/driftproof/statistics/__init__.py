"""What normalisation layers use: the statistics of their training, of the batch, or a blend of both.

These rules apply to batch norm alone; group, layer and instance norm compute theirs from each image and have nothing to
choose. None of them looks at `.training`. A layer that sees fewer than two values per channel (one image, one position)
has no variance to speak of and uses the statistics of its training for that batch, under every rule.
"""

from driftproof.statistics.base import Statistics
from driftproof.statistics.batch import Batch
from driftproof.statistics.blend import Blend
from driftproof.statistics.source import Source
from driftproof.statistics.ttn import TTN

__all__ = ["TTN", "Batch", "Blend", "Source", "Statistics"]
