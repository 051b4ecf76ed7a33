"""The sets known by name: what they hold, where they come from, where they lie now. No torch, no numpy here."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aag.errors import AAGError, unknown

Triple = tuple[float, float, float]

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
    """One file as its authors publish it."""

    file: str
    base_url: str
    md5: str


@dataclass(frozen=True)
class Known:
    """A set known by name. `folder` is what its archive unpacks to, where it is an archive of several files."""

    name: str
    description: str
    train: int
    test: int
    classes: tuple[str, ...]
    mean: Triple
    std: Triple
    archives: tuple[Archive, ...] = ()
    folder: str | None = None
    size: int = 32


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_STANFORD = "http://ufldl.stanford.edu/housenumbers/"
# The channel statistics that the paper's line of code uses. Their deviations are the mean of each image's own, and so
# smaller than the per-pixel ones that ImageSet.statistics() works out.
_CIFAR10_MEAN, _CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

KNOWN: dict[str, Known] = {
    entry.name: entry
    for entry in (
        Known(
            name="sample",
            description="4,000 photographs of CIFAR-10, inside the package",
            train=3_000,
            test=1_000,
            classes=CIFAR10_CLASSES,
            mean=_CIFAR10_MEAN,
            std=_CIFAR10_STD,
        ),
        Known(
            name="cifar10",
            description="small photographs of 10 kinds of animals and vehicles",
            train=50_000,
            test=10_000,
            classes=CIFAR10_CLASSES,
            mean=_CIFAR10_MEAN,
            std=_CIFAR10_STD,
            archives=(Archive("cifar-10-python.tar.gz", _TORONTO, "c58f30108f718f92721af3b95e74349a"),),
            folder="cifar-10-batches-py",
        ),
        Known(
            name="cifar100",
            description="small photographs of 100 kinds of things",
            train=50_000,
            test=10_000,
            classes=CIFAR100_CLASSES,
            mean=(0.5071, 0.4866, 0.4409),
            std=(0.2009, 0.1984, 0.2023),
            archives=(Archive("cifar-100-python.tar.gz", _TORONTO, "eb9058c3a382ffc7106e4002c42a8d85"),),
            folder="cifar-100-python",
        ),
        Known(
            name="svhn",
            description="digits of house numbers, cut from street views",
            train=73_257,
            test=26_032,
            classes=tuple("0123456789"),
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1201, 0.1231, 0.1052),
            archives=(
                Archive("train_32x32.mat", _STANFORD, "e26dedcc434d2e4c54c9b2d4a06d8373"),
                Archive("test_32x32.mat", _STANFORD, "eb5a983be6a315427106f1b164d9cef3"),
            ),
        ),
    )
}


@dataclass(frozen=True)
class Place:
    """Where a known set lies now, and in which form."""

    kind: Literal["bundled", "npz", "folder", "archives"]
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Listing:
    """One row of `aag data`. `where` is None for a set that is not on this disk."""

    name: str
    description: str
    train: int
    test: int
    classes: int
    size: int
    where: Path | None
    fetch: str


def get(name: str) -> Known:
    """The facts of a known set."""
    if name not in KNOWN:
        raise unknown("data set", name, KNOWN)
    return KNOWN[name]


def normalisation(source_name: str) -> tuple[Triple, Triple]:
    """Channel mean and standard deviation, on a scale of 0 to 1, of a set known by name.

    Any other set has none on record: take its training images' `ImageSet.statistics()`.
    """
    if source_name not in KNOWN:
        raise unknown("data set", source_name, KNOWN, hint="of any other set take ImageSet.statistics()")
    return KNOWN[source_name].mean, KNOWN[source_name].std


def data_root(root: str | Path | None = None) -> Path:
    """Where sets are kept: the argument, else the environment's AAG_DATA, else ~/.cache/aag."""
    chosen = Path(root or os.environ.get("AAG_DATA") or "~/.cache/aag").expanduser()
    # os.path answers False, where pathlib raises, for a path that may not be looked at.
    if os.path.exists(chosen) and not os.path.isdir(chosen):
        raise AAGError(f"{chosen} is a file, but data sets are kept in a folder; set AAG_DATA to a folder")
    return chosen


def find(entry: Known, root: str | Path | None = None) -> Place | None:
    """The first form of a known set found under the root or ./data, each also with a subfolder of the set's name."""
    if entry.name == "sample":
        return Place("bundled", (SAMPLE_FOLDER,))
    bases = [data_root(root), Path("data")]
    for base in [place for b in bases for place in (b, b / entry.name)]:
        npz = base / f"{entry.name}.npz"
        if os.path.isfile(npz):
            return Place("npz", (npz,))
        if entry.folder and os.path.isdir(base / entry.folder):
            return Place("folder", (base / entry.folder,))
        archives = tuple(base / archive.file for archive in entry.archives)
        if archives and all(os.path.isfile(path) for path in archives):
            return Place("archives", archives)
    return None


def located(entry: Known, root: str | Path | None = None) -> Place:
    """Where a known set lies; an error that says how to get it where it does not."""
    if place := find(entry, root):
        return place
    there = f" --data-root {shlex.quote(str(root))}" if root else ""
    raise AAGError(f"{entry.name} is not in {data_root(root)}; to get it: aag data fetch {entry.name}{there}")


def catalogue(root: str | Path | None = None) -> list[Listing]:
    """The known sets, for the command line's `aag data`."""
    rows = []
    for entry in KNOWN.values():
        place = find(entry, root)
        how = "comes with the package" if entry.name == "sample" else f"aag data fetch {entry.name}"
        rows.append(
            Listing(
                name=entry.name,
                description=entry.description,
                train=entry.train,
                test=entry.test,
                classes=len(entry.classes),
                size=entry.size,
                where=place.paths[0] if place else None,
                fetch=how,
            )
        )
    return rows
