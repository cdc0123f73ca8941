"""The open-set leaderboard: its suites, and the page made from their results."""

from driftproof.leaderboard.suites import SUITES

__all__ = ["SUITES"]
