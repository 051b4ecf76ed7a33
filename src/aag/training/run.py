"""A run is a folder: config.json, metrics.jsonl, last.ckpt, encoder.safetensors."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from aag.config import TrainConfig
from aag.errors import AAGError
from aag.files import explain_write_errors, write_bytes, write_json


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = folder / "config.json"
        self.metrics_file = folder / "metrics.jsonl"
        self.checkpoint = folder / "last.ckpt"
        self.encoder_file = folder / "encoder.safetensors"
        self.evaluation_file = folder / "evaluation.json"
        self.skipped_file = folder / "skipped.txt"

    @staticmethod
    def open(folder: Path) -> "Run":
        """A run that exists."""
        run = Run(folder)
        # os.path answers False, where pathlib raises, for what may not be looked at.
        if not os.path.isdir(folder):
            raise AAGError(f"{folder}: no such run folder")
        if not os.path.isfile(run.config_file):
            raise AAGError(f"{folder} is not a run folder: it holds no config.json")
        return run

    @staticmethod
    def create(folder: Path, config: TrainConfig) -> "Run":
        """A new run, or the one already there if it has these settings."""
        run = Run(folder)
        if os.path.exists(run.config_file):
            run._check_same(config)
            return run
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AAGError(f"can't make the run folder {folder}: {error.strerror}") from error
        write_json(run.config_file, config.to_json())
        return run

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second process from training into this folder; the system frees it however the first one ends."""
        path = self.folder / ".lock"
        with explain_write_errors(path):
            file = path.open("w")
        with file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AAGError(f"another process is training into {self.folder}; choose another --out") from error
            except (ImportError, OSError):  # Windows, or a file system without locks
                pass
            yield

    def config(self) -> TrainConfig:
        try:
            return TrainConfig.from_json(json.loads(self.config_file.read_text())).validate()
        except (OSError, ValueError, TypeError, AttributeError, AAGError) as error:
            raise AAGError(f"can't read {self.config_file}: {error}") from error

    def _check_same(self, config: TrainConfig) -> None:
        there, here = self.config().identity(), config.identity()
        other = [f"{name} {there[name]} there, {here[name]} here" for name in here if there[name] != here[name]]
        if other:
            raise AAGError(f"{self.folder} holds a run with other settings ({'; '.join(other)}); choose another --out")

    def metrics(self) -> list[dict[str, Any]]:
        """The rows logged so far; a line that was cut off or damaged is passed over."""
        try:
            lines = self.metrics_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AAGError(f"can't read {self.metrics_file}: {error.strerror}") from error
        rows = []
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and {"kind", "epoch", "step"} <= row.keys():
                    rows.append(row)
        return rows

    def log(self, rows: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        with explain_write_errors(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(text)

    def keep_metrics(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drops what was logged after the checkpoint: the resumed run will log it again."""
        lines = "".join(json.dumps(row) + "\n" for row in self.metrics() if wanted(row))
        write_bytes(self.metrics_file, lines.encode())
