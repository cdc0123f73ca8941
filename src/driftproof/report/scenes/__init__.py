"""Driving scenes: images per frame, a contact sheet, an animation and an HTML page."""

from driftproof.report.scenes.colorize import colorize, default_palette
from driftproof.report.scenes.page import write_scenes
from driftproof.report.scenes.panels import count_pixels, make_panels

__all__ = ["colorize", "count_pixels", "default_palette", "make_panels", "write_scenes"]
