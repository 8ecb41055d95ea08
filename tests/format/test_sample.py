"""Keys, fields, and the named tuples of samples and batches."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from wds_tools.errors import OptionError
from wds_tools.format.sample import (
    IMAGE_FIELDS,
    Sample,
    attribute_names,
    make_record,
    record_type,
    split_name,
)

path_names = st.text(st.sampled_from("ab.1/-_ üÄ"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("train/0001.seg.png", ("train/0001", "seg.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("v1.0/a.jpg", ("v1.0/a", "jpg")),
        ("A.JPG", ("A", "jpg")),
        ("/abs/a.cls", ("/abs/a", "cls")),
        ("ü ä.jpg", ("ü ä", "jpg")),
    ],
)
def test_a_name_splits_at_the_first_dot_of_its_last_component(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


@pytest.mark.parametrize("name", ["", "README", "a/b", "a.d/README", ".hidden", "a/.hidden.jpg", "a.", "folder.d/"])
def test_a_name_without_key_or_field_is_ignored(name: str) -> None:
    assert split_name(name) is None


@given(path_names)
def test_every_name_splits_as_webdataset_splits_it(name: str) -> None:
    ours = split_name(name)
    key, field = base_plus_ext(name)
    if ours is not None:
        assert ours == (key, field.lower())
    elif key is not None:  # WebDataset takes these for samples, but they have no field or no key
        assert field == "" or key.endswith("/")


def test_samples_do_not_share_their_fields() -> None:
    first, second = Sample("a"), Sample("b")
    first.fields["jpg"] = b"x"
    assert second.fields == {}


def test_the_image_fields_are_in_order_of_preference() -> None:
    assert IMAGE_FIELDS == ("jpg", "png", "webp", "jpeg", "tif", "tiff", "gif", "avif", "npy")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("image", "image"),
        ("__key__", "key"),
        ("mask.png", "mask_png"),
        ("2nd", "field_2nd"),
        ("class", "field_class"),
    ],
)
def test_a_field_name_becomes_an_attribute_name(field: str, name: str) -> None:
    assert attribute_names((field,)) == (name,)
    assert getattr(make_record((field,), (1,)), name) == 1


@given(st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True))
def test_any_fields_make_a_record_or_an_option_error(fields: list[str]) -> None:
    with contextlib.suppress(OptionError):
        assert tuple(make_record(tuple(fields), tuple(range(len(fields))))) == tuple(range(len(fields)))


def test_two_fields_with_the_same_attribute_name_are_refused_with_both_names() -> None:
    with pytest.raises(OptionError, match=re.escape("('mask.png', 'mask_png')")):
        record_type(("mask.png", "mask_png"))


def test_a_record_can_be_pickled() -> None:
    record = make_record(("image", "__key__"), (1, "k"))
    again = pickle.loads(pickle.dumps(record))
    assert (again.image, again.key) == (1, "k")
    assert type(again) is type(record)


def test_a_pickled_record_loads_in_a_process_that_has_not_created_its_type() -> None:
    data = pickle.dumps(make_record(("image", "mask.png"), (1, 2)))
    code = f"import pickle; record = pickle.loads({data!r}); print(record.image, record.mask_png)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "1 2\n"


FIELDS = [("image",), ("image", "label"), ("image", "cls", "__key__")]


def assert_same(again: object, record: tuple[object, ...]) -> None:
    assert type(again) is type(record)
    assert again == record


REBUILD: list[Callable[[Any], Any]] = [
    lambda record: type(record)(*record),
    lambda record: type(record)(value for value in record),
    lambda record: type(record)(map(str, record)),
    lambda record: type(record)(**record._asdict()),
    lambda record: record._make(list(record)),
    lambda record: record._replace(image="0"),
    lambda record: pickle.loads(pickle.dumps(record)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("fields", FIELDS)
def test_a_batch_can_be_rebuilt_from_its_values(fields: tuple[str, ...]) -> None:
    record = make_record(fields, map(str, range(len(fields))))
    for rebuild in REBUILD:
        assert_same(rebuild(record), record)


def test_a_batch_of_several_fields_can_be_built_from_one_list_or_tuple() -> None:
    record = make_record(("image", "label"), (1, 2))
    assert_same(type(record)([1, 2]), record)
    assert_same(type(record)((1, 2)), record)


def test_a_batch_of_one_field_takes_a_list_as_its_value() -> None:
    record = make_record(("__key__",), (["a", "b"],))
    assert_same(type(record)(["a", "b"]), record)


@pytest.mark.parametrize("values", [(), (1, 2, 3), (iter([1]),), ([1, 2, 3],)])
def test_a_batch_of_the_wrong_number_of_values_is_a_type_error(values: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        record_type(("image", "label"))(*values)


@pytest.mark.parametrize("fields", FIELDS)
def test_tree_functions_of_torch_keep_the_type_of_a_batch(fields: tuple[str, ...]) -> None:
    from torch.utils import _pytree
    from torch.utils.data._utils.pin_memory import pin_memory

    record = make_record(fields, range(len(fields)))
    doubled = make_record(fields, [2 * value for value in record])
    if hasattr(_pytree, "is_namedtuple_instance"):  # older versions do not support subclasses of named tuples
        assert_same(_pytree.tree_map(lambda value: 2 * value, record), doubled)
    assert_same(_pytree.tree_unflatten(*_pytree.tree_flatten(record)), record)
    assert_same(pin_memory(record), record)


@pytest.mark.parametrize("fields", FIELDS)
def test_torch_collates_samples_into_a_batch_of_the_same_type(fields: tuple[str, ...]) -> None:
    import torch
    from torch.utils.data import default_collate, default_convert

    samples = [make_record(fields, [torch.full((2,), row)] * len(fields)) for row in (0, 1)]
    batch = default_collate(samples)
    assert type(batch) is record_type(fields)
    assert all(torch.equal(value, torch.tensor([[0, 0], [1, 1]])) for value in batch)
    assert type(default_convert(samples[0])) is record_type(fields)


@pytest.mark.frameworks
@pytest.mark.parametrize("fields", FIELDS)
def test_accelerate_keeps_the_type_of_a_batch(fields: tuple[str, ...]) -> None:
    import torch
    from accelerate import utils

    record = make_record(fields, [torch.arange(4)] * len(fields))
    twice = torch.arange(4).repeat(2)
    for again, expected in [
        (utils.honor_type(record, (value for value in record)), torch.arange(4)),
        (utils.recursively_apply(lambda value: 2 * value, record), 2 * torch.arange(4)),
        (utils.send_to_device(record, "cpu"), torch.arange(4)),
        (utils.concatenate([record, record]), twice),
        (utils.slice_tensors(record, slice(1, 3)), torch.tensor([1, 2])),
        (utils.gather(record), torch.arange(4)),
        (utils.pad_across_processes(record), torch.arange(4)),
    ]:
        assert type(again) is type(record)
        assert all(torch.equal(value, expected) for value in again)
    assert utils.find_batch_size(record) == 4
