"""pad=: values of different sizes are one tensor per batch, with a mask that is False for the padding."""

from collections import UserDict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scenes import png
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.loading.fields.padding import Padded, Padding, join_padded, pad_tensors

VIEW = wt.Resize(40)
TASKS = Path("/proc/self/task")  # an entry for each thread of this process


def letters(text):
    return [ord(letter) for letter in text]


PLAIN = {
    "image": wt.Image(view=VIEW),
    "right": wt.Image("right.jpg", like="image"),
    "mask": wt.Mask("mask.png", like="image"),
    "depth": wt.Array("depth.png", like="image"),
    "boxes": wt.Boxes(path="objects.bbox", like="image"),
    "category": wt.Field("json", path="objects.category", like="boxes"),
    "points": wt.Keypoints(path="objects.bbox"),
    "flow": wt.Field("flow.npy"),
    "text": wt.Text(encode=letters),
    "label": wt.Label(),
}
PADS = {"image": 9, "right": 1, "mask": 255, "depth": 65535, "boxes": -1, "category": -100, "points": 0.5, "text": 3}


def padded(specs, pads):
    """Return the specifications with padding."""
    return {
        name: type(spec)(**{**vars(spec), "pad": pads[name]}) if name in pads else spec for name, spec in specs.items()
    }


FIELDS = padded({name: spec for name, spec in PLAIN.items() if name != "flow"}, PADS)


def loader_of(dataset, fields=FIELDS, **options):
    return wt.make_loader(dataset, **{"batch_size": 8, "num_workers": 0, "fields": fields, "shuffle": True, **options})


def batches(dataset, *args, count=None, **options):
    with loader_of(dataset, *args, **options) as loader:
        return [batch._asdict() for batch in islice(loader, count)]


def first_batch(dataset, *args, **options):
    with loader_of(dataset, *args, **options) as loader:
        return next(iter(loader))._asdict()


def assert_equal(batch, other):
    assert list(batch) == list(other)
    for name, value in batch.items():
        if isinstance(value, dict):
            assert_equal(value, other[name])
        else:
            pairs = zip(value, other[name], strict=True) if isinstance(value, list) else [(value, other[name])]
            assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def images_padded(images, value, size):
    """Return images [..., h, w] as one tensor, by torch's own padding."""
    return torch.stack(
        [
            torch.nn.functional.pad(
                image.to(torch.int64), (0, size[1] - image.shape[-1], 0, size[0] - image.shape[-2]), value=value
            )
            for image in images
        ]
    )


def largest(images):
    return [max(image.shape[axis] for image in images) for axis in (-2, -1)]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.torture_except("1")
def test_a_batch_is_padded_to_its_largest_value_and_its_masks_are_true_for_values(scenes, num_workers):
    names = ("image", "right", "mask", "depth")
    options = {"num_workers": num_workers, "count": 3}
    for batch, plain in zip(batches(scenes, **options), batches(scenes, PLAIN, count=3), strict=True):
        assert list(batch) == [*FIELDS, "image_mask", "boxes_mask", "points_mask", "text_mask"]
        size = largest(plain["image"])
        for name in names:
            assert batch[name].dtype == plain[name][0].dtype
            assert torch.equal(batch[name].long(), images_padded(plain[name], PADS[name], size))
        ones = [torch.ones(image.shape[1:]) for image in plain["image"]]
        assert torch.equal(batch["image_mask"], images_padded(ones, 0, size).bool())
        for name, mask in (("boxes", "boxes"), ("category", "boxes"), ("points", "points"), ("text", "text")):
            rows = max(map(len, plain[name]))
            expected = torch.full(batch[name].shape, PADS[name], dtype=batch[name].dtype)
            for row, value in zip(expected, plain[name], strict=True):
                row[: len(value)] = value.reshape(len(value), *row.shape[1:])
            assert batch[name].shape[1] == rows
            assert torch.equal(batch[name], expected)
            lengths = torch.tensor([len(value) for value in plain[name]])
            assert torch.equal(batch[f"{mask}_mask"], torch.arange(rows) < lengths[:, None])
        assert torch.equal(batch["text"], pad_sequence(list(plain["text"]), batch_first=True, padding_value=3))
        assert torch.equal(batch["label"], plain["label"])
    assert {len(set(map(len, plain["boxes"]))) > 1, len({image.shape for image in plain["image"]}) > 1} == {True}


def test_the_size_is_rounded_up_or_fixed(scenes):
    fields = {
        "image": wt.Image(view=VIEW, pad=wt.Pad(multiple_of=32)),
        "whole": wt.Image(pad=wt.Pad(2, size=(600, 700))),
        "depth": wt.Array("depth.png", like="whole", pad=7),
        "text": wt.Text(encode=letters, pad=wt.Pad(size=30)),
        "boxes": wt.Boxes(path="objects.bbox", pad=wt.Pad(multiple_of=4)),
    }
    plain = {name: type(spec)(**{**vars(spec), "pad": None}) for name, spec in fields.items()}
    for batch, one in zip(batches(scenes, fields, count=2), batches(scenes, plain, count=2), strict=True):
        height, width = (-(-side // 32) * 32 for side in largest(one["image"]))
        assert torch.equal(batch["image"].long(), images_padded(one["image"], 0, (height, width)))
        assert torch.equal(batch["whole"].long(), images_padded(one["whole"], 2, (600, 700)))
        assert torch.equal(batch["depth"].long(), images_padded(one["depth"], 7, (600, 700)))
        assert batch["text"].shape == batch["text_mask"].shape == (8, 30)
        assert batch["boxes"].shape[1:] == (-(-max(map(len, one["boxes"])) // 4) * 4, 4)
        sizes = torch.tensor([image.shape[1] * image.shape[2] for image in one["whole"]])
        assert torch.equal(batch["whole_mask"].sum((1, 2)), sizes)


def test_several_crops_are_padded_each_by_itself(scenes):
    crops = {"image": wt.Image(view=[VIEW, wt.Resize(16)]), "mask": wt.Mask("mask.png", like="image")}
    for pad in (0, wt.Pad(size=(120, 120))):
        fields = padded(crops, {"image": pad, "mask": 255})
        first, again = (first_batch(scenes, fields, num_workers=n) for n in (0, 1))
        assert_equal(first, again)
        plain = first_batch(scenes, crops)
        for number in range(2):
            images = plain["image"][number]
            size = largest(images) if pad == 0 else (120, 120)
            assert torch.equal(first["image"][number].long(), images_padded(images, 0, size))
            assert first["mask"][number].shape == first["image_mask"][number].shape == (8, *size)
            outside = first["mask"][number][~first["image_mask"][number]]
            assert (outside == 255).all()


def test_a_value_that_is_longer_than_the_size_is_an_error_unless_it_is_truncated(scenes):
    for fields, words in (
        ({"text": wt.Text(encode=letters, pad=wt.Pad(size=6))}, "'text' has length .*, but .*truncate=True"),
        ({"image": wt.Image(view=VIEW, pad=wt.Pad(size=(40, 41)))}, r"'image' is .*x40, but .*size=\(40, 41\)"),
        ({"image": wt.Image(view=[VIEW], pad=wt.Pad(size=39))}, r"'image' is .*size=\(39, 39\)"),
    ):
        for num_workers in (0, 1):
            options = {"shuffle": False, "num_workers": num_workers, "on_error": "replace"}
            with loader_of(scenes, fields, **options) as loader, pytest.raises(OptionError, match=words) as caught:
                next(iter(loader))
            assert caught.value.key is not None
    truncated = wt.Pad(size=6, truncate=True)
    fields = {
        "text": wt.Text(encode=letters, pad=truncated),
        "boxes": wt.Boxes(path="objects.bbox", like="image", pad=wt.Pad(size=2, truncate=True)),
        "category": wt.Field("json", path="objects.category", like="boxes", pad=9),
        "image": wt.Image(view=VIEW, pad=0),
    }
    batch, plain = first_batch(scenes, fields), first_batch(scenes, PLAIN)
    assert torch.equal(batch["text"], pad_sequence([text[:6] for text in plain["text"]], batch_first=True))
    assert batch["text"].shape == (8, 6)
    assert batch["boxes"].shape == (8, 2, 4)
    assert all(
        torch.equal(row[:2][: len(one)], one[:2]) for row, one in zip(batch["boxes"], plain["boxes"], strict=True)
    )
    assert batch["category"].shape == batch["boxes_mask"].shape == (8, 2)


def tokenize(text):
    numbers = letters(text)
    return UserDict(input_ids=numbers, attention_mask=[1] * len(numbers))


@pytest.mark.torture
def test_the_dictionary_of_a_tokenizer_is_padded_entry_by_entry(scenes):
    fields = {"text": wt.Text(encode=tokenize, pad=5), "label": wt.Label()}
    first, again = (batches(scenes, fields, num_workers=n) for n in (0, 3))
    for batch, other, plain in zip(first, again, batches(scenes, PLAIN), strict=True):
        assert_equal(batch, other)
        expected = pad_sequence(list(plain["text"]), batch_first=True, padding_value=5)
        assert torch.equal(batch["text"]["input_ids"], expected)
        assert torch.equal(batch["text"]["attention_mask"].bool(), batch["text_mask"])
    fields = {"text": wt.Text(encode=lambda text: {"ids": letters(text), "one": [1]}, pad=0)}
    with loader_of(scenes, fields) as loader, pytest.raises(OptionError, match="ids, one differ in length"):
        next(iter(loader))


def test_a_tokenizer_of_transformers_can_be_passed_as_it_is(scenes):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = sorted({"[PAD]", "[UNK]", "a", "cat", "dog", "fig"})
    model = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]")
    fields = {"text": wt.Text(encode=tokenizer, pad=wt.Pad(tokenizer.pad_token_id, size=8)), "raw": wt.Text()}
    for num_workers in (0, 1):
        batch = first_batch(scenes, fields, num_workers=num_workers)
        expected = tokenizer(batch["raw"], padding="max_length", max_length=8, return_tensors="pt")
        assert all(torch.equal(batch["text"][name], value) for name, value in expected.items())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_streaming_dataset_and_a_dataloader_of_the_loader_make_the_same_batches(scenes, num_workers):
    expected = batches(scenes)
    dataset = wt.StreamingDataset(scenes, batch_size=8, fields=FIELDS, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, num_workers=num_workers, collate_fn=dataset.collate_fn)
    for batch, other in zip(loader, expected, strict=True):
        assert_equal(batch._asdict(), other)
    with loader_of(scenes) as other:
        parts = {"batch_sampler": other.batch_sampler, "collate_fn": other.collate_fn, "num_workers": 0}
        for batch, one in zip(DataLoader(other.dataset, **parts), expected, strict=True):
            assert_equal(batch._asdict(), one)


def test_tail_mask_and_a_transform_of_the_batch_get_the_masks_too(scenes):
    fields = {"image": FIELDS["image"], "label": wt.Label()}
    with loader_of(scenes, fields, batch_size=32, tail="mask") as loader:
        for batch in loader:
            assert batch._fields == ("image", "label", "image_mask", "valid")
        assert batch.valid.sum() == 8
        parts = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn}
        again = list(DataLoader(loader.dataset, **parts))[-1]
        assert (again._fields, again.valid.sum()) == (batch._fields, 8)

    def keep(image, label, image_mask):
        return image * image_mask[:, None], label, ~image_mask

    batch, plain = first_batch(scenes, fields, batch_transform=keep), first_batch(scenes, fields)
    assert torch.equal(batch["image_mask"], ~plain["image_mask"])
    assert (batch["image"][plain["image"] == 9] <= 9).all()
    normal = first_batch(scenes, fields, batch_transform=wt.Normalize((0.5,) * 3, (0.5,) * 3))
    assert torch.equal(normal["image_mask"], plain["image_mask"])


def test_a_sample_transform_comes_before_the_padding(scenes):
    transform = v2.Compose([v2.RandomCrop((20, 30)), v2.SanitizeBoundingBoxes()])
    fields = {"image": FIELDS["image"], "boxes": FIELDS["boxes"], "labels": FIELDS["category"]}
    fields["labels"] = wt.Field("json", path="objects.category", like="boxes", pad=-100)
    first, again = (batches(scenes, fields, sample_transform=transform, num_workers=n) for n in (0, 1))
    for batch, other in zip(first, again, strict=True):
        assert_equal(batch, other)
        assert batch["image"].shape == (8, 3, 20, 30)
        assert batch["image_mask"].all()
        assert torch.equal(batch["labels"] != -100, batch["boxes_mask"])
    fixed = {**fields, "image": wt.Image(view=VIEW, pad=wt.Pad(size=(50, 60)))}
    for batch, other in zip(batches(scenes, fixed, sample_transform=transform), first, strict=True):
        assert torch.equal(batch["image"][:, :, :20, :30], other["image"])
        assert batch["image"].shape == (8, 3, 50, 60)

    def drop(sample):
        return {**sample, "boxes": sample["boxes"][1:], "labels": sample["labels"][2:]}

    with (
        loader_of(scenes, fields, sample_transform=drop) as loader,
        pytest.raises(OptionError, match="their sizes differ"),
    ):
        next(iter(loader))


@pytest.fixture
def write(tmp_path):
    """Return a function that writes samples with the fields that ``fields`` returns for their number."""

    def write(fields, samples=8):
        with wt.ShardWriter(str(tmp_path / "written" / "x-%06d.tar")) as writer:
            for number in range(samples):
                writer.write({"__key__": str(number), "txt": str(number), **fields(number)})
        return tmp_path / "written"

    return write


def stored(dtypes):
    """Return a function of the number of a sample that returns a PNG of its own size and dtype."""
    return lambda number: {"png": png(np.full((4 + number, 9 - number), number, dtypes[number % len(dtypes)]))}


@pytest.mark.parametrize("pad", [1, wt.Pad(1, size=20)])
@pytest.mark.torture_except("1")
def test_values_of_different_types_cannot_be_padded(write, pad):
    fields = {"array": wt.Array("png", pad=pad), "text": wt.Text()}
    folder = write(stored([np.uint8, np.uint16]))
    for num_workers in (0, 2):
        with loader_of(folder, fields, num_workers=num_workers) as loader, pytest.raises(OptionError, match="uint16"):
            next(iter(loader))
        for batch in batches(folder, fields, batch_size=1, num_workers=num_workers, shuffle=False):
            assert batch["array"].dtype == (torch.uint16 if int(batch["text"][0]) % 2 else torch.uint8)


@pytest.mark.parametrize("pad", [255, wt.Pad(255, size=(12, 15))])
@pytest.mark.torture_except("255")
def test_an_unreadable_sample_is_replaced_in_a_padded_batch(write, pad):
    def fields(number):
        image = stored([np.uint8])(number)["png"]
        return {"mask.png": image[:-30] if number == 3 else image}

    folder = write(fields)
    specs = {"mask": wt.Mask("mask.png", pad=pad), "text": wt.Text(encode=int), "raw": wt.Text()}
    first, again = (first_batch(folder, specs, on_error="replace", max_errors=1, num_workers=n) for n in (0, 2))
    assert_equal(first, again)
    for mask, text, shown in zip(first["mask"], first["raw"], first["mask_mask"], strict=True):
        assert text != "3"
        assert mask.unique().tolist() == [int(text), 255]
        assert torch.equal(mask != 255, shown)
        assert shown.sum() == (4 + int(text)) * (9 - int(text))


def test_lists_of_numbers_get_a_common_dtype_and_empty_lists_fit_any(write):
    folder = write(lambda number: {"json": {"a": [[0.5, 1]] * number, "b": [1] * number if number % 2 else [0.5] * 2}})
    specs = {name: wt.Field("json", path=name, pad=-1) for name in "ab"}
    for num_workers in (0, 2):
        batch = first_batch(folder, specs, shuffle=False, num_workers=num_workers)
        assert (batch["a"].shape, batch["a"].dtype) == ((8, 7, 2), torch.float64)
        assert batch["a_mask"].sum(1).tolist() == list(range(8))
        assert (batch["a"][0] == -1).all()
        assert (batch["b"].shape, batch["b"].dtype) == ((8, 7), torch.float64)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (wt.Field("json", pad=0), "'value' is .*; pad= allows arrays and lists of numbers"),
        (wt.Field("json", path="n", pad=0), "is int; pad= allows"),
        (wt.Field("txt", pad=0), "is str; pad= allows"),
        (wt.Field("json", path="ragged", pad=0), "is list; pad= allows|is str"),
        (wt.Field("json", path="wide", pad=0), r"differ in length, but values .* differ in other ways: \(2, 1\)"),
        (wt.Text(encode=str.upper, pad=0), "is str; pad= allows"),
        (wt.Mask("png", pad=-1), "pad=-1 is not a value of torch.uint8; allowed are whole numbers from 0 to 255"),
        (wt.Mask("png", pad=0.5), "pad=0.5 is not a value of torch.uint8"),
    ],
)
def test_a_value_that_cannot_be_padded_is_an_error(write, spec, words):
    def fields(number):
        values = {"n": 3, "ragged": [[1], "a"], "wide": [[1] * (1 + number % 2)] * 2}
        return {"json": values, **stored([np.uint8])(number)}

    with loader_of(write(fields), {"value": spec}) as loader, pytest.raises(OptionError, match=words):
        next(iter(loader))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"image": FIELDS["image"], "mask": PLAIN["mask"]},
            "'mask': wds_tools.Mask.* has no pad=, but it is padded to the size",
        ),
        ({"image": FIELDS["image"], "right": PLAIN["right"]}, "give only the value of its padding, such as pad=0"),
        (
            {"image": FIELDS["image"], "mask": wt.Mask("mask.png", like="image", pad=wt.Pad(1))},
            r"has pad=Pad.*, but it is",
        ),
        ({**FIELDS, "category": PLAIN["category"]}, "padded to the size of 'boxes'"),
        (
            {"image": FIELDS["image"], "image_mask": wt.Label()},
            "'image_mask', which is a name that pad= of 'image' adds",
        ),
    ],
)
def test_fields_that_contradict_the_padding_of_another_are_refused(scenes, fields, words):
    with pytest.raises(OptionError, match=words):
        loader_of(scenes, fields)


def test_a_mask_may_be_padded_beside_an_image_that_is_not(scenes):
    fields = {"image": PLAIN["image"], "mask": wt.Mask("mask.png", like="image", pad=255)}
    batch = first_batch(scenes, fields)
    assert isinstance(batch["image"], list)
    assert list(batch) == ["image", "mask", "mask_mask"]


def test_options_that_do_not_know_of_the_padding_are_refused(scenes):
    with pytest.raises(OptionError, match="collate_fn= gets samples, which are not padded"):
        loader_of(scenes, collate_fn=list)
    for step in (wt.RandomHorizontalFlip(), [wt.Normalize((0.5,) * 3, (0.5,) * 3), wt.ColorJitter(0.1)]):
        with pytest.raises(OptionError, match="would also change the padding of the field 'image'"):
            loader_of(scenes, batch_transform=step)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wt.Pad("0"), "allowed are numbers"),
        (lambda: wt.Pad(True), "allowed are numbers"),
        (lambda: wt.Pad(size=0), "whole numbers of 1 and more"),
        (lambda: wt.Pad(size=(3, 4, 5)), "whole numbers of 1 and more"),
        (lambda: wt.Pad(multiple_of=0), "whole numbers of 1 and more"),
        (lambda: wt.Pad(size=5, multiple_of=8), "multiple_of=8.* with size="),
        (lambda: wt.Pad(truncate=True), "True with size="),
        (lambda: wt.Image(pad="0"), "numbers, wds_tools.Pad"),
        (lambda: wt.Image(pad=wt.Pad(size=5, truncate=True)), "images are not truncated"),
        (lambda: wt.Boxes(pad=wt.Pad(size=(5, 6))), "its size is a length"),
        (lambda: wt.Text(pad=0), "requires encode="),
    ],
)
def test_an_invalid_padding_is_refused(make, words):
    with pytest.raises(OptionError, match=words):
        make()


@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=7),
    cut=st.integers(0, 7),
    options=st.sampled_from([wt.Pad(9), wt.Pad(9, multiple_of=4), wt.Pad(9, size=(6, 7))]),
    axes=st.sampled_from([1, 2]),
)
def test_parts_of_a_batch_joined_are_the_batch_padded_at_once(sizes, cut, options, axes):
    values = [torch.full((size if axes == 2 else (size[0], 3)), number + 10) for number, size in enumerate(sizes)]
    padding = Padding(9, options, axes, "x")
    whole = pad_tensors(values, padding)
    # An array of samples of one size is a part that comes from a slot.
    parts = [
        Padded([one.numpy() for one in values[:cut]], padding),
        *([whole[cut:].numpy()] if cut < len(values) else []),
    ]
    assert torch.equal(join_padded(parts).tensor(), whole)
    for row, value in zip(whole, values, strict=True):
        assert torch.equal(row[tuple(map(slice, value.shape))], value)
        assert (row == 9).sum() == row.numel() - value.numel()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_batches_that_are_kept_are_not_overwritten_by_later_ones(few, num_workers):
    fields = {"image": wt.Image(view=wt.Resize(120), pad=0), "whole": wt.Image()}
    with wt.make_loader(few, batch_size=2, num_workers=num_workers, fields=fields) as loader:
        for batch, again in zip(list(loader), loader, strict=True):
            assert torch.equal(batch.image, again.image)
            assert all(map(torch.equal, batch.whole, again.whole))


OBJECTS = {"image": wt.Image(view=wt.RandomResizedCrop(40, flip=True)), "boxes": PLAIN["boxes"],
           "category": PLAIN["category"], "points": PLAIN["points"], "text": PLAIN["text"]}  # fmt: skip
JOINED = padded(OBJECTS, dict.fromkeys(("boxes", "category", "points", "text"), "flat"))


def joined(values, dtype=torch.float32):
    """Return a list of tensors as one, with index and offsets, by torch's own functions."""
    lengths = torch.tensor([len(value) for value in values])
    index = torch.cat([torch.full((len(value),), i) for i, value in enumerate(values)])
    return torch.cat([value.to(dtype) for value in values]), index, torch.cumsum(torch.cat([lengths[:0], lengths]), 0)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_flat_values_are_those_of_the_lists_one_after_the_other(scenes, num_workers):
    listed, flat = batches(scenes, OBJECTS), batches(scenes, JOINED, num_workers=num_workers)
    assert len(listed) == len(flat) > 1
    for one, other in zip(listed, flat, strict=True):
        assert list(other) == [
            *OBJECTS, "boxes_index", "boxes_offsets", "points_index", "points_offsets", "text_index", "text_offsets",
        ]  # fmt: skip
        assert torch.equal(one["image"], other["image"])
        for name in ("boxes", "points", "text"):
            values, index, ends = joined(one[name], other[name].dtype)
            assert torch.equal(other[name], values)
            assert torch.equal(other[f"{name}_index"], index)
            assert other[f"{name}_offsets"].tolist() == [0, *ends.tolist()]
        assert torch.equal(other["category"], joined(one["category"], torch.int64)[0])
    assert any(0 in (len(boxes) for boxes in one["boxes"]) for one in listed)  # images without a visible box


def test_flat_values_do_not_wake_the_threads_of_torch(scenes):
    """They would wait in a loop for more, and take a core from the workers."""
    threads = torch.get_num_threads()
    with loader_of(scenes, JOINED) as loader:
        found = iter(loader)
        next(found)
        started = len(list(TASKS.iterdir()))
        torch.set_num_threads(started + 6)  # more than ever before, so that waking all of them starts some
        try:
            next(found)
        finally:
            torch.set_num_threads(threads)
    assert len(list(TASKS.iterdir())) <= started


def test_the_boxes_of_a_batch_without_any_have_four_numbers_each(write):
    fields = {"image": wt.Image(), "boxes": wt.Boxes(path="b", like="image", pad="flat")}
    fields["names"] = wt.Field("json", path="n", like="boxes", pad="flat")
    fields["points"] = wt.Keypoints(path="p", pad="flat")
    image = png(np.zeros((4, 9, 3), np.uint8))
    data = write(lambda number: {"png": image, "json": {"b": [], "n": [], "p": [[[1, 2]]] if number else []}})
    batch = first_batch(data, fields, batch_size=4, shuffle=False)
    assert batch["boxes"].shape == (0, 4)
    assert batch["names"].shape == batch["boxes_index"].shape == (0,)
    assert batch["boxes_offsets"].tolist() == [0] * 5
    assert batch["points"].shape == (3, 1, 2)
    assert batch["points_index"].tolist() == [1, 2, 3]


def test_flat_values_of_several_crops_are_lists(scenes):
    views = [wt.RandomResizedCrop(40), wt.CenterCrop(30)]
    fields = {**JOINED, "image": wt.Image(view=views)}
    single = {**JOINED, "image": wt.Image(view=views[0])}
    crops, one = first_batch(scenes, fields), first_batch(scenes, single)
    assert torch.equal(crops["boxes"][0], one["boxes"])
    assert torch.equal(crops["boxes_offsets"][0], one["boxes_offsets"])
    assert [len(boxes) for boxes in crops["boxes"]] == [offsets[-1] for offsets in crops["boxes_offsets"]]


def test_a_streaming_dataset_and_the_mask_of_the_tail_go_with_flat_values(scenes):
    expected = batches(scenes, JOINED, tail="mask")
    assert list(expected[0])[-1] == "valid"
    dataset = wt.StreamingDataset(scenes, batch_size=8, fields=JOINED, shuffle=True)
    found = [batch._asdict() for batch in DataLoader(dataset, 8, collate_fn=dataset.collate_fn)]
    assert_equal({name: value for name, value in expected[0].items() if name != "valid"}, found[0])


def test_an_unreadable_sample_is_replaced_in_a_batch_of_flat_values(write):
    image = png(np.zeros((4, 9, 3), np.uint8))

    def fields(number):
        return {"png": image, "json": {"b": [[1, 1, number + 1, float("nan") if number == 5 else 2]] * (number % 3)}}

    specs = {"image": wt.Image(), "boxes": wt.Boxes(path="b", like="image", pad="flat"), "raw": wt.Text()}
    folder = write(fields)
    for num_workers in (0, 2):
        batch = first_batch(folder, specs, on_error="replace", max_errors=1, num_workers=num_workers)
        assert "5" not in batch["raw"]
        numbers = [int(text) for text in batch["raw"]]
        assert batch["boxes_offsets"].diff().tolist() == [number % 3 for number in numbers]
        widths = batch["boxes"][:, 2] - batch["boxes"][:, 0]
        assert widths.tolist() == [numbers[i] + 1 for i in batch["boxes_index"].tolist()]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**JOINED, "category": PLAIN["category"]}, "'category': .* has pad=None, and 'boxes' has pad='flat'"),
        ({**JOINED, "category": wt.Field("json", path="objects.category", like="boxes", pad=0)}, "has pad=0, and"),
        ({**JOINED, "boxes_index": wt.Label()}, "'boxes_index', which is a name that pad= of 'boxes' adds"),
    ],
)
def test_fields_that_contradict_flat_values_are_refused(scenes, fields, words):
    with pytest.raises(OptionError, match=words):
        loader_of(scenes, fields)


@pytest.mark.parametrize("make", [lambda: wt.Image(pad="flat"), lambda: wt.Boxes(pad="joined")])
def test_only_sequences_can_be_flat(make):
    with pytest.raises(OptionError, match=r"allowed are numbers, wds_tools.Pad\(...\)"):
        make()
