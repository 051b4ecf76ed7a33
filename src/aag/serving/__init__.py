"""Use a trained encoder: embed, search, label, export, report. Modules are imported on first use."""

from typing import TYPE_CHECKING

from aag.lazy import lazy_names

if TYPE_CHECKING:
    from aag.serving.compare import compare_runs, write_comparison
    from aag.serving.evaluation import Evaluation, evaluate_run, save_evaluation, write_projection
    from aag.serving.export import Export, export_encoder, push_to_hub
    from aag.serving.report import write_report

__all__ = [
    "Evaluation", "Export", "compare_runs", "evaluate_run", "export_encoder", "push_to_hub", "save_evaluation",
    "write_comparison", "write_projection", "write_report",
]  # fmt: skip

__getattr__ = lazy_names(
    "aag.serving",
    {
        "Evaluation": "evaluation", "Export": "export", "compare_runs": "compare", "evaluate_run": "evaluation",
        "export_encoder": "export", "push_to_hub": "export", "save_evaluation": "evaluation",
        "write_comparison": "compare", "write_projection": "evaluation", "write_report": "report",
    },
)  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
