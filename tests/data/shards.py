"""Images and shards that the tests of sources share."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from aag import data


def encoded(count: int, seed: int = 0) -> list[bytes]:
    """Return different PNG files of 12×16 pixels."""
    rng = np.random.default_rng(seed)
    return [encode(rng.integers(0, 256, (12, 16, 3), np.uint8)) for _ in range(count)]


def encode(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_shards(folder: Path, images: list[bytes], per_shard: int = 10, classes: int = 0, prefix: str = "") -> None:
    """Write images as tar archives, with the labels 0, 1, … where there are classes."""
    for start in range(0, len(images), per_shard):
        members = {}
        for i in range(start, min(start + per_shard, len(images))):
            members[f"{i:04}.png"] = images[i]
            if classes:
                members[f"{i:04}.cls"] = str(i % classes).encode()
        write_tar(folder / f"{prefix}{start // per_shard:03}.tar", members)


def write_parquet(path: Path, images: list[bytes | None], labels: list | None = None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"image": [{"bytes": image, "path": None} for image in images]}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    arrays = {"image": pa.array(columns["image"], kind)} | ({} if labels is None else {"label": pa.array(labels)})
    pq.write_table(pa.table(arrays), path, **options)
    return path


def write_folder(folder: Path, images: list[bytes]) -> Path:
    folder.mkdir(parents=True)
    for i, content in enumerate(images):
        (folder / f"{i:04}.png").write_bytes(content)
    return folder


def same_images(found: data.ImageSet, folder: Path) -> None:
    """Check the pixels, and what is known of them, against a folder of the same files."""
    expected = data.load(folder, image_size=found.image_size)
    assert np.array_equal(found.images.numpy(), expected.images.numpy())
    assert found.statistics() == expected.statistics()
    if found.labels is None:
        assert found.fingerprint() == expected.fingerprint()
