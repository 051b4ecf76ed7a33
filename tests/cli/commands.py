"""The command line in a test: run it, and read what it says."""

import contextlib
import io
import re
import subprocess
import sys
from dataclasses import dataclass

from aag.cli import main

QUICK = ["--width", "4", "--device", "cpu", "--no-report"]  # a network that takes milliseconds a step


@dataclass(frozen=True)
class Ran:
    code: int | str | None
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was printed, however it was wrapped."""
        return " ".join(self.out.split())


def aag_(*words: object) -> Ran:
    """`aag WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | str | None = main([str(word) for word in words])
        except SystemExit as stop:  # tyro's help and its complaints
            code = stop.code
    return Ran(code, out.getvalue(), err.getvalue())


def refused(*words: object) -> str:
    """The one line on stderr of a command that must fail as a user's mistake; nothing else is printed."""
    ran = aag_(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", ran.err), ran.err
    return ran.err.strip()


def python_m_aag(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aag", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
