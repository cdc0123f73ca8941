"""Streams of batches: domains in order, repeated in rounds, with or without unknown images.

A stream gives the same batches every time it is iterated. It can start at any batch without reading the ones before.
"""

from driftproof.streams.batch import BatchPlan, BatchSlice, Images, Stream, StreamBatch
from driftproof.streams.continual import Continual
from driftproof.streams.domains import Domain
from driftproof.streams.open_set import OpenSet
from driftproof.streams.order import LabelShifted, Order, Shuffled, Stored
from driftproof.streams.prefetch import Prefetcher
from driftproof.streams.scenes import SceneDomain, make_scene_domain

__all__ = [
    "BatchPlan",
    "BatchSlice",
    "Continual",
    "Domain",
    "Images",
    "LabelShifted",
    "OpenSet",
    "Order",
    "Prefetcher",
    "SceneDomain",
    "Shuffled",
    "Stored",
    "Stream",
    "StreamBatch",
    "make_scene_domain",
]
