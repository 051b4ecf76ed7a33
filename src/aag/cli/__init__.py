"""The command line: one module per command, imported when it is needed. `aag --help` imports nothing heavy.

Where possible, commands import torch after parsing their arguments, so that --help and error messages are fast.
"""

import errno
import io
import os
import sys
from importlib import import_module

from aag import __version__
from aag.cli.streams import discard
from aag.errors import AAGError, unknown_name
from aag.signals import INTERRUPTED, RESUMABLE, Terminated, handle_stops, hold_stops, raise_stop

COMMANDS = {  # by what a user wants to do
    "Train": {
        "train": "train an encoder on a folder of images, an .npz or a data set",
        "sweep": "train with several settings and rank them on held-out images",
        "evaluate": "evaluate a run by kNN and a linear layer, as the paper does",
    },
    "Use an encoder": {
        "embed": "embed images: write a .parquet, .npz or .csv",
        "search": "find the images nearest to a query",
        "dedupe": "find near-duplicates and suggest which to keep",
        "cluster": "group similar images, with examples",
        "label": "label all images from a few examples, with confidence",
        "export": "write an encoder for ONNX, TorchScript, timm, PyTorch, the Hub",
    },
    "Inspect": {
        "report": "write an HTML page about a run: curves, image map, classes",
        "explore": "show a map of up to millions of images in the browser",
        "compare": "compare runs in a table and an HTML page",
        "runs": "list runs with their status",
    },
    "List": {
        "data": "list data sets; aag data fetch NAME downloads one",
        "methods": "list the methods, with their settings and references",
        "recipes": "list the recipes (named settings), with what to expect of each",
        "completion": "print a script that completes commands in bash, zsh or fish",
    },
    "Reproduce": {
        "reproduce": "list the paper's tables and figures, and run what is missing",
        "race": "show who trains fastest to 90 % kNN, or run an entry",
        "bench": "measure speed and memory on this machine",
    },
}
LOST_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a full disk, or a terminal that is gone


def usage() -> str:
    lines = [
        "usage: aag COMMAND [options]",
        "",
        "Train image encoders without labels, and use them: on a CPU, one GPU or several.",
        "",
    ]
    for title, commands in COMMANDS.items():
        lines += [f"{title}:", *(f"  aag {name:<11} {about}" for name, about in commands.items()), ""]
    return (
        "\n".join(lines)
        + """
  aag COMMAND --help   options of a command          aag --version

Try:  aag train                                  (a sample, minutes on a CPU)
      aag train --data FOLDER --minutes 60       (your own images, no labels)
      aag train --data cifar10 --recipe paper    (the paper's AAG, on one GPU)
"""
    )


def command_names() -> list[str]:
    return [name for commands in COMMANDS.values() for name in commands]


def main(arguments: list[str] | None = None) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `aag train >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (stays open)
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may be any bytes, and a terminal may know only ASCII
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except AAGError as error:
        if type(error).__name__ != "ReportedByMainError":  # by name: importing the class would import torch
            print(f"error{_process()}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("stopped", file=sys.stderr)
        return RESUMABLE if isinstance(stop, Terminated) else INTERRUPTED
    except BrokenPipeError:  # `aag data | head`
        discard(sys.stdout)
        return 141
    except OSError as error:
        if error.filename is not None or error.errno not in LOST_OUTPUT_ERRORS:
            raise
        discard(sys.stdout)
        print(f"error{_process()}: cannot print the results: {error.strerror}", file=sys.stderr)
        return 2
    except MemoryError:
        return _out_of_memory("this machine")
    except Exception as error:
        # torch's own, without importing torch; a CPU's allocator raises a plain RuntimeError.
        if type(error).__name__ == "OutOfMemoryError":
            return _out_of_memory("the GPU")
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
            return _out_of_memory("this machine")
        if _process() and isinstance(error, RuntimeError) and _is_broken_connection(error):
            print(f"error{_process()}: lost the connection to another process; see its message", file=sys.stderr)
            return 1
        raise


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"aag {__version__}")
        return 0
    if arguments[0] not in command_names():
        raise unknown_name("command", arguments[0], command_names())
    with handle_stops(raise_stop):
        with hold_stops():
            command = import_module(f"aag.cli.{arguments[0]}")
        return command.run(arguments[1:])


def _out_of_memory(where: str) -> int:
    advice = "try a smaller --batch-size or --image-size, with another --out"
    print(f"error: {where} is out of memory; {advice}", file=sys.stderr)
    return 2


def _process() -> str:
    """Return the rank of this process for messages; empty if there is only one."""
    return f" (process {os.environ.get('RANK')})" if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def _is_broken_connection(error: RuntimeError) -> bool:
    return type(error).__name__.startswith("Dist") or "gloo" in str(error)
