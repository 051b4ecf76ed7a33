"""What users do with a trained encoder."""

from aag.serving.compare import compare_runs, write_comparison
from aag.serving.evaluation import Evaluation, evaluate_run, save_evaluation, write_projection
from aag.serving.export import Export, export_encoder, push_to_hub
from aag.serving.report import write_report

__all__ = [
    "Evaluation", "Export", "compare_runs", "evaluate_run", "export_encoder", "push_to_hub", "save_evaluation",
    "write_comparison", "write_projection", "write_report",
]  # fmt: skip
