"""Keys, fields, and the named tuples of a batch."""

from __future__ import annotations

import contextlib
import pickle
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from wds_tools.errors import OptionError
from wds_tools.sample import (
    IMAGE_FIELDS,
    Sample,
    attribute_names,
    make_record,
    record_type,
    split_name,
)

QUICK = settings(deadline=None)
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


@QUICK
@given(path_names)
def test_every_name_splits_as_webdataset_splits_it(name: str) -> None:
    ours = split_name(name)
    key, field = base_plus_ext(name)
    if ours is not None:
        assert ours == (key, field.lower())
    elif key is not None:  # WebDataset makes a sample of these; nobody means one
        assert field == "" or key.endswith("/")


def test_samples_do_not_share_their_fields() -> None:
    first, second = Sample("a"), Sample("b")
    first.fields["jpg"] = b"x"
    assert second.fields == {}


def test_jpeg_is_an_image_field_after_the_ones_that_the_packer_writes() -> None:
    assert IMAGE_FIELDS == ("jpg", "png", "webp", "jpeg", "npy")


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
def test_a_field_becomes_an_attribute(field: str, name: str) -> None:
    assert attribute_names((field,)) == (name,)
    assert getattr(make_record((field,), (1,)), name) == 1


@QUICK
@given(st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True))
def test_any_fields_make_a_record_or_an_option_error(fields: list[str]) -> None:
    with contextlib.suppress(OptionError):
        assert tuple(make_record(tuple(fields), tuple(range(len(fields))))) == tuple(range(len(fields)))


def test_two_fields_of_one_attribute_are_refused_with_both_names() -> None:
    with pytest.raises(OptionError, match=re.escape("('mask.png', 'mask_png')")):
        record_type(("mask.png", "mask_png"))


def test_a_record_pickles() -> None:
    record = make_record(("image", "__key__"), (1, "k"))
    again = pickle.loads(pickle.dumps(record))
    assert (again.image, again.key) == (1, "k")
    assert type(again) is type(record)


def test_a_record_pickles_into_a_process_that_has_not_made_its_type() -> None:
    data = pickle.dumps(make_record(("image", "mask.png"), (1, 2)))
    code = f"import pickle; record = pickle.loads({data!r}); print(record.image, record.mask_png)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "1 2\n"
