"""Tables on narrow terminals."""

import pytest
from rich.progress import Progress

from aag.cli.output import _Rate, print_rows


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_short_columns_are_never_wrapped(capsys):
    row = {"status": "complete", "data": "photographs", "network": "timm/resnet18", "epoch": "1000/1000",
           "kNN %": 91.59, "rank": 11.1, "time": "1 min 15 s", "folder": "runs/photos"}  # fmt: skip
    print_rows([row])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert all(word in shown for word in ("complete", "1000/1000", "1 min 15 s", "runs/photos"))


def test_a_long_path_at_the_end_of_a_row_is_not_wrapped(capsys):
    paths = [f"{'very long folder/' * 6}{name}.jpg" for name in ("日本", "b")]
    print_rows([{"rank": number, "label": "kept", "path": path} for number, path in enumerate(paths)])
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert head == "rank  label  path"
    assert set(rule) == {"─"}
    assert lines == [f"   0  kept   {paths[0]}", f"   1  kept   {paths[1]}"]


def test_a_table_of_too_many_columns_is_turned(capsys):
    names = [f"setting {number}" for number in range(12)]
    print_rows([{"run": run, **dict.fromkeys(names, run * 2)} for run in ("first", "first", "second")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["┃", "run", "┃", "first", "┃", "first", "┃", "second", "┃"]
    assert [line.split("│")[1].strip() for line in lines[3:-1]] == names
    assert lines[3].count("firstfirst") == 2


def test_the_floats_of_a_column_have_the_same_number_of_decimals(capsys):
    print_rows([{"cosine": value} for value in (1.0, 0.9951, 0.995, None)])
    shown = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()[3:-1]]
    assert shown == ["1.0000", "0.9951", "0.9950", "–"]


def test_very_small_floats_keep_their_digits(capsys):
    print_rows([{"lr": value} for value in (1.2e-7, 0.03)])
    assert "1.2e-07" in capsys.readouterr().out


def test_a_bar_shows_its_speed_after_a_second():
    times = [0.0]
    bar = Progress(get_time=lambda: times[-1])
    bar.add_task("", total=500)
    shown = []
    for time in (0.5, 0.501, 2.0):
        times.append(time)
        bar.advance(bar.task_ids[0], 100)
        shown.append(_Rate().render(bar.tasks[0]).plain)
    assert shown == ["", "", "133 images/s"]
