"""All kinds of fields together: the same batches for every start method and number of workers."""

import pytest
import torch
from plain_values import plain
from scenes import scene
from sixteen_bits import deep_png
from test_frames import jpg
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wds_tools as wt

VIEW = wt.RandomResizedCrop((24, 32), flip=True)
DAMAGED = "0005"


def noisy(image):
    return image.float() + torch.rand(1)


def letters(text):
    return [ord(letter) for letter in text]


def first_bytes(data):
    return torch.frombuffer(bytearray(data[: int(torch.randint(2, 9, ()))]), dtype=torch.uint8)


FIELDS = {
    "image": wt.Image(view=VIEW),
    "right": wt.Image("right.jpg", like="image"),
    "noisy": wt.Image(view=VIEW, transform=noisy),
    "crops": wt.Image(view=[VIEW, wt.Resize((12, 12)), wt.Resize(20)], pad=0),
    "deep": wt.Image("deep.png", view=VIEW, mode="unchanged"),
    "whole": wt.Image(view=wt.Resize(30), pad=wt.Pad(9, multiple_of=8)),
    "fixed": wt.Image("deep.png", mode="unchanged", pad=wt.Pad(7, size=(50, 70))),
    "mask": wt.Mask("mask.png", like="image"),
    "masks": wt.Mask("mask.png", like="whole", pad=255),
    "depth": wt.Array("depth.png", like="whole", pad=0),
    "flow": wt.Array("flow.npy", like="crops", pad=0),
    "boxes": wt.Boxes(path="objects.bbox", like="image", pad=-1),
    "classes": wt.Field("json", path="objects.category", like="boxes", pad=-100),
    "names": wt.Field("json", path="objects.name"),
    "points": wt.Keypoints(path="points", like="image", flip_index=range(3)),
    "caption": wt.Text("json", path="captions.0"),
    "tokens": wt.Text(encode=letters, pad=wt.Pad(size=40)),
    "clip": wt.Frames("*.jpg", view=VIEW, frames=3, start="random"),
    "clips": wt.Frames("*.jpg", view=wt.Resize((20, 24)), stride=2, pad=1),
    "bytes": wt.Field("flac", decode=first_bytes, pad=0),
    "label": wt.Label(),
    "key": wt.Key(),
}


@pytest.fixture(scope="module")
def dataset(photos, tmp_path_factory):
    """Return 16 samples with all kinds of fields; one has a damaged mask."""
    folder = tmp_path_factory.mktemp("kinds") / "kinds"
    with wt.ShardWriter(str(folder / "x-%06d.tar"), maxcount=6) as writer:
        for number, path in enumerate(sorted(photos.glob("*/00[0-1].*"))):
            size = 30 + number, 40 + number
            sample = scene(path, number)
            frames = {f"{frame:03}.jpg": jpg(frame, size) for frame in range(3 + number % 4)}
            deep = torch.arange(size[0] * size[1] * 2).reshape(*size, 2).numpy().astype("uint16")
            mask = sample["mask.png"][:-30] if sample["__key__"] == DAMAGED else sample["mask.png"]
            writer.write({**sample, "mask.png": mask, "flac": bytes(range(9)), "deep.png": deep_png(deep), **frames})
    return folder


def batches(dataset, **options):
    options = {"batch_size": 5, "fields": FIELDS, "shuffle": True, "num_workers": 0, "max_errors": 1, **options}
    with wt.make_loader(dataset, on_error="replace", **options) as loader:
        found = [batch._asdict() for batch in loader]
        assert [error.key for error in loader.errors] == [DAMAGED]
        return found


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert list(batch) == list(other)
        for name, value in batch.items():
            assert plain(value) == plain(other[name]), name


@pytest.fixture(scope="module")
def expected(dataset):
    return batches(dataset)


def test_all_kinds_of_fields_have_their_shapes(expected):
    assert len(expected) == 3
    for batch in expected:
        assert DAMAGED not in batch["key"]
        assert batch["image"].shape == batch["right"].shape == batch["noisy"].shape == (5, 3, 24, 32)
        assert (batch["deep"].shape, batch["deep"].dtype) == ((5, 2, 24, 32), torch.uint16)
        assert batch["fixed"].shape == (5, 2, 50, 70)
        assert batch["whole"].shape[-2:] == batch["masks"].shape[-2:] == batch["depth"].shape[-2:]
        assert [crop.shape[-2:] for crop in batch["crops"]] == [flow.shape[-2:] for flow in batch["flow"]]
        assert batch["clip"].shape == (5, 3, 3, 24, 32)
        assert batch["clips"].shape[:2] == batch["clips_mask"].shape
        assert batch["boxes"].shape[:2] == batch["classes"].shape
        assert batch["tokens"].shape == (5, 40)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 3},
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
    ],
    ids=repr,
)
@pytest.mark.torture_except("{'num_workers': 2, 'multiprocessing_context': 'forkserver'}")
def test_batches_are_the_same_with_workers_that_are_forked_or_get_everything_pickled(dataset, expected, options):
    assert_equal(batches(dataset, **options), expected)


def test_a_streaming_dataset_makes_the_same_batches(dataset, expected):
    options = {"batch_size": 5, "fields": FIELDS, "shuffle": True, "on_error": "replace", "max_errors": 1}
    streaming = wt.StreamingDataset(dataset, **options)
    loader = DataLoader(streaming, batch_size=5, num_workers=2, collate_fn=streaming.collate_fn)
    assert_equal([batch._asdict() for batch in loader], expected)


def test_a_sample_transform_of_all_kinds_is_the_same_with_workers(dataset, expected):
    names = ("image", "mask", "boxes", "classes", "points", "clip", "whole", "masks", "tokens", "key")
    fields = {name: FIELDS[name] for name in names}
    options = {"fields": fields, "sample_transform": v2.RandomHorizontalFlip(0.5)}
    first, again = (batches(dataset, num_workers=number, **options) for number in (0, 3))
    assert_equal(again, first)
    flipped = [
        torch.equal(one, other.flip(-1)) and not torch.equal(one, other)
        for batch, before in zip(first, expected, strict=True)
        for one, other in zip(batch["image"], before["image"], strict=True)
    ]
    assert 0 < sum(flipped) < 15
