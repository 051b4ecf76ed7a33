"""What users do with a trained encoder."""

from aag.serving.evaluation import Evaluation, evaluate_run, save_evaluation, write_projection

__all__ = ["Evaluation", "evaluate_run", "save_evaluation", "write_projection"]
