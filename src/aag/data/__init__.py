"""Load images: the bundled sample, CIFAR-10/100, SVHN, a folder of image files, shards, an `.npz`, tensors or arrays.

    train, test = aag.data.load_pair("cifar10")          # test is None if the source has none
    photos = aag.data.load("~/Pictures", image_size=64)  # photos.skipped lists the files that could not be read

Every source becomes an `ImageSet`: uint8 images [N, C, H, W], with or without labels. Modules that need torch or NumPy
are imported on first use.
"""

from typing import TYPE_CHECKING

from aag.data.datasets import DATASETS, Dataset, data_root, list_datasets, normalisation
from aag.lazy import lazy_names

if TYPE_CHECKING:
    from aag.data.cache import fetch
    from aag.data.imageset import ImageSet
    from aag.data.loading import TrainTestSets, as_image_sets, load, load_pair
    from aag.data.surveys import Survey, survey

__all__ = [
    "DATASETS", "Dataset", "ImageSet", "Survey", "TrainTestSets", "as_image_sets", "data_root", "fetch",
    "list_datasets", "load", "load_pair", "normalisation", "survey",
]  # fmt: skip

_NAMES = {
    "ImageSet": "imageset", "fetch": "cache", "Survey": "surveys", "survey": "surveys", "as_image_sets": "loading",
    "load": "loading", "load_pair": "loading", "TrainTestSets": "loading",
}  # fmt: skip

__getattr__ = lazy_names("aag.data", _NAMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
