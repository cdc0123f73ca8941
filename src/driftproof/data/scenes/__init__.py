"""Readers for driving scenes in their official formats, with a label for every pixel.

Every reader is called as `reader(root, …) -> Scenes`, where `root` is the folder the archives were unpacked in. All but
CamVid are mapped to the nineteen classes of Cityscapes; pixels of other classes are `UNKNOWN`. Frames are sorted by
name.
"""

from driftproof.data.scenes.bdd100k import bdd100k
from driftproof.data.scenes.camvid import CAMVID, HELD_OUT_CLASSES, camvid, camvid_classes
from driftproof.data.scenes.cityscapes import cityscapes
from driftproof.data.scenes.classes import CITYSCAPES, UNKNOWN, VOID, SceneClass
from driftproof.data.scenes.frames import frames
from driftproof.data.scenes.gtav import gtav
from driftproof.data.scenes.mapillary import mapillary
from driftproof.data.scenes.scene_images import SceneImages
from driftproof.data.scenes.scenes import Scene, Scenes
from driftproof.data.scenes.sizes import FitHeight
from driftproof.data.scenes.source_scenes import SourceScenes
from driftproof.data.scenes.synthia import synthia

__all__ = [
    "CAMVID",
    "CITYSCAPES",
    "HELD_OUT_CLASSES",
    "UNKNOWN",
    "VOID",
    "FitHeight",
    "Scene",
    "SceneClass",
    "SceneImages",
    "Scenes",
    "SourceScenes",
    "bdd100k",
    "camvid",
    "camvid_classes",
    "cityscapes",
    "frames",
    "gtav",
    "mapillary",
    "synthia",
]
