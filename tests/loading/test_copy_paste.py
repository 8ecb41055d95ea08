"""`CopyPaste`: what is pasted, and what becomes of the objects below it, by masks made pixel by pixel."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from pictures import encode
from PIL import Image
from torchvision.ops import masks_to_boxes

import wds_tools as wt
from wds_tools.errors import OptionError, SampleError
from wds_tools.inspection.saved_step import SavedStep
from wds_tools.options import RemoteOptions
from wds_tools.reading.select import Choice

SIZE = (80, 100)
WHOLE = wt.Letterbox(SIZE)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Write 24 images of the size of the view with up to 4 objects, one with 70: stars, some of two parts or none."""
    folder, rng = tmp_path_factory.mktemp("drawn"), np.random.default_rng(2)
    with wt.ShardWriter(str(folder / "a-%06d.tar")) as writer:
        for number in range(24):
            objects = []
            for index in range(70 if number == 7 else number % 5):
                parts = [star(rng) for _ in range((1, 1, 2, 0)[index % 4])]
                points = np.array(parts).reshape(-1, 2) if parts else np.array([[20.0, 30.0], [60.0, 50.0]])
                box = [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
                objects.append({"box": box, "number": 100 * number + index, "polygons": parts})
            pixels = Image.fromarray(rng.integers(0, 255, (*SIZE, 3), dtype=np.uint8))
            mask = encode(Image.new("L", SIZE[::-1], number), "PNG")
            writer.write(
                {
                    "__key__": f"{number:02}",
                    "png": encode(pixels, "PNG"),
                    "mask.png": mask,
                    "json": {"objects": objects},
                    "cls": 0,
                }
            )
    return folder


def star(rng):
    angles = np.sort(rng.random(9)) * 2 * np.pi
    lengths = rng.uniform(8, 25, 9)
    middle = rng.uniform(30, 50, 2)
    return np.stack([middle[0] + lengths * np.cos(angles), middle[1] + lengths * np.sin(angles)], 1).ravel().tolist()


def specs_of(view, **rules):
    return {
        "image": wt.Image(view=view),
        "boxes": wt.Boxes("json", path="objects.box", format="xyxy", like="image", **rules),
        "numbers": wt.Field("json", path="objects.number", like="boxes"),
        "polygons": wt.Polygons(like="boxes"),
        "mask": wt.Mask("mask.png", like="image"),
        "key": wt.Key(),
    }


def batch_of(folder, view, size=24, **rules):
    options = {"batch_size": size, "num_workers": 0, "shuffle": True, "fields": specs_of(view, **rules)}
    with wt.make_loader(folder, **options) as loader:
        (batch,) = islice(loader, 1)
        return batch, loader.explain(0)


def inside(parts):
    """Return which centres of pixels are inside an outline, from which a ray crosses it an odd number of times."""
    y, x = np.indices(SIZE) + 0.5
    found = np.zeros(SIZE, np.bool_)
    for outline in parts:
        of_one = np.zeros(SIZE, np.bool_)
        for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
            at = x0 + (y - y0) * (x1 - x0) / (y1 - y0 if y1 != y0 else 1)
            of_one ^= ((y0 > y) != (y1 > y)) & (x < at)
        found |= of_one
    return found


def objects_of(batch):
    """Return for each object, by its number, its box, the pixels inside its outline, or its box, and which it is."""
    found = {}
    for boxes, numbers, polygons in zip(batch.boxes, batch.numbers, batch.polygons, strict=True):
        for box, number, parts in zip(boxes, torch.as_tensor(numbers).tolist(), polygons, strict=True):
            left, top, right, bottom = box.tolist()
            corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
            found[number] = box, inside([part.numpy() for part in parts] or [corners]), bool(parts)
    return found


@pytest.fixture(scope="module")
def alone(drawn):
    return batch_of(drawn, WHOLE)[0]


def test_objects_are_pasted_by_their_outlines_and_what_they_cover_becomes_smaller(drawn, alone):
    batch, explained = batch_of(drawn, wt.CopyPaste(WHOLE, p=0.8, share=0.6))
    objects, images = objects_of(alone), dict(zip(alone.key, alone.image, strict=True))
    keys = [sample.key for sample in explained.samples]
    assert keys == batch.key == alone.key
    pasted = candidates = smaller = dropped = 0
    for i, (key, (second,)) in enumerate(zip(keys, explained.partners.tolist(), strict=True)):
        numbers = torch.as_tensor(batch.numbers[i]).tolist()
        chosen = [number for number in numbers if number // 100 == second]
        assert all(objects[number][2] for number in chosen)  # those without an outline are never pasted
        candidates += sum(number // 100 == second and one[2] for number, one in objects.items())
        pasted += len(chosen)
        cover = np.any([np.zeros(SIZE, np.bool_), *(objects[number][1] for number in chosen)], axis=0)
        expected = torch.where(torch.from_numpy(cover), images[f"{second:02}"], images[key])
        assert torch.equal(batch.image[i], expected)
        assert torch.equal(batch.mask[i], torch.where(torch.from_numpy(cover), second, int(key)).to(torch.uint8))
        boxes = dict(zip(numbers, batch.boxes[i], strict=True))
        for number in chosen:
            assert torch.equal(boxes[number], objects[number][0])
        for number in (one for one in objects if one // 100 == int(key)):
            box, whole, _ = objects[number]
            rest = whole & ~cover
            if not rest.any():
                assert number not in boxes
                dropped += 1
            elif (rest == whole).all():
                assert torch.equal(boxes[number], box)
            else:
                low, high = masks_to_boxes(torch.from_numpy(rest)[None])[0].split(2)
                around = torch.cat([torch.maximum(box[:2], low), torch.minimum(box[2:], high + 1)])
                assert (boxes[number] - around).abs().max() < 1e-4
                smaller += not torch.equal(boxes[number], box)
    assert 0.3 < pasted / candidates < 0.65  # 0.8 * 0.6
    assert pasted > 10
    assert smaller > 3


def test_the_rules_of_boxes_drop_objects_of_which_too_little_is_left(drawn, alone):
    objects = objects_of(alone)
    batch, explained = batch_of(drawn, wt.CopyPaste(WHOLE, p=1, share=1), min_visible=0.6)
    dropped = 0
    for sample, (second,), numbers in zip(explained.samples, explained.partners.tolist(), batch.numbers, strict=True):
        cover = np.any(
            [np.zeros(SIZE, np.bool_)] + [m for n, (_, m, has) in objects.items() if has and n // 100 == second], axis=0
        )
        for number, (_, whole, _) in objects.items():
            if number // 100 == int(sample.key):
                is_left = (whole & ~cover).sum() > 0.6 * whole.sum()
                assert (number in torch.as_tensor(numbers).tolist()) == is_left
                dropped += not is_left
    assert dropped > 5


def test_a_rectangle_is_pasted_without_outlines(drawn, alone):
    batch, explained = batch_of(drawn, wt.CopyPaste(WHOLE, polygons=None, p=0.8), min_visible=0.1)
    images, boxes = dict(zip(alone.key, alone.image, strict=True)), {}
    for of_image, numbers in zip(alone.boxes, alone.numbers, strict=True):
        boxes |= dict(zip(torch.as_tensor(numbers).tolist(), of_image, strict=True))
    areas = []
    for i, (key, (second,)) in enumerate(zip(batch.key, explained.partners.tolist(), strict=True)):
        cover = batch.mask[i] == second
        assert torch.equal(batch.image[i], torch.where(cover, images[f"{second:02}"], images[key]))
        areas.append(cover.float().mean())
        found = dict(zip(torch.as_tensor(batch.numbers[i]).tolist(), batch.boxes[i], strict=True))
        if not cover.any():
            assert {number // 100 for number in found} <= {int(key)}
            continue
        rectangle = masks_to_boxes(cover[None])[0] + torch.tensor([0, 0, 1, 1])
        assert cover.sum() == (rectangle[2] - rectangle[0]) * (rectangle[3] - rectangle[1])
        for number, box in boxes.items():
            if number // 100 == second:
                shown = torch.cat([torch.maximum(box[:2], rectangle[:2]), torch.minimum(box[2:], rectangle[2:])])
                width, height = (shown[2:] - shown[:2]).clamp(min=0).tolist()
                share = width * height / float((box[2:] - box[:2]).prod())
                assert number in found if share > 0.2 else number not in found or share > 0.05
                assert number not in found or torch.allclose(found[number], shown, atol=1e-4)
    assert 0.1 < torch.stack(areas).mean() < 0.5
    assert sum(area == 0 for area in areas) < 12


MOVED = wt.CopyPaste(wt.Mosaic(SIZE, degrees=20), p=0.7)


@pytest.mark.parametrize("view", [MOVED, wt.CopyPaste(wt.Mosaic(SIZE), polygons=None)], ids=["objects", "rectangle"])
@pytest.mark.torture_except("rectangle")
def test_it_does_not_depend_on_workers_or_resuming_and_is_explained(drawn, view):
    def plain(loader, steps=None):
        return [
            (batch.image.clone(), [one.tolist() for one in batch.boxes], batch.mask.clone())
            for batch in islice(loader, steps)
        ]

    def equal(ours, theirs):
        return len(ours) == len(theirs) and all(
            torch.equal(a[0], b[0]) and a[1] == b[1] and torch.equal(a[2], b[2])
            for a, b in zip(ours, theirs, strict=True)
        )

    options = {"batch_size": 6, "shuffle": True, "fields": specs_of(view)}
    with wt.make_loader(drawn, num_workers=0, **options) as loader:
        whole = plain(loader)
        for i in range(6):
            assert torch.equal(loader.explain(1).images("image", i)[0], whole[1][0][i])
    with wt.make_loader(drawn, num_workers=1, **options) as loader:
        assert equal(plain(loader, 2), whole[:2])
        state = loader.state_dict()
    with wt.make_loader(drawn, num_workers=0, **options) as loader:
        loader.load_state_dict(state)
        assert equal(plain(loader), whole[2:])


def test_masks_of_objects_lose_the_covered_pixels(drawn):
    specs = {**specs_of(MOVED), "masks": wt.ObjectMasks(like="boxes")}
    with wt.make_loader(drawn, batch_size=24, num_workers=0, shuffle=True, fields=specs) as loader:
        (batch,) = loader
    seen = 0
    for key, masks, numbers, pixels in zip(batch.key, batch.masks, batch.numbers, batch.mask, strict=True):
        for mask, number in zip(masks, torch.as_tensor(numbers).tolist(), strict=True):
            of_object = pixels[mask.bool()]
            assert (of_object == number // 100).float().mean() > 0.9 if len(of_object) > 50 else True
            seen += len(of_object) > 50
            assert key is not None
    assert seen > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": wt.Resize(9)}, r"CopyPaste\(Resize\(size=9\)\); allowed are Letterbox"),
        ({"polygons": 5}, "polygons=5; allowed are the name of a wds_tools.Polygons, and None"),
        ({"share": 2}, "share=2; allowed are 0 to 1"),
        ({"p": -1}, "p=-1; allowed are 0 to 1"),
    ],
)
def test_an_invalid_option_is_an_error_with_the_allowed_values(options, message):
    with pytest.raises(OptionError, match=message):
        wt.CopyPaste(**{"view": WHOLE, **options})


def test_outlines_of_another_field_or_number_are_errors(drawn, tmp_path):
    fields = {"image": wt.Image(view=wt.CopyPaste(WHOLE, polygons="boxes")), "boxes": specs_of(WHOLE)["boxes"]}
    with pytest.raises(
        OptionError, match=r"CopyPaste\(polygons='boxes'\) of the field 'image' requires .*Polygons\(\.\.\., l"
    ):
        wt.make_loader(drawn, batch_size=2, fields=fields)
    facts = {"objects": [{"box": [1, 1, 9, 9]}], "other": [[[1, 1, 9, 1, 9, 9]], [[1, 1, 9, 1, 9, 9]]]}
    with wt.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(2):
            writer.write({"__key__": f"{number}", "png": encode(Image.new("RGB", (9, 9)), "PNG"), "json": facts})
    fields["image"] = wt.Image(view=wt.CopyPaste(WHOLE, p=1))
    fields["polygons"] = wt.Polygons(path="other", like="image")
    loader = wt.make_loader(tmp_path, batch_size=2, num_workers=0, fields=fields)
    with loader, pytest.raises(SampleError, match="1 boxes, but 2 objects with outlines"):
        list(loader)


def test_an_outline_of_two_points_is_not_pasted(tmp_path):
    with wt.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(4):
            facts = {"objects": [{"box": [1, 1, 9, 9], "number": number, "polygons": [[1, 1, 9, 9]]}]}
            pixels = encode(Image.new("RGB", (20, 20), (number, 0, 0)), "PNG")
            mask = encode(Image.new("L", (20, 20)), "PNG")
            writer.write({"__key__": f"{number}", "png": pixels, "mask.png": mask, "json": facts})
    batch, _ = batch_of(tmp_path, wt.CopyPaste(wt.Letterbox(20), p=1, share=1), size=4)
    assert [[str(number) for number in numbers] for numbers in torch.as_tensor(batch.numbers).tolist()] == [
        [key] for key in batch.key
    ]
    assert batch.image[:, 0].flatten(1).unique(dim=1).flatten().tolist() == [int(key) for key in batch.key]


BY_OUTLINES = {"image": wt.Image(view=MOVED), "polygons": wt.Polygons(path="objects.polygons", like="image")}
BY_BOXES = {
    "photo": wt.Image(view=wt.Schedule({0: WHOLE, 1: wt.RandomIoUCrop(48, boxes="found")})),
    "found": wt.Boxes("json", path="objects.box", format="xyxy", like="photo"),
}


@pytest.mark.parametrize("fields", [specs_of(MOVED), BY_OUTLINES, BY_BOXES], ids=["boxes", "outlines", "crop"])
@pytest.mark.torture_except("outlines", "crop")
def test_a_saved_state_explains_views_that_choose_by_objects(drawn, tmp_path, fields):
    with wt.make_loader(drawn, batch_size=6, num_workers=0, shuffle=True, fields=fields) as loader:
        loader.set_epoch(1)
        next(iter(loader))
        state, expected = loader.state_dict(), loader.explain(0).to_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    step = SavedStep(file=tmp_path / "state.json", step=0)
    assert step.explain(str(drawn), Choice(), RemoteOptions.of()).to_dict() == expected


def test_a_saved_state_without_the_objects_names_them(drawn, tmp_path):
    with wt.make_loader(drawn, batch_size=6, num_workers=0, shuffle=True, fields=BY_BOXES) as loader:
        next(iter(loader))
        state = loader.state_dict()
    del state["xxh3"], state["views"]["photo"]["chosen_by"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(OptionError, match=r"has RandomIoUCrop\(boxes='found'\), but not where these are stored: call"):
        SavedStep(file=tmp_path / "state.json", step=0).explain(str(drawn), Choice(), RemoteOptions.of())
