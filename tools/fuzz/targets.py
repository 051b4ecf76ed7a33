"""All targets by name. To add some, write a module with its own `TARGETS` and list it here."""

from fuzz import archives, images, runs, shards
from fuzz.target import Target

TARGETS: dict[str, Target] = {**images.TARGETS, **archives.TARGETS, **shards.TARGETS, **runs.TARGETS}
