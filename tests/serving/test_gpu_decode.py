"""The decoder for GPUs, run on the CPU: it crops and turns images as the other one does."""

import numpy as np
import torch
from PIL import Image

from aag.data.decode import decode
from aag.serving.gpu_decode import decode_batch


def test_same_images_as_the_cpu_decoder(tmp_path):
    corners = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(corners).resize((80, 60), Image.Resampling.BICUBIC)
    paths = [tmp_path / f"{orientation}.jpg" for orientation in range(1, 9)]
    for orientation, path in enumerate(paths, 1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.save(path, quality=95, exif=exif)
    (tmp_path / "broken.jpg").write_bytes(b"broken")
    images, failures = decode_batch([*paths, tmp_path / "broken.jpg"], 24, torch.device("cpu"))
    assert failures == {8: "not an image Pillow can read"}
    for path, image in zip(paths, images, strict=False):
        expected = torch.from_numpy(decode(path, 24).copy()).permute(2, 0, 1)
        assert (image.int() - expected.int()).abs().float().mean() < 2, path.name
    assert len({image.numpy().tobytes() for image in images[:8]}) == 8
