"""The open-set leaderboard: its suites, and the page made from their results."""

from driftproof.leaderboard.sentinel import SENTINEL_SUITES
from driftproof.leaderboard.suites import SUITES

__all__ = ["SENTINEL_SUITES", "SUITES"]
