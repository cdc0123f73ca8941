"""TTAug: average over views of every image, move no parameter."""

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from driftproof.adapter import Adapter, AdapterOptions
from driftproof.augment import Augment, crop_and_flip
from driftproof.outputs import AveragedViews
from driftproof.scopes import nothing
from driftproof.statistics import Source, Statistics
from driftproof.validation import check_keywords

__all__ = ["ttaug"]


@check_keywords
def ttaug(
    model: nn.Module,
    *,
    views: int = 32,
    augment: Augment = crop_and_flip,
    statistics: Statistics | Literal["auto"] | None = None,
    **options: Unpack[AdapterOptions],
) -> Adapter:
    """Test-time augmentation: the mean of the logits over random views; works on single images.

    Nothing learns and nothing is remembered. Each view costs a pass.

    Open choices taken: the views are random crops and mirror images (MEMO's begin with these; its color and shape
    mixtures are left out), and the image itself is not one of them.

    Args:
        model: The trained model.
        views: How many views of an image.
        augment: How each is made.
        statistics: What batch norm uses; None is the statistics of training.
        **options: Keywords of `Adapter`.

    Examples:
        >>> import driftproof as dp
        >>> from torch import nn, rand
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
        >>> dp.ttaug(model, views=4)(rand(1, 3, 4, 4)).shape
        torch.Size([1, 5])

    Reference:
        Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", NeurIPS 2012.
    """
    chosen: AdapterOptions = {"output": AveragedViews(views, augment), **options}
    return Adapter(model, scope=nothing(), statistics=statistics or Source(), **chosen)
