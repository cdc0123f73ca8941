"""Check a model, and the images it is to adapt to."""

from driftproof.problems.batches import MAX_IMAGES, check_batch
from driftproof.problems.check import check
from driftproof.problems.model import blocking_problems, copy_problem
from driftproof.problems.problem import Problem

__all__ = ["MAX_IMAGES", "Problem", "blocking_problems", "check", "check_batch", "copy_problem"]
