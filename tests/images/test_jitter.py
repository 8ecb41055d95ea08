"""Zooming in and out: the steps of torchvision, one after the other, with the same random numbers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.order.keyed_random import key_of, uniform

SIZE = (96, 128)


def jittered(view: wt.LargeScaleJitter, u: np.ndarray, height: int, width: int) -> list:
    ratio = min(SIZE[0] / height, SIZE[1] / width) * (view.scale[0] + u[0] * (view.scale[1] - view.scale[0]))
    resized = int(height * ratio), int(width * ratio)
    top, left = (int(max(side - most, 0) * draw) for side, most, draw in zip(resized, SIZE, u[1:3], strict=True))
    cropped = min(resized[0], SIZE[0]), min(resized[1], SIZE[1])
    return [
        v2.Resize(resized, antialias=True),
        v2.Lambda(lambda one: v2.functional.crop(one, top, left, *cropped)),
        v2.Pad([0, 0, SIZE[1] - cropped[1], SIZE[0] - cropped[0]], fill=view.fill),
        *([v2.RandomHorizontalFlip(1)] if u[3] < view.flip else []),
        *([v2.RandomVerticalFlip(1)] if u[4] < view.flip_vertical else []),
    ]


def zoomed_out(view: wt.ZoomOut, u: np.ndarray, height: int, width: int) -> list:
    factor = view.scale[0] + u[1] * (view.scale[1] - view.scale[0])
    canvas = (int(height * factor), int(width * factor)) if u[0] < view.p else (height, width)
    top, left = int((canvas[0] - height) * u[2]), int((canvas[1] - width) * u[3])
    return [
        v2.Pad([left, top, canvas[1] - width - left, canvas[0] - height - top], fill=view.fill),
        v2.Resize(SIZE, antialias=True),
        *([v2.RandomHorizontalFlip(1)] if u[4] < view.flip else []),
        *([v2.RandomVerticalFlip(1)] if u[5] < view.flip_vertical else []),
    ]


CASES = [
    (wt.LargeScaleJitter(SIZE, flip=0.5, flip_vertical=0.5), jittered),
    (wt.LargeScaleJitter(SIZE, (1.5, 2)), jittered),
    (wt.ZoomOut(SIZE, flip=0.5, flip_vertical=0.5), zoomed_out),
    (wt.ZoomOut(SIZE, (1, 2), p=1, fill=114), zoomed_out),
]


@pytest.mark.parametrize(("view", "steps"), CASES)
@pytest.mark.torture_except("view1-jittered", "view2-zoomed_out")
def test_images_and_boxes_are_those_of_torchvision(scenes: Path, view: wt.ZoomOut, steps) -> None:  # type: ignore[no-untyped-def]
    with wt.make_loader(scenes, batch_size=40, num_workers=0, fields=("jpg", "json")) as stored:
        (whole,) = stored
    fields = {"image": wt.Image(view=view), "boxes": wt.Boxes("json", path="objects.bbox", like="image", min_side=0.1)}
    with wt.make_loader(scenes, batch_size=40, num_workers=0, fields=fields) as loader:
        (batch,) = loader
    u = uniform(key_of("view", 0, 0), np.arange(40), view.draws)
    count = 0
    for i, (image, info) in enumerate(zip(*whole, strict=True)):
        height, width = image.shape[1:]
        boxes = torch.tensor([one["bbox"] for one in info["objects"]], dtype=torch.float64).reshape(-1, 4)
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=(height, width))
        steps_of_one = v2.Compose([v2.ConvertBoundingBoxFormat("XYXY"), *steps(view, u[i], height, width)])
        expected, moved = steps_of_one(tv_tensors.Image(image), boxes)
        # The edges of a canvas that is resized are between two pixels: there torchvision mixes image and filling.
        assert (batch.image[i].float() - expected.float()).abs().mean() < 3
        moved = v2.functional.clamp_bounding_boxes(moved).as_subclass(torch.Tensor)
        moved = moved[((moved[:, 2:] - moved[:, :2]) > 0.1).all(1)]
        assert torch.allclose(batch.boxes[i].double(), moved, atol=0.01)
        count += len(moved)
    assert count > 50


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "npy"])
@pytest.mark.parametrize(("size", "scale"), [((100, 160), (2, 2)), ((150, 90), (2.2223, 2.2224))])
def test_an_image_that_keeps_its_size_is_only_cropped(tmp_path: Path, kind: str, size, scale) -> None:  # type: ignore[no-untyped-def]
    pixels = np.zeros((200, 200, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.indices((200, 200))  # each pixel has its position
    encoded = io.BytesIO()
    np.save(encoded, pixels) if kind == "npy" else Image.fromarray(pixels).save(encoded, kind, lossless=True)
    with wt.ShardWriter(str(tmp_path / "s-%06d.tar")) as writer:
        for number in range(4):
            fields = {kind.lower(): encoded.getvalue(), "depth.npy": pixels[..., 0].astype(np.float32)}
            writer.write({"__key__": str(number), **fields})
    view = wt.LargeScaleJitter(size, scale, flip=0.5)
    fields = {"image": wt.Image(kind.lower(), view=view), "depth": wt.Array("depth.npy", like="image")}
    with wt.make_loader(tmp_path, batch_size=4, num_workers=0, fields=fields) as loader:
        (batch,) = loader
    corners = set()
    for image, depth in zip(batch.image.numpy(), batch.depth.numpy(), strict=True):
        top, left = image[:2, 0].min(axis=1)
        whole = pixels[top:, left:][: size[0], : size[1]].transpose(2, 0, 1)
        expected = whole if image[1, 0, 0] < image[1, 0, -1] else whole[:, :, ::-1]
        assert (image == expected).all()
        assert (depth == expected[0]).all()
        corners.add((top, left))
    assert len(corners) > 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: wt.LargeScaleJitter(64, (0, 1)),
        lambda: wt.LargeScaleJitter(64, 2),  # type: ignore[arg-type]
        lambda: wt.ZoomOut(64, (0.5, 2)),
        lambda: wt.ZoomOut(64, p=2),
        lambda: wt.ZoomOut(64, fill=-1),
    ],
)
def test_invalid_options_are_errors_with_the_allowed_values(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match="allowed are"):
        make()


def iou_crop(u: np.ndarray, boxes: torch.Tensor, height: int, width: int) -> tuple[int, int, int, int] | None:
    """Return the crop of torchvision's rules, one trial after the other: left, top, width, height."""
    if u[0] >= 0.8:
        return None
    for draws in u[2:].reshape(4, -1):
        overlap = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0][int(draws[0] * 7)]
        if overlap >= 1:
            return None
        for share_w, share_h, x, y in draws[1:].reshape(-1, 4):
            new_w, new_h = int(width * (0.3 + 0.7 * share_w)), int(height * (0.3 + 0.7 * share_h))
            if not 0.5 <= new_w / new_h <= 2:
                continue
            left, top = int((width - new_w) * x), int((height - new_h) * y)
            centres = (boxes[:, :2] + boxes[:, 2:]) / 2
            low, high = torch.tensor([left, top]), torch.tensor([left + new_w, top + new_h])
            inside = ((centres > low) & (centres < high)).all(1)
            if not inside.any():
                continue
            crop = torch.tensor([[left, top, left + new_w, top + new_h]], dtype=torch.float64)
            if torchvision.ops.box_iou(boxes[inside], crop).max() >= overlap:
                return left, top, new_w, new_h
    return None


def test_a_crop_by_overlap_is_that_of_torchvision(scenes: Path) -> None:
    fields = {
        "image": wt.Image(view=wt.RandomIoUCrop(48, boxes="objects", flip=0.5)),
        "objects": wt.Boxes("json", path="objects.bbox", like="image"),
    }
    with wt.make_loader(scenes, batch_size=40, num_workers=0, fields=("jpg", "json")) as stored:
        (whole,) = stored
    seen = set()
    for epoch in range(2):
        with wt.make_loader(scenes, batch_size=40, num_workers=0, fields=fields) as loader:
            loader.set_epoch(epoch)
            (batch,) = loader
            samples = loader.explain(0, epoch=epoch).samples if epoch == 0 else loader.explain(0).samples
        u = uniform(key_of("view", 0, epoch), np.arange(40), fields["image"].view.draws)
        for i, sample in enumerate(samples):
            boxes = torch.tensor([one["bbox"] for one in whole[1][i]["objects"]], dtype=torch.float64).reshape(-1, 4)
            boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)
            height, width = whole[0][i].shape[1:]
            expected = iou_crop(u[i], boxes, height, width)
            (crop,) = sample.crops["image"]
            assert (crop.left, crop.top, crop.width, crop.height) == (expected or (0, 0, width, height))
            assert crop.flip == (u[i, 1] < 0.5)
            assert batch.image.shape[1:] == (3, 48, 48)
            seen.add(expected is None)
    assert seen == {True, False}


def test_a_crop_by_overlap_needs_boxes_of_its_image(scenes: Path) -> None:
    view = wt.RandomIoUCrop(48)
    fields = {"image": wt.Image(view=view), "other": wt.Image(view=wt.Resize(8)), "boxes": wt.Boxes(like="other")}
    for options in ({"fields": fields}, {"view": view}, {"fields": {"image": wt.Image(view=view)}}):
        with pytest.raises(OptionError, match="RandomIoUCrop"):
            wt.make_loader(scenes, batch_size=4, num_workers=0, **options)  # type: ignore[arg-type]
