"""Train DETR of transformers on objects in shards: images of different sizes are padded, with their pixel mask.

pip install transformers scipy
python examples/10_detection.py               # writes shards/boxes/train; or pack COCO, YOLO or VOC
python examples/14_detr.py shards/boxes/train
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import v2
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def fields_of(size: int) -> dict[str, Any]:
    """Return the fields of a batch: the shorter side of an image has ``size`` pixels, and its objects keep theirs."""
    return {
        "image": wt.Image(view=wt.Resize(size), pad=0),
        "boxes": wt.Boxes("json", path="objects.box", format="xyxy", like="image", pad="flat"),
        "classes": wt.Field("json", path="objects.category", like="boxes", pad="flat"),
    }


def inputs_of(batch: Any) -> dict[str, Any]:
    """Return a batch as transformers takes it: boxes are centre and size, as fractions of the padded image."""
    shown = batch.image_mask
    height, width = shown.shape[1:]
    corner, stop = batch.boxes.split(2, dim=1)
    boxes = torch.cat([(corner + stop) / 2, stop - corner], dim=1) / torch.tensor([width, height] * 2)
    lengths = batch.boxes_offsets.diff().tolist()
    pairs = zip(boxes.split(lengths), batch.classes.split(lengths), strict=True)
    pixels = (batch.image / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return {
        "pixel_values": pixels * shown[:, None],
        "pixel_mask": shown.long(),
        "labels": [{"boxes": box, "class_labels": number} for box, number in pairs],
    }


def make_model(classes: int) -> DetrForObjectDetection:
    """Return a small DETR without pretrained weights."""
    backbone = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 128], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip
    small = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "d_model": 64}
    return DetrForObjectDetection(
        DetrConfig(use_timm_backbone=False, backbone=None, backbone_config=backbone, use_pretrained_backbone=False,
                   num_queries=20, num_labels=classes, encoder_attention_heads=4, decoder_attention_heads=4, **small)
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Train DETR.")
    parser.add_argument("data", type=Path, help="dataset with objects")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="pixels of the shorter side")
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    with wt.make_loader(
        args.data,
        batch_size=args.batch_size,
        shuffle=True,
        fields=fields_of(args.size),
        sample_transform=v2.RandomHorizontalFlip(),
    ) as loader:
        model = make_model(len(loader.field_classes["json:objects.category"].names))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for epoch in range(args.epochs):
            losses = []
            for batch in loader:
                loss = model(**inputs_of(batch)).loss
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                losses.append(float(loss.detach()))
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
