"""DeepCluster: k-means of the features before every epoch; then a classifier learns to predict the clusters.

Caron, Bojanowski, Joulin, Douze: "Deep Clustering for Unsupervised Learning of Visual Features" (2018).

    aag train --data cifar10 --method deepcluster

CIFAR-10, ResNet-18: kNN 67.6 in the paper of AAG, which quotes a run by ISIF's authors; 69.4 here in 4 minutes on one
H200. The augmentation, the learning rate and the weight decay are theirs (docs/methods.md).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag.augment import Augmentation
from aag.cluster import kmeans, mutual_information, whiten
from aag.errors import AAGError
from aag.methods.base import (
    BasicPreset,
    Embeddings,
    Extract,
    Method,
    MethodContext,
    MethodSettings,
    Recipe,
    StepOutput,
)
from aag.nets import Encoder
from aag.rng import Stream, keys, permutation, uniforms
from aag.settings import Momentum, Range

MIN_IMAGES_PER_CLUSTER = 10  # on average; with fewer, clusters are single images rather than classes


@dataclass(frozen=True)
class DeepClusterSettings(MethodSettings):
    basic: BasicPreset = "crop"
    clusters: Annotated[int, Range(at_least=2)] = 1000
    """Number of k-means clusters, at most one per ten images."""
    classifier_momentum: Momentum | None = None
    """Momentum of the classifier (--optimizer sgd); 0 in its authors' code. Default: --momentum."""


class DeepCluster(Method):
    """DeepCluster of the features, or of the head's output if there is a head, because kNN evaluates that output."""

    name = "deepcluster"
    settings_type = DeepClusterSettings
    settings: DeepClusterSettings
    recipes = {
        "deepcluster": Recipe(
            about="DeepCluster: k-means of the features every epoch, then the clusters as classes",
            expect="CIFAR-10, ResNet-18: kNN 67.6 in the paper; 69.4 here, in 4 minutes on one H200",
            options={"head": "none", "schedule": "constant", "lr": 0.03, "weight_decay": 5e-4, "basic": "isif"},
            demo={"epochs": 18, "clusters": 100},
        )
    }
    log_names = ("accuracy", "nmi")  # of the classifier; NMI of this epoch's clusters and the last epoch's
    labels: Tensor  # int64 [N], each image's cluster
    nmi: Tensor

    def augmentations(self) -> tuple[Augmentation, ...]:
        return (self.settings.basic_augmentation(),)

    def setup(self, context: MethodContext) -> None:
        encoder = context.encoder
        self.has_head = not isinstance(encoder.head, nn.Identity)
        clusters, images = self.settings.clusters, context.images
        if clusters > (most := max(2, images // MIN_IMAGES_PER_CLUSTER)):
            raise AAGError(
                f"{clusters} clusters leave fewer than {MIN_IMAGES_PER_CLUSTER} of {images:,} images to each; "
                f"use at most --clusters {most}"
            )
        self.seed = context.train.seed
        self.register_buffer("labels", torch.arange(images) % clusters)
        self.register_buffer("nmi", torch.zeros(()))
        inputs = encoder.embedding_dim if self.has_head else encoder.feature_dim
        self.classifier = nn.utils.skip_init(nn.Linear, inputs, clusters)
        self.reset_classifier(0)

    def reinitialized_parameters(self) -> tuple[nn.Parameter, ...]:
        return (self.classifier.weight, self.classifier.bias)

    def momenta(self) -> dict[Tensor, float]:
        momentum = self.settings.classifier_momentum
        return {} if momentum is None else dict.fromkeys(self.classifier.parameters(), momentum)

    @torch.no_grad()
    def before_epoch(self, epoch: int, extract: Extract) -> None:
        features, embeddings = extract()
        labels, _ = kmeans(
            whiten(embeddings if self.has_head else features), self.settings.clusters, seed=self.seed, epoch=epoch
        )
        if epoch > 0:  # the first epoch has no previous labels
            self.nmi.copy_(mutual_information(self.labels, labels))
        self.labels.copy_(labels)
        self.reset_classifier(epoch)

    @torch.no_grad()
    def reset_classifier(self, epoch: int) -> None:
        """Draw new weights, because clusters are numbered anew in each epoch."""
        clusters, features = self.classifier.weight.shape
        cluster = torch.arange(clusters, device=self.classifier.weight.device)
        u = uniforms(keys(self.seed, epoch, cluster, Stream.CLASSIFIER_INIT), features).double()
        self.classifier.weight.copy_(torch.special.ndtri(u + 2.0**-25) * 0.01)  # u has steps of 2^-24: never 0 nor 1
        self.classifier.bias.zero_()

    def epoch_order(self, epoch: int) -> Tensor:
        """Sample N images, the same number from each non-empty cluster: large clusters would dominate otherwise.

        Large clusters are sampled without replacement, small ones with replacement.
        """
        n, device = len(self.labels), self.labels.device
        shuffled = permutation(self.seed, epoch, n, device)
        by_cluster = shuffled[torch.sort(self.labels[shuffled], stable=True).indices]  # [N], shuffled within each
        counts = torch.bincount(self.labels, minlength=self.settings.clusters)  # [k]
        starts = counts.cumsum(dim=0) - counts
        starts, counts = starts[counts > 0, None], counts[counts > 0, None]

        each = n // len(counts) + 1  # at least N in all
        cluster = torch.arange(len(counts), device=device)
        u = uniforms(keys(self.seed, epoch, cluster, Stream.CLUSTER_SAMPLES), each).double()  # [k', each]
        position = torch.where(counts > each, torch.arange(each, device=device), (u * counts).long())
        drawn = by_cluster[starts + position].flatten()
        return drawn[permutation(self.seed, epoch, len(drawn), device, Stream.SAMPLE_ORDER)][:n]

    def embed(self, encoder: Encoder, views: Tensor) -> Embeddings:
        features, embedding = encoder(views[0])
        return (embedding if self.has_head else features)[None]  # [1, n, F]

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        (features,) = embeddings
        features = features if features.dtype == torch.float64 else features.float()
        # The clusters are of features before this ReLU, which changes nothing where a network ends in one.
        logits = self.classifier(F.relu(features))  # [n, k]
        labels = self.labels[index]
        accuracy = (logits.detach().argmax(dim=1) == labels).float().mean()
        return StepOutput(F.cross_entropy(logits, labels), (accuracy, self.nmi))
