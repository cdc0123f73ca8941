"""What is learned from: the batch itself, or a memory of past images with fixed capacity."""

from driftproof.memories.base import Memory
from driftproof.memories.cstu import CSTU
from driftproof.memories.hus import HUS
from driftproof.memories.image_bank import Candidates, ImageBank
from driftproof.memories.latest_images import LatestImages
from driftproof.memories.rbm import RBM

__all__ = ["CSTU", "HUS", "RBM", "Candidates", "ImageBank", "LatestImages", "Memory"]
