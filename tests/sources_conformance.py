"""What holds for every source. A test class per source inherits this and says how its format is written."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, SourceError
from wds_tools.sources.base import Input, Record, Source
from wds_tools.sources.detect import detect, open_source

SAMPLE = Path(__file__).parents[1] / "shards" / "sample" / "images"
CLASSES = ("desert", "mountain", "sea")


@dataclass(frozen=True)
class Photo:
    """A photograph as the tests write it into each format."""

    name: str
    data: bytes
    label: int

    @property
    def pixels(self) -> np.ndarray:
        """Return uint8 [H, W, 3]."""
        return decode(self.data)


def decode(data: bytes) -> np.ndarray:
    with Image.open(BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def photos_of(count: int, size: int = 48) -> list[Photo]:
    """Return real photographs: crops, all of one size, so that they fit into an array too."""
    folders = sorted(path for path in SAMPLE.iterdir() if path.is_dir())[: len(CLASSES)]
    photos = []
    for number in range(count):
        label = number % len(folders)
        path = sorted(folders[label].glob("*.jpg"))[number // len(folders)]
        with Image.open(path) as image:
            out = BytesIO()
            image.convert("RGB").resize((size, size)).save(out, "JPEG", quality=90)
        photos.append(Photo(f"{number:03d}", out.getvalue(), label))
    return photos


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of a dataset as webdataset reads them."""
    urls = sorted(str(path) for path in folder.glob("shard-*.tar"))
    return list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))


def picture(sample: dict[str, Any]) -> bytes:
    return next(sample[name] for name in ("jpg", "png", "webp") if name in sample)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Conformance:
    """Facts about a source; a subclass has ``kind``, ``write``, and what its format can hold."""

    kind: str
    encoded = True
    """Images are stored as encoded bytes, which come back as they are; else as pixels."""

    named = True
    """Labels are names; else numbers."""

    exact = True
    """Sizes are exact or not less, so that no shard is too long."""

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        """Write photographs; return the path to pack."""
        raise NotImplementedError

    @pytest.fixture
    def photos(self) -> list[Photo]:
        return photos_of(12)

    @pytest.fixture
    def src(self, tmp_path: Path, photos: list[Photo]) -> Path:
        folder = tmp_path / "src"
        folder.mkdir()
        return self.write(folder, photos)

    def open(self, src: Path) -> Source:
        return open_source(src, kind=None, classes=None, columns=None)

    def same(self, record: Record, photo: Photo) -> bool:
        if isinstance(record.image, bytes):
            return record.image == photo.data if self.encoded else np.array_equal(decode(record.image), photo.pixels)
        return np.array_equal(record.image, photo.pixels)

    def photo_of(self, record: Record, photos: Sequence[Photo]) -> Photo:
        return next(photo for photo in photos if self.same(record, photo))

    def label_of(self, entry: Input, record: Record) -> int | None:
        return record.label if entry.label is None else entry.label

    def test_it_is_detected(self, src: Path) -> None:
        assert detect(src) == self.kind

    def test_every_record_is_listed_once_in_an_order_of_its_own(self, src: Path, photos: list[Photo]) -> None:
        one, two = self.open(src).scan(), self.open(src).scan()
        assert one == two
        assert len(one.inputs) == len(photos)
        assert len({entry.path for entry in one.inputs}) == len(photos)
        assert one.skipped == []

    def test_every_picture_comes_back_with_its_label(self, src: Path, photos: list[Photo]) -> None:
        source = self.open(src)
        listing = source.scan()
        records = [(entry, source.read(entry)) for entry in listing.inputs]
        found = {self.photo_of(record, photos).name: self.label_of(entry, record) for entry, record in records}
        assert found == {photo.name: photo.label for photo in photos}
        assert listing.classes == (CLASSES if self.named else ())

    def test_it_travels_to_another_process(self, src: Path, photos: list[Photo], tmp_path: Path) -> None:
        source = self.open(src)
        entry = source.scan().inputs[3]
        source.read(entry)  # what is open now must stay here
        sent = pickle.dumps((source, entry))
        assert len(sent) < 3000
        (tmp_path / "sent").write_bytes(sent)
        code = (
            f"import pickle; s, e = pickle.load(open({str(tmp_path / 'sent')!r}, 'rb'))\n"
            f"pickle.dump(s.read(e).image, open({str(tmp_path / 'back')!r}, 'wb'))"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        record = Record(pickle.loads((tmp_path / "back").read_bytes()))
        assert self.photo_of(record, photos) == self.photo_of(source.read(entry), photos)

    def test_other_content_is_another_input(self, tmp_path: Path, photos: list[Photo]) -> None:
        stamps = []
        for number, some in enumerate((photos, [*photos[:-1], Photo(photos[-1].name, photos[0].data, 2)])):
            folder = tmp_path / f"content{number}"
            folder.mkdir()
            stamps.append(
                wt.pack(self.write(folder, some), tmp_path / f"dst{number}", workers=1).manifest.source["digest"]
            )
        assert stamps[0] != stamps[1]

    def test_two_workers_write_the_same_bytes_as_one(self, src: Path, tmp_path: Path) -> None:
        for workers in (1, 2):
            wt.pack(src, tmp_path / f"{workers}", shard_bytes=20_480, workers=workers)
        assert contents(tmp_path / "1") == contents(tmp_path / "2")
        assert len(list((tmp_path / "1").glob("*.tar"))) > 1

    def test_no_shard_is_longer_than_asked(self, src: Path, tmp_path: Path) -> None:
        entries = wt.pack(src, tmp_path / "dst", shard_bytes=20_480, workers=1).manifest.shards
        limit = 20_480 if self.exact else 2 * 20_480
        assert max(entry.bytes for entry in entries) <= limit

    def test_it_comes_back_through_the_loader(self, src: Path, photos: list[Photo], tmp_path: Path) -> None:
        report = wt.pack(src, tmp_path / "dst", workers=1)
        assert (report.packed, report.skipped) == (len(photos), ())
        with wt.make_loader(
            tmp_path / "dst", batch_size=4, view=wt.Resize((48, 48)), shuffle=True, num_workers=0
        ) as loader:
            batches = [(images.clone(), labels.clone()) for images, labels in loader]
        pixels = {
            images[row].permute(1, 2, 0).numpy().tobytes(): int(labels[row])
            for images, labels in batches
            for row in range(4)
        }
        assert len(pixels) == len(photos)
        assert sorted(pixels.values()) == sorted(photo.label for photo in photos)

    def test_the_json_field_says_where_a_picture_came_from(self, src: Path, tmp_path: Path) -> None:
        wt.pack(src, tmp_path / "dst", workers=1)
        paths = {json.loads(sample["json"])["path"] for sample in stored(tmp_path / "dst")}
        assert len(paths) == 12

    def test_a_source_that_changed_is_refused(self, src: Path, photos: list[Photo], tmp_path: Path) -> None:
        wt.pack(src, tmp_path / "dst", workers=1)
        folder = tmp_path / "other"
        folder.mkdir()
        with pytest.raises(DestinationError, match="another dataset"):
            wt.pack(self.write(folder, photos[:-1]), tmp_path / "dst", workers=1)

    def test_nothing_there_is_one_line_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises((SourceError, wt.WdsToolsError)) as caught:
            wt.pack(tmp_path / "none", tmp_path / "dst", kind=self.kind)
        assert "none" in str(caught.value)
        assert "\n" not in str(caught.value)


Maker = Callable[[Path, Sequence[Photo]], Path]


class DamageableConformance(Conformance):
    """The same, for a source in which one record can be bad while the others stay whole."""

    def damage(self, path: Path) -> int:
        """Make one record bad; return how many are left."""
        raise NotImplementedError

    def test_a_bad_record_is_skipped_and_reported(self, src: Path, tmp_path: Path) -> None:
        left = self.damage(src)
        report = wt.pack(src, tmp_path / "dst", workers=1)
        assert report.packed == left
        assert len(report.skipped) >= 1
        assert all(skip.reason and "\n" not in skip.reason for skip in report.skipped)
        with pytest.raises(SourceError, match="cannot be packed"):
            wt.pack(src, tmp_path / "strict", workers=1, strict=True)
