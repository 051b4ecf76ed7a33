"""Training: settings, recipes, the loop, checkpoints.

result = aag.train("photos/", epochs=100)
trainer = Trainer(encoder, method, images, TrainSettings(epochs=100), run=Run("runs/mine"))
trainer.fit()  # resumes if the run has a checkpoint
"""

from aag.runs import Run
from aag.settings import TrainSettings
from aag.training.api import Execution, TrainResult, load_sets, train, train_run
from aag.training.callbacks import KNN, Callback
from aag.training.encoders import build_encoder
from aag.training.recipes import choose_recipe, find_recipe, recipe_settings, recipes, run_name
from aag.training.settings import DataSettings, RunSettings
from aag.training.trackers import TensorBoard, Trackio, WandB
from aag.training.trainer import Trainer

__all__ = [
    "KNN", "Callback", "DataSettings", "Execution", "Run", "RunSettings", "TensorBoard", "Trackio", "TrainResult",
    "TrainSettings", "Trainer", "WandB", "build_encoder", "choose_recipe", "find_recipe", "load_sets",
    "recipe_settings", "recipes", "run_name", "train", "train_run",
]  # fmt: skip
