"""Class numbers that only the indexes have, as after a merge, in everything that reads shards or files again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
import webdataset
from folders import contents

import wds_tools as wt
from wds_tools.errors import DestinationError, LabelError, ShardError, SourceError
from wds_tools.format.field_classes import ClassList
from wds_tools.format.manifest import from_json
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples
from wds_tools.upkeep.indexer import index_folders


def dataset(folder: Path, classes: list[str], photo: bytes) -> Path:
    """Write a dataset with a sample of each class, whose key is its name."""
    with wt.ShardWriter(folder / "shard-%06d.tar", classes=classes) as writer:
        for number, name in enumerate(classes):
            writer.write({"__key__": name, "jpg": photo, "cls": number})
    return folder


@pytest.fixture
def merged(tmp_path: Path, photos: Path) -> Path:
    """Return a dataset in which fig is class 1 in the index, and class 0 in its shard."""
    photo = min(photos.glob("*/*.jpg")).read_bytes()
    parts = [dataset(tmp_path / "a", ["cat"], photo), dataset(tmp_path / "b", ["fig", "cat"], photo)]
    wt.merge(parts, tmp_path / "merged")
    return tmp_path / "merged"


def classes_by_key(folder: Path) -> list[tuple[str, str]]:
    """Return the key in the original dataset, and the name of the class, of each sample."""
    shards, found = open_shards(folder), []
    for number in range(len(shards.locations)):
        samples = list(stored_samples(shards, number))
        keys = [json.loads(bytes(sample.fields["json"]))["key"] for sample in samples]
        found += list(zip(keys, [shards.manifest.classes[n] for n in shards.index(number).label], strict=True))
    return sorted(found)


RIGHT = [("cat", "cat"), ("cat", "cat"), ("fig", "fig")]


def test_shards_named_by_a_pattern_have_the_labels_and_classes_of_their_manifest(merged: Path, tmp_path: Path) -> None:
    wt.pack(merged, tmp_path / "folder", workers=1)
    wt.pack(f"{merged}/*.tar", tmp_path / "pattern", kind="webdataset", workers=1)
    wt.pack(merged / "shard-000001.tar", tmp_path / "one", kind="webdataset", workers=1)
    assert classes_by_key(tmp_path / "folder") == classes_by_key(tmp_path / "pattern") == RIGHT
    assert classes_by_key(tmp_path / "one") == RIGHT[1:]


def test_shards_of_folders_with_other_classes_are_not_packed_together(merged: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"whose manifests state different classes or labels.*wds-tools merge"):
        wt.pack(f"{tmp_path}/{{a,b}}/*.tar", tmp_path / "d", kind="webdataset", workers=1)
    with pytest.raises(SourceError, match="whose manifests state different classes or labels"):
        wt.pack(f"{tmp_path}/{{a,merged}}/*.tar", tmp_path / "d", kind="webdataset", workers=1)
    assert not (tmp_path / "d").exists()


def test_a_shard_that_the_manifest_does_not_list_is_refused(merged: Path, tmp_path: Path) -> None:
    (merged / "shard-000009.tar").write_bytes((merged / "shard-000001.tar").read_bytes())
    with pytest.raises(SourceError, match=r"shard-000009.tar, which .*manifest.json does not list"):
        wt.pack(f"{merged}/*.tar", tmp_path / "d", kind="webdataset", workers=1)


def test_shards_are_packed_with_the_classes_of_the_manifest_that_lists_them(merged: Path, tmp_path: Path) -> None:
    (merged / "manifest.json").rename(merged / "merged.json")
    for name in ("shard-000000.tar", "shard-000000.parquet"):
        (tmp_path / "b" / name).rename(merged / f"fig-{name}")
    wt.index_shards(f"{merged}/fig-*.tar", classes=["fig", "pear"])
    wt.pack(f"{merged}/shard-*.tar", tmp_path / "one", kind="webdataset", workers=1)
    assert classes_by_key(tmp_path / "one") == RIGHT
    with pytest.raises(SourceError, match="whose manifests state different classes or labels"):
        wt.pack(f"{merged}/*.tar", tmp_path / "d", kind="webdataset", workers=1)


def test_labels_of_the_shards_have_no_names_of_the_merged_dataset(merged: Path, tmp_path: Path) -> None:
    report = wt.pack(merged, tmp_path / "d", columns={"label": "cls"}, workers=1)
    assert report.manifest.classes == ()


def test_unpacked_files_have_the_merged_class_numbers(merged: Path, tmp_path: Path) -> None:
    wt.unpack(merged, tmp_path / "files", layout="shards")
    found = {str(path.relative_to(tmp_path / "files")): path.read_text() for path in tmp_path.glob("files/*/*.cls")}
    assert found == {
        "shard-000000/cat.cls": "0", "shard-000001/fig.cls": "1", "shard-000001/cat.cls": "0",
    }  # fmt: skip


# --- class lists of fields ---


def test_class_lists_are_unpacked(tmp_path: Path, photos: Path) -> None:
    photo = min(photos.glob("*/*.jpg")).read_bytes()
    with wt.ShardWriter(tmp_path / "d" / "a-%d.tar", field_classes={"labels.json": ["cat", "fig"]}) as writer:
        writer.write({"__key__": "0", "jpg": photo, "labels.json": ["fig"]})
    wt.unpack(tmp_path / "d", tmp_path / "files")
    assert json.loads((tmp_path / "files/field_classes.json").read_text()) == {"labels.json": {"names": ["cat", "fig"]}}
    assert json.loads((tmp_path / "files/0.labels.json").read_text()) == [1]
    wt.unpack(tmp_path / "d", tmp_path / "images", fields=["image"])
    assert not (tmp_path / "images/field_classes.json").exists()


def test_several_labels_are_added_with_their_class_list_and_removed(merged: Path, tmp_path: Path) -> None:
    wt.reshard(merged, tmp_path / "d", workers=1)
    keys = [sample.key for sample in stored_samples(open_shards(tmp_path / "d"), 0)]
    rows = pd.DataFrame({"key": keys, "labels.json": [["red", "big"], [], ["big"]]})
    rows.to_parquet(tmp_path / "tags.parquet")
    wt.add_fields(tmp_path / "d", tmp_path / "tags.parquet")
    manifest = from_json((tmp_path / "d/manifest.json").read_bytes())
    assert manifest.field_classes == {"labels.json": ClassList(("big", "red"))}
    with wt.make_loader(tmp_path / "d", batch_size=3, fields={"tags": wt.MultiHot()}, num_workers=0) as loader:
        (batch,) = loader
    assert torch.equal(batch.tags, torch.tensor([[1.0, 1], [0, 0], [1, 0]]))
    wt.remove_fields(tmp_path / "d", "tags")
    assert from_json((tmp_path / "d/manifest.json").read_bytes()).field_classes == {}


def test_added_labels_of_two_kinds_are_refused(merged: Path, tmp_path: Path) -> None:
    wt.reshard(merged, tmp_path / "d", workers=1)
    before = (tmp_path / "d/manifest.json").read_bytes()
    keys = [sample.key for sample in stored_samples(open_shards(tmp_path / "d"), 0)]
    source = [{"__key__": key, "labels.json": labels} for key, labels in zip(keys, [[1], ["big"], []], strict=True)]
    with pytest.raises(LabelError, match="labels that are numbers"):
        wt.add_fields(tmp_path / "d", source)
    assert (tmp_path / "d/manifest.json").read_bytes() == before


def test_merged_tars_elsewhere_state_that_numbers_and_names_contradict_each_other(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photo, shards = min(photos.glob("*/*.jpg")).read_bytes(), tmp_path / "shards"
    for part, classes in (("a", ["ant", "bee"]), ("b", ["bee", "cat"])):
        for name in classes:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / f"{name}.jpg").write_bytes(photo)
        wt.pack(tmp_path / part, tmp_path / f"packed-{part}", workers=1)
    wt.merge([tmp_path / "packed-a", tmp_path / "packed-b"], tmp_path / "merged")
    shards.mkdir()
    for path in (tmp_path / "merged").glob("*.tar"):
        shutil.copy(path, shards)
    for src in (shards, f"{shards}/*.tar"):
        with pytest.raises(SourceError, match=r"(number \d is '|'bee' is number ).*--label json:class .* --label cls"):
            wt.pack(src, tmp_path / "again", workers=1)
    named = wt.pack(src, tmp_path / "named", columns={"label": "json:class"}, workers=1)
    assert named.manifest.classes == ("ant", "bee", "cat")
    assert wt.pack(src, tmp_path / "numbered", columns={"label": "cls"}, workers=1).packed == 4
    caplog.clear()
    assert wt.index_shards(f"{shards}/shard-000000.tar").classes == ("ant", "bee")
    assert not caplog.records
    (shards / "manifest.json").unlink()
    (shards / "shard-000000.parquet").unlink()
    with pytest.raises(ShardError, match=r"(number \d is '|'bee' is number ).*--label json:class .* --label cls"):
        wt.index_shards(f"{shards}/*.tar")
    assert wt.index_shards(f"{shards}/*.tar", label="json:class").classes == ("ant", "bee", "cat")
    assert wt.index_shards(f"{shards}/*.tar", label="cls").classes == ()
    assert "json:class" not in caplog.text


@pytest.mark.parametrize("label", [None, "cls"])
def test_an_index_that_another_manifest_lists_is_never_changed(label: str | None, photos: Path, tmp_path: Path) -> None:
    photo = min(photos.glob("*/*.jpg")).read_bytes()
    for part in ("fig", "cat"):
        (tmp_path / f"src-{part}" / part).mkdir(parents=True)
        (tmp_path / f"src-{part}" / part / f"{part}.jpg").write_bytes(photo)
        wt.pack(tmp_path / f"src-{part}", tmp_path / f"packed-{part}", workers=1)
    merged = tmp_path / "merged"
    wt.merge([tmp_path / "packed-fig", tmp_path / "packed-cat"], merged)
    before = contents(merged)
    with pytest.raises(DestinationError, match=r"manifest.json lists this shard .* which has other labels"):
        wt.index_shards(f"{merged}/*.tar", manifest="other.json", label=label)
    assert contents(merged) == before
    assert wt.index_shards(f"{merged}/*.tar", manifest="other.json", label="json:class").classes == ("fig", "cat")
    after = contents(merged)
    assert {name: after[name] for name in before} == before


def test_a_second_manifest_uses_the_indexes_of_the_first(merged: Path) -> None:
    before = contents(merged)
    one = wt.index_shards(f"{merged}/shard-000000.tar", manifest="one.json", label="cls")
    assert one.shards == from_json((merged / "manifest.json").read_bytes()).shards[:1]
    after = contents(merged)
    assert {name: after[name] for name in before} == before
    wt.index_shards(f"{merged}/shard-000000.tar", manifest="one.json", label="cls", dots_in_fields=True)
    assert contents(merged) == after


@pytest.mark.parametrize("is_missing", [True, False])
def test_an_index_that_another_manifest_lists_is_not_rebuilt_with_other_labels(merged: Path, is_missing: bool) -> None:
    for path in merged.glob("*.parquet"):
        path.unlink() if is_missing else path.write_bytes(b"PAR1")
    before = contents(merged)
    with pytest.raises(DestinationError, match="which is missing or damaged" if is_missing else "exists and is not an"):
        wt.index_shards(f"{merged}/*.tar", manifest="other.json", label="cls")
    assert contents(merged) == before


def test_an_index_with_other_labels_than_the_chosen_field_is_kept_even_without_its_manifest(merged: Path) -> None:
    (merged / "manifest.json").unlink()
    before = contents(merged)
    with pytest.raises(DestinationError, match="has labels that differ from the field cls"):
        wt.index_shards(f"{merged}/*.tar", label="cls")
    assert contents(merged) == before


def test_shards_without_their_manifest_have_the_class_names_next_to_their_numbers(photos: Path, tmp_path: Path) -> None:
    photo = min(photos.glob("*/*.jpg")).read_bytes()
    numbers = [("a", 2, "cat"), ("b", 0, "ant"), ("c", 2, "cat")]
    for folder in ("named", "partly"):
        (tmp_path / folder).mkdir()
        with webdataset.ShardWriter(f"{tmp_path}/{folder}/%d.tar", verbose=0) as writer:
            for key, number, name in numbers:
                writer.write({"__key__": key, "jpg": photo, "cls": number, "json": {"class": name}})
            if folder == "partly":
                writer.write({"__key__": "d", "jpg": photo, "cls": 1, "json": {"id": "class"}})
    assert wt.pack(tmp_path / "named", tmp_path / "d", workers=1).manifest.classes == ("ant", "1", "cat")
    assert wt.pack(tmp_path / "partly", tmp_path / "e", workers=1).manifest.classes == ()
    assert wt.index_shards(f"{tmp_path}/named/*.tar").classes == ("ant", "1", "cat")
    assert wt.index_shards(f"{tmp_path}/partly/*.tar", classes=["x", "y", "z"]).classes == ("x", "y", "z")
    (tmp_path / "partly" / "manifest.json").unlink()
    assert wt.index_shards(f"{tmp_path}/partly/*.tar").classes == ()


def test_folders_whose_names_contradict_each_other_are_not_indexed_together(tmp_path: Path) -> None:
    for folder, names in (("a", ["ant", "bee"]), ("b", ["bee", "cow"])):
        (tmp_path / folder).mkdir()
        with webdataset.ShardWriter(f"{tmp_path}/{folder}/%d.tar", verbose=0) as writer:
            for number, name in enumerate(names):
                writer.write({"__key__": name, "cls": number, "json": {"class": name}})
    with pytest.raises(ShardError, match="number 0 is 'ant' in 'ant' and 'bee' in 'bee'"):
        index_folders([f"{tmp_path}/a/*.tar", f"{tmp_path}/b/*.tar"])
    for folder in "ab":
        wt.index_shards(f"{tmp_path}/{folder}/*.tar")
    merged = wt.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert merged.manifest.classes == ("ant", "bee", "cow")


def test_classes_of_another_label_are_not_kept(tmp_path: Path) -> None:
    with webdataset.ShardWriter(f"{tmp_path}/%d.tar", verbose=0) as writer:
        for key, label in enumerate(["fig", "pear"]):
            writer.write({"__key__": str(key), "cls": label, "json": {"genus": f"genus of {label}"}})
    assert wt.index_shards(f"{tmp_path}/*.tar").classes == ("fig", "pear")
    named = ("genus of fig", "genus of pear")
    assert wt.index_shards(f"{tmp_path}/*.tar", label="json:genus").classes == named
    assert wt.index_shards(f"{tmp_path}/*.tar").classes == named  # as the manifest states
    assert wt.index_shards(f"{tmp_path}/*.tar", label="cls").classes == ("fig", "pear")


def test_a_dataset_with_class_names_can_have_another_label(photos: Path, tmp_path: Path) -> None:
    photo = min(photos.glob("*/*.jpg")).read_bytes()
    rows = [("ant", "x", ["p"]), ("bee", "z", ["p", "q"]), ("ant", "y", ["q"])]
    columns = {"label": [row[0] for row in rows], "species": [row[1] for row in rows], "tags": [row[2] for row in rows]}
    pd.DataFrame({"image": [photo] * 3, **columns}).to_parquet(tmp_path / "t.parquet")
    wt.pack(tmp_path / "t.parquet", tmp_path / "packed", columns={"label": "label"}, workers=1)
    report = wt.reshard(tmp_path / "packed", tmp_path / "species", label="json:species", workers=1)
    assert report.manifest.classes == ("x", "y", "z")
    (tmp_path / "copy").mkdir()
    for path in (tmp_path / "packed").glob("*.tar"):
        shutil.copy(path, tmp_path / "copy")
    wt.index_shards(f"{tmp_path}/copy/*.tar", label="json:species")
    wt.reshard(tmp_path / "copy", tmp_path / "again", workers=1)
    for folder in ("species", "again"):
        facts = [json.loads(facts) for facts in stored_json(tmp_path / folder)]
        assert all(entries["class"] == entries["species"] for entries in facts)
    tagged = wt.reshard(tmp_path / "packed", tmp_path / "tags", label="json:tags", workers=1)
    assert tagged.manifest.field_classes["labels.json"].names == ("p", "q")
    assert not any("class" in json.loads(facts) for facts in stored_json(tmp_path / "tags"))
    same = wt.reshard(tmp_path / "packed", tmp_path / "same", label="json:class", workers=1)
    assert same.manifest.classes == ("ant", "bee")


def stored_json(folder: Path) -> list[bytes]:
    """Return the field ``json`` of each sample, read by the webdataset library."""
    urls = sorted(map(str, folder.glob("*.tar")))
    return [sample["json"] for sample in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)]


def test_classes_of_several_datasets_that_look_the_same_are_a_warning(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photo = min(photos.glob("*/*.jpg")).read_bytes()
    for number, classes in enumerate((["Ant", "bee", "Bee"], ["ant", "cow"])):
        dataset(tmp_path / str(number), classes, photo)
    caplog.clear()
    wt.merge([tmp_path / "0", tmp_path / "1"], tmp_path / "merged")
    similar = [record.getMessage() for record in caplog.records if "differ only" in record.getMessage()]
    assert similar == ["the classes 'Ant' and 'ant' differ only in upper and lower case, or look the same"]
