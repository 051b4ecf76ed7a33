"""Measure how fast images of each kind of source are decoded into the cache, in images per second.

    python tools/measure_sources.py 12000     # JPEGs of 500×400, to 128 pixels

The files are made first, in a temporary folder, of enlarged photographs with noise.
Each source is decoded three times, each time by a new process; the median is printed.
"""

import io
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from aag import data

PER_SHARD = 1000
DECODE = """
import sys, time
from aag import data
start = time.perf_counter()
images = data.load(sys.argv[1], image_size=128, root=sys.argv[2])
print(round(len(images) / (time.perf_counter() - start)))
"""


def make_jpegs(count: int) -> list[bytes]:
    photographs, rng = data.load("sample").images, np.random.default_rng(0)
    jpegs = []
    for i in range(count):
        small = Image.fromarray(photographs[i % len(photographs)].permute(1, 2, 0).numpy())
        large = np.asarray(small.resize((500, 400), Image.Resampling.BICUBIC)) + rng.normal(0, 8, (400, 500, 1))
        file = io.BytesIO()
        Image.fromarray(large.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        jpegs.append(file.getvalue())
    return jpegs


def write_sources(folder: Path, jpegs: list[bytes]) -> None:
    for name in ("files", "tar", "parquet"):
        (folder / name).mkdir()
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for i, jpeg in enumerate(jpegs):
        (folder / f"files/{i:06}.jpg").write_bytes(jpeg)
    for start in range(0, len(jpegs), PER_SHARD):
        shard, name = jpegs[start : start + PER_SHARD], f"{start // PER_SHARD:03}"
        with tarfile.open(folder / f"tar/{name}.tar", "w") as archive:
            for i, jpeg in enumerate(shard):
                member = tarfile.TarInfo(f"{start + i:06}.jpg")
                member.size = len(jpeg)
                archive.addfile(member, io.BytesIO(jpeg))
        table = pa.table({"image": pa.array([{"bytes": jpeg, "path": None} for jpeg in shard], kind)})
        pq.write_table(table, folder / f"parquet/{name}.parquet", row_group_size=256)


class Handler(BaseHTTPRequestHandler):
    """Serves parts of files below `folder`."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.folder / self.path.lstrip("/")
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = map(int, wanted.groups()) if wanted else (0, size - 1)
        self.send_response_only(206 if wanted else 200)
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file:
                file.seek(first)
                self.wfile.write(file.read(last - first + 1))


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sources(folder, make_jpegs(count))
        Handler.folder = folder
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        shards = f"tar/{{000..{-(-count // PER_SHARD) - 1:03}}}.tar"
        sources = {
            "folder": folder / "files",
            "tar": folder / shards,
            "Parquet": folder / "parquet",
            "tar from a web server on this machine": f"http://127.0.0.1:{server.server_port}/{shards}",
        }
        for title, source in sources.items():
            speeds = []
            for attempt in range(3):
                command = [sys.executable, "-c", DECODE, str(source), str(folder / f"{title} {attempt}")]
                ran = subprocess.run(command, capture_output=True, text=True, check=True)
                speeds.append(int(ran.stdout))
                time.sleep(1)
            print(f"| {title} | {sorted(speeds)[1]} |", flush=True)
        server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12_000)
