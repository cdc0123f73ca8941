"""Visualize driving scenes: images per frame, a contact sheet, an animation and an HTML page."""

from driftproof.report.scenes.colorize import default_palette
from driftproof.report.scenes.page import write_scenes

__all__ = ["default_palette", "write_scenes"]
