"""Counts and times in words."""

import pytest

from aag.text import column_texts, duration, join_or, pluralize, printable, readable_bytes, rough_duration


@pytest.mark.parametrize(("count", "told"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_pluralize(count, told):
    assert pluralize(count, "run") == told


@pytest.mark.parametrize(("words", "told"), [("a", "a"), ("ab", "a or b"), ("abac", "a, b or c")])
def test_join_or(words, told):
    assert join_or(words) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (303, "5 min 03 s"),
        (3599.6, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_duration(seconds, told):
    assert duration(seconds) == told


@pytest.mark.parametrize(("seconds", "told"), [(2, "1 min"), (3590, "1 h 00 min"), (7620, "2 h 07 min")])
def test_rough_duration(seconds, told):
    assert rough_duration(seconds) == told


def test_readable_bytes():
    assert list(map(readable_bytes, (0, 999, 31_104, 983_040_000, 12_345_678_900))) == [
        "0 bytes", "999 bytes", "31 kB", "983 MB", "12.3 GB",
    ]  # fmt: skip


def test_printable_keeps_scripts_and_replaces_what_a_terminal_obeys():
    for name in ("a\u3000b 写真", "می\u200cخواهم", "👩\u200d🚀", "café"):
        assert printable(name) == name
    assert printable("\x1b[31mred\n\u202e\udcff\x9b") == "?[31mred????"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([43.90243, None], ["43.90", "–"]),  # a trailing zero is a digit, too
        ([0.1, 0.12], ["0.10", "0.12"]),
        ([1.0, 100.0], ["1", "100"]),
        ([1.2e-7, 0.03], ["1.2e-07", "0.03"]),
        ([3, "a", 0.5], ["3", "a", "0.5"]),
    ],
)
def test_a_column_has_one_number_of_decimals(values, told):
    assert column_texts(values) == told
