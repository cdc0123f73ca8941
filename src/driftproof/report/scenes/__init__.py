"""Driving scenes to look at: pictures, a contact sheet, an animation, and a page."""

from driftproof.report.scenes.colorize import default_palette
from driftproof.report.scenes.page import write_scenes

__all__ = ["default_palette", "write_scenes"]
