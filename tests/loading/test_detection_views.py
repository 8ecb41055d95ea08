"""Views of detection in a loader: images, boxes, masks and key points move together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import wds_tools as wt

BOXES = {"path": "objects.bbox", "like": "image"}


def loader_of(folder, view, **options):
    fields = {
        "image": wt.Image(view=view),
        "mask": wt.Mask("mask.png", like="image", fill=9),
        "depth": wt.Array("depth.png", like="image", interpolation="nearest"),
        "boxes": wt.Boxes("json", **BOXES),
        "names": wt.Field("json", path="objects.name", like="boxes"),
        "points": wt.Keypoints("json", path="points", like="image", flip_index=range(3)),
        "key": wt.Key(),
    }
    return wt.make_loader(folder, fields=fields, num_workers=0, **options)


@pytest.mark.parametrize("options", [{}, {"flip": True, "flip_vertical": True}, {"center": False, "fill": 0}])
@pytest.mark.torture_except("options1")
def test_a_letterbox_moves_everything_as_torchvision_does(scenes, options):
    with wt.make_loader(scenes, batch_size=40, num_workers=0, fields=("jpg", "json", "mask.png")) as one:
        whole = next(iter(one))
    with loader_of(scenes, wt.Letterbox((96, 128), **options), batch_size=40, seed=5) as loader:
        batch = next(iter(loader))
        crops = [sample.crops["image"][0] for sample in loader.explain(0).samples]
    assert batch.image.shape == (40, 3, 96, 128)
    assert batch.mask.shape == (40, 96, 128)
    flips = set()
    for i, image in enumerate(whole[0]):
        size, entry = tuple(image.shape[1:]), whole.json[i]
        sample = {
            "image": tv_tensors.Image(image),
            "mask": tv_tensors.Mask(torch.from_numpy(np.asarray(whole[2][i]))),
            "boxes": tv_tensors.BoundingBoxes(
                [one["bbox"] for one in entry["objects"]] or torch.zeros(0, 4), format="XYWH", canvas_size=size
            ),
            "points": tv_tensors.KeyPoints([one[:2] for one in entry["points"]], canvas_size=size),
        }
        ratio = min(96 / size[0], 128 / size[1])
        height, width = min(math.ceil(size[0] * ratio), 96), min(math.ceil(size[1] * ratio), 128)
        top, left = round((96 - height) / 2 - 0.1), round((128 - width) / 2 - 0.1)
        if not options.get("center", True):
            top = left = 0
        fill = {tv_tensors.Image: options.get("fill", 114), tv_tensors.Mask: 9}
        steps = [v2.Resize((height, width)), v2.Pad([left, top, 128 - width - left, 96 - height - top], fill=fill)]
        flipped = crops[i].flip
        steps += [v2.RandomHorizontalFlip(1)] if flipped else []
        upright = v2.Compose(steps)(sample)
        turned = v2.RandomVerticalFlip(1)(upright)
        is_turned = abs(batch.image[i].int() - upright["image"].int()).float().mean() > 4
        expected = turned if is_turned else upright
        flips.add((flipped, bool(is_turned)))
        assert abs(batch.image[i].int() - expected["image"].int()).float().mean() < 2
        assert (batch.mask[i] == expected["mask"].reshape(96, 128)).all()
        xyxy = v2.functional.convert_bounding_box_format(expected["boxes"], new_format="XYXY")
        assert torch.allclose(batch.boxes[i], xyxy.float().reshape(-1, 4), atol=0.01)
        assert torch.allclose(batch.points[i][:, :2], expected["points"].float(), atol=0.01)
        assert len(batch.names[i]) == len(batch.boxes[i])
    assert len(flips) == (4 if options.get("flip") else 1)
