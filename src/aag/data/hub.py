"""Find data sets of the Hugging Face Hub: hf:OWNER/NAME, hf:OWNER/NAME:CONFIG, hf:OWNER/NAME@SPLIT.

The datasets package downloads them into its own cache, as Arrow files.
"""

import re
from pathlib import Path

from aag.data.listing import TEST_NAMES
from aag.errors import AAGError, first_line

PREFIX = "hf:"


def find_hub_files(source: str) -> dict[str, list[Path]]:
    """Download a data set if needed, and return the Arrow files of its splits: train, and test where there is one.

    With @SPLIT, that split is trained on and there is no test split.
    """
    parsed = re.fullmatch(r"(?P<name>[^:@]+)(:(?P<config>[^:@]+))?(@(?P<split>[^:@]+))?", source.removeprefix(PREFIX))
    if not parsed:
        raise AAGError(f"{source} is not the name of a data set; write hf:OWNER/NAME, hf:OWNER/NAME:CONFIG or …@SPLIT")
    try:
        import datasets
    except ImportError as error:
        raise AAGError(
            f"--data {source} needs datasets; install it with: pip install datasets (or give local Parquet files)"
        ) from error
    try:
        loaded = datasets.load_dataset(parsed["name"], parsed["config"])
    except Exception as error:  # many kinds: not found, gated, offline, ambiguous configurations
        raise AAGError(f"cannot load {source}: {first_line(error)}") from error
    names = list(loaded)
    if parsed["split"]:
        if parsed["split"] not in names:
            raise AAGError(f"{source} has no split {parsed['split']}; it has {', '.join(names)}")
        chosen = {"train": parsed["split"]}
    elif len(names) == 1:
        chosen = {"train": names[0]}
    elif "train" in names:
        test = next((name for name in TEST_NAMES if name in names), None)
        chosen = {"train": "train"} | ({"test": test} if test else {})
    else:
        raise AAGError(f"{source} has the splits {', '.join(names)}; choose one: {source}@{names[0]}")
    files = {split: [Path(each["filename"]) for each in loaded[name].cache_files] for split, name in chosen.items()}
    if not all(files.values()):
        raise AAGError(f"{source} has no files in the cache of datasets; give a folder from save_to_disk")
    return files
