"""Fields of a batch: masks, arrays, boxes and points share the region of their image; text, JSON and labels."""

import json
import shutil
from itertools import islice

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from plain_values import plain
from scenes import png
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import ChecksumError, DecodeError, MissingFieldError, OptionError, SampleError
from wds_tools.images.views import Regions
from wds_tools.loading.fields.boxes import clipped_boxes
from wds_tools.order.keyed_random import key_of, uniform

VIEW = wt.RandomResizedCrop((48, 64), flip=True)
VIEWS = [VIEW, wt.CenterCrop(40, resize=50), wt.Resize((30, 50))]
SPECS = {
    "image": wt.Image(view=VIEW),
    "right": wt.Image("right.jpg", like="image"),
    "mask": wt.Mask("mask.png", like="image"),
    "depth": wt.Array("depth.png", like="image"),
    "flow": wt.Array("flow.npy", like="right"),
    "boxes": wt.Boxes(path="objects.bbox", like="image"),
    "category": wt.Field("json", path="objects.category", like="boxes"),
    "points": wt.Keypoints(path="points", like="image", flip_index=range(3)),
    "caption": wt.Text("json", path="captions.0"),
    "text": wt.Text(encode=lambda text: torch.tensor([len(text), ord(text[-1])])),
    "label": wt.Label(),
    "key": wt.Key(),
    "raw": "json",
}
PICKLED = {**SPECS, "text": wt.Text(encode=len)}


def loader_of(dataset, specs=SPECS, **options):
    return wt.make_loader(dataset, **{"batch_size": 8, "num_workers": 0, "fields": specs, **options})


def values_of(loader, steps=None):
    """Return the batches of an epoch as plain values that can be compared."""
    with loader:
        return [[plain(value) for value in batch] for batch in islice(loader, steps)]


def stored(dataset, fields=("jpg", "mask.png", "depth.png", "flow.npy", "json")):
    """Return the stored fields of all samples in order, as arrays [channels, height, width] or JSON."""
    with wt.make_loader(dataset, batch_size=40, num_workers=0, fields=fields) as loader:
        (batch,) = loader
    return [list(batch[number]) for number in range(len(fields))]


def regions_of(view, images):
    """Return the regions of epoch 0 of samples in stored order."""
    sizes = np.array([image.shape[1:] for image in images])
    u = uniform(key_of("view", 0, 0), np.arange(len(images)), view.draws)
    return view.regions(sizes[:, 1], sizes[:, 0], u)


def as_torchvision(value, regions, i, **options):
    """Crop, resize, crop and flip by torchvision's functions."""
    left, top, width, height = regions.box[i].tolist()
    value = v2.functional.crop(value, top, left, height, width)
    value = v2.functional.resize(value, regions.resize[i].tolist(), **options)
    value = v2.functional.crop(value, *regions.corner[i].tolist(), *regions.size[i].tolist())
    return v2.functional.horizontal_flip(value) if regions.flip[i] else value


@pytest.mark.parametrize("view", VIEWS, ids=repr)
@pytest.mark.torture_except(
    "RandomResizedCrop(size=(48, 64), scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), flip=True)",
)
def test_masks_are_exactly_those_of_torchvision_and_images_and_arrays_differ_by_rounding(scenes, view):
    specs = {**SPECS, "image": wt.Image(view=view)}
    images, masks, depths, flows, _ = stored(scenes)
    regions = regions_of(view, images)
    with loader_of(scenes, specs, batch_size=40) as loader:
        (batch,) = loader
    assert batch.mask.shape == (40, *view.shape)
    assert (batch.mask.dtype, batch.depth.dtype, batch.flow.dtype) == (torch.uint8, torch.uint16, torch.float32)
    for i in range(40):
        mask = as_torchvision(tv_tensors.Mask(masks[i]), regions, i)
        assert torch.equal(batch.mask[i], mask[0])
        image = as_torchvision(images[i].float(), regions, i, antialias=True)
        assert (batch.image[i] - image).abs().mean() <= 2  # docs/decisions/0009: 0.4 on average
        assert (batch.right[i] - (255 - image)).abs().mean() <= 3  # JPEG compression of another image
        depth = as_torchvision(depths[i].float(), regions, i, antialias=True)
        assert (batch.depth[i].float() - depth).abs().max() <= 1
        flow = as_torchvision(flows[i].permute(2, 0, 1), regions, i, antialias=True)
        assert (batch.flow[i] - flow).abs().max() <= 1e-5


@pytest.mark.parametrize("view", VIEWS, ids=repr)
@pytest.mark.torture_except(
    "RandomResizedCrop(size=(48, 64), scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), flip=True)",
)
def test_boxes_and_points_move_as_those_of_torchvision(scenes, view):
    specs = {
        **SPECS,
        "image": wt.Image(view=view),
        "flat": wt.Keypoints(path="flat", numbers=3, like="image", flip_index=range(2)),
    }
    images, *_, infos = stored(scenes)
    regions = regions_of(view, images)
    with loader_of(scenes, specs, batch_size=40) as loader:
        (batch,) = loader
    visible = 0
    for i, info in enumerate(infos):
        size = tuple(images[i].shape[1:])
        raw = torch.tensor([one["bbox"] for one in info["objects"]]).reshape(-1, 4)
        boxes = tv_tensors.BoundingBoxes(raw, format="XYWH", canvas_size=size)
        boxes = v2.functional.convert_bounding_box_format(boxes, new_format="XYXY")
        boxes = as_torchvision(boxes, regions, i)
        kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
        assert batch.boxes[i].dtype == torch.float32
        assert torch.allclose(batch.boxes[i], boxes[kept].as_subclass(torch.Tensor), atol=1e-3)
        assert batch.category[i].tolist() == [j % 3 for j, is_kept in enumerate(kept.tolist()) if is_kept]
        visible += len(batch.boxes[i])
        raw = torch.tensor(info["points"], dtype=torch.float32)
        if hasattr(tv_tensors, "KeyPoints"):  # since torchvision 0.23
            points = as_torchvision(tv_tensors.KeyPoints(raw[:, :2], canvas_size=size), regions, i)
            assert torch.allclose(batch.points[i, :, :2], points.as_subclass(torch.Tensor), atol=1e-3)
        assert batch.points[i, :, 2].tolist() == [2, 1, 0]
        assert batch.flat[i].shape == (2, 3)
    assert 30 < visible <= sum(len(info["objects"]) for info in infos)


def test_a_mapping_gives_the_images_and_the_state_of_the_short_form(scenes):
    with loader_of(scenes, ("image", "label", "__key__"), view=VIEW, shuffle=True) as short:
        expected = [[plain(value) for value in batch] for batch in short]
        state = short.state_dict()
    specs = {"image": wt.Image(view=VIEW), "label": wt.Label(), "__key__": "__key__"}
    with loader_of(scenes, specs, shuffle=True) as loader:
        assert [[plain(value) for value in batch] for batch in loader] == expected
        assert loader.state_dict() == state
    jpg = {**specs, "image": wt.Image("jpg", view=VIEW)}
    assert values_of(loader_of(scenes, jpg, shuffle=True)) == expected


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "forkserver"}],
    ids=repr,
)
@pytest.mark.torture_except("{'num_workers': 1, 'multiprocessing_context': 'forkserver'}")
def test_all_kinds_of_fields_are_the_same_with_workers_that_are_forked_or_get_everything_pickled(scenes, options):
    expected = values_of(loader_of(scenes, PICKLED, shuffle=True), 2)
    assert values_of(loader_of(scenes, PICKLED, shuffle=True, **options), 2) == expected


def test_a_resumed_loader_continues_with_the_same_values(scenes):
    some = {name: SPECS[name] for name in ("image", "mask", "boxes", "points", "text")}
    expected = values_of(loader_of(scenes, some, shuffle=True))
    loader = loader_of(scenes, some, shuffle=True, num_workers=1)
    assert [[plain(value) for value in batch] for batch in islice(loader, 2)] == expected[:2]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    resumed = loader_of(scenes, some, shuffle=True, num_workers=0, batch_size=4)
    resumed.load_state_dict(state)
    images = torch.cat([batch.image for batch in resumed])
    resumed.close()
    assert plain(images)[2] == b"".join(batch[0][2] for batch in expected[2:])


def test_a_streaming_dataset_has_the_same_values(scenes):
    with loader_of(scenes, shuffle=True) as loader:
        batch = next(iter(loader))
    dataset = wt.StreamingDataset(scenes, batch_size=8, fields=SPECS, shuffle=True)
    for i, sample in enumerate(islice(dataset, 8)):
        assert sample.label == batch.label[i]
        for name in set(SPECS) - {"label"}:
            assert plain(getattr(sample, name)) == plain(getattr(batch, name)[i])
    fixed = {name: SPECS[name] for name in ("image", "right", "mask", "flow", "points", "label")}
    dataset = wt.StreamingDataset(scenes, batch_size=8, fields=fixed, shuffle=True)
    collated = next(iter(DataLoader(dataset, batch_size=8, num_workers=1)))
    assert all(plain(value) == plain(getattr(batch, name)) for name, value in collated._asdict().items())


def test_two_images_with_views_have_regions_of_their_own_and_both_are_reproducible(scenes):
    specs = {"left": wt.Image(view=VIEW), "right": wt.Image("right.jpg", view=VIEW), "label": wt.Label()}
    with loader_of(scenes, specs) as loader, loader_of(scenes, specs, num_workers=1) as again:
        first = next(iter(loader))
        assert plain(list(first)) == plain(list(next(iter(again))))
    assert (first.left.int() - (255 - first.right.int())).abs().float().mean() > 20  # `right` is the negative of `left`


def test_without_like_masks_and_arrays_keep_their_size(scenes):
    specs = {"mask": wt.Mask("mask.png"), "depth": wt.Array("depth.png"), "boxes": wt.Boxes(path="objects.bbox")}
    _, masks, depths, _, infos = stored(scenes)
    with loader_of(scenes, specs, batch_size=40) as loader:
        (batch,) = loader
    assert all(torch.equal(mask, expected[0]) for mask, expected in zip(batch.mask, masks, strict=True))
    assert all(torch.equal(depth, expected) for depth, expected in zip(batch.depth, depths, strict=True))
    assert [len(boxes) for boxes in batch.boxes] == [len(info["objects"]) for info in infos]
    left, top, width, height = infos[6]["objects"][3]["bbox"]
    assert torch.allclose(batch.boxes[6][3], torch.tensor([left, top, left + width, top + height]))


SIDE = st.integers(1, 60)


@st.composite
def regions(draw):
    """Draw an image size and a region of it."""
    width, height = draw(SIDE), draw(SIDE)
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    box = [left, top, draw(st.integers(1, width - left)), draw(st.integers(1, height - top))]
    resize = [draw(SIDE), draw(SIDE)]
    corner = [draw(st.integers(0, side - 1)) for side in resize]
    size = [draw(st.integers(1, side - first)) for side, first in zip(resize, corner, strict=True)]
    numbers = (np.array([one], np.int64) for one in (box, resize, corner, size))
    return (width, height), Regions(*numbers, np.array([draw(st.booleans())]))


@given(drawn=regions(), fractions=st.lists(st.tuples(*[st.floats(0, 1)] * 4), max_size=4))
def test_a_moved_box_has_the_pixels_of_the_box_and_stays_inside(drawn, fractions):
    (width, height), region = drawn
    edges = np.array(fractions).reshape(-1, 4)
    edges = np.concatenate([np.sort(edges[:, ::2]) * width, np.sort(edges[:, 1::2]) * height], axis=1)[:, [0, 2, 1, 3]]
    moved, visible = clipped_boxes(edges, region, np.zeros(len(edges), np.int64))
    assert ((visible >= 0) & (visible <= 1 + 1e-9)).all()
    out_height, out_width = region.size[0]
    assert (moved >= 0).all()
    assert (moved <= [out_width, out_height, out_width, out_height]).all()
    assert (moved[:, 2:] >= moved[:, :2]).all()
    # The centre of an output pixel is in the moved box if and only if the point that it shows is in the box.
    y, x = (np.indices((out_height, out_width)) + 0.5).reshape(2, -1)
    left, top, box_width, box_height = region.box[0]
    across = out_width - x if region.flip[0] else x
    shown_x = left + (across + region.corner[0, 1]) * box_width / region.resize[0, 1]
    shown_y = top + (y + region.corner[0, 0]) * box_height / region.resize[0, 0]
    for (x0, y0, x1, y1), (a0, b0, a1, b1) in zip(moved, edges, strict=True):
        inside = (x > x0 + 1e-6) & (x < x1 - 1e-6) & (y > y0 + 1e-6) & (y < y1 - 1e-6)
        assert ((shown_x[inside] >= a0) & (shown_x[inside] <= a1)).all()
        assert ((shown_y[inside] >= b0) & (shown_y[inside] <= b1)).all()
        outside = (x < x0 - 1e-6) | (x > x1 + 1e-6) | (y < y0 - 1e-6) | (y > y1 + 1e-6)
        strictly = (shown_x > a0 + 1e-6) & (shown_x < a1 - 1e-6) & (shown_y > b0 + 1e-6) & (shown_y < b1 - 1e-6)
        assert not (outside & strictly).any()


@pytest.mark.parametrize("category", [3, -1])
def test_a_category_beyond_the_class_list_is_named_with_image_and_annotation(tmp_path, category):
    objects = [{"id": 7, "box": [1, 2, 3, 4], "category": 2}, {"id": 9, "box": [1, 2, 3, 4], "category": 1}]
    with wt.ShardWriter(
        str(tmp_path / "x-%06d.tar"), field_classes={"json:objects.category": ["cat", "dog", "fig"]}
    ) as writer:
        for key in "abc":
            if key == "c":
                objects[1]["category"] = category
            writer.write({"__key__": key, "json": {"path": f"{key}.jpg", "objects": objects}})
    fields = {"classes": wt.Field("json", path="objects.category")}
    words = rf"key c: .* has class {category} \(annotation 9 of 'c.jpg'\); allowed are 0 to 2, those of the class list"
    with loader_of(tmp_path, fields, batch_size=1) as loader, pytest.raises(SampleError, match=words):
        list(loader)
    with loader_of(tmp_path, fields, batch_size=1, on_error="replace") as loader:
        found = [batch.classes[0].tolist() for batch in loader]
    assert found == [[2, 1]] * 3


def test_text_is_encoded_with_random_numbers_of_its_position(scenes):
    def encode(text):
        return torch.rand(3), len(text)

    specs = {"text": wt.Text(encode=encode), "other": wt.Text("txt", encode=encode), "key": wt.Key()}
    first, again = (values_of(loader_of(scenes, specs, shuffle=True, num_workers=number)) for number in (0, 1))
    assert first == again
    assert first[0][0] != first[0][1]  # each field has its own random numbers
    assert first[0][0] != first[1][0]


def test_an_error_of_encode_names_the_sample_and_a_list_of_numbers_becomes_a_tensor(scenes):
    specs = {"text": wt.Text(encode=lambda text: [ord(letter) for letter in text[:3]])}
    with loader_of(scenes, specs) as loader:
        assert next(iter(loader)).text.shape == (8, 3)
    specs = {"text": wt.Text(encode=lambda text: len(text) / 0)}
    with loader_of(scenes, specs) as loader, pytest.raises(ZeroDivisionError) as caught:
        next(iter(loader))
    assert "in encode= of shard scenes-000000.tar, key 0000" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"mask": wt.Mask("mask.png", like="image")}, r"'image' does not exist; .* there are none"),
        ({"image": wt.Image(), "mask": wt.Mask("mask.png", like="imag")}, "allowed are names of .*Image.*: 'image'"),
        ({"label": wt.Label(), "mask": wt.Mask("mask.png", like="label")}, "'label' is wds_tools.Label"),
        ({"image": wt.Image(), "n": wt.Field("json", like="image")}, "'image' is wds_tools.Image; .*Boxes"),
        ({"a": wt.Image(like="b"), "b": wt.Image(like="a")}, "cycle: a -> b -> a"),
        ({"image": "image", "image ": "image"}, "attribute names"),
        ({"image": 3}, r"fields=.*; allowed are .*wds_tools.Image"),
        ({}, "allowed are"),
    ],
)
def test_an_invalid_mapping_is_refused(scenes, specs, words):
    with pytest.raises(OptionError, match=words):
        loader_of(scenes, specs)
    with pytest.raises(OptionError, match=words):
        wt.StreamingDataset(scenes, fields=specs)


@pytest.mark.parametrize(("name", "value"), [("view", VIEW), ("transform", len)])
def test_options_of_one_image_are_refused_with_a_mapping(scenes, name, value):
    with pytest.raises(OptionError, match=rf"{name}= .*use wds_tools.Image\({name}=...\)"):
        loader_of(scenes, SPECS, **{name: value})


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (wt.Image, {"field": ""}, "names of stored fields"),
        (wt.Image, {"view": 224}, "RandomResizedCrop"),
        (wt.Image, {"view": VIEW, "like": "left"}, "remove one of them"),
        (wt.Image, {"transform": 5}, "allowed are functions"),
        (wt.Mask, {"field": 7}, "names of stored fields"),
        (wt.Mask, {"field": "mask.png", "like": 7}, "another field of the batch"),
        (wt.Array, {"field": "npy", "interpolation": "cubic"}, "'nearest', 'bilinear'"),
        (wt.Boxes, {"format": "yxyx"}, "'xywh', 'xyxy', 'cxcywh'"),
        (wt.Boxes, {"path": 3}, "objects.bbox"),
        (wt.Boxes, {"normalized": True}, "requires like="),
        (wt.Keypoints, {"numbers": 1}, "2 and more"),
        (wt.Text, {"encode": "utf-8"}, "allowed are functions"),
    ],
)
def test_an_invalid_specification_is_refused(kind, options, words):
    with pytest.raises(OptionError, match=words):
        kind(**options)


def test_a_field_that_the_dataset_lacks_is_named(scenes):
    with pytest.raises(MissingFieldError, match=r"no 'left.jpg'; it has .*right.jpg"):
        loader_of(scenes, {"image": wt.Image("left.jpg", view=VIEW)})


@pytest.fixture
def write(tmp_path, photos):
    """Return a function that writes samples of equal photographs; ``change`` adds or changes fields of a sample."""

    def write(change, samples=8):
        path = min(photos.glob("cat/*.jpg"))
        with wt.ShardWriter(str(tmp_path / "written" / "x-%06d.tar")) as writer:
            for number in range(samples):
                boxes = {"boxes": [[1, 2, 3, 4]], "classes": [7]}
                sample = {"__key__": str(number), "jpg": path.read_bytes(), "json": boxes}
                writer.write({**sample, **change(number)})
        return tmp_path / "written"

    path = min(photos.glob("cat/*.jpg"))
    with Image.open(path) as image:
        write.size = image.size
    return write


@pytest.mark.parametrize(("normalized", "has_view"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize(
    ("form", "box"), [("xywh", [10, 20, 4, 8]), ("xyxy", [10, 20, 14, 28]), ("cxcywh", [12, 24, 4, 8])]
)
def test_boxes_of_every_format_become_edges_in_pixels(write, form, box, normalized, has_view):
    width, height = write.size
    scale = [width, height, width, height] if normalized else [1]
    folder = write(lambda _: {"npy": (np.array([box]) / scale).astype(np.float32)}, samples=8)
    boxes = wt.Boxes("npy", format=form, normalized=normalized, like="image")
    image = wt.Image(view=wt.Resize((height, width)) if has_view else None)
    with loader_of(folder, {"image": image, "boxes": boxes}) as loader:
        (batch,) = loader
    assert torch.allclose(batch.boxes, torch.tensor([10.0, 20, 14, 28]).expand(8, 1, 4), atol=1e-3)


def test_boxes_at_the_path_of_annotations_need_a_format_if_they_were_not_packed_from_annotations(write):
    folder = write(lambda _: {"json": {"objects": [{"box": [10, 20, 4, 8]}]}})
    with pytest.raises(OptionError, match=r"no class list for 'json:objects.category'.*format='xyxy', 'xywh' or"):
        loader_of(folder, {"boxes": wt.Boxes(path="objects.box")})
    with loader_of(folder, {"boxes": wt.Boxes(path="objects.box", format="xywh")}) as loader:
        assert next(iter(loader)).boxes[0].tolist() == [[10, 20, 14, 28]]


@pytest.mark.parametrize(("form", "box"), [("xywh", [2, 4, 8, 9]), ("xyxy", [0, 1, 2, 3]), ("cxcywh", [9, 9, 2, 2])])
def test_pixels_are_not_taken_for_fractions(write, form, box):
    folder = write(lambda number: {"json": {"boxes": [[0.2, 0.5, 1.1, 0.9], box] if number == 3 else []}})
    boxes = wt.Boxes(path="boxes", format=form, normalized=True, like="image")
    words = r"key 3: .* has box 1, \[.*allowed are fractions of the image, 0 to 1: remove normalized=True"
    with loader_of(folder, {"image": wt.Image(), "boxes": boxes}) as loader, pytest.raises(SampleError, match=words):
        next(iter(loader))


@pytest.mark.parametrize("has_view", [True, False])
@pytest.mark.parametrize(
    ("form", "box"),
    [("xywh", [10, 20, float("nan"), 8]), ("xywh", [10, 20, -4, 8]), ("xyxy", [14, 20, 10, 28]),
     ("cxcywh", [12, 24, 4, -8]), ("xyxy", [0, 0, float("inf"), 8])],
)  # fmt: skip
def test_a_box_that_is_not_finite_or_has_a_negative_size_is_an_error_that_names_it(write, form, box, has_view):
    good = [1, 2, 3, 4]
    folder = write(lambda number: {"npy": np.array([good, box if number == 5 else good], np.float32)})
    specs = {"boxes": wt.Boxes("npy", format=form)}
    if has_view:
        specs = {"image": wt.Image(view=VIEW), "boxes": wt.Boxes("npy", format=form, like="image")}
    with loader_of(folder, specs) as loader, pytest.raises(SampleError, match=r"box 1, \[.*finite numbers") as caught:
        list(loader)
    assert caught.value.key == "5"


def test_integers_that_floats_would_round_keep_their_values(write):
    def values(number):
        return [2**63 + 1 if number == 3 else number, 5]

    folder = write(lambda number: {"json": {"hash": values(number)[0], "hashes": values(number)}})
    with loader_of(folder, {"one": wt.Field("json", path="hash"), "all": wt.Field("json", path="hashes")}) as loader:
        (batch,) = loader
    assert sorted(map(int, batch.one)) == sorted(values(number)[0] for number in range(8))
    assert sorted(list(map(int, one)) for one in batch.all) == sorted(map(values, range(8)))


def test_samples_may_have_no_keypoints(write):
    folder = write(lambda number: {"npy": np.zeros((0, 6)) if number else np.arange(12.0).reshape(2, 6)})
    with loader_of(folder, {"points": wt.Keypoints("npy", numbers=3), "key": "__key__"}) as loader:
        (batch,) = loader
    assert {key: tuple(one.shape) for key, one in zip(batch.key, batch.points, strict=True)} == {
        str(number): (0 if number else 2, 2, 3) for number in range(8)
    }


def test_a_field_of_another_size_than_its_image_is_an_error_with_both_sizes(write):
    folder = write(lambda _: {"png": png(np.zeros((5, 6), np.uint8)), "right.jpg": np.zeros((5, 6, 3), np.uint8)})
    width, height = write.size
    for spec in (wt.Mask("png", like="image"), wt.Array("png", like="image"), wt.Image("right.jpg", like="image")):
        words = rf"field '{spec.field}' is 6x5, but field 'jpg' is {width}x{height}"
        with loader_of(folder, {"image": wt.Image("jpg", view=VIEW), "other": spec}) as loader:
            with pytest.raises(DecodeError, match=words) as caught:
                next(iter(loader))
            assert caught.value.key == "0"


def test_masks_of_different_types_come_as_a_list_although_most_are_in_shared_memory(write):
    width, height = write.size

    def fields(number):
        return {"png": png(np.full((height, width), number, np.uint16 if number == 5 else np.uint8))}

    folder = write(fields)
    specs = {"image": wt.Image(view=VIEW), "mask": wt.Mask("png", like="image"), "key": wt.Key()}
    for options in ({}, {"num_workers": 2}, {"batch_size": 4}, {"num_workers": 2, "on_error": "replace"}):
        with loader_of(folder, specs, **options) as loader:
            for batch in loader:
                masks = [(mask.dtype, mask.int().unique().tolist()) for mask in batch.mask]
                dtypes = [torch.uint16 if key == "5" else torch.uint8 for key in batch.key]
                assert masks == [(dtype, [int(key)]) for dtype, key in zip(dtypes, batch.key, strict=True)]
                assert isinstance(batch.mask, torch.Tensor) == ("5" not in batch.key)


def test_an_unreadable_mask_is_replaced_together_with_its_image(write):
    width, height = write.size

    def fields(number):
        mask = png(np.full((height, width), number, np.uint8))
        return {"png": mask[:-30] if number == 3 else mask, "txt": str(number)}

    specs = {"image": wt.Image(view=VIEW), "mask": wt.Mask("png", like="image"), "text": wt.Text()}
    folder = write(fields)
    results = []
    for number in (0, 2):
        with loader_of(folder, specs, on_error="replace", max_errors=1, num_workers=number) as loader:
            (batch,) = loader
            assert [one.key for one in loader.errors] == ["3"]
            results.append([plain(value) for value in batch])
        assert "3" not in batch.text
        assert batch.mask[:, 0, 0].tolist() == [int(text) for text in batch.text]
    assert results[0] == results[1]
    with loader_of(folder, specs) as loader, pytest.raises(DecodeError, match=r"key 3: field 'png': image cannot be"):
        next(iter(loader))


def test_arrays_of_integers_keep_their_values_and_interpolation_can_be_chosen(write):
    width, height = write.size
    values = np.random.default_rng(0).integers(0, 2**40, (height, width))
    folder = write(lambda _: {"npy": values, "deep.npy": values.astype(">u2"), "flags.npy": values > 2**39})
    specs = {
        "image": wt.Image("jpg", view=VIEW),
        "ids": wt.Array("npy", like="image"),
        "smooth": wt.Array("npy", like="image", interpolation="bilinear"),
        "near": wt.Array("deep.npy", like="image", interpolation="nearest"),
        "flags": wt.Mask("flags.npy", like="image"),
    }
    with loader_of(folder, specs) as loader:
        (batch,) = loader
    assert (batch.ids.dtype, batch.near.dtype, batch.flags.dtype) == (torch.int64, torch.uint16, torch.bool)
    assert batch.ids.shape == (8, 1, *VIEW.shape)
    assert torch.isin(batch.ids, torch.from_numpy(values)).all()
    assert not torch.isin(batch.smooth, torch.from_numpy(values)).all()
    assert torch.equal(batch.near.to(torch.int64), batch.ids % 2**16)
    assert torch.equal(batch.flags, batch.ids[:, 0] > 2**39)


@pytest.mark.parametrize(
    ("spec", "fields", "words"),
    [
        (wt.Mask("png"), {"png": np.zeros((4, 5, 3), np.uint8)}, "a mask has one channel, but this image has 3"),
        (wt.Mask("npy"), {"npy": np.zeros((4, 5, 2), np.uint8)}, "a mask has one channel, but this image has 2"),
        (wt.Array("npy"), {"npy": np.zeros(7)}, r"shape \(7,\) and float64 is not an image"),
        (wt.Array("npy"), {"npy": b"\x93NUMPY\1\0\4\0{}  "}, "array cannot be decoded"),
        (wt.Image("right.jpg"), {"right.jpg": b"BM"}, r"field 'right.jpg': is not a JPEG, PNG, WebP"),
        (wt.Image("right.jpg"), {"right.jpg": b"GIF89a"}, "'right.jpg': starts as GIF, but its header is damaged"),
        (wt.Boxes(path="classes"), {}, r"'json' at path 'classes' has an array of shape \(1,\); .*boxes"),
        (wt.Boxes(path="boxes.left"), {}, r"field 'json' has no 'boxes.left'"),
        (wt.Boxes(path="nope"), {}, "no 'nope': it has the names 'boxes', 'classes'"),
        (wt.Boxes(path="a.b"), {"json": {"boxes": [], "a": {"box": 1}}}, "no 'a.b': 'a' has the names 'box'"),
        (wt.Boxes(path="a.b"), {"json": {"boxes": [], "a": [{"b": 1}, {"c": 1}]}}, "'a' has the names 'c'"),
        (wt.Boxes(path="a.3"), {"json": {"boxes": [], "a": [1, 2]}}, "'a' has 2 values"),
        (wt.Boxes(path="a.b.c"), {"json": {"boxes": [], "a": {"b": 1}}}, "'a.b' has no names"),
        (wt.Boxes(path="b"), {"json": {"boxes": [], "b": [[1, 2], [3]]}}, "are numbers in lists of equal length"),
        (wt.Keypoints(path="classes"), {}, r"points \[\.\.\., 2\]"),
        (wt.Keypoints("npy", numbers=3), {"npy": np.zeros((3, 4))}, r"shape \(3, 4\); .* 3 numbers for each point"),
        (wt.Field("json", path="c", like="boxes"), {"json": {"boxes": [], "c": [1]}}, "has 1 entries.*the 0 boxes"),
        (wt.Field("json", path="c", like="boxes"), {"json": {"boxes": [], "c": 5}}, "has int; .* the 0 boxes"),
        (wt.Text("json"), {}, r"has dict; allowed are text"),
    ],
)
def test_an_invalid_value_is_an_error_of_its_sample(write, spec, fields, words):
    folder = write(lambda _: fields)
    specs = {"image": wt.Image("jpg", view=VIEW), "boxes": wt.Boxes(path="boxes"), "value": spec}
    if isinstance(spec, wt.Field):
        specs["boxes"] = wt.Boxes(path="boxes", like="image")
    with loader_of(folder, specs) as loader, pytest.raises(SampleError, match=words) as caught:
        next(iter(loader))
    assert caught.value.key == "0"


def test_a_flipped_bit_of_a_mask_raises_checksum_error(scenes, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(scenes, folder)
    path = folder / "scenes-000000.tar"
    data = bytearray(path.read_bytes())
    data[data.index(b"0000.mask.png") + 700] ^= 1
    path.write_bytes(data)
    with loader_of(folder) as loader, pytest.raises(ChecksumError, match=r"field 'mask.png'"):
        next(iter(loader))


def test_a_sample_without_a_label_is_named_with_the_ways_out(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for key, label in (("1", b"2"), ("2", b"-1"), ("3", b"0")):
            writer.write({"__key__": key, "png": png(np.zeros((8, 8, 3), np.uint8)), "cls": label})
    wt.index_shards(str(tmp_path / "a.tar"))
    with pytest.raises(
        MissingFieldError, match=r"shard a\.tar, key 2: .*no label: .*where='label >= 0', or leave 'label'"
    ):
        list(loader_of(tmp_path, ("label",), shuffle=False, batch_size=3))
    [batch] = loader_of(tmp_path, ("label",), shuffle=False, batch_size=2, where="label >= 0")
    assert batch.label.tolist() == [2, 0]
