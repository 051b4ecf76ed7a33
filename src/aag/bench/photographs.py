"""Training on larger images (224 px views of 256 px images), by stage and compared with a DataLoader pipeline."""

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
