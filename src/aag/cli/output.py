"""Printing."""

from rich.console import Console


def make_console() -> Console:
    # A path is printed as it is: "photos [old]" holds no markup, and "a:b:c" no emoji.
    return Console(markup=False, emoji=False)


class Printer:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or make_console()

    def __call__(self, text: str = "") -> None:
        self.console.print(text, highlight=False, soft_wrap=True)
