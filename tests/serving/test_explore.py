"""The large map: what is precomputed, that it is reused, and the real server on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from aag.errors import AAGError
from aag.serving.explore import load_atlas, prepare_map, serve_map
from aag.serving.sheets import Section, Tile, make_sheet
from aag.serving.table import EmbeddingTable, write_table


@pytest.fixture
def embeddings(tmp_path) -> Path:
    import io

    picture = io.BytesIO()
    make_sheet([Section([Tile(None)])], size=16).save(picture, "JPEG")
    names = [f"<b>{number}</b> 'x'.png" for number in range(40)]
    rows = F.normalize(torch.randn(40, 8), dim=1)
    path = tmp_path / "out.parquet"
    table = EmbeddingTable(names, rows, None, [picture.getvalue()] * 40, {"x": [1] * 40, "label": ["a", "b"] * 20})
    write_table(path, table)
    return path


def test_everything_is_precomputed_once(embeddings):
    said: list[str] = []
    out = prepare_map(embeddings, say=said.append)
    table = pq.read_table(out)
    assert set(table.column_names) == {"path", "thumbnail", "label", "x", "y", "cluster", "neighbors", "importance"}
    neighbours = table["neighbors"].to_pylist()
    assert len(neighbours[0]["ids"]) == 15
    assert neighbours[0]["distances"] == sorted(neighbours[0]["distances"])
    assert all(number not in row["ids"] for number, row in enumerate(neighbours))
    assert sum(table["importance"].to_pylist()) == 40 * 15
    assert len(said) == 2
    before = out.stat().st_mtime_ns
    assert prepare_map(embeddings, say=said.append).stat().st_mtime_ns == before
    os.utime(embeddings)  # embedded again
    assert prepare_map(embeddings).stat().st_mtime_ns > before


def test_a_damaged_map_is_made_again(embeddings):
    out = prepare_map(embeddings)
    out.write_bytes(b"PAR1 cut off")
    assert len(pq.read_table(prepare_map(embeddings))) == 40


def test_mistakes_are_one_line(tmp_path, embeddings, monkeypatch):
    with pytest.raises(AAGError, match=r"no such file: .*make one with aag embed"):
        prepare_map(tmp_path / "nothing.parquet")
    one = tmp_path / "one.parquet"
    write_table(one, EmbeddingTable(["a"], torch.ones(1, 1)))
    with pytest.raises(AAGError, match="has only one image"):
        prepare_map(one)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        pytest.importorskip("embedding_atlas")
        with pytest.raises(AAGError, match="is in use; choose another --port"):
            serve_map(prepare_map(embeddings), port=taken.getsockname()[1])
    monkeypatch.setitem(sys.modules, "embedding_atlas.cli", None)  # as if it were not installed
    with pytest.raises(AAGError, match="pip install embedding-atlas"):
        serve_map(embeddings)


def test_loading_the_server_changes_no_environment_variable():
    pytest.importorskip("embedding_atlas")
    before = dict(os.environ)
    load_atlas()
    assert dict(os.environ) == before


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_server_answers_on_loopback(embeddings):
    pytest.importorskip("embedding_atlas")
    port = free_port()
    command = [sys.executable, "-m", "aag", "explore", str(embeddings), "--no-browser", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while True:
            try:
                metadata = json.load(urlopen(f"{url}/data/metadata.json", timeout=10))
                break
            except OSError:
                assert server.poll() is None, server.communicate()
                assert time.monotonic() < end
                time.sleep(0.2)
        columns = metadata["props"]["data"]
        assert (columns["projection"], columns["neighbors"]) == ({"x": "x", "y": "y"}, "neighbors")
        assert columns["image"] == "thumbnail"
        assert "<!doctype html>" in urlopen(url, timeout=10).read().decode().lower()
        query = json.dumps({"type": "json", "sql": "select path, x, neighbors from dataset order by path limit 1"})
        (row,) = json.load(urlopen(Request(f"{url}/data/query", query.encode(), method="POST"), timeout=30))
        assert row["path"] == "<b>0</b> 'x'.png"
        assert len(row["neighbors"]["ids"]) == 15
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert url in out.replace("\n", "")
