"""sample_transform=: a function of all fields of a sample, for torchvision, Albumentations and own code."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import OptionError

VIEW = wt.CenterCrop(48, resize=56)
FIELDS = {
    "image": wt.Image(view=VIEW),
    "mask": wt.Mask("mask.png", like="image"),
    "depth": wt.Array("flow.npy", like="image"),
    "boxes": wt.Boxes(path="objects.bbox", like="image"),
    "labels": wt.Field("json", path="objects.category", like="boxes"),
    "points": wt.Keypoints(path="points", like="image"),
    "text": wt.Text(),
    "label": wt.Label(),
    "key": wt.Key(),
}


def loader_of(dataset, function=None, fields=FIELDS, **options):
    options = {"batch_size": 8, "num_workers": 0, "fields": fields, **options}
    return wt.make_loader(dataset, sample_transform=function, **options)


def first_batch(dataset, *args, **options):
    with loader_of(dataset, *args, **options) as loader:
        return next(iter(loader))


def plain(value):
    if isinstance(value, torch.Tensor):
        assert type(value) is torch.Tensor
        return str(value.dtype), value.tolist()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


FLIP = v2.RandomHorizontalFlip(1.0)
HAS_POINTS = hasattr(tv_tensors, "KeyPoints")  # since torchvision 0.23


def test_transforms_of_torchvision_move_all_fields_together(scenes):
    batch, before = first_batch(scenes, FLIP), first_batch(scenes)
    assert torch.equal(batch.image, before.image.flip(-1))
    assert torch.equal(batch.mask, before.mask.flip(-1))
    assert torch.equal(batch.depth, before.depth.flip(-1))
    for boxes, others in zip(batch.boxes, before.boxes, strict=True):
        assert torch.allclose(boxes[:, [0, 2]], 48 - others[:, [2, 0]])
        assert torch.equal(boxes[:, [1, 3]], others[:, [1, 3]])
    moved = 47 - before.points[..., 0] if HAS_POINTS else before.points[..., 0]
    assert torch.allclose(batch.points[..., 0], moved)
    assert torch.equal(batch.points[..., 1:], before.points[..., 1:])
    assert (batch.text, batch.key) == (before.text, before.key)
    assert torch.equal(batch.label, before.label)


def test_random_crops_of_torchvision_give_other_sizes_and_drop_boxes_with_their_labels(scenes):
    transform = v2.Compose([v2.RandomCrop(32), v2.ColorJitter(0.5), v2.SanitizeBoundingBoxes()])
    fields = {name: spec for name, spec in FIELDS.items() if name not in ("label", "key")}
    batches = [first_batch(scenes, transform, fields, num_workers=number) for number in (0, 1)]
    assert plain(batches[0]) == plain(batches[1])
    batch = batches[0]
    assert (batch.image.shape, batch.mask.shape) == ((8, 3, 32, 32), (8, 32, 32))
    assert [len(boxes) for boxes in batch.boxes] == [len(labels) for labels in batch.labels]
    assert sum(map(len, batch.boxes)) < sum(map(len, first_batch(scenes).boxes))


class Own:
    """A function of the user. It is not a closure, so that it can be pickled."""

    def __call__(self, sample):
        assert list(sample) == list(FIELDS)
        kinds = [type(sample[name]) for name in ("image", "mask", "depth", "boxes", "points", "labels")]
        points = tv_tensors.KeyPoints if HAS_POINTS else torch.Tensor
        tensors = tv_tensors.Image, tv_tensors.Mask, tv_tensors.Mask, tv_tensors.BoundingBoxes, points
        assert kinds == [*tensors, torch.Tensor]
        assert sample["boxes"].canvas_size == (48, 48)
        assert isinstance(sample["label"], int)
        noise = torch.rand(1) + random.random() + np.random.rand()
        return {**sample, "image": sample["image"].float() + noise, "label": sample["label"] + 0.5, "text": noise}


@pytest.mark.parametrize("options", [{"num_workers": 3}, {"num_workers": 1, "multiprocessing_context": "forkserver"}])
@pytest.mark.torture_except("options1")
def test_own_code_gets_tensors_of_torchvision_and_keyed_random_numbers(scenes, options):
    batch = first_batch(scenes, Own(), shuffle=True)
    assert (batch.image.dtype, batch.label.dtype, batch.text.shape) == (torch.float32, torch.float64, (8, 1))
    assert len(batch.text.unique()) == 8
    assert plain(first_batch(scenes, Own(), shuffle=True, **options)) == plain(batch)
    dataset = wt.StreamingDataset(scenes, batch_size=8, fields=FIELDS, shuffle=True, sample_transform=Own())
    for i, sample in zip(range(8), dataset, strict=False):
        assert torch.equal(sample.image, batch.image[i])
        assert torch.equal(sample.boxes, batch.boxes[i])


def test_a_resumed_loader_draws_the_same_random_numbers(scenes):
    with loader_of(scenes, Own(), shuffle=True) as loader:
        expected = [batch.text for batch in loader]
    with loader_of(scenes, Own(), shuffle=True, num_workers=1) as loader:
        for batch, _ in zip(loader, range(2), strict=False):
            state = loader.state_dict()
            assert batch is not None
    with loader_of(scenes, Own(), shuffle=True, batch_size=4) as loader:
        loader.load_state_dict(state)
        assert torch.equal(torch.cat([batch.text for batch in loader]), torch.cat(expected[2:]))


def test_results_of_different_sizes_come_as_a_list(scenes):
    def cut(sample):
        side = 16 + 8 * (sample["label"] == 3)
        return {**sample, "image": sample["image"][:, :side]}

    for number in (0, 2):
        batch = first_batch(scenes, cut, num_workers=number)
        assert [image.shape[1] for image in batch.image] == [16 + 8 * (label == 3) for label in batch.label.tolist()]


def test_several_crops_are_lists_of_tensors_of_torchvision(scenes):
    def check(sample):
        assert [type(image) for image in sample["image"]] == [tv_tensors.Image] * 2
        assert [boxes.canvas_size for boxes in sample["boxes"]] == [(48, 48), (16, 16)]
        return FLIP(sample)

    fields = {"image": wt.Image(view=[VIEW, wt.Resize((16, 16))]), "boxes": FIELDS["boxes"]}
    batch, before = first_batch(scenes, check, fields), first_batch(scenes, None, fields)
    assert all(torch.equal(one, other.flip(-1)) for one, other in zip(batch.image, before.image, strict=True))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned NoneType; it must return a dictionary with the fields image, mask"),
        ({"image": 1}, "returned the fields image; it must"),
    ],
)
def test_a_wrong_return_value_is_an_error_that_names_the_sample(scenes, result, words):
    with pytest.raises(OptionError, match=words) as caught:
        first_batch(scenes, lambda _: result)
    assert "in sample_transform= of shard scenes-000000.tar, key 0000" in str(caught.value.__notes__)


def test_a_sample_transform_is_refused_if_samples_are_not_decoded(scenes):
    with pytest.raises(OptionError, match=r"remove .*sample_transform="):
        wt.StreamingDataset(scenes, decode=False, sample_transform=len)


class FakeCompose:
    """Has the interface of `A.Compose` with a horizontal flip, a crop of the left half, and boxes of any format."""

    __module__ = "albumentations.fake"

    def __init__(self, form="pascal_voc", labels=("labels",), keypoints="xy", additional=None):
        params = {"bboxes": SimpleNamespace(format=form, label_fields=labels)}
        params["keypoints"] = SimpleNamespace(format=keypoints, label_fields=None)
        self.processors = {name: SimpleNamespace(params=one) for name, one in params.items() if one.format}
        self.additional_targets = additional or {}
        self.form, self.seeds = form, []

    def set_random_seed(self, seed):
        self.seeds.append(seed)

    def __call__(self, *, image, bboxes=(), labels=(), **others):
        height, width = image.shape[:2]
        assert image.dtype == np.uint8
        half = width // 2
        boxes = self.edges(np.asarray(bboxes, np.float64).reshape(-1, 4), width, height)
        kept = boxes[:, 0] < half
        boxes = np.minimum(boxes[kept], [half, height, half, height])
        result = {"image": image[:, :half], "bboxes": self.stored(boxes, half, height).tolist()}
        result["labels"] = [label for label, is_kept in zip(labels, kept, strict=True) if is_kept]
        for name, value in others.items():
            is_points = name == "keypoints"
            assert value.ndim == 2 or value.shape[2] in (2, 3)
            result[name] = value + np.array([1, 0, 0]) if is_points else value[:, :half]
        return result

    def edges(self, boxes, width, height):
        if self.form in ("yolo", "albumentations"):
            assert boxes.max(initial=0) <= 1
            boxes = boxes * [width, height, width, height]
        if self.form in ("coco", "yolo"):
            start = boxes[:, :2] if self.form == "coco" else boxes[:, :2] - boxes[:, 2:] / 2
            boxes = np.concatenate([start, start + boxes[:, 2:]], axis=1)
        return boxes

    def stored(self, edges, width, height):
        if self.form in ("coco", "yolo"):
            size = edges[:, 2:] - edges[:, :2]
            edges = np.concatenate([edges[:, :2] + (size / 2 if self.form == "yolo" else 0), size], axis=1)
        return edges / [width, height, width, height] if self.form in ("yolo", "albumentations") else edges


ALBUMENTATIONS = {name: spec for name, spec in FIELDS.items() if name != "depth"}


@pytest.mark.parametrize("form", ["pascal_voc", "coco", "yolo", "albumentations"])
def test_albumentations_gets_arrays_and_boxes_in_its_format(scenes, form):
    batch, before = first_batch(scenes, FakeCompose(form), ALBUMENTATIONS), first_batch(scenes, None, ALBUMENTATIONS)
    assert torch.equal(batch.image, before.image[..., :24])
    assert torch.equal(batch.mask, before.mask[..., :24])
    assert torch.equal(batch.points, before.points + torch.tensor([1.0, 0, 0]))
    assert (batch.text, batch.label.tolist()) == (before.text, before.label.tolist())
    dropped = 0
    for i in range(8):
        kept = before.boxes[i][:, 0] < 24
        dropped += (~kept).sum()
        expected = before.boxes[i][kept].clamp(max=torch.tensor([24.0, 48, 24, 48]))
        assert torch.allclose(batch.boxes[i], expected, atol=1e-3)
        assert torch.equal(batch.labels[i], before.labels[i][kept])
    assert dropped


def test_albumentations_is_seeded_and_further_images_and_masks_are_additional_targets(scenes):
    fields = {**ALBUMENTATIONS, "right": wt.Image("right.jpg", like="image"), "depth": FIELDS["depth"]}
    transform = FakeCompose(additional={"right": "image", "depth": "mask"})
    batch, before = first_batch(scenes, transform, fields), first_batch(scenes, None, fields)
    assert torch.equal(batch.right, before.right[..., :24])
    assert torch.equal(batch.depth, before.depth[..., :24])
    assert len(set(transform.seeds[1:])) == 8
    again = FakeCompose(additional={"right": "image", "depth": "mask"})
    first_batch(scenes, again, fields)
    assert again.seeds == transform.seeds


@pytest.mark.parametrize(
    ("transform", "fields", "words"),
    [
        (FakeCompose(labels=()), ALBUMENTATIONS, r"label_fields=\['labels'\]"),
        (FakeCompose(form=None), {n: ALBUMENTATIONS[n] for n in ("image", "boxes")}, "bbox_params=A.BboxParams"),
        (FakeCompose(keypoints="yx"), ALBUMENTATIONS, "format='xy'"),
        (FakeCompose(), FIELDS, r"no target for the field 'depth': use .*\{'depth': 'mask'\}"),
        (FakeCompose(), {"text": wt.Text()}, "requires an image"),
        (FakeCompose(), {"image": wt.Image(view=[VIEW, VIEW])}, r"Image\(transform=...\)"),
    ],
)
def test_albumentations_without_a_target_for_a_field_is_refused_at_the_call(scenes, transform, fields, words):
    with pytest.raises(OptionError, match=words):
        loader_of(scenes, transform, fields)


def test_entries_of_dropped_boxes_that_are_kept_are_an_error(scenes):
    names = {"names": wt.Field("json", path="objects.name", like="boxes")}
    fields = {name: FIELDS[name] for name in ("image", "boxes", "labels")} | names
    transform = v2.Compose([v2.RandomCrop(20), v2.SanitizeBoundingBoxes()])  # drops the labels, but not the names
    with pytest.raises(OptionError, match="dropped boxes of the field 'boxes', but not their entries in the field 'na"):
        first_batch(scenes, transform, fields)


@pytest.mark.parametrize("numbers", [None, 3])
def test_samples_without_key_points_are_transformed_as_others(tmp_path, numbers):
    with wt.ShardWriter(tmp_path / "points" / "s-%06d.tar") as writer:
        for number in range(4):
            points = [5, 6, 2, 7, 8, 1] if numbers else [[5, 6, 2], [7, 8, 1]]
            image = Image.new("RGB", (48, 48), (number, 0, 0))
            writer.write({"__key__": f"{number}", "jpg": image, "json": {"points": points if number % 2 else []}})
    fields = {"image": wt.Image(view=VIEW), "points": wt.Keypoints(path="points", numbers=numbers, like="image")}
    batch, before = (first_batch(tmp_path / "points", one, fields, batch_size=4) for one in (FLIP, None))
    assert [len(points) for points in batch.points] == [0, 2, 0, 2]
    assert [one.shape for one in batch.points] == [one.shape for one in before.points]
    moved = 47 - before.points[1][:, 0] if HAS_POINTS else before.points[1][:, 0]
    assert torch.allclose(batch.points[1][:, 0], moved)
