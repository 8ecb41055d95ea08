"""Labels and captions in other encodings, and with a byte order mark, as programs on Windows write them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from sources_conformance import Photo, photos_of, stored

import wds_tools as wt
from wds_tools.errors import LabelError


@pytest.fixture(scope="module")
def photos() -> list[Photo]:
    return photos_of(4)


def write_files(root: Path, photos: list[Photo], **texts: list[bytes]) -> Path:
    """Write images with a file of each extension."""
    src = root / "src"
    src.mkdir()
    for number, photo in enumerate(photos):
        (src / f"{number}.jpg").write_bytes(photo.data)
        for extension, contents in texts.items():
            (src / f"{number}.{extension}").write_bytes(contents[number])
    return src


def write_tar(root: Path, photos: list[Photo], **texts: list[bytes]) -> Path:
    with tarfile.open(root / "a.tar", "w") as archive:
        for path in sorted(write_files(root, photos, **texts).iterdir()):
            archive.add(path, path.name)
    return root / "a.tar"


WRITERS = pytest.mark.parametrize("write", [write_files, write_tar])


@WRITERS
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_labels_with_a_byte_order_mark_are_those_without_it(
    write: object, encoding: str, tmp_path: Path, photos: list[Photo]
) -> None:
    labels = [str(number % 3).encode() if number else f"{number}\r\n".encode(encoding) for number in range(4)]
    src = write(tmp_path, photos, cls=labels)  # type: ignore[operator]
    report = wt.pack(src, tmp_path / "numbers", images="keep", workers=1)
    assert report.manifest.classes == ()
    assert sorted(sample["cls"] for sample in stored(tmp_path / "numbers")) == [b"0", b"0", b"1", b"2"]


@WRITERS
def test_a_label_that_is_not_utf8_is_an_error_that_names_the_sample(
    write: object, tmp_path: Path, photos: list[Photo]
) -> None:
    labels = [b"dog", "K\u00e4se".encode("latin-1"), b"dog", b"cat"]
    src = write(tmp_path, photos, cls=labels)  # type: ignore[operator]
    with pytest.raises(LabelError, match=r"1(\.jpg)?: label b'K\\xe4se' is not UTF-8 text"):
        wt.pack(src, tmp_path / "dst", workers=1)


@WRITERS
def test_captions_are_loaded_without_a_byte_order_mark(write: object, tmp_path: Path, photos: list[Photo]) -> None:
    captions = [f"caption {number}".encode("utf-8-sig" if number % 2 else "utf-8") for number in range(4)]
    src = write(tmp_path, photos, txt=captions)  # type: ignore[operator]
    wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    dataset = wt.StreamingDataset(tmp_path / "dst", fields={"field": "txt", "text": wt.Text()})
    texts = [(sample.field, sample.text) for sample in dataset]
    assert sorted(texts) == [(f"caption {number}",) * 2 for number in range(4)]
