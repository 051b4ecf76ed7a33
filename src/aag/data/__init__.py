"""Where images come from: the bundled sample, CIFAR-10/100, SVHN, a folder of pictures, an `.npz`.

    train, test = aag.data.load_pair("cifar10")          # test is None where the source has none
    photos = aag.data.load("~/Pictures", image_size=64)  # photos.skipped lists what could not be read

Everything ends in one type, `ImageSet`: uint8 images [N,3,H,W] and labels or none. Names load on first use, so
that `aag.data.known` (the listing the command line prints) does not pull in torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aag.data.fetching import fetch
    from aag.data.imageset import ImageSet
    from aag.data.known import catalogue, data_root, normalisation
    from aag.data.sources import load, load_pair

__all__ = ["ImageSet", "catalogue", "data_root", "fetch", "load", "load_pair", "normalisation"]

_HOME = {
    "ImageSet": "imageset",
    "catalogue": "known",
    "data_root": "known",
    "fetch": "fetching",
    "load": "sources",
    "load_pair": "sources",
    "normalisation": "known",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"aag.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'aag.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
