"""Training on larger images, views of 224 px cropped from 256 px, by stage and beside a DataLoader pipeline."""

from typing import Any

from aag.bench import pipeline, training
from aag.bench.plan import Plan


def run(plan: Plan) -> dict[str, Any]:
    large = plan.photographs
    assert large is not None
    data = large.training[0].settings.data
    trained, loaded = training.run(large), pipeline.run(large)
    pipeline.compare(loaded, trained)
    sizes = {"image_size": data.image_size, "resize_size": data.resize_size}
    return {**sizes, "training": trained, "pipeline": loaded}
