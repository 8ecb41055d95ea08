"""`Normalize` as the only step of ``batch_transform=``: workers write floating-point images to the batch."""

from itertools import pairwise

import pytest
import torch
from torch.utils.data import DataLoader

import wds_tools as wt

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VIEW = wt.RandomResizedCrop(32, flip=True)
CHOSEN = list(range(0, 400, 9))  # 45 samples


def make(dataset, normalize=None, **options):
    defaults = {"view": VIEW, "batch_size": 8, "shuffle": True, "num_workers": 0, "subset": CHOSEN}
    return wt.make_loader(dataset, batch_transform=normalize, **{**defaults, **options})


def arithmetic(images, dtype=torch.float32, channels_last=False):
    """Return normalized images, computed by torch from the definition of `Normalize`."""
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(images.shape, dtype=dtype, memory_format=memory_format)
    return torch.addcmul((-mean / std).float(), images, (1 / (255 * std)).float(), out=out)


def seconds_in_the_training_process(loader):
    return loader.stats().epoch.stage_seconds["batch_transform"]


def assert_same_batches(dataset, normalize=None, *, epochs=1, convert=arithmetic, **options):
    """Check the batches of a loader that normalizes against those of one that does not, in bits and memory format."""
    normalize = normalize or wt.Normalize(MEAN, STD)
    with make(dataset, **options) as plain, make(dataset, normalize, **options) as loader:
        for _ in range(epochs):
            for bytes_, floats in zip(plain, loader, strict=True):
                several = isinstance(bytes_.image, list)
                pairs = zip(
                    *([bytes_.image, floats.image] if several else [[bytes_.image], [floats.image]]), strict=True
                )
                for image, found in pairs:
                    expected = convert(image)
                    assert found.dtype == expected.dtype
                    assert torch.equal(found, expected)
                    assert found.stride() == expected.stride()
                for name in set(bytes_._fields) - {"image"}:
                    one, other = getattr(bytes_, name), getattr(floats, name)
                    assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        return seconds_in_the_training_process(loader)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.torture_except("False-dtype0", "True-dtype1")
def test_workers_write_the_bits_that_torch_computes(packed, dtype, channels_last):
    normalize = wt.Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)
    seconds = assert_same_batches(
        packed, [normalize], num_workers=1, convert=lambda images: arithmetic(images, dtype, channels_last)
    )
    assert seconds == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_byte_becomes_the_value_that_torch_computes(dtype, channels_last):
    images = torch.arange(256, dtype=torch.uint8).repeat(2, 3, 3, 1)
    images[:, 1] = images[:, 1].flip(-1)
    images[1] = images[1].flip(-1)
    found = wt.Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)(images)
    assert torch.equal(found, arithmetic(images, dtype))
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    strided = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(wt.Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)(strided), found)
    assert wt.Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)(images[:0]).shape == (0, 3, 3, 256)


@pytest.mark.parametrize(
    "options",
    [
        {"tail": "mask"},
        {"tail": "pad", "num_workers": 3, "batch_size": 40},
        {"fields": {"image": wt.Image(view=[VIEW, wt.CenterCrop(24, resize=40)]), "label": wt.Label()}, "view": None},
        {"view": wt.Schedule({0: VIEW, 1: wt.Resize((24, 40))}), "epochs": 2},
        {"view": wt.MultiScale([wt.Resize((32, 32)), wt.Resize((24, 40))])},
        {"fields": ("__key__", "label", "image"), "num_workers": 1},
        {"fields": {"image": wt.Image(view=VIEW, color=wt.HSV(0.1, 0.5, 0.5)), "label": wt.Label()}, "view": None},
        {
            "fields": {
                "image": wt.Image(view=VIEW),
                "again": wt.Image(like="image"),
                "floats": wt.Image(view=VIEW, transform=lambda image: image / 255),
            },
            "view": None,
            "num_workers": 2,
        },
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.torture_except("False-options0", "True-options2", "False-options4", "False-options5", "True-options6")
def test_the_training_process_normalizes_nothing_with(packed, options, channels_last):
    normalize = wt.Normalize(MEAN, STD, channels_last=channels_last)
    convert = lambda images: arithmetic(images, channels_last=channels_last)  # noqa: E731
    assert assert_same_batches(packed, normalize, convert=convert, **options) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"sample_transform": lambda sample: sample},
        {"fields": {"image": wt.Image(transform=lambda image: image.flip(-1), view=VIEW), "label": wt.Label()}},
        {"fields": {"image": wt.Image(pad=0, view=wt.Resize(24)), "label": wt.Label()}},
        {"view": wt.Buckets([(32, 32), (24, 40)]), "tail": "drop"},
    ],
)
@pytest.mark.torture_except("options0", "options3")
def test_other_images_are_normalized_by_the_training_process(packed, options):
    options = {"view": None, **options} if "fields" in options else options
    assert assert_same_batches(packed, **options) > 0


def test_other_steps_get_bytes(packed):
    dtypes = []

    def note(images):
        dtypes.append(images.dtype)
        return images

    with make(packed, [note, wt.Normalize(MEAN, STD)]) as loader:
        assert next(iter(loader)).image.dtype == torch.float32
    with make(packed, [wt.Normalize(MEAN, STD), note]) as loader:
        assert next(iter(loader)).image.dtype == torch.float32
    assert dtypes == [torch.uint8, torch.float32]


def test_without_the_compiled_module_the_values_are_the_same(packed, monkeypatch):
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    normalize = wt.Normalize(MEAN, STD, channels_last=True)
    assert assert_same_batches(packed, normalize, convert=lambda images: arithmetic(images, channels_last=True)) == 0


@pytest.mark.torture
def test_batches_that_are_kept_stay_as_they_are(packed):
    """More batches than a ring lends: the rest are copies."""
    normalize = wt.Normalize(MEAN, STD, channels_last=True)
    with make(packed, batch_size=2) as plain, make(packed, normalize, batch_size=2, num_workers=1) as loader:
        pairs = list(zip([batch.image.clone() for batch in plain], list(loader), strict=True))
    for image, batch in pairs:
        assert torch.equal(batch.image, arithmetic(image))
        assert batch.image.is_contiguous(memory_format=torch.channels_last)
    assert all(a[1].image.data_ptr() != b[1].image.data_ptr() for a, b in pairwise(pairs))


def test_an_epoch_is_resumed_with_the_same_floats(packed):
    with make(packed, wt.Normalize(MEAN, STD), num_workers=1) as loader:
        batches, states = [], []
        for batch in loader:
            batches.append(batch.image.clone())
            states.append(loader.state_dict())
    with make(packed, wt.Normalize(MEAN, STD)) as resumed:
        resumed.load_state_dict(states[1])
        rest = [batch.image.clone() for batch in resumed]
    assert len(rest) == len(batches) - 2
    assert all(map(torch.equal, rest, batches[2:]))


def test_a_replaced_sample_is_normalized(few_copy):
    shard = next(few_copy.glob("*.tar"))
    content = bytearray(shard.read_bytes())
    start = content.index(b"\xff\xd8\xff")
    content[start + 40 : start + 400] = bytes(360)
    shard.write_bytes(content)
    options = {"on_error": "replace", "max_errors": 40, "subset": None, "view": wt.CenterCrop(32, resize=40)}
    with make(few_copy, **options) as loader:
        assert list(loader)
        assert loader.errors
    assert assert_same_batches(few_copy, num_workers=1, **options) == 0


def test_a_data_loader_of_the_parts_of_a_loader_makes_the_same_batches(packed):
    with make(packed, wt.Normalize(MEAN, STD)) as loader:
        assert loader.dataset[0].image.dtype == torch.uint8
        other = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
        batches = [batch.image for batch in other]
    with make(packed, wt.Normalize(MEAN, STD)) as loader:
        assert all(torch.equal(batch.image, found) for batch, found in zip(loader, batches, strict=True))


def test_workers_that_are_not_forked_normalize(packed):
    options = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    assert assert_same_batches(packed, **options) == 0
