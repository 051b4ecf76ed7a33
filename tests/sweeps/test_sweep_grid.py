"""Which values a sweep tries."""

import math
import random

import pytest

from aag import AAGError
from aag.sweeps.grid import NumberRange, choose_values, describe_grid, read_grid, read_grid_words


def test_words_are_lists_or_ranges():
    grid = read_grid_words(["lr=0.03,0.06", "--batch-size=16..64", "start_from=../a,../b"])
    assert grid == {"lr": ["0.03", "0.06"], "batch_size": NumberRange(16, 64), "start_from": ["../a", "../b"]}
    assert describe_grid(grid) == ["lr=0.03,0.06", "batch_size=16..64", "start_from=../a,../b"]


def test_python_values_keep_their_types():
    grid = read_grid({"lr": [0.1, 0.2], "width": "4,8", "nesterov": "true,false", "temperature": "0.05..0.5"})
    assert grid == {"lr": [0.1, 0.2], "width": [4, 8], "nesterov": [True, False], "temperature": NumberRange(0.05, 0.5)}


@pytest.mark.parametrize("word", ["lr", "lr=", "=3", "lr=1,,2"])
def test_malformed_words_are_refused(word):
    with pytest.raises(AAGError):
        read_grid_words([word])
    with pytest.raises(AAGError, match="twice"):
        read_grid_words(["lr=1", "lr=2"])
    with pytest.raises(AAGError, match="smaller number first"):
        read_grid_words(["lr=2..1"])


def test_all_combinations_and_single_changes():
    grid = read_grid({"a": [1, 2], "b": ["x", "y", "z"]})
    combined = choose_values(grid)
    assert len(combined) == 6
    assert combined[0] == {"a": 1, "b": "x"}
    single = choose_values(grid, one_at_a_time=True)
    assert single == [{}, {"a": 1}, {"a": 2}, {"b": "x"}, {"b": "y"}, {"b": "z"}]


def test_draws_are_distinct_reproducible_and_start_with_the_same():
    grid = read_grid({"lr": "0.001..1", "width": "4..64", "momentum": "0.5..0.9", "head": ["linear", "mlp"]})
    drawn = choose_values(grid, draws=200, seed=3)
    assert drawn[:50] == choose_values(grid, draws=50, seed=3)
    assert drawn != choose_values(grid, draws=200, seed=4)
    assert len({repr(each) for each in drawn}) == 200
    assert all(isinstance(each["width"], int) and 4 <= each["width"] <= 64 for each in drawn)
    assert all(0.5 <= each["momentum"] <= 0.9 for each in drawn)
    logs = [math.log10(each["lr"]) for each in drawn]
    assert sum(each < -1.5 for each in logs) == pytest.approx(100, abs=30)  # log-uniform: half below the middle
    assert {each["head"] for each in drawn} == {"linear", "mlp"}
    whole = read_grid({"a": [1, 2], "b": [3, 4]})
    assert len(choose_values(whole, draws=4)) == 4


@pytest.mark.parametrize(("low", "high"), [(0.07, 0.7), (0.01, 0.1), (3, 30)])
def test_a_factor_of_exactly_ten_is_drawn_log_uniformly(low, high):
    generator = random.Random(0)
    drawn = [NumberRange(low, high).draw(generator) for _ in range(1000)]
    middle = math.sqrt(low * high)
    assert sum(each < middle for each in drawn) == pytest.approx(500, abs=60)  # uniformly: 240


def test_impossible_draws_are_refused():
    with pytest.raises(AAGError, match="only 4 combinations"):
        choose_values(read_grid({"a": [1, 2], "b": [3, 4]}), draws=5)
    with pytest.raises(AAGError, match="add --random"):
        choose_values(read_grid({"lr": "0.1..1"}))
    with pytest.raises(AAGError, match="add --random"):
        choose_values(read_grid({name: list(range(20)) for name in "abc"}))
    with pytest.raises(AAGError, match="leave one out"):
        choose_values(read_grid({"a": [1]}), draws=1, one_at_a_time=True)
    with pytest.raises(AAGError, match="nothing to sweep"):
        choose_values({})
