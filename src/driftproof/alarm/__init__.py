"""Detect novel samples and image regions by thresholding novelty scores."""

from driftproof.alarm.alarm import Alarm, Event
from driftproof.alarm.known_quantile import KnownQuantile

__all__ = ["Alarm", "Event", "KnownQuantile"]
