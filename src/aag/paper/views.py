"""Figure 1 with real images: photographs of the bundled sample, and the views of them that AAG trains on."""

import numpy as np
import torch

from aag import data
from aag.pages.plots import ImageChart
from aag.rng import keys
from aag.training import recipe_settings


def draw_views(images: int = 6) -> ImageChart:
    """Return a row for each image: itself, two basic views and the auxiliary one."""
    sample = data.load("sample", split="test")
    assert sample.labels is not None
    # The first photograph of each class: none was picked for its looks.
    index = torch.stack([(sample.labels == label).nonzero()[0, 0] for label in range(images)])
    chosen = sample.images[index]
    settings = recipe_settings("paper", "cifar10").resolve()
    augmentations = settings.method_type(settings.method_settings).augmentations()
    views = [augment(chosen, key=keys(0, 0, index, view)) for view, augment in enumerate(augmentations)]
    columns = ("image", "basic view 1", "basic view 2", "auxiliary view (AutoAugment)")
    names = tuple(sample.classes[int(sample.labels[place])] for place in index)
    grid: np.ndarray = torch.stack([chosen, *views], 1).permute(0, 1, 3, 4, 2).numpy()
    return ImageChart("Images and their views", names, columns, grid)
