"""Figure 1 with real images: photographs of the bundled sample, and the views of them that AAG trains on."""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 72  # of a picture on the page, in CSS pixels


def view_table(images: int = 6) -> str:
    """A row for each image: itself, two basic views and the auxiliary one, as PNGs inside the page."""
    import torch

    from aag import data, methods
    from aag.augment import keys
    from aag.config import recipe_config

    sample = data.load("sample", split="test")
    assert sample.labels is not None
    # The first photograph of each class, so that what is shown was not picked for its looks.
    number = torch.stack([(sample.labels == label).nonzero()[0, 0] for label in range(images)])
    chosen = sample.images[number]
    families = methods.families(recipe_config("paper", "cifar10"))
    views = [family(chosen, key=keys(0, 0, number, v)) for v, family in enumerate(families)]
    heads = ("image", "basic view 1", "basic view 2", "auxiliary view (AutoAugment)")
    rows = []
    for place in range(images):
        name = sample.classes[int(sample.labels[number[place]])]
        cells = [
            f'<td><img src="{_png(view[place])}" width="{SIDE}" height="{SIDE}" alt="{escape(name)}, {head}"></td>'
            for head, view in zip(heads, (chosen, *views), strict=True)
        ]
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    caption = "Photographs of the bundled sample of CIFAR-10, and their views in the first epoch with seed 0."
    return scrolling("Images and their views", caption, f"<tr><td></td>{head}</tr>", rows, kind="views")


def scrolling(name: str, caption: str, head: str, rows: list[str], *, kind: str = "cells", wide: bool = True) -> str:
    """A table of HTML rows in a box of its own; one that is `wide` for a phone says there that it scrolls."""
    hint = ' <span class="hint">Scroll sideways for more.</span>' * wide
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<table class="{kind}"><caption><span>{caption}{hint}</span></caption>'
        f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _png(image: "Tensor") -> str:
    """uint8 [3, H, W] as a data URL."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
