"""Evaluation of frozen representations. Accuracies are in percent; each number's protocol is a dict for JSON."""

from aag.evaluate.knn import KnnPrediction, knn_accuracy, knn_predict, knn_protocol
from aag.evaluate.linear import LinearResult, linear_probe, linear_protocol

__all__ = [
    "KnnPrediction", "LinearResult", "knn_accuracy", "knn_predict", "knn_protocol", "linear_probe", "linear_protocol",
]  # fmt: skip
