"""t-SNE projections of embeddings, for plots only: distances between far points mean little."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aag.errors import AAGError
from aag.vectors import check_floats, unit_rows

PERPLEXITY = 30.0  # scikit-learn's default; a third of the images where there are few
MIN_IMAGES = 5  # fewer leave nothing to arrange


def project(
    embeddings: Tensor,  # [N, D]
    labels: Tensor,  # [N]
    *,
    images: int = 2000,
    seed: int = 0,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """Project the first `images` embeddings to two dimensions by cosine distance; return them with labels, for JSON.

    The first images, not a random sample, so that plots of two runs show the same images.
    """
    embeddings = check_floats("t-SNE's embeddings", embeddings, "[N, D]")
    if embeddings.ndim != 2 or labels.ndim != 1 or len(embeddings) != len(labels):
        raise AAGError(
            f"t-SNE takes embeddings [N, D] and labels [N], not {list(embeddings.shape)} and {list(labels.shape)}"
        )
    points, shown = embeddings[:images].detach().double().cpu(), labels[:images].cpu()
    if len(points) < MIN_IMAGES:
        raise AAGError(f"t-SNE needs at least {MIN_IMAGES} images, not {len(points)}")
    if not points.isfinite().all():
        raise AAGError("t-SNE cannot place embeddings that hold NaN or infinity; train again with a lower --lr")
    points = unit_rows(points).float()  # cosines stay the same; scikit-learn fails with very large or small numbers
    if points.shape[1] < 2 or bool((points == points[0]).all()):  # scikit-learn would end the process
        raise AAGError("t-SNE needs embeddings of two dimensions or more that are not all the same")
    from sklearn.manifold import TSNE  # slow to import

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    model = TSNE(
        n_components=2, perplexity=perplexity, metric="cosine", init="pca", learning_rate="auto", random_state=seed
    )
    plane = model.fit_transform(points.numpy())
    return {
        "method": "t-SNE",
        "layer": "embedding",
        "dimensions": points.shape[1],
        "images": len(points),
        "split": "test, the first in order",
        "metric": "cosine",
        "perplexity": round(perplexity, 2),
        "initialisation": "pca",
        "seed": seed,
        "kl_divergence": round(float(model.kl_divergence_), 4),
        "classes": list(classes),
        "x": [round(float(x), 2) for x in plane[:, 0]],
        "y": [round(float(y), 2) for y in plane[:, 1]],
        "labels": shown.tolist(),
    }
