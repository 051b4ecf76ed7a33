"""AAG in Hugging Face's Trainer: the model makes the views and returns GNT-Xent as its loss.

python examples/hf_trainer.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import aag


class Pixels(Dataset):
    """Items as the Trainer wants them: dictionaries of tensors."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images  # uint8 [N, 3, H, W]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[index]}


class ContrastiveModel(nn.Module):
    """pixel_values, uint8 [B, 3, H, W] → {"loss"}; the views are made on the batch's device."""

    def __init__(self, encoder: aag.nets.Encoder, temperature: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.temperature = encoder, temperature
        self.basic, self.auxiliary = aag.augment.BasicAugment(), aag.augment.AuxiliaryAugment()

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        views = [self.basic(pixel_values), self.basic(pixel_values), self.auxiliary(pixel_values)]
        x, y, z = self.encoder(torch.cat(views))[1].chunk(3)
        return {"loss": aag.losses.gnt_xent(x, y, z, temperature=self.temperature)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--out", default="hf_encoder.safetensors")
    options = parser.parse_args()
    model = ContrastiveModel(aag.nets.build(aag.nets.EncoderSpec("resnet18", width=options.width)))
    arguments = TrainingArguments(
        output_dir="hf_trainer",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        learning_rate=1e-3,
        dataloader_drop_last=True,  # the loss needs negatives
        save_strategy="no",
        report_to="none",
    )
    images = aag.data.load("sample", limit=options.images).images
    result = Trainer(model=model, args=arguments, train_dataset=Pixels(images)).train()
    print(f"loss {result.training_loss:.3f}")
    aag.nets.save(model.encoder.cpu(), options.out)  # for aag.load, aag embed, aag export
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
