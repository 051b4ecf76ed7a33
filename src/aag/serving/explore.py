"""Show embeddings as a map in Embedding Atlas: compute the map first, then serve it on this machine."""

import contextlib
import io
import json
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from aag.cluster import kmeans, nearest_centroids
from aag.errors import AAGError, first_line
from aag.files import atomic_write_path, explain_write_errors
from aag.serving.arrow import to_arrow
from aag.serving.neighbours import neighbour_graph
from aag.serving.projection import project
from aag.serving.table import EmbeddingTable, find_shards, read_table
from aag.training.runtime import choose_threads, find_device

HOST = "127.0.0.1"  # nothing outside this machine can connect
NEIGHBOURS = 15
CLUSTERS = 20
CLUSTER_SAMPLE = 50_000  # rows that k-means sees
VERSION = "1"  # of what is computed; a file of another version is made again
MAP_COLUMNS = ("x", "y", "neighbors", "cluster", "importance")
Say = Callable[[str], None]


def prepare_map(path: str | Path, *, device: str = "auto", say: Say = lambda text: None) -> Path:
    """Write NAME.explore.parquet next to an embeddings file: x, y, neighbours and clusters, without the embeddings.

    A map of the same embeddings is reused.
    """
    path = Path(path)
    out = path.with_name(f"{path.stem}.explore.parquet")
    made_from = _describe_input(path)
    if _read_input(out) == made_from:
        return out
    table = read_table(path, features=False)
    if len(table) < 2:
        raise AAGError(f"{path} has only one image; a map needs at least two")
    chosen = find_device(device)
    choose_threads(chosen)
    started = time.monotonic()
    say(f"map      {len(table):,} images: neighbours, clusters and t-SNE, once …")
    arrow = map_columns(table, chosen)
    metadata = {**(arrow.schema.metadata or {}), b"aag-explore": made_from.encode()}
    with explain_write_errors(out), atomic_write_path(out) as temporary:
        pq.write_table(arrow.replace_schema_metadata(metadata), temporary, row_group_size=8192)
    say(f"saved    {out}, after {time.monotonic() - started:.0f} s")
    return out


def map_columns(table: EmbeddingTable, device: torch.device) -> pa.Table:
    """Return a table's columns and the map's columns, without the embeddings, which the map does not need."""
    rows = table.embeddings.to(device)
    index, cosine = neighbour_graph(rows, NEIGHBOURS)
    plane = project(rows, graph=index).numpy()
    step = max(1, len(rows) // CLUSTER_SAMPLE)
    _, centroids = kmeans(rows[::step], min(CLUSTERS, len(rows[::step])))
    cluster = nearest_centroids(rows, centroids).tolist()
    index, distance = index.cpu(), (1 - cosine).clamp_min(0).cpu()
    arrow = to_arrow(table)
    return pa.table({
        **{name: arrow[name] for name in arrow.column_names if name not in ("embedding", *MAP_COLUMNS)},
        "x": pa.array(plane[:, 0]),
        "y": pa.array(plane[:, 1]),
        "cluster": pa.array([f"cluster {number + 1:02}" for number in cluster]),
        "neighbors": _neighbour_column(index.numpy(), distance.numpy()),
        # How often an image is a neighbour. Regions of the map are labelled by their most frequent neighbours.
        "importance": pa.array(torch.bincount(index.flatten(), minlength=len(rows)).double().numpy()),
    })  # fmt: skip


def _neighbour_column(index: np.ndarray, distance: np.ndarray) -> pa.Array:
    """Return struct<ids: list<int64>, distances: list<float>>, as Embedding Atlas reads it."""
    offsets = pa.array(np.arange(0, index.size + 1, index.shape[1], dtype=np.int32))
    ids = pa.ListArray.from_arrays(offsets, pa.array(index.reshape(-1)))
    distances = pa.ListArray.from_arrays(offsets, pa.array(distance.reshape(-1)))
    return pa.StructArray.from_arrays([ids, distances], ["ids", "distances"])


def _describe_input(path: Path) -> str:
    """Return the version, sizes and modification times of the input files, as JSON. A map is reused if they match."""
    files = [path] if path.exists() else find_shards(path)
    if not files:
        raise AAGError(f"no such file: {path}; make one with aag embed")
    return json.dumps([VERSION, *([file.stat().st_size, file.stat().st_mtime_ns] for file in files)])


def _read_input(out: Path) -> str:
    """Return the input that an existing map was made from; empty if there is none."""
    try:
        return (pq.read_schema(out).metadata or {}).get(b"aag-explore", b"").decode()
    except (OSError, pa.ArrowException, ValueError):
        return ""


# --- serving ----------------------------------------------------------------------------------------------------------


def serve_map(prepared: Path, *, port: int | None = None, browser: bool = True, say: Say = lambda text: None) -> None:
    """Serve a prepared map on loopback until Ctrl-C. `port` None: 5055, or the next that is free."""
    atlas = load_atlas()
    chosen = _free_port(port)
    columns = pq.read_schema(prepared).names
    picture = ["--image", "thumbnail"] if "thumbnail" in columns else []
    arguments = [
        str(prepared.resolve()), "--disable-projection", "--x", "x", "--y", "y", "--neighbors", "neighbors",
        "--text", "path", *picture, "--pagerank", "importance", "--duckdb", "server",
        "--host", HOST, "--port", str(chosen), "--no-auto-port",
    ]  # fmt: skip
    url = f"http://{HOST}:{chosen}"
    threading.Thread(target=_announce, args=(chosen, url, browser, say), daemon=True).start()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the whole table
            atlas(arguments, standalone_mode=False)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        raise AAGError(f"embedding-atlas failed: {first_line(error)}; try pip install -U embedding-atlas") from error


def load_atlas() -> Any:
    """Return the command of embedding-atlas; raise if it is not installed."""
    try:
        from embedding_atlas.cli import main
    except ImportError as error:
        raise AAGError(
            "aag explore needs embedding-atlas, which is not installed: pip install embedding-atlas"
        ) from error
    return main


def _free_port(port: int | None) -> int:
    wanted = range(5055, 5155) if port is None else [port]
    for number in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, number))
                return number
    raise AAGError(f"port {wanted[0]} is in use; choose another --port")


def _announce(port: int, url: str, browser: bool, say: Say) -> None:
    """Print the address when the server answers, and open it in the browser."""
    while True:
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            connection = HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/data/metadata.json")
            connection.getresponse().read()
            break
    say(f"open     {url}   (Ctrl-C stops it)")
    if browser:
        webbrowser.open(url)
