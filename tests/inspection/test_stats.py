"""Statistics of a dataset, compared with the folder of photographs that was packed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from wds_tools.errors import ChecksumError, NotADatasetError
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.manifest import Manifest, to_json
from wds_tools.format.sample import Sample
from wds_tools.format.totals import count_fields
from wds_tools.inspection.stats import MAX_CLASSES, DatasetStats, bar, describe, format_stats
from wds_tools.packing.shard_file import ShardFile
from wds_tools.storage.local import LocalStore
from wds_tools.wording import human_bytes


def dataset(
    folder: Path, labels: list[int | None], classes: tuple[str, ...] = (), image: ImageInfo | None = None
) -> Path:
    """Write a dataset of one shard, without `pack`."""
    folder.mkdir(exist_ok=True)
    with ShardFile(folder / "s.tar") as shard:
        for number, label in enumerate(labels):
            shard.write(Sample(f"{number:04d}", {"txt": b"x" * 10}), label=label, image=image)
    assert shard.entry is not None
    assert shard.index is not None
    manifest = Manifest((shard.entry,), count_fields(shard.index), classes)
    (folder / "manifest.json").write_text(to_json(manifest))
    return folder


@pytest.fixture(scope="module")
def stats(packed: Path) -> DatasetStats:
    return describe(packed)


def test_counts_and_bytes_are_those_of_the_files(stats: DatasetStats, packed: Path) -> None:
    shards = list(packed.glob("*.tar"))
    assert (stats.samples, stats.shards) == (400, len(shards))
    assert stats.bytes == sum(path.stat().st_size for path in shards)
    assert stats.mean_sample_bytes == stats.bytes / 400
    assert stats.shuffled is True
    assert (stats.unlabelled, stats.turned) == (0, 0)
    assert stats.fingerprint == json.loads((packed / "manifest.json").read_text())["fingerprint"]


def test_classes_are_the_folders(stats: DatasetStats, photos: Path) -> None:
    folders = {path.name: len(list(path.iterdir())) for path in sorted(photos.iterdir())}
    assert {one.name: one.samples for one in stats.classes} == folders
    assert [one.label for one in stats.classes] == list(range(len(folders)))


def test_sizes_and_modes_are_those_of_the_images(stats: DatasetStats, photos: Path) -> None:
    sizes, modes = [], Counter[str]()
    for path in photos.rglob("*.*"):
        with Image.open(path) as image:
            sizes.append(image.size)
            modes[image.mode] += 1
    for spread, values in ((stats.width, [w for w, _ in sizes]), (stats.height, [h for _, h in sizes])):
        assert spread is not None
        assert (spread.min, spread.median, spread.max) == (min(values), statistics.median(values), max(values))
    assert stats.modes == modes
    assert list(stats.modes.values()) == sorted(modes.values(), reverse=True)
    assert stats.images == 400


def test_fields_count_samples_and_bytes(stats: DatasetStats, photos: Path) -> None:
    for kind in ("jpg", "png"):
        files = list(photos.rglob(f"*.{kind}"))
        assert (stats.fields[kind].samples, stats.fields[kind].bytes) == (
            len(files),
            sum(path.stat().st_size for path in files),
        )
    assert (stats.fields["cls"].samples, stats.fields["cls"].bytes) == (400, 400)


def test_only_indexes_are_read(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a shard was read")

    monkeypatch.setattr(LocalStore, "fetch", fail)
    assert describe(packed).samples == 400


def test_a_damaged_index_is_an_error(packed_copy: Path) -> None:
    path = packed_copy / "shard-000001.parquet"
    path.write_bytes(path.read_bytes()[:-9] + b"x" + path.read_bytes()[-8:])
    with pytest.raises(ChecksumError):
        describe(packed_copy)


def test_a_path_without_a_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADatasetError):
        describe(tmp_path)


def test_classes_without_samples_labels_without_names_and_samples_without_labels_are_counted(tmp_path: Path) -> None:
    stats = describe(dataset(tmp_path / "d", [2, 2, 7, None, -1], ("cat", "dog", "fox")))
    assert [(one.label, one.name, one.samples) for one in stats.classes] == [
        (-1, "-1", 1), (0, "cat", 0), (1, "dog", 0), (2, "fox", 2), (7, "7", 1),
    ]  # fmt: skip
    assert stats.unlabelled == 1
    assert "1 sample without a label" in format_stats(stats)


def test_a_dataset_without_images_or_labels_is_described(tmp_path: Path) -> None:
    stats = describe(dataset(tmp_path / "d", [None, None]))
    assert (stats.images, stats.width, stats.height, stats.modes, stats.classes) == (0, None, None, {}, ())
    text = format_stats(stats)
    assert "images       none" in text
    assert "no labels" in text
    assert "not known to be shuffled" in text
    assert "2 in 1 shard, " in text


def test_turned_images_are_counted(tmp_path: Path) -> None:
    stats = describe(dataset(tmp_path / "d", [0, 0], image=ImageInfo("jpg", 20, 30, "RGB", 6)))
    assert stats.turned == 2
    assert "2 are turned by their EXIF orientation" in format_stats(stats)


def test_statistics_of_a_pattern_are_those_of_its_shards(packed: Path) -> None:
    stats = describe(f"{packed}/shard-{{000000..000001}}.tar")
    assert stats.shards == 2
    assert sum(one.samples for one in stats.classes) == stats.samples < 400
    assert stats.classes[0].name == "astronaut"


def test_statistics_can_be_converted_to_json(stats: DatasetStats) -> None:
    raw = json.loads(json.dumps(stats.to_dict()))
    assert raw["samples"] == 400
    assert raw["classes"][0] == {"label": 0, "name": "astronaut", "samples": 50}
    assert raw["width"].keys() == {"min", "median", "max"}


# --- the text ---


def test_the_text_contains_counts_sizes_modes_and_classes(stats: DatasetStats) -> None:
    text = format_stats(stats)
    for part in (
        "400 in 7 shards, 6.37 MB",
        "shuffled when packed",
        stats.fingerprint,
        "RGB 365",
        "8 classes",
        "rocket",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 100 + len(stats.dataset)


def test_equal_classes_have_equal_bars_and_half_the_samples_half_a_bar(tmp_path: Path) -> None:
    lines = format_stats(describe(dataset(tmp_path / "d", [0] * 8 + [1] * 4 + [2] * 8, ("a", "b", "c")))).splitlines()
    bars = {line.split()[1]: line.count("█") for line in lines if "█" in line}
    assert bars == {"a": 40, "c": 40, "b": 20}
    assert list(bars) == ["a", "c", "b"]  # largest first


def test_many_classes_are_cut_to_the_largest_and_the_rest_is_counted(tmp_path: Path) -> None:
    labels = [label for label in range(30) for _ in range(label + 1)]
    text = format_stats(describe(dataset(tmp_path / "d", labels)))
    assert sum(line.endswith(tuple("▏▎▍▌▋▊▉█")) for line in text.splitlines()) == MAX_CLASSES
    assert "30 classes" in text
    assert f"... and 10 more with {sum(range(1, 11))} samples" in text


def test_a_class_name_that_would_break_the_line_is_escaped_and_a_long_one_cut(tmp_path: Path) -> None:
    text = format_stats(describe(dataset(tmp_path / "d", [0, 1, 2], ("a\nb\x1b[2J", "n" * 100, "caf\udce9"))))
    assert "a\\nb\\x1b[2J" in text
    assert "n" * 29 + "…" in text
    assert "n" * 31 not in text
    text.encode()


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_is_as_long_as_its_share(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert len(drawn) <= width
    assert abs(drawn.count("█") - share * width) <= 1
    assert bool(drawn) == (share > 0)


@given(st.integers(0, 2**63))
def test_a_size_as_text_is_exact_to_one_percent_and_has_no_exponent(size: int) -> None:
    number, unit = human_bytes(size).replace(",", "").split()
    value = float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert abs(value - size) <= size * 0.01
    assert "e" not in number
