"""AAG as a LightningModule: an aag encoder, GNT-Xent, and views made on the device of the batch.

python examples/lightning_module.py
"""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import aag


class AAG(lightning.LightningModule):
    """Batches are (uint8 images [B, 3, H, W], …); labels are not used."""

    def __init__(self, encoder: aag.nets.Encoder, lr: float = 0.03, temperature: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.lr, self.temperature = encoder, lr, temperature
        self.basic, self.auxiliary = aag.augment.BasicAugment(), aag.augment.AuxiliaryAugment()

    def training_step(self, batch, batch_index):
        images = batch[0]
        views = torch.cat([self.basic(images), self.basic(images), self.auxiliary(images)])
        x, y, z = self.encoder(views)[1].chunk(3)  # the encoder takes uint8 and normalises
        loss = aag.losses.gnt_xent(x, y, z, temperature=self.temperature)  # in float32, also under autocast
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.lr, momentum=0.9, weight_decay=5e-4)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--out", default="lightning_encoder.safetensors")
    options = parser.parse_args()
    images = aag.data.load("sample", limit=options.images).images
    loader = DataLoader(TensorDataset(images), options.batch_size, shuffle=True, drop_last=True)
    module = AAG(aag.nets.build(aag.nets.EncoderSpec("resnet18", width=options.width)))
    trainer = lightning.Trainer(
        max_epochs=options.epochs, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    trainer.fit(module, loader)
    print(f"loss {trainer.callback_metrics['loss']:.3f}")
    aag.nets.save(module.encoder.cpu(), options.out)  # for aag.load, aag embed, aag export
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
