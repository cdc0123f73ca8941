"""Which samples to learn from: a weight ≥ 0 per sample (pixel), never an index.

Weights keep every shape static. Combine selections with `&`: the weights multiply.
"""

from driftproof.selection.base import Product, SampleWeights, Selection
from driftproof.selection.certain_diverse import CertainAndDiverse
from driftproof.selection.confidence import ConfidenceAbove, ConfidenceDifference
from driftproof.selection.entropy import EntropyBelow, EntropyWeight
from driftproof.selection.entropy_filters import EntropyFilters
from driftproof.selection.known import Known
from driftproof.selection.label_drop import LabelProbabilityDrop
from driftproof.selection.padding import IgnorePadding
from driftproof.selection.redundancy import NonRedundant
from driftproof.selection.split import Split

__all__ = [
    "CertainAndDiverse",
    "ConfidenceAbove",
    "ConfidenceDifference",
    "EntropyBelow",
    "EntropyFilters",
    "EntropyWeight",
    "IgnorePadding",
    "Known",
    "LabelProbabilityDrop",
    "NonRedundant",
    "Product",
    "SampleWeights",
    "Selection",
    "Split",
]
