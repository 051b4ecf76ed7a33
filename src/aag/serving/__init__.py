"""What users do with a trained encoder."""

from aag.serving.evaluation import Evaluation, evaluate_run, save_evaluation, write_projection
from aag.serving.export import Export, export_encoder, push_to_hub

__all__ = [
    "Evaluation", "Export", "evaluate_run", "export_encoder", "push_to_hub", "save_evaluation", "write_projection",
]  # fmt: skip
