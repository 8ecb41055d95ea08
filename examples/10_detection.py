"""Train and evaluate a detector of torchvision: boxes, classes and masks move with the crop and the flip of the image.

    python examples/10_detection.py --model maskrcnn
    torchrun --nproc-per-node 2 examples/10_detection.py --epochs 20      # each image is evaluated once, on one rank
    python examples/10_detection.py --loader torchvision                  # trained by torchvision's own dataset

The datasets are made from the sample photographs: up to three others are pasted on each, and the detector learns their
boxes and classes. Their objects have the form in docs/annotations.md, so shards of COCO, YOLO or VOC are used in the
same way.
"""

import argparse
import contextlib
import io
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch.utils.data import DataLoader
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import LastLevelP6P7
from torchvision.transforms import v2

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent
Batches: TypeAlias = Iterable[tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]]  # images and targets
OBJECTS = {
    "boxes": wt.Boxes("json", path="objects.box", format="xyxy", like="image", pad="flat"),  # clipped, or dropped
    "labels": wt.Field("json", path="objects.category", like="boxes", pad="flat"),  # those of the remaining boxes
    "masks": wt.ObjectMasks(like="boxes"),  # their outlines, filled
}


def make_dataset(folder: Path, paths: list[Path], classes: list[str], seed: int) -> None:
    """Pack photographs with pasted objects: their boxes, classes and outlines."""
    rng = random.Random(seed)
    field_classes = {"json:objects.category": classes}
    with wt.ShardWriter(folder / "x-%06d.tar", maxcount=100, fresh=True, field_classes=field_classes) as writer:
        for number, path in enumerate(paths):
            image = Image.open(path).convert("RGB")
            objects = [paste(image, rng.choice(paths), classes, rng) for _ in range(rng.randint(1, 3))]
            data = io.BytesIO()
            image.save(data, "JPEG", quality=90)
            facts = {"id": number + 1, "width": image.width, "height": image.height, "objects": objects}
            writer.write({"__key__": f"{number:06}", "jpg": data.getvalue(), "json": facts})


def paste(image: Image.Image, path: Path, classes: list[str], rng: random.Random) -> dict[str, Any]:
    """Paste a photograph at a random position, and return it as an object."""
    side = rng.randint(min(image.size) // 4, min(image.size) // 2)
    left, top = rng.randint(0, image.width - side), rng.randint(0, image.height - side)
    right, bottom = left + side, top + side
    image.paste(Image.open(path).convert("RGB").resize((side, side)), (left, top))
    outline = [left, top, right, top, right, bottom, left, bottom]
    category = classes.index(path.parent.name)
    return {"box": [left, top, right, bottom], "category": category, "polygons": [outline]}


def make_model(name: str, classes: int, size: int) -> torch.nn.Module:
    """Return a detector with a small backbone. Class 0 is the background, as torchvision requires."""
    sizes = {"min_size": size, "max_size": size}
    if name == "retinanet":
        layers = {"returned_layers": [2, 3, 4], "extra_blocks": LastLevelP6P7(256, 256), "trainable_layers": 5}
        return RetinaNet(resnet_fpn_backbone(backbone_name="resnet18", weights=None, **layers), 1 + classes, **sizes)
    few = {"rpn_pre_nms_top_n_train": 200, "rpn_post_nms_top_n_train": 64, "box_batch_size_per_image": 32}  # for a CPU
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    return MaskRCNN(backbone, 1 + classes, **sizes, **few)


def targets_of(batch: Any) -> list[dict[str, torch.Tensor]]:
    """Return the targets of a batch as torchvision's detectors take them: the objects of each image."""
    edges = batch.boxes_offsets.tolist()
    return [
        {
            "boxes": batch.boxes[start:stop],
            "labels": 1 + batch.labels[start:stop],
            "masks": masks,
        }
        for start, stop, masks in zip(edges[:-1], edges[1:], batch.masks, strict=True)
    ]


def torchvision_loader(folder: Path, size: int, *keys: str) -> DataLoader:
    """Return images and targets from COCO files by torchvision's own dataset and transforms, to compare losses."""
    steps = [
        v2.RandomResizedCrop(size, scale=(0.5, 1)), v2.RandomHorizontalFlip(), v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes(), v2.ToPureTensor(),
    ]  # fmt: skip
    files = folder / "images/train", folder / "annotations/instances_train.json"
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = CocoDetection(*files, transforms=v2.Compose(steps))
    dataset = wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels", *keys))
    return DataLoader(dataset, 8, shuffle=True, drop_last=True, collate_fn=lambda samples: zip(*samples, strict=True))


def to(device: str, values: Any) -> Any:
    """Return tensors, also those in lists and dictionaries, on a device."""
    if isinstance(values, dict):
        return {name: to(device, value) for name, value in values.items()}
    return values.to(device) if isinstance(values, torch.Tensor) else [to(device, value) for value in values]


def train_one_epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> tuple[int, float]:
    """Train; return the number of objects and the mean loss."""
    model.train()
    objects, losses = 0, []
    for images, targets in batches:
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        objects += sum(len(target["boxes"]) for target in targets)
        losses.append(float(loss.detach()))
    return objects, sum(losses) / len(losses)


@torch.inference_mode()
def evaluate(model: torch.nn.Module, loader: wt.Loader, truth: COCO) -> float:
    """Return the mAP of the boxes, by pycocotools: of all ranks, with each image once."""
    model.eval()
    found = []
    for batch in loader:
        if not batch.valid[0]:  # it only fills up the last step of a rank
            continue
        [result] = model([batch.image[0] / 255])
        corner, stop = result["boxes"].split(2, dim=1)
        boxes = torch.cat([corner, stop - corner], dim=1)
        for box, label, score in zip(boxes.tolist(), result["labels"].tolist(), result["scores"].tolist(), strict=True):
            found.append({"image_id": int(batch.id[0]), "category_id": label, "bbox": box, "score": score})
    if dist.is_initialized():
        parts: list[list[dict[str, Any]]] = [[]] * dist.get_world_size()
        dist.all_gather_object(parts, found)
        found = [one for part in parts for one in part]
    if not found:
        return 0.0
    with contextlib.redirect_stdout(io.StringIO()):  # it prints all its steps
        evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a detector.")
    parser.add_argument("data", nargs="?", type=Path, default=ROOT / "shards/boxes", help="folder for the datasets")
    parser.add_argument("--model", choices=["retinanet", "maskrcnn"], default="retinanet")
    parser.add_argument("--count", type=int, default=400, help="photographs to use; a quarter of them for validation")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="pixels per side")
    parser.add_argument("--loader", choices=["wds_tools", "torchvision"], default="wds_tools", help="for training")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the crops")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:
        if args.loader == "torchvision":
            parser.error("--loader torchvision is for one process")
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    paths = sorted((ROOT / "shards/sample/images").glob("*/*.jpg"), key=lambda path: path.name)[: args.count]
    classes = sorted({path.parent.name for path in paths})
    if not dist.is_initialized() or dist.get_rank() == 0:
        make_dataset(args.data / "train", paths[len(paths) // 4 :], classes, seed=0)
        make_dataset(args.data / "val", paths[: len(paths) // 4], classes, seed=1)
        for split in ("train", "val"):
            wt.export(args.data / split, "coco", dst=args.data / "coco", split=split, overwrite=True, progress=False)
    if dist.is_initialized():
        dist.barrier()
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(args.data / "coco/annotations/instances_val.json")

    torch.manual_seed(0)
    model = make_model(args.model, len(classes), args.size).to(device)
    parallel = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(args.seed)
    view = wt.RandomResizedCrop(args.size, scale=(0.5, 1), flip=True)
    train_fields = {"image": wt.Image(view=view), **OBJECTS}
    val_fields = {"image": wt.Image(), "id": wt.Field("json", path="id")}
    options = {"batch_size": 8, "shuffle": True, "seed": args.seed, "device": device}
    train = wt.make_loader(args.data / "train", fields=train_fields, **options)
    val = wt.make_loader(args.data / "val", batch_size=1, tail="mask", fields=val_fields, device=device)
    with train, val:
        for epoch in range(args.epochs):
            batches: Batches = ((list(batch.image / 255), targets_of(batch)) for batch in train)
            if args.loader == "torchvision":
                masks = ["masks"] if args.model == "maskrcnn" else []
                loader = torchvision_loader(args.data / "coco", args.size, *masks)
                batches = ((to(device, images), to(device, targets)) for images, targets in loader)
            objects, loss = train_one_epoch(parallel, optimizer, batches)
            print(f"epoch {epoch}: {objects} objects, loss {loss:.3f}, mAP {evaluate(model, val, truth):.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
