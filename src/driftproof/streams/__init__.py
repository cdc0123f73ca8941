"""What a deployed model meets, batch by batch: domain after domain, round after round, the unknown among the known.

A stream is iterated again and again with the same result, and resumed anywhere without reading what comes before.
"""

from driftproof.streams.batch import Batch, Images, Part, Plan, Stream
from driftproof.streams.continual import Continual
from driftproof.streams.domains import Domain
from driftproof.streams.open_set import OpenSet
from driftproof.streams.order import LabelShifted, Order, Shuffled, Stored
from driftproof.streams.prefetch import Prefetched
from driftproof.streams.scenes import SceneDomain, scene_domain

__all__ = [
    "Batch",
    "Continual",
    "Domain",
    "Images",
    "LabelShifted",
    "OpenSet",
    "Order",
    "Part",
    "Plan",
    "Prefetched",
    "SceneDomain",
    "Shuffled",
    "Stored",
    "Stream",
    "scene_domain",
]
