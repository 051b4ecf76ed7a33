"""Figure 1 with real images: photographs of the bundled sample, and the views of them that AAG trains on."""

import io

import torch
from PIL import Image

from aag import data
from aag.pages import document as doc
from aag.rng import keys
from aag.training import recipe_settings

COLUMNS = ("image", "basic view 1", "basic view 2", "auxiliary view (AutoAugment)")


def make_view_table(images: int = 6) -> doc.Table:
    """Return a row for each image: itself, two basic views and the auxiliary one."""
    sample = data.load("sample", split="test")
    assert sample.labels is not None
    # The first photograph of each class: none was picked for its looks.
    index = torch.stack([(sample.labels == label).nonzero()[0, 0] for label in range(images)])
    chosen = sample.images[index]
    settings = recipe_settings("paper", "cifar10").resolve()
    augmentations = settings.method_type(settings.method_settings).augmentations()
    views = [augment(chosen, key=keys(0, 0, index, view)) for view, augment in enumerate(augmentations)]
    rows = []
    for position, label in enumerate(sample.labels[index].tolist()):
        name = sample.classes[label]
        pictures = zip(COLUMNS, (chosen, *views), strict=True)
        cells = [doc.Cell([[doc.Image(_png(view[position]), f"{name}, {column}")]]) for column, view in pictures]
        rows.append([doc.Cell([name]), *cells])
    caption = "Photographs of the bundled sample of CIFAR-10, and their views in the first epoch with seed 0."
    return doc.Table("Images and their views", ["", *COLUMNS], rows, caption, "views")


def _png(image: torch.Tensor) -> bytes:
    """Encode uint8 [3, H, W]."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG", optimize=True)
    return file.getvalue()
