"""Load images: the bundled sample, CIFAR-10/100, SVHN, a folder of image files, an `.npz`, tensors or arrays.

    train, test = aag.data.load_pair("cifar10")          # test is None if the source has none
    photos = aag.data.load("~/Pictures", image_size=64)  # photos.skipped lists the files that could not be read

Every source becomes an `ImageSet`: uint8 images [N, C, H, W], with or without labels. What needs torch or NumPy
is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aag.data.datasets import DATASETS, Dataset, data_root, list_datasets, normalisation

if TYPE_CHECKING:
    from aag.data.cache import fetch
    from aag.data.imageset import ImageSet
    from aag.data.listing import Survey, survey
    from aag.data.loading import as_image_sets, load, load_pair

__all__ = [
    "DATASETS", "Dataset", "ImageSet", "Survey", "as_image_sets", "data_root", "fetch", "list_datasets", "load",
    "load_pair", "normalisation", "survey",
]  # fmt: skip

_LAZY = {
    "ImageSet": "imageset", "fetch": "cache", "Survey": "listing", "survey": "listing", "as_image_sets": "loading",
    "load": "loading", "load_pair": "loading",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"aag.data.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'aag.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
