"""Choices and defaults that the command line shows in its help, without importing torch."""

from typing import Literal

ExportFormat = Literal["onnx", "torchscript", "timm", "safetensors", "hub"]
DUPLICATE_COSINE = 0.98  # measured: docs/use.md
MAP_IMAGES = 10_000  # largest number on a report's map
