"""`aag reproduce`: what figures need besides records, the plan, the listing, figures as files, and mistakes."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from commands import refused
from small_paper import RESULTS, RUNS, counts, experiment, install, recorded, reproduce, start_run, starts

from aag.cli import main
from aag.paper import PAPER

paper = pytest.fixture(install)
ROOT = Path(__file__).parents[2]


# --- what figures need besides the record -----------------------------------------------------------------------------


@pytest.mark.usefixtures("paper")
def test_missing_projections_are_made_without_training(npz):
    assert reproduce("figure2").code == 0
    name = experiment(npz, loss="nt-xent").name
    path, record = RESULTS / "tsne" / f"{name}.json", (RESULTS / f"{name}.json").read_bytes()
    projection = json.loads(path.read_text())
    assert projection["name"] == name
    assert len(projection["x"]) == len(projection["labels"]) == 40
    assert projection["dimensions"] == 128

    path.unlink()
    again = reproduce("figure2")
    assert (again.code, again.err) == (0, "")
    assert again.out.endswith(f"t-SNE saved in {path}\n\n1 projected\n")
    assert (starts(name), (RESULTS / f"{name}.json").read_bytes()) == (1, record)

    path.unlink()
    shutil.rmtree(RUNS)
    failed = reproduce("figure2")
    assert failed.code == 2
    assert "has no t-SNE projection, and its run folder runs/" in failed.err
    assert "is gone; delete the record to train the run again\n" in failed.err
    planned = reproduce("figure2", "--plan")
    assert "has no t-SNE projection" in planned.err
    assert "nothing to run" not in planned.err
    assert "1*" in reproduce().out
    assert reproduce("table1", "--row", "theirs", "--column", "low").out == "1 run, 1 recorded\n"


@pytest.mark.usefixtures("paper")
def test_a_record_without_curves_gets_them_from_its_run_folder():
    assert reproduce("figure1").code == 0
    (path,) = RESULTS.glob("*.json")
    record = json.loads(path.read_text())
    del record["curves"]
    path.write_text(json.dumps(record))
    assert reproduce("table1", "--row", "ours", "--column", "low").out == "1 run, 1 recorded\n"
    assert reproduce("figure1").code == 0
    assert json.loads(path.read_text())["curves"]["loss"]
    assert starts(path.stem) == 1


@pytest.mark.usefixtures("paper")
def test_a_run_that_cannot_give_what_a_figure_needs_fails_and_says_so():
    assert reproduce("figure1").code == 0
    (path,) = RESULTS.glob("*.json")
    metrics = RUNS / path.stem / "metrics.jsonl"
    metrics.write_text("".join(row for row in metrics.read_text().splitlines(True) if '"steps"' not in row))
    record = json.loads(path.read_text())
    del record["curves"]
    path.write_text(json.dumps(record))
    failed = reproduce("figure1")
    assert failed.code == 2
    assert "has no step curves; delete it and its record to train the run again" in failed.err


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("paper")
def test_the_commands_of_a_plan_do_what_the_runner_does(npz, capsys):
    planned = reproduce("table1", "figure2", "--row", "theirs", "--plan")
    assert (planned.code, planned.err) == (0, "")
    assert not RESULTS.exists()
    assert not RUNS.exists()
    low, high = planned.out.splitlines()
    assert "--data cifar10" in high
    for command in low.split(" && "):
        words = shlex.split(command)
        assert words[0] == "aag"
        assert main(words[1:]) == 0
    name = experiment(npz, loss="nt-xent").name
    assert recorded() == [name]
    assert (RESULTS / "tsne" / f"{name}.json").exists()
    assert f"t-SNE saved in results/tsne/{name}.json" in capsys.readouterr().out

    rest = reproduce("table1", "figure2", "--row", "theirs", "--plan")
    assert rest.out == high + "\n"
    nothing = reproduce("figure2", "--plan")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "nothing to run: everything selected is recorded\n"


@pytest.mark.usefixtures("paper")
def test_a_shard_does_not_depend_on_what_is_recorded():
    before = [reproduce("table1", "--plan", "--shard", f"{part}/2").out for part in (1, 2)]
    assert reproduce("figure1").code == 0
    after = [reproduce("table1", "--plan", "--shard", f"{part}/2").out for part in (1, 2)]
    assert after == ["".join(before[0].splitlines(keepends=True)[1:]), before[1]]


# --- the listing and mistakes -----------------------------------------------------------------------------------------


def test_the_listing_names_every_table_and_figure():
    ran = reproduce()
    assert (ran.code, ran.err) == (0, "")
    for part in PAPER.values():
        assert re.search(rf"^{part.id} .* {re.escape(part.title)}$", ran.out, re.MULTILINE)
    assert counts("table7") == [6, 0, 0, 0, 6]
    assert "Six methods on three data sets with two networks.\n" in ran.out
    assert counts("table1", "--dataset", "svhn") == [14, 0, 0, 0, 14]
    assert "table7" not in reproduce("--dataset", "svhn").out.split("\n\n")[0]


@pytest.mark.usefixtures("paper")
def test_each_run_is_listed_with_its_status(npz):
    assert reproduce("figure1").code == 0
    ran = reproduce("table1", "figure1", "--list")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    ours, theirs = (experiment(npz, **change).name for change in ({}, {"loss": "nt-xent"}))
    assert re.fullmatch(rf"recorded    \d+ s +{re.escape(ours)} \(table1, figure1\)", lines[0])
    (line,) = [line for line in lines if theirs in line]
    assert re.fullmatch(rf"missing     about 1 min +{re.escape(theirs)} \(table1\)", line)
    assert len(lines) == 4
    assert recorded() == [ours]


def test_without_a_name_all_runs_are_listed():
    assert reproduce("--list").out == reproduce("all", "--list").out


def test_time_left_is_estimated_from_the_records(tmp_path):
    record = ROOT / "results" / "cifar10-resnet18-paper-seed0.json"
    copied = tmp_path / "some" / record.name
    copied.parent.mkdir()
    copied.write_bytes(record.read_bytes())
    ran = reproduce("--results", copied.parent)
    minutes = (4 + 2 / 3) * json.loads(record.read_text())["seconds"] / 60  # the other five of six, one of two views
    assert re.search(rf"^table7 .* {round(minutes)} min ", ran.out, re.MULTILINE)
    assert "estimated from similar records (NVIDIA H200" in ran.out
    assert reproduce("Table7", "--plan", "--results", copied.parent).out.startswith("aag train --data cifar10")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--row", "Instnace"], "unknown row 'Instnace'; did you mean Instance"),
        (["table1", "page"], "the page shows all tables and figures; use aag reproduce page alone"),
        (["--shard", "1/2"], "need a table or figure (or all), such as table2"),
        (["--save", "x.pdf"], "need a table or figure (or all), such as table2"),
        (["table7", "--device", "gpu"], "unknown device 'gpu'"),
        (["figure4", "--save", "x.gif", "--results", ROOT / "results"], "--save writes .pdf, .svg or .png, not '.gif'"),
        (["figure4", "--save", "x.pdf"], "results has no record for figure4; run aag reproduce figure4 first"),
        (["figure4", "figure5", "--save", "x.pdf"], "--save draws one figure, such as figure4, not figure4 figure5"),
        (["figure1", "--save", "x.pdf"], "figure1 is not drawn from records; aag reproduce page shows it"),
        (["table1", "--save", "x.pdf"], "--save draws one figure, such as figure4, not table1"),
        (["--epochs-scale", "2"], "--epochs-scale must be above 0"),
    ],
)
def test_mistakes_are_reported_in_one_line(words, message):
    assert message in refused("reproduce", *words)


def test_unwritable_results_are_reported_before_training(npz, tmp_path):
    (tmp_path / "file").write_text("")
    for place, message in (
        (tmp_path / "file", "is not a folder of records"),
        (tmp_path / "file" / "x", "cannot write"),
    ):
        assert message in refused("reproduce", "table7", "--results", place)
    assert not RUNS.exists()


@pytest.mark.parametrize("words", [["--k", "5"], ["--temperature", "0.2"], ["--linear-epochs", "1"]])
def test_another_protocol_is_not_recorded(npz, words):
    run = start_run(experiment(npz))
    message = refused("evaluate", run.folder, "--record", RESULTS, *words)
    assert "--record needs the standard protocol" in message


def test_tsne_without_a_record_has_no_place(npz):
    run = start_run(experiment(npz))
    assert "--tsne is saved next to the record" in refused("evaluate", run.folder, "--tsne")


def test_the_page_is_written_as_html_and_markdown(tmp_path, capsys):
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    words = ["reproduce", "page", "--out", str(page), "--markdown", str(text), "--results", str(tmp_path / "none")]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == f"written to {page}\nwritten to {text}\n"
    assert printed.err.startswith("warning: ")  # that there are no records
    assert printed.err.count("\n") == 1
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert text.read_text(encoding="utf-8").startswith("# ")


def test_a_figure_is_saved_from_the_records(tmp_path):
    out = tmp_path / "new" / "fig4.pdf"
    ran = reproduce("figure4", "--save", out, "--results", ROOT / "results")
    assert (ran.code, ran.out, ran.err) == (0, f"Figure 4 written to {out}\n", "")
    assert out.read_bytes().startswith(b"%PDF")
    assert not RESULTS.exists()
    ran = reproduce("figure3", "--save", tmp_path / "fig3.svg", "--results", ROOT / "results")
    assert ran.out.endswith("(missing: batch size 32: not run yet)\n")
