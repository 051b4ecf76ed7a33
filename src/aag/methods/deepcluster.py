"""DeepCluster: before every epoch, k-means of the features; then a classifier learns to tell the clusters apart.

Caron, Bojanowski, Joulin, Douze: "Deep Clustering for Unsupervised Learning of Visual Features" (2018).

    aag train --data cifar10 --method deepcluster

CIFAR-10, ResNet-18: kNN 67.6 in the paper of AAG, with settings that are not known; 54.0 here in 4 minutes on one H200.
"""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag.augment import Augmentation
from aag.cluster import kmeans, mutual_information, whiten
from aag.config import TrainConfig
from aag.errors import AAGError
from aag.methods.base import Embeddings, Extract, Method, Outcome, Setting, basic, needs_no_head
from aag.nets import Encoder
from aag.rng import Stream, keys, permutation, uniforms

LEAST = 10  # images to a cluster on average; with fewer, k-means tells images apart and not kinds


class DeepCluster(Method):
    labels: Tensor
    nmi: Tensor
    logs = ("accuracy", "nmi")  # of telling an image's cluster; between the last two clusterings

    def __init__(
        self, views: Sequence[Augmentation], images: int, features: int, clusters: int = 1000, *, seed: int = 0
    ) -> None:
        super().__init__(views)
        if clusters > max(2, images // LEAST):
            raise AAGError(
                f"--clusters {clusters} leaves fewer than {LEAST} of {images:,} images to a cluster; "
                f"use at most {max(2, images // LEAST)}"
            )
        self.clusters = clusters
        self.seed = seed
        self.register_buffer("labels", torch.arange(images) % self.clusters)  # [N]
        self.register_buffer("nmi", torch.zeros(()))
        self.top = nn.utils.skip_init(nn.Linear, features, self.clusters)
        self.renew_top(0)

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        config = setting.config
        needs_no_head(setting)
        views = cls.families(config)
        return cls(views, setting.images, setting.encoder.feature_dim, config.clusters, seed=config.seed)

    @classmethod
    def families(cls, config: TrainConfig) -> tuple[Augmentation, ...]:
        return (basic(config),)

    @property
    def fresh(self) -> tuple[nn.Parameter, ...]:
        """New every epoch: the optimiser is to forget what it knew of them."""
        return (self.top.weight, self.top.bias)

    @torch.no_grad()
    def before_epoch(self, epoch: int, extract: Extract) -> None:
        features, _ = extract()
        labels, _ = kmeans(whiten(features), self.clusters, seed=self.seed, epoch=epoch)
        if epoch > 0:  # else there was none before
            self.nmi.copy_(mutual_information(self.labels, labels))
        self.labels.copy_(labels)
        self.renew_top(epoch)

    @torch.no_grad()
    def renew_top(self, epoch: int) -> None:
        """Cluster 7 of this epoch is not that of the last: nothing learnt about it holds any more."""
        clusters, features = self.top.weight.shape
        number = torch.arange(clusters, device=self.top.weight.device)
        u = uniforms(keys(self.seed, epoch, number, Stream.CLASSIFIER_INIT), features).double()
        self.top.weight.copy_(torch.special.ndtri(u + 2.0**-25) * 0.01)  # u has steps of 2^-24: never 0 nor 1
        self.top.bias.zero_()

    def order(self, epoch: int) -> Tensor:
        """N draws, as many from each cluster that is not empty; else a few large clusters would be all it learns.

        A cluster large enough gives different images; a smaller one is drawn from with replacement.
        """
        n, device = len(self.labels), self.labels.device
        shuffled = permutation(self.seed, epoch, n, device)
        by_cluster = shuffled[torch.sort(self.labels[shuffled], stable=True).indices]  # [N], at random within each
        counts = torch.bincount(self.labels, minlength=self.clusters)  # [k]
        starts = counts.cumsum(dim=0) - counts
        starts, counts = starts[counts > 0, None], counts[counts > 0, None]

        each = n // len(counts) + 1  # at least N in all
        cluster = torch.arange(len(counts), device=device)
        u = uniforms(keys(self.seed, epoch, cluster, Stream.CLUSTER_SAMPLES), each).double()  # [k', each]
        place = torch.where(counts > each, torch.arange(each, device=device), (u * counts).long())
        drawn = by_cluster[starts + place].flatten()
        return drawn[permutation(self.seed, epoch, len(drawn), device)][:n]

    def embed(self, encoder: Encoder, images: Tensor) -> Embeddings:
        return [encoder(images[0])[0]]  # features [n, F] of the one view

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        (features,) = embeddings
        features = features if features.dtype == torch.float64 else features.float()
        # Clusters are found among features before this ReLU, which does nothing where a network ends in one.
        logits = self.top(F.relu(features))  # [n, k]
        labels = self.labels[index]
        accuracy = (logits.detach().argmax(dim=1) == labels).float().mean()
        return Outcome(F.cross_entropy(logits, labels), (accuracy, self.nmi))
