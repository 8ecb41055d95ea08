"""Outlines of objects: moved like the image, cut off at its edges, dropped with their boxes."""

import numpy as np
import pytest
import torch
from annotated_trees import tree_of
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.errors import SampleError
from wds_tools.images.outlines import clip

CORNER = st.tuples(st.integers(-60, 160), st.integers(-60, 160))


def covers(outline, x, y):
    """Return which points are inside an outline: those from which a ray crosses it an odd number of times."""
    inside = np.zeros(x.shape, np.bool_)
    for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        crosses = (y0 > y) != (y1 > y)
        at = x0 + (y - y0) * (x1 - x0) / np.where(y1 == y0, 1, y1 - y0)
        inside ^= crosses & (x < at)
    return inside


@given(st.lists(CORNER, min_size=1, max_size=7))
def test_a_cut_off_outline_covers_what_is_inside_of_the_rectangle(points):
    points = np.array(points, float)
    cut, _ = clip(points, np.array([len(points)]), np.zeros(2), np.array([90.0, 70.0]))
    y, x = np.meshgrid(np.arange(-50, 150) + 0.37193, np.arange(-50, 150) + 0.61413, indexing="ij")
    inside = (x > 0) & (x < 90) & (y > 0) & (y < 70)
    assert (covers(cut, x, y) == (covers(points, x, y) & inside)).all()
    assert (cut >= -1e-9).all()
    assert (cut <= [90 + 1e-9, 70 + 1e-9]).all()


OBJECTS = [
    {"box": [10, 10, 50, 40], "polygons": [[10, 10, 50, 10, 50, 40, 10, 40]], "keypoints": [[10, 10], [50, 40]]},
    {
        "box": [60, 0, 100, 80],
        "polygons": [[60, 0, 100, 0, 100, 80], [60, 0, 60, 80, 80, 80]],
        "keypoints": [[60, 0], [100, 80]],
    },
    {"box": [0, 70, 3, 72], "polygons": [], "keypoints": [[0, 70], [3, 72]]},
]


@pytest.fixture(scope="module")
def outlined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outlined")
    with wt.ShardWriter(str(folder / "a-%06d.tar")) as writer:
        for number in range(12):
            image = Image.effect_noise((100, 80), 40).convert("RGB")
            objects = OBJECTS[: number % 4]
            writer.write({"__key__": f"{number}", "jpg": encode(image, "JPEG"), "json": {"objects": objects}, "cls": 0})
    return folder


def batch_of(folder, view, like="boxes", **rules):
    fields = {
        "image": wt.Image(view=view),
        "boxes": wt.Boxes("json", path="objects.box", format="xyxy", like="image", **rules),
        "outlines": wt.Polygons(like=like),
        "points": wt.Keypoints("json", path="objects.keypoints", like="boxes", flip_index=range(2)),
    }
    with wt.make_loader(folder, batch_size=12, num_workers=0, fields=fields) as loader:
        return next(iter(loader))


VIEWS = [wt.RandomResizedCrop(64, flip=True), wt.Letterbox((90, 64), flip_vertical=1), wt.Mosaic(64), wt.CenterCrop(40)]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_the_outlines_of_the_remaining_boxes_reach_as_far_as_the_boxes(outlined, view):
    batch = batch_of(outlined, view, min_side=3)
    seen = 0
    for boxes, outlines, points in zip(batch.boxes, batch.outlines, batch.points, strict=True):
        assert len(outlines) == len(boxes) == len(points)
        for box, parts, corners in zip(boxes, outlines, points, strict=True):
            reach = torch.cat(parts)
            assert reach.dtype == torch.float32
            if len(parts) == 1:  # the outline of the first object is its box
                assert torch.allclose(torch.cat([reach.amin(0), reach.amax(0)]), box, atol=1e-3)
                size = torch.tensor(batch.image.shape[:1:-1])
                inside = corners.sort(0).values.clamp(torch.zeros(2), size.float())
                is_cut = (corners == -size).all(dim=1).any()  # a point beyond its tile
                assert is_cut or torch.allclose(
                    torch.cat([inside[0], inside[1]]), box, atol=1.01
                )  # pixels are mirrored inside
            seen += 1
    assert seen >= 8


def test_all_entries_remain_with_the_image(outlined):
    batch = batch_of(outlined, wt.CenterCrop(20), like="image", min_side=3)
    assert [len(outlines) for outlines in batch.outlines] == [0, 1, 2, 3] * 3
    assert len(batch.boxes[3]) < 3
    whole = batch_of(outlined, None)
    assert whole.outlines[3][1][1].tolist() == [[60, 0], [60, 80], [80, 80]]
    assert whole.outlines[3][2] == []


def test_an_invalid_outline_is_an_error_that_names_the_sample(tmp_path):
    for value in ([[1, 2, 3]], [["a"]], 5):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with wt.ShardWriter(str(folder / "a-%06d.tar")) as writer:
            image = encode(Image.new("RGB", (9, 9)), "JPEG")
            writer.write({"__key__": "bad", "jpg": image, "json": {"objects": [{"polygons": value}]}, "cls": 0})
        fields = {"image": wt.Image(view=wt.Letterbox(8)), "outlines": wt.Polygons(like="image")}
        loader = wt.make_loader(folder, batch_size=1, num_workers=0, fields=fields)
        with loader, pytest.raises(SampleError, match="bad"):
            list(loader)


SHOWN = [
    wt.Resize((160, 200)),
    wt.Letterbox((160, 300)),
    wt.LargeScaleJitter(200, (0.5, 0.5)),
    wt.ZoomOut((160, 200), (2, 2), p=1.0),
    wt.RandomAffine((80, 200), scale=(0.5, 0.5), translate=0.0, flip=0.0),
    wt.Mosaic(160, scale=(0.4, 0.6), translate=0.0, flip=0.0),
]


@pytest.mark.parametrize("view", SHOWN, ids=lambda view: type(view).__name__)
@pytest.mark.torture_except("LargeScaleJitter", "RandomAffine", "Resize", "Letterbox")
def test_boxes_and_outlines_beyond_their_image_are_cut_off_at_its_edges(view, tmp_path):
    item = {"box": [30, 20, 130, 70], "polygons": [[30, 20, 130, 20, 130, 70, 30, 70]]}
    image = encode(Image.new("RGB", (100, 80), (255, 0, 0)), "PNG")
    with wt.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(8):
            writer.write(
                {"__key__": f"{number}", "png": image, "json": {"objects": [item] * (1 + number % 2)}, "cls": 0}
            )
    fields = {
        "image": wt.Image(view=view),
        "boxes": wt.Boxes("json", path="objects.box", format="xyxy", like="image"),
        "outlines": wt.Polygons(like="boxes"),
    }
    with wt.make_loader(tmp_path, batch_size=8, num_workers=0, fields=fields) as loader:
        batch = next(iter(loader))
    seen = 0
    for pixels, boxes, outlines in zip(batch.image, batch.boxes, batch.outlines, strict=True):
        red = (pixels[0].int() - pixels[2].int() > 60).numpy()
        for box, parts in zip(list(boxes.numpy()), outlines, strict=True):
            reach = torch.cat(parts).numpy()
            assert np.allclose(np.concatenate([reach.min(0), reach.max(0)]), box, atol=1e-3)
            left, top, right, bottom = np.round(box).astype(int)
            if right - left > 4 and bottom - top > 4:
                assert red[top + 2 : bottom - 2, left + 2 : right - 2].all()
                seen += 1
    assert seen >= 4


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_equal_outlines_keep_theirs_and_objects_without_one_have_none(workers, tmp_path):
    box = {"box": [1, 2, 9, 8]}
    with wt.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(4):
            objects = [{**box, "polygons": [[1, 2, 9, 2, number, 8]]}, {**box, "rle": "0"}]
            image = encode(Image.new("RGB", (10, 10)), "PNG")
            writer.write({"__key__": f"{number}", "png": image, "json": {"objects": objects}, "cls": 0})
    fields = {"image": wt.Image(view=wt.Resize((10, 10))), "outlines": wt.Polygons(like="image")}
    (batch,) = wt.make_loader(tmp_path, batch_size=4, shuffle=False, num_workers=workers, fields=fields)
    found = [[[outline.tolist() for outline in outlines] for outlines in objects] for objects in batch.outlines]
    assert found == [[[[[1, 2], [9, 2], [number, 8]]], []] for number in range(4)]


def test_oriented_boxes_of_supervision_keep_their_corners_sides_and_angles_when_the_image_turns(tmp_path):
    src = tree_of(tmp_path / "src", "yolo/supervision_obb", "images/{name}")
    wt.pack(src, tmp_path / "packed", kind="yolo", progress=False)
    rules = {"path": "objects.box", "format": "xyxy", "like": "image"}
    sides = {}
    for view in (None, wt.RandomAffine(400, scale=(0.5, 0.5), translate=0, degrees=90)):
        fields = {
            "image": wt.Image(view=view, pad=None if view else 0),
            "boxes": wt.Boxes("json", **rules),
            "outlines": wt.Polygons(like="boxes"),
            "size": wt.Field("json", path="width"),
            "key": wt.Key(),
        }
        with wt.make_loader(tmp_path / "packed", batch_size=2, num_workers=0, tail="pad", fields=fields) as loader:
            for batch in loader:
                for key, objects in zip(batch.key, batch.outlines, strict=True):
                    sides.setdefault(key, []).append([corners for [corners] in objects])
    seen = 0
    for key, versions in sides.items():
        for stored, turned in zip(versions[0], versions[-1], strict=True):
            assert stored.shape == turned.shape == (4, 2)
            before, after = (one.roll(-1, 0) - one for one in (stored, turned))
            scale = after.norm(dim=1) / before.norm(dim=1)
            assert torch.allclose(scale, scale.mean().expand(4), rtol=0.02), key  # the size of the image is rounded up
            assert (after * after.roll(-1, 0)).sum(dim=1).abs().max() < 0.02 * after.norm(dim=1).prod() ** 0.5
            assert not torch.allclose(after, before * scale[:, None], rtol=0.01)
            seen += 1
    assert seen >= 2
