"""Comparing and listing runs, also damaged and running ones."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from aag.errors import AAGError
from aag.runs import Run, find_runs, run_status
from aag.serving import compare_runs, write_comparison
from report_runs import trained_run

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from commands import aag_, refused


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with two runs of different learning rates and a damaged one."""
    run, _ = trained_run()
    for name, rate in (("a $x$ <b>", 0.03), ("b", 0.1)):
        copy = Run(shutil.copytree(run.folder, tmp_path / "runs" / name))
        config = json.loads(copy.config_file.read_text())
        config["train"]["lr"] = rate
        copy.config_file.write_text(json.dumps(config))
    results = [{"name": "linear (features)", "accuracy": 61.5, "protocol": {}}]
    (tmp_path / "runs" / "b" / "evaluation.json").write_text(json.dumps({"results": results}))
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "config.json").write_text("{")
    return tmp_path / "runs"


def test_differing_settings_are_columns(folder):
    first, second = compare_runs([Run(folder / "a $x$ <b>"), Run(folder / "b")])
    assert (first["lr"], second["lr"]) == (0.03, 0.1)
    assert "batch_size" not in first
    assert (first["linear (features)"], second["linear (features)"]) == (None, 61.5)
    assert first["kNN"] == Run(folder / "b").metrics()[-1].get("knn", first["kNN"])
    assert (first["last_epoch"], first["status"]) == (2, "complete")
    (*_, health) = [row for row in Run(folder / "b").metrics() if row["kind"] == "health"]
    assert first["agreement"] == pytest.approx(100 * health["agreement"])  # percent, like the accuracies


def test_the_page_has_numbers_and_curves(folder, tmp_path):
    page = write_comparison([Run(folder / "a $x$ <b>"), Run(folder / "b")], tmp_path / "page.html").read_text()
    assert "1: a $x$ &lt;b&gt;" in page
    assert "<b>" not in page.replace("<b></b>", "")
    assert page.count('class="chart"') >= 3
    assert "<script" not in page
    assert '<th scope="col">1</th><th scope="col">2</th>' in page  # a column per run
    many = write_comparison([Run(folder / "b")] * 40, tmp_path / "many.html").read_text()
    assert '<th scope="row">40</th>' in many


def test_commands_print_a_table_or_json(folder, tmp_path):
    out = tmp_path / "page.html"
    ran = aag_("compare", folder / "a $x$ <b>", folder / "b", "--json", "--out", out)
    assert [row["lr"] for row in json.loads(ran.out)] == [0.03, 0.1]
    assert out.exists()
    ran = aag_("compare", folder / "a $x$ <b>", folder / "b", "--no-page")
    assert ran.code == 0
    assert "kNN" in ran.out
    assert "at least two runs" in refused("compare", folder / "b")
    rows = json.loads(aag_("runs", folder, "--json").out)
    assert [Path(row["folder"]).name for row in rows] == ["a $x$ <b>", "b", "bad"]
    ran = aag_("runs", folder)
    assert ran.code == 0
    assert "damaged" in ran.words.replace("│", "").replace(" ", "")
    assert "no such folder" in refused("runs", folder / "nothing")
    (tmp_path / "empty").mkdir()
    assert aag_("runs", tmp_path / "empty").out.startswith("no runs in ")


def test_status_follows_the_files(folder):
    run = Run(folder / "b")
    assert run_status(run).state == "complete"
    with run.lock():
        assert run_status(run).state == "running"
        with pytest.raises(AAGError, match="another process"), run.lock():
            pass
    run.filter_metrics(lambda row: row["epoch"] < 2)
    stopped = run_status(run)
    assert (stopped.state, stopped.epoch, stopped.epochs) == ("stopped", 1, 2)
    run.metrics_file.unlink()
    assert run_status(run).state == "not started"
    run.config_file.write_text(json.dumps({"data": {}, "encoder": {}, "method": {}, "train": {}}))
    assert run_status(run).state == "damaged: its files hold unexpected values"


def test_damaged_rows_do_not_crash_the_list(folder):
    run = Run(folder / "b")
    run.metrics_file.write_text('{"kind": "epoch", "epoch": "x", "step": 1}\n{"kind": "knn"\n[1]\n')
    assert run_status(run).state == "not started"
    assert len(find_runs(folder)) == 3
    assert find_runs(folder / "b")[0].folder == folder / "b"
