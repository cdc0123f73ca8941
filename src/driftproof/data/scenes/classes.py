"""Classes of driving scenes, and the labels `UNKNOWN` and `VOID`."""

from dataclasses import dataclass

__all__ = ["CITYSCAPES", "UNKNOWN", "VOID", "Color", "SceneClass"]

UNKNOWN = 254
"""Label of pixels whose class is not among the trained ones."""

VOID = 255
"""Label of pixels to ignore: unlabeled, padding, ego vehicle, outside the region of interest."""

Color = tuple[int, int, int]


@dataclass(frozen=True)
class SceneClass:
    """A class of pixels.

    Attributes:
        name: Name of the class.
        color: Color of the class in its data set, as RGB in 0..255.
    """

    name: str
    color: Color


CITYSCAPES = (
    SceneClass("road", (128, 64, 128)),
    SceneClass("sidewalk", (244, 35, 232)),
    SceneClass("building", (70, 70, 70)),
    SceneClass("wall", (102, 102, 156)),
    SceneClass("fence", (190, 153, 153)),
    SceneClass("pole", (153, 153, 153)),
    SceneClass("traffic light", (250, 170, 30)),
    SceneClass("traffic sign", (220, 220, 0)),
    SceneClass("vegetation", (107, 142, 35)),
    SceneClass("terrain", (152, 251, 152)),
    SceneClass("sky", (70, 130, 180)),
    SceneClass("person", (220, 20, 60)),
    SceneClass("rider", (255, 0, 0)),
    SceneClass("car", (0, 0, 142)),
    SceneClass("truck", (0, 0, 70)),
    SceneClass("bus", (0, 60, 100)),
    SceneClass("train", (0, 80, 100)),
    SceneClass("motorcycle", (0, 0, 230)),
    SceneClass("bicycle", (119, 11, 32)),
)
"""The nineteen train classes of Cityscapes, to which all sets but CamVid are mapped."""
