"""The images of a sweep: training images and those held out of them. The test split is never read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aag.data import TrainTestSets, as_image_sets, load
from aag.data.datasets import DATASETS
from aag.data.holdout import NoLabelsError
from aag.errors import AAGError
from aag.training import DataSettings, RunSettings, load_sets

DEFAULT_HOLDOUT = 0.1  # where there are labels


class SweepImages:
    """Loads images once for all runs that share them. `images` are those in memory; None: settings name a source."""

    def __init__(
        self, images: Any = None, root: Path | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.images, self.root, self.progress = images, root, progress
        self._cached_sets: tuple[DataSettings, TrainTestSets] | None = None

    def load(self, settings: RunSettings) -> TrainTestSets:
        """Return training images and held-out ones; without a holdout, only training images."""
        chosen = settings.data
        if self._cached_sets is None or self._cached_sets[0] != chosen:
            self._cached_sets = None  # frees the memory first
            self._cached_sets = chosen, self._load(settings)
        return self._cached_sets[1]

    def _load(self, settings: RunSettings) -> TrainTestSets:
        chosen = settings.data
        if self.images is not None:
            sets = as_image_sets(
                self.images, image_size=chosen.source_size, labels=chosen.labels, holdout=chosen.holdout
            )
            return sets if chosen.holdout else (sets[0], None)
        if chosen.holdout:  # replaces the test split
            return load_sets(settings, self.root, self.progress)
        # Without a holdout there are no training labels. labels="none": those of the test split are not read, either.
        train = load(
            chosen.source, root=self.root, image_size=chosen.source_size, labels="none", progress=self.progress
        )
        return train, None

    def choose_holdout(self, settings: RunSettings) -> float | None:
        """Return the fraction to hold out: the given one, else 0.1; None for images without labels."""
        given = settings.data.holdout
        if settings.data.labels == "none":
            if given:
                raise AAGError("--holdout needs labels; leave it out, or leave out --labels none")
            return None
        if self.images is not None or settings.data.source not in DATASETS:
            try:
                self.load(settings.replace(holdout=given or DEFAULT_HOLDOUT))
            except NoLabelsError:
                if given:
                    raise
                return None
        return given or DEFAULT_HOLDOUT
