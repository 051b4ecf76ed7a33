"""The values that a sweep tries: all combinations, some drawn at random, or one change at a time."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from aag.errors import AAGError, describe

Values = dict[str, Any]  # of the swept options
MAX_COMBINATIONS = 1000
LOG_SPAN = 10  # ranges that span at least this factor are drawn log-uniformly
DRAWN_DIGITS = 3  # more would only make names longer


@dataclass(frozen=True)
class NumberRange:
    """A range to draw numbers from; whole numbers if both ends are."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise AAGError(f"{self} is not a range; give the smaller number first, such as 0.01..0.1")

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"

    def draw(self, generator: random.Random) -> float:
        """Draw log-uniformly if the range is positive and spans a factor of 10, else uniformly."""
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        if self.low > 0 and self.high >= LOG_SPAN * self.low * (1 - 1e-9):  # 10 * 0.07 > 0.7 in floating point
            number = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        elif is_whole:
            return generator.randint(int(self.low), int(self.high))
        else:
            number = generator.uniform(self.low, self.high)
        number = round(number) if is_whole else float(f"{number:.{DRAWN_DIGITS}g}")
        return min(max(number, self.low), self.high)


Grid = dict[str, "list[Any] | NumberRange"]  # by option name


def read_grid_words(words: Iterable[str]) -> Grid:
    """Read the words of --grid, such as lr=0.03,0.06 or lr=0.01..0.1; the values stay text."""
    grid: Grid = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not name or not equals or not values:
            raise AAGError(f"--grid takes NAME=VALUE,VALUE,… or NAME=LOW..HIGH, such as lr=0.03,0.06, not {word!r}")
        name = name.removeprefix("--").replace("-", "_")
        if name in grid:
            raise AAGError(f"--grid has {name} twice; give all its values at once: {name}=VALUE,VALUE")
        grid[name] = read_values(name, values)
    return grid


def read_grid(grid: Mapping[str, Any]) -> Grid:
    """Read the grid of a Python call: by option name a sequence of values, or text such as "0.01..0.1"."""
    if not isinstance(grid, Mapping) or not all(isinstance(name, str) for name in grid):
        raise AAGError(f'grid must be values by option name, such as {{"lr": [0.03, 0.06]}}, not {describe(grid)}')
    found: Grid = {}
    for name, values in grid.items():
        if isinstance(values, str):
            read = read_values(name, values)
            found[name] = read if isinstance(read, NumberRange) else [_read_literal(value) for value in read]
        elif isinstance(values, Sequence) and len(values):
            found[name] = list(values)
        else:
            raise AAGError(f"the values of {name} must be a list such as [0.03, 0.06], not {describe(values)}")
    return found


def read_values(name: str, text: str) -> "list[Any] | NumberRange":
    """Read `VALUE,VALUE,…` or a range `LOW..HIGH`."""
    low, dots, high = text.partition("..")
    if (
        dots
        and (ends := [_read_literal(end) for end in (low, high)])
        and all(type(end) in (int, float) for end in ends)
    ):
        return NumberRange(*ends)
    values = [value.strip() for value in text.split(",")]
    if "" in values:
        raise AAGError(f"{name}={text} has an empty value; write {name}=VALUE,VALUE without spaces")
    return values


def _read_literal(text: str) -> Any:
    """Return the number, boolean or None that a text stands for, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def describe_grid(grid: Grid) -> list[str]:
    """Return the grid as words of --grid."""
    return [
        f"{name}={values if isinstance(values, NumberRange) else ','.join(map(str, values))}"
        for name, values in grid.items()
    ]


def choose_values(grid: Grid, *, draws: int | None = None, one_at_a_time: bool = False, seed: int = 0) -> list[Values]:
    """Return the values of each setting to try: all combinations, `draws` of them, or one change at a time."""
    if not grid:
        raise AAGError("nothing to sweep; give --grid NAME=VALUE,VALUE, such as --grid lr=0.03,0.06")
    if draws is not None and one_at_a_time:
        raise AAGError("--random draws combinations, --one-at-a-time has none; leave one out")
    if draws is not None:
        return _draw(grid, draws, seed)
    lists: dict[str, list[Any]] = {}
    for name, values in grid.items():
        if isinstance(values, NumberRange):
            raise AAGError(f"{name}={values} is a range; add --random N to draw N settings")
        lists[name] = values
    if one_at_a_time:
        return [{}, *({name: value} for name, values in lists.items() for value in values)]
    if (count := math.prod(map(len, lists.values()))) > MAX_COMBINATIONS:
        raise AAGError(f"the grid has {count:,} combinations, at most {MAX_COMBINATIONS:,} are run; add --random N")
    return [dict(zip(lists, chosen, strict=True)) for chosen in product(*lists.values())]


def _draw(grid: Grid, count: int, seed: int) -> list[Values]:
    """Draw different combinations. A larger count starts with the same ones."""
    if count > MAX_COMBINATIONS:
        raise AAGError(f"--random must be at most {MAX_COMBINATIONS:,}, not {count:,}")
    generator, found = random.Random(seed), {}
    for _ in range(1000 + 100 * count):
        drawn = {
            name: values.draw(generator) if isinstance(values, NumberRange) else generator.choice(values)
            for name, values in grid.items()
        }
        found[repr(drawn)] = drawn
        if len(found) == count:
            return list(found.values())
    raise AAGError(f"the grid has only {len(found)} combinations; use --random {len(found)}, or leave it out")
