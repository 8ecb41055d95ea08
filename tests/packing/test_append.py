"""Appending to datasets, and resharding them."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pandas as pd
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from folders import contents
from PIL import Image
from sources_conformance import CLASSES, image_of, photos_of
from sources_conformance import stored as samples_of

import wds_tools as wt
from wds_tools.errors import DestinationError, LabelError, NotADatasetError, OptionError, StoreError
from wds_tools.packing.destination import FolderDestination

REPOSITORY = Path(__file__).parents[2]
KEEP = {"images": "keep", "workers": 1}


@pytest.fixture(scope="module")
def packed(packed_few):
    """Return a small dataset."""
    return packed_few


@pytest.fixture
def halves(photos, tmp_path):
    """Return two folders, each with an eighth of the photos. The second has one more class."""
    for number, name in enumerate(("first", "second")):
        for path in sorted(photos.glob("*/*"))[number * 4 :: 8]:
            folder = tmp_path / name / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / path.name).symlink_to(path)
    shutil.rmtree(tmp_path / "first" / "dandelion")  # not the last class, so that class numbers could shift
    return tmp_path / "first", tmp_path / "second"


def stored(dataset):
    """Return (path, class name) and key of every sample, read by the loader."""
    with wt.make_loader(
        dataset, batch_size=16, fields=("__key__", "json", "label"), tail="mask", num_workers=0
    ) as loader:
        return [
            (key, facts["path"], loader.classes[label])
            for batch in loader
            for key, facts, label, ok in zip(batch.key, batch.json, batch.label.tolist(), batch.valid, strict=True)
            if ok
        ]


def test_appended_samples_come_last_and_known_classes_keep_their_numbers(halves, tmp_path):
    first, second = halves
    before = wt.pack(first, tmp_path / "dst", shard_bytes="125kB", **KEEP).manifest
    old = {entry.name: (tmp_path / "dst" / entry.name).read_bytes() for entry in before.shards}
    report = wt.append(second, tmp_path / "dst", **KEEP)
    now = report.manifest
    assert report.packed == now.samples - before.samples == 50
    assert now.shards[: len(before.shards)] == before.shards
    assert all((tmp_path / "dst" / name).read_bytes() == data for name, data in old.items())
    assert now.classes == (*before.classes, "dandelion")
    assert now.shuffled
    rows = stored(tmp_path / "dst")
    assert len({key for key, _, _ in rows}) == len(rows) == now.samples
    assert all(path.split("/")[0] == name for _, path, name in rows)
    wanted = [str(path.relative_to(folder)) for folder in halves for path in folder.glob("*/*")]
    assert Counter(path for _, path, _ in rows) == Counter(wanted)
    assert wt.verify(tmp_path / "dst").damage_count == 0


def test_appending_again_changes_nothing_and_a_third_part_comes_last(halves, photos, tmp_path):
    first, second = halves
    wt.pack(first, tmp_path / "dst", **KEEP)
    wt.append(second, tmp_path / "dst", **KEEP)
    whole = contents(tmp_path / "dst")
    again = wt.append(second, tmp_path / "dst", **KEEP)
    assert again.packed == 0
    assert contents(tmp_path / "dst") == whole
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "cat").symlink_to(photos / "cat")
    new = {path.name for path in (photos / "cat").iterdir()} - {
        path.name for half in halves for path in (half / "cat").iterdir()
    }
    third = wt.append(tmp_path / "third", tmp_path / "dst", **KEEP).manifest
    assert third.samples == again.manifest.samples + len(new)
    assert len(third.source["parts"]) == 3
    keys = [key for key, _, _ in stored(tmp_path / "dst")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "object"])
def test_classes_that_the_source_numbers_otherwise_are_matched_by_name(tmp_path, kind):
    photos = photos_of(6)
    folder = tmp_path / "first" / CLASSES[2]
    folder.mkdir(parents=True)
    (folder / "a.jpg").write_bytes(photos[2].data)
    wt.pack(tmp_path / "first", tmp_path / "dst", **KEEP)
    source = named_source(kind, tmp_path, photos)
    wt.append(source, tmp_path / "dst", images="keep")
    now = wt.append(source, tmp_path / "dst", images="keep").manifest
    assert (now.samples, now.classes) == (7, (CLASSES[2], *CLASSES[:2]))
    found = {(image_of(sample), now.classes[int(sample["cls"])]) for sample in samples_of(tmp_path / "dst")}
    assert found == {(photo.data, CLASSES[photo.label]) for photo in photos}
    assert all(json.loads(s["json"])["class"] == now.classes[int(s["cls"])] for s in samples_of(tmp_path / "dst"))


def named_source(kind, folder, photos):
    """Return a source that knows the names of its classes."""
    if kind == "object":
        items = NamedItems((photo.data, photo.label) for photo in photos)
        items.classes = CLASSES
        return items
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": CLASSES}}}}
    table = pa.table({"image": [photo.data for photo in photos], "label": [photo.label for photo in photos]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), folder / "more.parquet")
    if kind == "parquet":
        return folder / "more.parquet"
    wt.pack(folder / "more.parquet", folder / "shards", **KEEP)
    return folder / "shards"


class NamedItems(list):
    """Items with the attribute ``classes``, as torchvision's datasets have it."""


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "object"])
def test_given_classes_in_another_order_are_matched_by_name_when_packing(tmp_path, kind):
    photos = photos_of(6)
    source = named_source(kind, tmp_path, photos)
    given = ("lake", *CLASSES[::-1])
    for _ in range(2):  # the second time nothing is left to do
        manifest = wt.pack(source, tmp_path / "dst", classes=given, images="keep", workers=1).manifest
    assert manifest.classes == given
    found = {(image_of(sample), given[int(sample["cls"])]) for sample in samples_of(tmp_path / "dst")}
    assert found == {(photo.data, CLASSES[photo.label]) for photo in photos}
    with pytest.raises(LabelError, match=f"class '{CLASSES[0]}' of .* is not among the given classes"):
        wt.pack(source, tmp_path / "other", classes=("lake", *CLASSES[:0:-1]), images="keep", workers=1)
    names = ("hot", CLASSES[1], "wet")
    assert wt.pack(source, tmp_path / "renamed", classes=names, images="keep", workers=1).manifest.classes == names
    found = {(image_of(sample), int(sample["cls"])) for sample in samples_of(tmp_path / "renamed")}
    assert found == {(photo.data, photo.label) for photo in photos}


def test_a_new_class_that_looks_like_a_known_one_is_noted(photos, tmp_path):
    first = sorted(photos.glob("*/000.jpg"))
    for place, number in (("old/Cat", 0), ("old/dog", 0), ("new/cat", 1), ("new/dog", 0)):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(first[number], tmp_path / place)
    wt.pack(tmp_path / "old", tmp_path / "dst", **KEEP)
    report = wt.append(tmp_path / "new", tmp_path / "dst", **KEEP)
    assert report.manifest.classes == ("Cat", "dog", "cat")
    similar, repeated = report.account.notes
    assert similar == "the classes 'Cat' and 'cat' differ only in upper and lower case, or look the same"
    assert repeated.startswith("1 record with the path of a sample of the dataset, such as 'dog/000.jpg': left out")


def test_labels_without_names_stay_when_shards_are_packed_again(tmp_path):
    items = NamedItems((photo.data, number) for number, photo in enumerate(photos_of(3)))
    wt.pack(items, tmp_path / "one", images="keep")
    report = wt.pack(tmp_path / "one", tmp_path / "two", **KEEP)
    assert report.manifest.classes == ()
    assert sorted(int(sample["cls"]) for sample in samples_of(tmp_path / "two")) == [0, 1, 2]


def test_a_training_run_includes_the_new_samples_from_its_next_epoch_on(halves, tmp_path):
    first, second = halves
    wt.pack(first, tmp_path / "dst", shard_bytes="125kB", **KEEP)

    def make():
        return wt.make_loader(tmp_path / "dst", batch_size=10, fields=("__key__",), shuffle=True, num_workers=0)

    with make() as loader:
        whole = [key for batch in loader for key in batch.key]
    with make() as loader:
        got = [key for batch in itertools.islice(loader, 2) for key in batch.key]
        state = json.loads(json.dumps(loader.state_dict()))
    wt.append(second, tmp_path / "dst", **KEEP)
    with make() as loader:
        loader.load_state_dict(state)
        assert got + [key for batch in loader for key in batch.key] == whole
        assert len(loader) == wt.describe(tmp_path / "dst").samples // 10
        assert len({key for batch in loader for key in batch.key}) == len(loader) * 10


# Appends in a process that is killed just before a file gets its final name.
KILLED_APPEND = """
import os, sys
import wds_tools as wt

def kill(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(sys.argv[3]):
        os.kill(os.getpid(), 9)

sys.addaudithook(kill)
wt.append(sys.argv[1], sys.argv[2], images="keep", workers=1)
"""


@pytest.mark.parametrize("moment", ["plan.json", "shard-{:06}.tar", "shard-{:06}.json", "manifest.json"])
@pytest.mark.torture_except("manifest.json")
def test_a_killed_append_leaves_the_dataset_unchanged_and_a_rerun_gives_the_same_bytes(halves, tmp_path, moment):
    first, second = halves
    shards = len(wt.pack(first, tmp_path / "dst", shard_bytes="125kB", **KEEP).manifest.shards)
    shutil.copytree(tmp_path / "dst", tmp_path / "undisturbed")
    wt.append(second, tmp_path / "undisturbed", **KEEP)
    manifest = (tmp_path / "dst" / "manifest.json").read_bytes()
    killed = preloaded.run(
        ["-c", KILLED_APPEND, second, tmp_path / "dst", moment.format(shards + 2)], imports=preloaded.COMMANDS
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "dst" / "manifest.json").read_bytes() == manifest
    assert wt.verify(tmp_path / "dst").damage_count == 0
    wt.append(second, tmp_path / "dst", **KEEP)
    assert contents(tmp_path / "dst") == contents(tmp_path / "undisturbed")


@pytest.mark.torture
def test_an_append_whose_source_changed_starts_again_with_fresh(photos, few_photos, tmp_path, monkeypatch):
    more = tmp_path / "more"
    shutil.copytree(photos / "fig", more / "fig")
    victim = next((more / "fig").glob("*.jpg"))
    for name in ("dst", "whole"):
        wt.pack(few_photos, tmp_path / name, shard_bytes="125kB", **KEEP)
    start = FolderDestination.start

    def change_and_start(self, source, **options):
        victim.write_bytes(victim.read_bytes() + bytes(100))
        start(self, source, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FolderDestination, "start", change_and_start)
        with pytest.raises(StoreError, match=r"changed while it was packed.*append it with --fresh"):
            wt.append(more, tmp_path / "dst", shard_bytes="60kB", **KEEP)
    with pytest.raises(DestinationError, match=r"unfinished pack of something else .* or append with --fresh"):
        wt.append(more, tmp_path / "dst", shard_bytes="60kB", **KEEP)
    wt.append(more, tmp_path / "dst", shard_bytes="60kB", fresh=True, **KEEP)
    wt.append(more, tmp_path / "whole", shard_bytes="60kB", **KEEP)
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_appending_with_other_options_or_labels_is_refused(halves, photos, packed_copy, tmp_path):
    first, second = halves
    with pytest.raises(NotADatasetError, match=r"nowhere: no such folder"):
        wt.append(second, tmp_path / "nowhere", **KEEP)
    wt.pack(first, tmp_path / "dst", **KEEP)
    with pytest.raises(OptionError, match="packed with images='keep', but this call would add 'raw'"):
        wt.append(second, tmp_path / "dst", images="raw", workers=1)
    with pytest.raises(OptionError, match=r"has labels with class names, and .* has no labels"):
        wt.append(photos / "cat", tmp_path / "dst", **KEEP)
    (packed_copy / "manifest.json").unlink()
    wt.index_shards(f"{packed_copy}/*.tar")
    with pytest.raises(DestinationError, match="was not written by pack"):
        wt.append(second, packed_copy, **KEEP)
    with pytest.raises(DestinationError, match="holds another dataset"):
        wt.pack(second, tmp_path / "dst", **KEEP)


@pytest.mark.parametrize("labels", [("a", None), (7, None), ("a", 7)])
def test_samples_that_are_labelled_in_another_way_are_neither_appended_nor_merged(tmp_path, labels):
    names = []
    for number, label in enumerate(labels):
        name = f"{number}.jpg"
        (tmp_path / name).write_bytes(photos_of(2)[number].data)
        (tmp_path / f"{name}.csv").write_text(f"path\n{name}\n" if label is None else f"path,label\n{name},{label}\n")
        names.append(name)
    for src, dst in (names, names[::-1]):
        target = tmp_path / f"onto-{dst}"
        wt.pack(tmp_path / f"{dst}.csv", target, **KEEP)
        before = contents(target)
        with pytest.raises(OptionError, match="append samples that are labelled in the same way"):
            wt.append(tmp_path / f"{src}.csv", target, **KEEP)
        assert contents(target) == before
    for pair in (names, names[::-1]):
        with pytest.raises(LabelError, match=r"labelled in the same way|cannot be matched by name"):
            wt.merge([tmp_path / f"onto-{name}" for name in pair], tmp_path / "merged")


def test_resharding_keeps_the_samples_and_their_order(packed, tmp_path):
    manifest = wt.reshard(packed, tmp_path / "big", workers=1).manifest
    assert len(manifest.shards) == 1
    assert manifest.shuffled  # the original was shuffled
    assert list(manifest.classes) == json.loads((packed / "manifest.json").read_text())["classes"]
    before, after = stored(packed), stored(tmp_path / "big")
    assert [row[1:] for row in before] == [row[1:] for row in after]
    wt.reshard(packed, tmp_path / "mixed", shuffle=True, seed=5, shard_bytes="300kB", workers=1)
    mixed = stored(tmp_path / "mixed")
    assert sorted(row[1:] for row in mixed) == sorted(row[1:] for row in before)
    assert [row[1:] for row in mixed] != [row[1:] for row in before]


@pytest.mark.torture
def test_resharding_can_change_the_images(packed, tmp_path):
    wt.reshard(packed, tmp_path / "raw", images="raw", resize="32x24", workers=1)
    with wt.make_loader(tmp_path / "raw", batch_size=40, view=wt.Resize((24, 32)), num_workers=0) as loader:
        assert next(iter(loader)).image.shape == (40, 3, 24, 32)


def test_packing_without_shuffling_keeps_the_order_of_the_source(few_photos, tmp_path):
    manifest = wt.pack(few_photos, tmp_path / "dst", shuffle=False, **KEEP).manifest
    assert not manifest.shuffled
    paths = [path for _, path, _ in stored(tmp_path / "dst")]
    assert paths == sorted(paths)


def test_files_with_the_names_and_sizes_of_others_and_a_later_time_are_stated(tmp_path, caplog):
    """A new copy of the same files, or a caption that was corrected in place, with as many bytes as before."""
    src, dst = tmp_path / "src" / "cat", tmp_path / "dst"
    src.mkdir(parents=True)
    (src / "1.jpg").write_bytes(photos_of(1)[0].data)
    (src / "1.txt").write_text("a cat")
    wt.pack(tmp_path / "src", dst, **KEEP)
    assert wt.pack(tmp_path / "src", dst, **KEEP).kept == 1
    assert "modification time" not in caplog.text
    (src / "1.txt").write_text("a dog")
    later = (dst / "manifest.json").stat().st_mtime_ns + 1
    os.utime(src / "1.txt", ns=(later, later))
    stated = "1 file of the source has a later modification time, such as 'cat/1.txt'"
    assert wt.pack(tmp_path / "src", dst, **KEEP).kept == 1
    assert f"complete, but {stated}: if they have changed, pack with --fresh (fresh=True) to replace it" in caplog.text
    assert wt.append(tmp_path / "src", dst, **KEEP).packed == 0
    assert f"from an earlier call, although {stated}; if they are different files" in caplog.text
    assert [sample["txt"] for sample in samples_of(dst)] == [b"a cat"]
    wt.pack(tmp_path / "src", dst, fresh=True, **KEEP)
    assert [sample["txt"] for sample in samples_of(dst)] == [b"a dog"]


def write_folder(folder, photos):
    for photo in photos:
        (folder / CLASSES[photo.label]).mkdir(parents=True, exist_ok=True)
        (folder / CLASSES[photo.label] / f"{photo.name}.jpg").write_bytes(photo.data)
    return folder


def write_table(folder, photos):
    for photo in photos:
        (folder / f"{photo.name}.jpg").write_bytes(photo.data)
    rows = [{"image": f"{photo.name}.jpg", "label": CLASSES[photo.label], "path": "a column"} for photo in photos]
    pd.DataFrame(rows).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def write_parquet(folder, photos):
    columns = {"image": [photo.data for photo in photos], "label": [CLASSES[photo.label] for photo in photos]}
    pd.DataFrame(columns).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def write_shards(folder, photos):
    with webdataset.ShardWriter(f"{folder}/%06d.tar", verbose=0) as writer:
        for photo in photos:
            writer.write({"__key__": photo.name, "jpg": photo.data, "cls": CLASSES[photo.label]})
    return folder


def write_packed_shards(folder, photos):
    """The samples are named by their original paths, and the shards by their numbers."""
    wt.pack(write_folder(folder / "images", photos), folder / "shards", fresh=True, **KEEP)
    return folder / "shards"


def list_objects(_folder, photos):
    return [{"image": photo.data, "label": CLASSES[photo.label], "path": photo.name} for photo in photos]


SOURCES = [write_folder, write_table, write_parquet, write_shards, write_packed_shards, list_objects]


@pytest.mark.parametrize("write", SOURCES)
@pytest.mark.torture_except(*(write.__name__ for write in SOURCES if write is not write_table))
def test_only_the_new_records_of_a_source_that_has_grown_are_appended(write, tmp_path):
    src, dst, photos = tmp_path / "src", tmp_path / "dst", photos_of(6)
    src.mkdir()
    wt.pack(write(src, photos[:4]), dst, workers=1)
    report = wt.append(write(src, photos), dst, workers=1)
    assert report.packed == report.account.packed == 2
    assert report.account.notes[-1].startswith("4 records with the path of a sample of the dataset, such as ")
    once = {(image_of(sample), sample["cls"]) for sample in samples_of(dst)}
    assert len(once) == len(samples_of(dst)) == 6
    before = contents(dst)
    assert wt.append(write(src, photos), dst, workers=1).packed == 0
    assert contents(dst) == before
    assert wt.append(write(src, photos), dst, repeated="append", workers=1).packed == 6


@pytest.mark.parametrize("write", [write_table, write_parquet, list_objects])
def test_records_that_have_changed_are_an_error_with_both_choices(write, tmp_path):
    src, dst, photos = tmp_path / "src", tmp_path / "dst", photos_of(6)
    src.mkdir()
    wt.pack(write(src, photos[:4]), dst, workers=1)
    photos[0] = dataclasses.replace(photos[0], label=1 - photos[0].label)
    with pytest.raises(OptionError, match=r"4 records .*\((cls|json:class) of .*--repeated skip .* 2 others,"):
        wt.append(write(src, photos), dst, workers=1)
    assert wt.append(write(src, photos), dst, repeated="skip", workers=1).packed == 2


def test_other_images_with_the_same_names_are_appended(tmp_path):
    """Cameras number their photographs."""
    photos = photos_of(6)
    pairs = zip(photos[:3], photos[3:], strict=True)
    renamed = [dataclasses.replace(photo, data=other.data) for photo, other in pairs]
    wt.pack(write_folder(tmp_path / "a", photos[:3]), tmp_path / "dst", resize=32, workers=1)
    report = wt.append(write_folder(tmp_path / "b", renamed), tmp_path / "dst", resize=32, workers=1)
    assert report.packed == 3
    assert report.account.notes[-1].endswith("their images differ, so they are appended")


def test_more_records_of_an_image_than_before_are_an_error(tmp_path):
    """A table may have several rows for an image, such as captions."""
    photo = photos_of(1)[0]
    (tmp_path / "a.jpg").write_bytes(photo.data)
    rows = [{"image": "a.jpg", "caption": "a field"}] * 100
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    wt.pack(tmp_path / "t.csv", tmp_path / "dst", kind="table", workers=1)
    pd.DataFrame([*rows, {"image": "a.jpg", "caption": "a lake"}]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(OptionError, match="--repeated skip"):
        wt.append(tmp_path / "t.csv", tmp_path / "dst", kind="table", workers=1)


def write_rows(path, photos, **columns):
    """Write a table of images and the images next to it, or both in one Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pd.DataFrame({"image": [photo.data for photo in photos], **columns}).to_parquet(path)
        return path
    for photo in photos:
        (path.parent / f"{photo.name}.jpg").write_bytes(photo.data)
    pd.DataFrame({"path": [f"{photo.name}.jpg" for photo in photos], **columns}).to_csv(path, index=False)
    return path


def labels_of(dataset):
    """Return the class name of each image, None without a label."""
    return {image_of(sample): json.loads(sample["json"]).get("class") for sample in samples_of(dataset)}


KINDS, SPECIES = ["bird", "beast"], ["wren", "owl"]


def test_labels_are_those_of_the_column_that_was_stated_when_packing(tmp_path):
    """Column ``label`` is the default; class folders have no columns."""
    photos, dst = photos_of(12), tmp_path / "dst"
    both = {"label": KINDS, "species": SPECIES}
    wt.pack(write_rows(tmp_path / "a.csv", photos[:2], **both), dst, columns={"label": "species"}, **KEEP)
    for number, name in enumerate(("b.csv", "c.parquet"), 1):
        wt.append(write_rows(tmp_path / name[0] / name, photos[2 * number : 2 * number + 2], **both), dst, **KEEP)
    for photo, folder in zip(photos[6:8], SPECIES, strict=True):
        (tmp_path / "folders" / folder).mkdir(parents=True)
        (tmp_path / "folders" / folder / "1.jpg").write_bytes(photo.data)
    assert wt.append(tmp_path / "folders", dst, **KEEP).manifest.classes == ("owl", "wren")
    assert labels_of(dst) == {photo.data: SPECIES[number % 2] for number, photo in enumerate(photos[:8])}
    wt.reshard(dst, tmp_path / "again", workers=1)
    other = write_rows(tmp_path / "d" / "d.csv", photos[8:10], label=KINDS)
    for dataset in (dst, tmp_path / "again"):
        before = contents(dataset)
        message = r"was packed with --column label=species, and .*no 'species'.*: pass --column label=label \(columns="
        with pytest.raises(OptionError, match=message):
            wt.append(other, dataset, **KEEP)
        assert contents(dataset) == before
    assert wt.append(other, dst, columns={"label": "label"}, **KEEP).manifest.classes == ("owl", "wren", *sorted(KINDS))
    plain = write_rows(tmp_path / "e" / "e.csv", photos[10:], size=[3, 4])
    with pytest.raises(OptionError, match=r"no labels: .*; .*dst was packed with --column label=species"):
        wt.append(plain, dst, **KEEP)


@pytest.mark.parametrize(
    ("stated", "labels", "expected"),
    [
        ({"columns": {"label": ""}}, KINDS, [None, None]),
        ({"label_type": "name"}, [7, 8], ["7", "8"]),
        ({"label_separator": "|"}, ["b", "a"], [[1], [0]]),
        ({"columns": {"image": "right"}}, KINDS, KINDS),
    ],
    ids=["none", "type", "separator", "image"],
)
def test_labels_and_images_are_read_as_was_stated_when_packing(tmp_path, stated, labels, expected):
    """Each row has two images: column ``path`` is the default."""
    photos = photos_of(8)
    for name, some in (("a", photos[:4]), ("b", photos[4:])):
        for photo in (folder := tmp_path / name) and some[1::2]:
            folder.mkdir(exist_ok=True)
            (folder / f"{photo.name}.jpg").write_bytes(photo.data)
        column = ["a|b", "b"] if name == "a" and "label_separator" in stated else labels
        write_rows(folder / "t.csv", some[::2], label=column, right=[f"{photo.name}.jpg" for photo in some[1::2]])
    wt.pack(tmp_path / "a" / "t.csv", tmp_path / "dst", kind="table", **stated, **KEEP)
    wt.append(tmp_path / "b" / "t.csv", tmp_path / "dst", kind="table", **KEEP)
    images = photos[5::2] if stated == {"columns": {"image": "right"}} else photos[4::2]
    stored = {image_of(sample): sample for sample in samples_of(tmp_path / "dst")}
    appended = [stored[photo.data] for photo in images]
    if "label_separator" in stated:
        assert [json.loads(sample["labels.json"]) for sample in appended] == expected
    else:
        assert [json.loads(sample["json"]).get("class") for sample in appended] == expected


def test_classes_that_were_named_or_renamed_must_be_named_again(tmp_path):
    photos, names = photos_of(8), {"classes": ["tench", "shark"], **KEEP}
    numbers = [write_rows(tmp_path / name / "t.csv", photos[:2], label=[0, 1]) for name in "ab"]
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["n01", "n02"]}}}}
    typed = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, part in zip(typed, (photos[:2], photos[2:4]), strict=True):
        table = pa.table({"image": [photo.data for photo in part], "label": [0, 1]})
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), path)
    for (first, second), message in (
        (numbers, r"labels without class names: .* or name the class numbers with --classes"),
        (typed, r"packed with --classes, which renamed .*'n01', 'n02' of .*: pass --classes \(classes=\) again"),
    ):
        dst = tmp_path / f"onto-{first.name}"
        wt.pack(first, dst, **names)
        with pytest.raises(OptionError, match=message):
            wt.append(second, dst, **KEEP)
        assert wt.append(second, dst, repeated="append", **names).manifest.classes == ("tench", "shark")
    wt.pack(write_folder(tmp_path / "old", photos[:3]), tmp_path / "dst", classes=CLASSES[::-1], **KEEP)
    new = write_folder(tmp_path / "new", photos[6:])
    (new / CLASSES[0]).rename(new / "lake")  # the classes were only put in order
    assert wt.append(new, tmp_path / "dst", **KEEP).manifest.classes == (*CLASSES[::-1], "lake")


def test_annotations_in_a_folder_are_an_error_where_only_folders_were_stated(tmp_path):
    photos, dst = photos_of(6), tmp_path / "dst"
    first, second = (write_folder(tmp_path / name, part) for name, part in (("a", photos[:3]), ("b", photos[3:])))
    wt.pack(first, dst, kind="folder", **KEEP)
    image = min(second.glob("*/*.jpg")).relative_to(second).as_posix()
    coco = {
        "images": [{"id": 1, "file_name": image, "width": 48, "height": 48}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}],
        "categories": [{"id": 1, "name": "lake"}],
    }
    (second / "instances.json").write_text(json.dumps(coco))
    with pytest.raises(OptionError, match=r"packed with --from folder, and .* is read as coco: pass --from folder"):
        wt.append(second, dst, **KEEP)
    assert wt.append(second, dst, kind="folder", **KEEP).packed == 3


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.torture_except("False")
def test_a_corrected_label_among_many_records_is_noticed(tmp_path, several):
    photos = photos_of(10) * 20
    labels = ["fig;pea" if several else f"{number % 5} peas" for number in range(len(photos))]
    options = {"label_separator": ";" if several else None, **KEEP}

    def write(labels):
        return write_rows(tmp_path / "t.parquet", photos[: len(labels)], label=labels)

    wt.pack(write(labels[:-1]), tmp_path / "dst", **options)
    for row in (10, 158):
        changed = [*labels[:row], "pea" if several else labels[row + 1], *labels[row + 1 :]]
        with pytest.raises(OptionError, match=f"some have changed .* of 't.parquet#{row}'"):
            wt.append(write(changed), tmp_path / "dst", **options)
    labels[-1] = "a bean"  # the first class of the new table, so the others have other numbers there
    assert wt.append(write(labels), tmp_path / "dst", **options).packed == 1


def test_a_file_that_was_moved_to_another_class_is_an_error(tmp_path):
    photos, src, dst = photos_of(9), tmp_path / "src", tmp_path / "dst"
    wt.pack(write_folder(src, photos[:6]), dst, workers=1)
    first, second = (src / CLASSES[number] / f"{photos[number].name}.jpg" for number in (0, 1))
    write_folder(src, photos[6:8])
    first.rename(src / CLASSES[1] / first.name)
    moved = f"'{CLASSES[1]}/000.jpg', which has the image of the sample '{CLASSES[0]}/000.jpg'"
    with pytest.raises(OptionError, match=rf"such as {moved}.* --repeated skip"):
        wt.append(src, dst, workers=1)
    assert wt.append(src, dst, repeated="skip", workers=1).packed == 2
    assert len(labels_of(dst)) == len(samples_of(dst)) == 8
    (src / CLASSES[1] / first.name).rename(first)
    second.unlink()  # a file is removed, and another one copied
    (write_folder(src, photos[8:]) / CLASSES[2] / "copy.jpg").write_bytes(photos[2].data)
    assert wt.append(src, dst, workers=1).packed == 2


def test_an_image_of_another_source_may_be_in_the_dataset(tmp_path):
    photos, dst = photos_of(9), tmp_path / "dst"
    wt.pack(write_folder(tmp_path / "a", photos[:6]), dst, workers=1)
    (write_folder(tmp_path / "b", photos[6:]) / CLASSES[0] / "copy.jpg").write_bytes(photos[1].data)
    report = wt.append(tmp_path / "b", dst, workers=1)
    assert report.packed == 4
    assert report.account.notes[-1].startswith("a record has an image of the dataset, and is appended: such as")


@pytest.mark.parametrize("change", ["inserted rows", "another number of parts"])
def test_records_that_moved_are_not_taken_for_new_ones(tmp_path, change):
    """Records of Parquet are named by their rows."""
    photos, src, dst = photos_of(12), tmp_path / "src", tmp_path / "dst"

    def write(*parts):
        shutil.rmtree(src, ignore_errors=True)
        for number, part in enumerate(parts):
            labels = [CLASSES[photo.label] for photo in part]
            write_rows(src / f"train-{number:05}-of-{len(parts):05}.parquet", part, label=labels)
        return src

    wt.pack(write(photos[:5], photos[5:10]), dst, **KEEP)
    before = contents(dst)
    rows = photos[10:] + photos[:10] if change == "inserted rows" else photos
    write(rows[:7], rows[7:]) if change == "inserted rows" else write(rows[:4], rows[4:8], rows[8:])
    with pytest.raises(OptionError, match=r"has images of the dataset at other paths: .* Were files moved"):
        wt.append(src, dst, **KEEP)
    assert contents(dst) == before
    report = wt.append(src, dst, repeated="skip", **KEEP)
    assert report.packed == report.account.packed == 2
    assert labels_of(dst) == {photo.data: CLASSES[photo.label] for photo in photos}


def test_records_of_other_shares_of_a_source_are_left_out(tmp_path):
    photos, dst = photos_of(12), tmp_path / "dst"
    reports = wt.pack_splits(write_folder(tmp_path / "src", photos[:9]), dst, split="train=0.7,val=0.3", workers=1)
    assert wt.append(write_folder(tmp_path / "src", photos), dst / "train", workers=1).packed == 3
    train, val = labels_of(dst / "train"), labels_of(dst / "val")
    assert (len(train), len(val)) == (reports["train"].packed + 3, reports["val"].packed)
    assert not train.keys() & val.keys()


def test_new_samples_without_the_mask_that_all_earlier_ones_have_are_noted(tmp_path, caplog):
    for name in ("masked/images/1", "masked/masks/1", "more/images/2", "more/masks/2", "bare/images/3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 12), int(name[-1])).save(tmp_path / f"{name}.png")
    wt.pack(tmp_path / "masked", tmp_path / "dst", **KEEP)
    assert wt.append(tmp_path / "more", tmp_path / "dst", **KEEP).account.notes == []
    [note] = wt.append(tmp_path / "bare", tmp_path / "dst", **KEEP).account.notes[-1:]
    assert note == "1 of 1 new samples have no mask.png, which all earlier samples have"
    assert note in caplog.text


def test_a_new_class_has_one_number_in_all_splits(tmp_path, caplog):
    photos, dst = photos_of(16), tmp_path / "dst"
    for split, some in (("train", photos[:2]), ("val", photos[2:4]), ("birds", photos[4:6])):
        wt.pack(write_rows(tmp_path / f"{split}.csv", some, label=["cat", "dog"]), dst / split, **KEEP)

    def appended(name, some, labels):
        source = write_rows(tmp_path / f"new-{len(list(tmp_path.iterdir()))}.csv", some, label=labels)
        return wt.append(source, dst / name, **KEEP).manifest.classes

    assert appended("train", photos[6:8], ["emu", "fox"]) == ("cat", "dog", "emu", "fox")
    assert not caplog.text
    assert appended("val", photos[8:10], ["fox", "cat"]) == ("cat", "dog", "emu", "fox")
    assert "class numbers continue the numbers of" in caplog.text
    assert appended("birds", photos[10:12], ["hen", "cat"]) == ("cat", "dog", "hen")
    (dst / "birds").rename(dst / "test")
    caplog.clear()
    assert appended("test", photos[12:14], ["fox", "cat"]) == ("cat", "dog", "hen", "fox")
    assert caplog.text.count("has other class numbers (2 is 'emu' there, and 'hen' here): pack all splits at once") == 2
    caplog.clear()
    wt.pack(write_rows(tmp_path / "one.csv", photos[14:], label=["dog", "emu"]), dst / "valid", **KEEP)
    assert caplog.text.count("has other class numbers (0 is 'cat' there, and 'dog' here)") == 3


def test_an_entry_of_json_that_is_the_label_of_shards_is_a_column_of_a_table(tmp_path):
    photos = photos_of(8)
    for name, some in (("a", photos[:4]), ("b", photos[4:])):
        write_rows(tmp_path / name / "t.csv", some, label=["u", "v"] * 2, kind=["k", "l", "m", "k"])
    wt.pack(tmp_path / "a" / "t.csv", tmp_path / "first", **KEEP)
    wt.pack(tmp_path / "first", tmp_path / "dst", columns={"label": "json:kind"}, **KEEP)
    report = wt.append(tmp_path / "b" / "t.csv", tmp_path / "dst", **KEEP)
    assert report.manifest.classes == ("k", "l", "m")
    labels = labels_of(tmp_path / "dst")
    assert [labels[photo.data] for photo in photos] == ["k", "l", "m", "k"] * 2
