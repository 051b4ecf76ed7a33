"""The queue of runs is run in order, stopped in time and resumed."""

import json
import sys
import time

import pytest

import run_queue

STOPPABLE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("started", flush=True)
time.sleep(60)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run words of the queue as Python code, with no more than some seconds for all."""
    monkeypatch.setattr(run_queue, "SAVE_SECONDS", 0)
    monkeypatch.setattr(run_queue, "MIN_SECONDS", 0.1)
    monkeypatch.setattr(
        run_queue, "split_command", lambda command: ({"TEXT": command}, [sys.executable, "-c", command])
    )
    said: list[str] = []

    def run(*commands: str, seconds: float = 60) -> tuple[int, dict[str, str], list[str]]:
        said.clear()
        code = run_queue.Runner(tmp_path, time.monotonic() + seconds, said.append).run_all(list(commands))
        return code, json.loads((tmp_path / "state.json").read_text()), said

    return run


def test_each_command_runs_once(run, tmp_path):
    first, second = "import os; print(os.environ['TEXT'])", "print('two')"
    assert run(first, second)[:2] == (0, {first: "done", second: "done"})
    logs = {path.read_text() for path in tmp_path.glob("*.log")}
    assert logs == {first + "\n", "two\n"}
    code, _, said = run(first, second)
    assert (code, said) == (0, [])


def test_a_command_is_stopped_in_time_and_run_again(run):
    code, states, _ = run(STOPPABLE, "print(1)", seconds=1)
    assert (code, states) == (75, {STOPPABLE: "stopped"})
    code, states, said = run(STOPPABLE, seconds=1)
    assert (code, states, len(said)) == (75, {STOPPABLE: "stopped"}, 1)


def test_a_failed_command_is_shown_and_the_next_one_runs(run):
    code, states, said = run("raise SystemExit('no such image')", "print(1)")
    assert (code, list(states.values())) == (1, ["failed", "done"])
    assert "no such image" in "\n".join(said)


def test_commands_keep_their_environment_and_words():
    changes, words = run_queue.split_command("""A=1 B='2 3' aag train --out "x y" """)
    assert changes == {"A": "1", "B": "2 3"}
    assert words == [sys.executable, "-m", "aag", "train", "--out", "x y"]


def test_only_rows_that_are_one_command_are_read(tmp_path):
    queue = tmp_path / "queue.md"
    queue.write_text(
        "| run | why |\n|---|---|\n| `aag x --y` | a |\n| `A=1 pytest -m gpu` | b |\n| `aag z` and more | c |\n"
    )
    assert run_queue.read_commands(queue) == ["aag x --y", "A=1 pytest -m gpu"]
