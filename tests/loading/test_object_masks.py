"""A mask for each object, compared with pycocotools: stored, and after views."""

import contextlib
import io

import numpy as np
import pytest
import torch
from annotated_trees import FOREIGN, tree_of
from pictures import encode
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

import wds_tools as wt
from wds_tools.errors import OptionError, SampleError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),  # pycocotools
]


def overlap(one, other):
    """Return the intersection over union of two masks."""
    one, other = np.asarray(one, bool), np.asarray(other, bool)
    return (one & other).sum() / max((one | other).sum(), 1)


@pytest.mark.parametrize(
    ("annotations", "place", "least"),
    [
        ("coco/datumaro_instances_poly", "{split}/{name}", 0.98),
        ("coco/datumaro_instances_mask", "images/{split}/{name}", 1),
    ],
)
def test_the_masks_of_a_file_of_datumaro_are_those_of_pycocotools(annotations, place, least, tmp_path):
    src = tree_of(tmp_path / "src", annotations, place)
    wt.pack_splits(src, tmp_path / "packed", split="folders", kind="coco", progress=False)
    fields = {
        "image": wt.Image(),
        "masks": wt.ObjectMasks(like="image"),
        "numbers": wt.Field("json", path="objects.id"),
    }
    seen = 0
    for path in sorted((FOREIGN / annotations).glob("*.json")):
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO(path)
        dataset = tmp_path / "packed" / path.stem.rpartition("_")[2]
        with wt.make_loader(dataset, batch_size=1, num_workers=0, tail="pad", fields=fields) as loader:
            for batch in loader:
                assert batch.masks[0].dtype == torch.uint8
                assert batch.masks[0].shape == (len(batch.numbers[0]), *batch.image[0].shape[1:])
                for mask, number in zip(batch.masks[0], batch.numbers[0], strict=True):
                    assert overlap(mask, truth.annToMask(truth.anns[int(number)])) >= least
                    seen += 1
    assert seen >= 5


def outline(rng, middle, reach):
    angles = np.sort(rng.random(14)) * 2 * np.pi
    lengths = reach * rng.uniform(0.5, 1, 14)
    return np.stack([middle[0] + lengths * np.cos(angles), middle[1] + lengths * np.sin(angles)], 1).ravel().tolist()


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Write 8 images of 120x90 with outlines in two parts, each followed by the same object in run lengths."""
    folder, rng = tmp_path_factory.mktemp("blobs"), np.random.default_rng(5)
    with wt.ShardWriter(str(folder / "a-%06d.tar")) as writer:
        for number in range(8):
            objects = []
            for _ in range(1 + number % 3):
                middle = rng.uniform(25, 70, 2)
                parts = [outline(rng, middle, 25), outline(rng, middle + 15, 12)]
                rle = coco_mask.merge(coco_mask.frPyObjects(parts, 90, 120))
                points = np.concatenate(parts).reshape(-1, 2)
                box = [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]
                run_lengths = {"size": rle["size"], "counts": rle["counts"].decode()}
                objects += [{"box": box, "kind": 0, "polygons": parts}, {"box": box, "kind": 1, "rle": run_lengths}]
            image = encode(Image.effect_noise((120, 90), 40).convert("RGB"), "JPEG")
            writer.write({"__key__": f"{number}", "jpg": image, "json": {"objects": objects}, "cls": 0})
    return folder


VIEWS = [
    None,
    wt.RandomResizedCrop(100, flip=True),
    wt.Letterbox((150, 100), flip=0.5, flip_vertical=0.5),
    wt.Mosaic((150, 180), scale=(0.6, 1.5)),
    wt.Mosaic((150, 180), degrees=30, shear=5, perspective=0.0005),
    wt.Blend(wt.LargeScaleJitter(128, (0.5, 2)), p=0.5),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_the_masks_are_those_of_pycocotools_for_the_moved_outlines(blobs, view):
    fields = {
        "image": wt.Image(view=view),
        "boxes": wt.Boxes("json", path="objects.box", format="xyxy", like="image", min_side=2, pad="flat"),
        "outlines": wt.Polygons(like="boxes"),
        "kinds": wt.Field("json", path="objects.kind", like="boxes", pad="flat"),
        "masks": wt.ObjectMasks(like="boxes", pad="flat"),
    }
    with wt.make_loader(blobs, batch_size=8, num_workers=0, fields=fields, shuffle=True) as loader:
        (batch,) = loader
    height, width = batch.image[0].shape[1:]
    outlines = [parts for objects in batch.outlines for parts in objects]
    assert batch.masks.shape == (len(batch.boxes), height, width)
    assert len(outlines) == len(batch.masks)
    seen = 0
    for number, (mask, parts, kind) in enumerate(zip(batch.masks.numpy(), outlines, batch.kinds, strict=True)):
        if kind == 0:
            points = [part.flatten().tolist() for part in parts if len(part) > 2]
            expected = (
                coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(points, height, width))) if points else mask
            )
        else:  # the run lengths of the outlines before
            expected = batch.masks[number - 1].numpy()
        if expected.sum() > 150:
            assert overlap(mask, expected) > (0.95 if kind == 0 else 0.85)
            seen += 1
    assert seen > 10


def written(folder, item, count=1, size=(20, 10)):
    with wt.ShardWriter(str(folder / "a-%06d.tar")) as writer:
        image = encode(Image.new("RGB", size), "PNG")
        writer.write({"__key__": "bad", "png": image, "json": {"objects": [item] * count}, "cls": 0})
    return folder


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"box": [1, 1, 5, 5], "id": 7}, "annotation 7 without outline; allowed are objects with 'polygons' or 'rle'"),
        ({"rle": {"size": [20, 10], "counts": [200]}}, r"height and width \[20, 10\]; allowed are .* \[10, 20\]"),
        ({"rle": {"size": [10, 20], "counts": [199]}}, "199 pixels; its size"),
        ({"rle": "abc"}, "run lengths"),
        ({"polygons": [[1, 2, 3]]}, r"an outline of shape \(3,\)"),
        (5, "a list of objects"),
    ],
)
def test_an_object_without_a_usable_outline_is_an_error_that_names_the_sample(item, message, tmp_path):
    fields = {"image": wt.Image(view=wt.Letterbox(16)), "masks": wt.ObjectMasks(like="image")}
    loader = wt.make_loader(written(tmp_path, item), batch_size=1, num_workers=0, fields=fields)
    with loader, pytest.raises(SampleError, match=message) as error:
        list(loader)
    assert error.value.key == "bad"


def test_thousands_of_objects_are_masks_if_they_fit_into_memory(tmp_path):
    item = {"box": [1, 1, 9, 9], "polygons": [[1, 1, 9, 1, 9, 9, 1, 9]]}
    folder = written(tmp_path, item, 2_000)
    for view in (wt.Letterbox(40), wt.Letterbox(800)):
        fields = {"image": wt.Image(view=view), "masks": wt.ObjectMasks(like="image")}
        with wt.make_loader(folder, batch_size=1, num_workers=0, fields=fields) as loader:
            if view.size == 40:
                (batch,) = loader
                assert batch.masks[0].shape == (2_000, 40, 40)
                assert batch.masks[0].sum() == 2_000 * 16 * 16
            else:
                with pytest.raises(SampleError, match="2,000 objects, whose masks of 800x800 take 1,280,000,000 byte"):
                    list(loader)


def test_masks_without_an_image_are_an_error():
    with pytest.raises(OptionError, match=r"ObjectMasks\(\) requires like="):
        wt.ObjectMasks()
