"""Tests that every source must pass: the test class of a source inherits them and writes its format."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
import webdataset
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, SourceError, StoreError
from wds_tools.packing.destination import FolderDestination
from wds_tools.packing.work_folder import ShardReport
from wds_tools.sources.base import Record, Source
from wds_tools.sources.detect import detect, open_source
from wds_tools.sources.inputs import Input

SAMPLE = Path(__file__).parents[1] / "shards" / "sample" / "images"
CLASSES = ("desert", "mountain", "sea")


@dataclass(frozen=True)
class Photo:
    """A photograph that the tests write in each format."""

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
    """Return sample photographs as JPEGs, resized to one size so that they also fit into an array."""
    return [*_photos_of(count, size)]


@functools.cache
def _photos_of(count: int, size: int) -> list[Photo]:
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
    """Return the samples of a dataset, read by the webdataset library."""
    urls = sorted(str(path) for path in folder.glob("shard-*.tar"))
    return list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))


def image_of(sample: dict[str, Any]) -> bytes:
    return next(sample[name] for name in ("jpg", "png", "webp") if name in sample)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Conformance:
    """The tests; a subclass defines ``kind``, ``write`` and what its format can store."""

    kind: str
    encoded = True
    """Whether images are stored as encoded bytes, which `Source.read` returns unchanged, or as pixels."""

    named = True
    """Whether labels are names or numbers."""

    imports = preloaded.COMMANDS
    """What another process has imported before it reads the source."""

    exact = True
    """Whether sizes are exact or upper bounds, so that no shard is too long, or estimates."""

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        """Write photographs in the format; return the path to pack."""
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
        return open_source(src)

    def same(self, record: Record, photo: Photo) -> bool:
        if isinstance(record.image, bytes):
            return record.image == photo.data if self.encoded else np.array_equal(decode(record.image), photo.pixels)
        return np.array_equal(record.image, photo.pixels)

    def photo_of(self, record: Record, photos: Sequence[Photo]) -> Photo:
        return next(photo for photo in photos if self.same(record, photo))

    def label_of(self, entry: Input, record: Record) -> int | None:
        return record.label if entry.label is None else entry.label

    def test_the_format_is_detected(self, src: Path) -> None:
        assert detect(src) == self.kind

    def test_every_record_is_listed_once_and_always_in_the_same_order(self, src: Path, photos: list[Photo]) -> None:
        one, two = self.open(src).scan(), self.open(src).scan()
        assert one == two
        assert len(one.inputs) == len(photos)
        assert len({entry.path for entry in one.inputs}) == len(photos)
        assert one.skipped == []

    def test_every_image_is_read_with_its_label(self, src: Path, photos: list[Photo]) -> None:
        source = self.open(src)
        listing = source.scan()
        records = [(entry, source.read(entry)) for entry in listing.inputs]
        found = {self.photo_of(record, photos).name: self.label_of(entry, record) for entry, record in records}
        assert found == {photo.name: photo.label for photo in photos}
        assert listing.classes == (CLASSES if self.named else ())

    def test_a_pickled_source_is_small_and_reads_in_another_process(
        self, src: Path, photos: list[Photo], tmp_path: Path
    ) -> None:
        source = self.open(src)
        entry = source.scan().inputs[3]
        source.read(entry)  # opens files, which must not be pickled
        pickled = pickle.dumps((source, entry))
        assert len(pickled) < 3000
        (tmp_path / "pickled").write_bytes(pickled)
        code = (
            f"import pickle; s, e = pickle.load(open({str(tmp_path / 'pickled')!r}, 'rb'))\n"
            f"pickle.dump(s.read(e).image, open({str(tmp_path / 'image')!r}, 'wb'))"
        )
        done = preloaded.run(["-c", code], imports=self.imports)
        assert done.returncode == 0, done.stderr
        record = Record(pickle.loads((tmp_path / "image").read_bytes()))
        assert self.photo_of(record, photos) == self.photo_of(source.read(entry), photos)

    def test_other_content_changes_the_digest_in_the_manifest(self, tmp_path: Path, photos: list[Photo]) -> None:
        digests = []
        for number, some in enumerate((photos, [*photos[:-1], Photo(photos[-1].name, photos[0].data, 2)])):
            folder = tmp_path / f"content{number}"
            folder.mkdir()
            digests.append(
                wt.pack(self.write(folder, some), tmp_path / f"dst{number}", workers=1).manifest.source["digest"]
            )
        assert digests[0] != digests[1]

    @pytest.mark.torture  # a few sources run it in `make test`
    def test_two_workers_write_the_same_bytes_as_one(self, src: Path, tmp_path: Path) -> None:
        for workers in (1, 2):
            wt.pack(src, tmp_path / f"{workers}", shard_bytes=20_480, workers=workers)
        assert contents(tmp_path / "1") == contents(tmp_path / "2")
        assert len(list((tmp_path / "1").glob("*.tar"))) > 1

    def test_no_shard_is_longer_than_the_limit_or_twice_the_limit_for_estimates(
        self, src: Path, tmp_path: Path
    ) -> None:
        entries = wt.pack(src, tmp_path / "dst", shard_bytes=20_480, workers=1).manifest.shards
        limit = 20_480 if self.exact else 2 * 20_480
        assert max(entry.bytes for entry in entries) <= limit

    def test_the_loader_delivers_every_image_once_and_all_labels(
        self, src: Path, photos: list[Photo], tmp_path: Path
    ) -> None:
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

    def test_the_json_field_has_a_path_that_is_different_for_each_image(self, src: Path, tmp_path: Path) -> None:
        wt.pack(src, tmp_path / "dst", workers=1)
        paths = {json.loads(sample["json"])["path"] for sample in stored(tmp_path / "dst")}
        assert len(paths) == 12

    def test_a_changed_source_is_not_packed_into_the_same_folder(
        self, src: Path, photos: list[Photo], tmp_path: Path
    ) -> None:
        wt.pack(src, tmp_path / "dst", workers=1)
        folder = tmp_path / "other"
        folder.mkdir()
        with pytest.raises(DestinationError, match="another dataset"):
            wt.pack(self.write(folder, photos[:-1]), tmp_path / "dst", workers=1)

    def pack_while(self, change: Callable[[], object], src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pack, and change the source after the first shard."""

        def add_shard(_: FolderDestination, report: ShardReport) -> None:
            if report.number == 0:
                change()

        with monkeypatch.context() as patch:
            patch.setattr(FolderDestination, "add_shard", add_shard)
            wt.pack(src, dst, shard_bytes=20_480, workers=1)

    @pytest.mark.torture  # as above
    def test_a_source_that_disappears_ends_packing_which_continues_later(
        self, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, away, dst = tmp_path / "src", tmp_path / "away", tmp_path / "dst"
        wt.pack(src, tmp_path / "whole", shard_bytes=20_480, workers=1)
        with pytest.raises(StoreError, match=r"cannot be read.*No such file.* 1 of .* shards are finished and kept"):
            self.pack_while(lambda: folder.rename(away), src, dst, monkeypatch)
        assert not (dst / "manifest.json").exists()
        away.rename(folder)
        assert wt.pack(src, dst, shard_bytes=20_480, workers=1).kept == 1
        assert contents(dst) == contents(tmp_path / "whole")

    def test_a_source_that_is_replaced_ends_packing(
        self, src: Path, photos: list[Photo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, other, dst = tmp_path / "src", tmp_path / "other", tmp_path / "dst"
        other.mkdir()
        backwards = zip(photos, reversed(photos), strict=True)
        self.write(other, [Photo(one.name, two.data, two.label) for one, two in backwards])

        def replace() -> None:
            folder.rename(tmp_path / "old")
            other.rename(folder)

        with pytest.raises(StoreError, match=r"changed while it was packed|cannot be read.*No such file"):
            self.pack_while(replace, src, dst, monkeypatch)
        assert not (dst / "manifest.json").exists()

    def test_a_missing_path_is_an_error_of_one_line_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError) as caught:
            wt.pack(tmp_path / "none", tmp_path / "dst", kind=self.kind)
        assert str(tmp_path / "none") in str(caught.value)
        assert "\n" not in str(caught.value)


class DamageableConformance(Conformance):
    """The same, for a source in which one record can be damaged without damage to the others."""

    def damage(self, path: Path) -> int:
        """Damage one record; return the number of good ones."""
        raise NotImplementedError

    def test_a_damaged_record_is_skipped_and_reported(self, src: Path, tmp_path: Path) -> None:
        left = self.damage(src)
        report = wt.pack(src, tmp_path / "dst", workers=1)
        assert report.packed == left
        assert len(report.skipped) >= 1
        assert all(skip.reason and "\n" not in skip.reason for skip in report.skipped)
        with pytest.raises(SourceError, match="cannot be packed"):
            wt.pack(src, tmp_path / "strict", workers=1, strict=True)
