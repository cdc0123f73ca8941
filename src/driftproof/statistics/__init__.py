"""Which statistics normalization layers use: those of training, of the batch, or a mixture.

These rules apply to batch norm alone; group, layer and instance norm compute theirs from each image, or stay with those
of their training where an instance norm has kept them. None of the rules looks at `.training`. A layer that sees fewer
than two values per channel (one image, one position) has no variance to speak of and uses the statistics of its
training for that batch, under every rule.
"""

from driftproof.statistics.auto import Auto
from driftproof.statistics.base import Statistics
from driftproof.statistics.batch import Batch
from driftproof.statistics.blend import Blend
from driftproof.statistics.running import Running
from driftproof.statistics.source import Source
from driftproof.statistics.ttn import TTN
from driftproof.statistics.windowed_blend import WindowedBlend

__all__ = ["TTN", "Auto", "Batch", "Blend", "Running", "Source", "Statistics", "WindowedBlend"]
