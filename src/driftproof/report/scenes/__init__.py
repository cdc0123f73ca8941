"""Driving scenes to look at: pictures, a contact sheet, an animation, and a page."""

from driftproof.report.scenes.page import write_scenes
from driftproof.report.scenes.paint import default_palette

__all__ = ["default_palette", "write_scenes"]
