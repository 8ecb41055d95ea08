"""`add_fields()`: fields in shards of their own, which every reader sees as fields of the samples."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from folders import manifest_of
from PIL import Image
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import (
    DestinationError,
    ManifestError,
    MissingFieldError,
    NotADatasetError,
    OptionError,
    SampleError,
    SourceError,
)
from wds_tools.format.manifest import seal
from wds_tools.upkeep import field_adder, field_source
from wds_tools.upkeep.copier import copy_dataset

COUNT = 40


def key(number: int) -> str:
    return f"{number:09d}"


@pytest.fixture
def dataset(few: Path, tmp_path: Path) -> Path:
    """Return a copy of a dataset of 40 photographs in several shards."""
    return Path(shutil.copytree(few, tmp_path / "photos"))


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """Return a table with captions and vectors in another order than the samples, and one unknown key."""
    order = [*np.random.default_rng(0).permutation(COUNT).tolist(), 999]
    table = pa.table(
        {
            "key": [key(number) for number in order],
            "caption": [f"caption {number}" for number in order],
            "clip": pa.array([[number, number + 0.5] for number in order], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, tmp_path / "captions.parquet", row_group_size=7)
    return tmp_path / "captions.parquet"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".json"}


def read(dataset: Path | str, *fields: str, **options: Any) -> dict[str, tuple[Any, ...]]:
    """Return the values of fields by key, from a loader."""
    names = ("__key__", *fields)
    options = {"batch_size": 8, "num_workers": 0, "shuffle": False, "tail": "pad", **options}
    with wt.make_loader(dataset, fields=names, **options) as loader:
        return {
            row[0]: row[1:]
            for batch in loader
            for row in zip(*(list(column) for column in batch[: len(names)]), strict=True)
        }


def expected(*names: str) -> dict[str, tuple[Any, ...]]:
    values: dict[str, Callable[[int], Any]] = {"txt": lambda n: f"caption {n}"}
    return {key(number): tuple(values[name](number) for name in names) for number in range(COUNT)}


# --- loaders ---


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.torture_except("False-2", "True-0")
def test_a_loader_reads_added_fields_beside_the_others(
    dataset: Path, captions: Path, num_workers: int, shuffle: bool
) -> None:
    report = wt.add_fields(dataset, captions)
    assert report.fields == {"clip.npy": COUNT, "txt": COUNT}
    assert (report.folder, report.samples, report.missing) == (dataset / "captions", COUNT, 0)
    assert (report.unknown, report.unknown_key) == (1, key(999))
    found = read(
        dataset, "image", "label", "txt", "clip.npy", view=wt.Resize((8, 8)), num_workers=num_workers, shuffle=shuffle
    )
    assert {name: row[2:3] for name, row in found.items()} == expected("txt")
    assert all(row[3].tolist() == [int(name), int(name) + 0.5] for name, row in found.items())


def test_order_state_and_shards_of_the_dataset_stay_as_they_were(dataset: Path, captions: Path) -> None:
    before, old = contents(dataset), manifest_of(dataset)
    options = {"batch_size": 8, "shuffle": True, "num_workers": 0, "seed": 3, "tail": "drop"}
    with wt.make_loader(dataset, fields=("__key__",), **options) as loader:
        iterator = iter(loader)
        next(iterator)
        state, rest = loader.state_dict(), [batch.key for batch in iterator]
    wt.add_fields(dataset, captions)
    assert contents(dataset) == before
    new = manifest_of(dataset)
    assert (new.fingerprint, new.fields, new.bytes) == (old.fingerprint, old.fields, old.bytes)
    with wt.make_loader(dataset, fields=("__key__", "txt"), **options) as loader:
        loader.load_state_dict(state)
        batches = list(loader)
    assert [batch.key for batch in batches] == rest
    assert [batch.txt for batch in batches] == [[f"caption {int(name)}" for name in names] for names in rest]


@pytest.mark.parametrize("decode", [True, False])
def test_a_streaming_dataset_reads_added_fields(dataset: Path, captions: Path, decode: bool) -> None:
    wt.add_fields(dataset, captions)
    stream = wt.StreamingDataset(dataset, fields=("__key__", "txt"), shuffle=False, decode=decode, batch_size=4)
    samples = list(DataLoader(stream, batch_size=None, num_workers=0))
    if decode:
        assert {sample.key: (sample.txt,) for sample in samples} == expected("txt")
    else:
        assert {sample["__key__"]: (sample["txt"].decode(),) for sample in samples} == expected("txt")
        assert all("jpg" in sample or "png" in sample for sample in samples)


def test_a_mixture_and_a_pattern_of_shards_read_added_fields(dataset: Path, captions: Path, few: Path) -> None:
    wt.add_fields(dataset, captions)
    assert read(f"{dataset}/shard-*.tar", "txt") == expected("txt")
    other = shutil.copytree(dataset, dataset.parent / "other")
    mixture = wt.Mixture([dataset, other], [1, 1])
    with wt.make_loader(mixture, batch_size=8, fields=("__key__", "txt"), num_workers=0, shuffle=True) as loader:
        pairs = [pair for batch in loader for pair in zip(batch.key, batch.txt, strict=True)]
    assert len(pairs) == 2 * COUNT
    assert all(text == f"caption {int(name)}" for name, text in pairs)


def test_added_fields_at_a_url_are_fetched_into_the_cache(dataset: Path, captions: Path) -> None:
    wt.add_fields(dataset, captions)
    url = "memory://added/photos"
    for path in (path for path in dataset.rglob("*") if path.is_file()):
        with fsspec.open(f"{url}/{path.relative_to(dataset)}", "wb") as file:
            file.write(path.read_bytes())
    assert read(url, "txt") == expected("txt")
    assert read(url, "txt", shuffle=True) == expected("txt")
    assert wt.verify(url).ok


def test_a_sample_without_an_added_field_is_an_error_that_names_the_key(dataset: Path) -> None:
    wt.add_fields(
        dataset, [{"__key__": key(number), "txt": "x"} for number in range(COUNT) if number != 7], name="part"
    )
    with pytest.raises(MissingFieldError, match="has no field 'txt'") as caught:
        read(dataset, "txt")
    assert caught.value.key == key(7)
    with pytest.raises(MissingFieldError, match="'other'"):
        read(dataset, "other")


def test_several_additions_are_read_together(dataset: Path) -> None:
    for name in ("one", "two"):
        wt.add_fields(dataset, ({"__key__": key(n), f"{name}.txt": f"{name}{n}"} for n in range(COUNT)), name=name)
    assert read(dataset, "one.txt", "two.txt") == {key(n): (f"one{n}", f"two{n}") for n in range(COUNT)}
    assert [addition.folder for addition in manifest_of(dataset).additions] == ["one", "two"]


# --- sources ---


def test_a_folder_of_masks_is_added_under_another_name(dataset: Path, tmp_path: Path, photos: Path) -> None:
    (tmp_path / "masks").mkdir()
    mask = min(photos.rglob("*.png"))
    for number in range(COUNT):
        shutil.copy(mask, tmp_path / "masks" / f"{key(number)}.png")
    with pytest.raises(OptionError, match=r"field 'png' cannot be added, .*--field mask.png=png"):
        wt.add_fields(dataset, tmp_path / "masks")
    wt.add_fields(dataset, tmp_path / "masks", fields={"mask.png": "png"})
    assert all(row[0].ndim == 3 for row in read(dataset, "mask.png").values())


def test_masks_that_do_not_have_the_size_of_their_stored_image_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        for folder, size in ("images", (32, 24)), ("drawn", (32, 24) if number else (16, 12)), ("made", (16, 12)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.new("L", size, number).save(tmp_path / folder / f"{number}.png")
    wt.pack(tmp_path / "images", tmp_path / "dst", images="raw", resize=12, workers=1)
    others = [{"__key__": key(n), "depth.npy": np.zeros((6, 8)), "vector.npy": np.zeros((6, 8))} for n in range(2)]
    wt.add_fields(tmp_path / "dst", others, name="others", workers=1)
    assert "2 of 2 fields depth.npy do not have the size of the stored image (8x6 for 16x12 in " in caplog.text
    assert "vector.npy" not in caplog.text
    for folder, name in ("drawn", "label2.png"), ("made", "made_mask.png"):
        wt.add_fields(tmp_path / "dst", tmp_path / folder, fields={name: "png"}, match="path", workers=1)
    [warning] = [line for line in caplog.messages if "label2" in line or "made_mask" in line]
    assert "4 of 5 fields label2.png do not have the size of the stored image (32x24 for 16x12 in " in warning
    fields = {"image": "image", "mask": wt.Mask("made_mask.png", like="image")}
    with wt.make_loader(tmp_path / "dst", batch_size=5, fields=fields, view=None, num_workers=0) as loader:
        [batch] = loader
    assert {mask.shape for mask in batch.mask} == {(12, 16)}
    assert sorted(int(mask[0, 0]) for mask in batch.mask) == [*range(5)]
    wt.pack(tmp_path / "images", tmp_path / "dst", images="raw", resize=12, workers=1)  # nothing to do
    assert wt.describe(tmp_path / "dst").fields["made_mask.png"].samples == 5
    wt.pack(tmp_path / "images", tmp_path / "dst", images="raw", resize=12, workers=1, fresh=True)
    assert "the fields that were added later are not kept: add depth.npy, vector.npy, label2.png" in caplog.text


def test_tar_shards_with_the_same_keys_are_added(dataset: Path, tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "texts-%02d.tar"), maxcount=9, verbose=0) as writer:
        for number in reversed(range(COUNT)):
            writer.write({"__key__": key(number), "txt": f"caption {number}"})
    wt.add_fields(dataset, f"{tmp_path}/texts-*.tar", name="texts")
    assert read(dataset, "txt") == expected("txt")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_text_tables_are_added_and_other_fields_name_files(dataset: Path, tmp_path: Path, suffix: str) -> None:
    path, separator = tmp_path / f"table{suffix}", {".csv": ",", ".tsv": "\t"}.get(suffix, "")
    (tmp_path / "x.bin").write_bytes(b"\0\1")
    rows = [(key(number), f"caption {number}", "x.bin", number) for number in range(COUNT)]
    if separator:
        lines = [separator.join(map(str, row)) for row in [("key", "caption", "raw.bin", "score"), *rows]]
    else:
        lines = [json.dumps(dict(zip(("key", "caption", "raw.bin", "score"), row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    report = wt.add_fields(dataset, path, fields={"txt": "caption", "raw.bin": "raw.bin", "score.json": "score"})
    assert report.fields == dict.fromkeys(("raw.bin", "score.json", "txt"), COUNT)
    found = read(dataset, "txt", "raw.bin", "score.json")
    assert found == {key(n): (f"caption {n}", b"\0\1", n) for n in range(COUNT)}


def test_types_of_parquet_columns_choose_the_field(dataset: Path, tmp_path: Path) -> None:
    kinds = {
        "key": [key(0)],
        "text_en": ["x"],
        "score": [0.5],
        "boxes.json": [[[1, 2], [3, 4]]],
        "vector": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        "tags": [["a", "b"]],
        "empty": pa.array([None], pa.string()),
    }
    pq.write_table(pa.table(kinds), tmp_path / "t.parquet")
    report = wt.add_fields(dataset, tmp_path / "t.parquet")
    assert set(report.fields) == {"text_en.txt", "score.json", "boxes.json", "vector.npy", "tags.json"}
    assert report.missing == COUNT - 1
    found = read(dataset, *sorted(report.fields), subset=[0])[key(0)]
    assert [value.tolist() if hasattr(value, "tolist") else value for value in found] == [
        [[1, 2], [3, 4]], 0.5, ["a", "b"], "x", [1, 2]
    ]  # fmt: skip
    pq.write_table(pa.table({"key": [key(0)], "blob": [b"x"]}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"column 'blob' has bytes, whose type is not known: name the field"):
        wt.add_fields(dataset, tmp_path / "b.parquet")


def test_csv_rows_with_more_or_fewer_values_than_columns_and_two_columns_of_a_name_are_errors(
    dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f'key,caption\n{key(0)},"a dog, at sea"\n{key(1)},a bird, at sea\n')
    with pytest.raises(SourceError, match=r"a\.csv at byte \d+: the row has 3 values for 2 columns: put .* in quotes"):
        wt.add_fields(dataset, tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(f"key,width.txt,caption\n{key(0)},40,a dog\n{key(1)},a bird\n")
    with pytest.raises(SourceError, match=r"a\.csv at byte \d+: the row has 2 values for 3 columns: write the sep"):
        wt.add_fields(dataset, tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(f"key,caption,caption\n{key(0)},first,second\n")
    with pytest.raises(SourceError, match=r"a\.csv has two columns named 'caption': rename one"):
        wt.add_fields(dataset, tmp_path / "a.csv")


def test_two_columns_of_one_field_are_an_error(dataset: Path, tmp_path: Path) -> None:
    rows = {"key": [key(0)], "text": ["a"], "caption": ["b"]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    with pytest.raises(
        SourceError, match=r"'text' and 'caption' would both be the field 'txt': name the fields, as in"
    ):
        wt.add_fields(dataset, tmp_path / "t.parquet")
    wt.add_fields(dataset, tmp_path / "t.parquet", fields={"txt": "caption", "other.txt": "text"})
    assert read(dataset, "txt", "other.txt", subset=[0])[key(0)] == ("b", "a")


def test_keys_may_be_the_paths_of_the_packed_files(dataset: Path, tmp_path: Path) -> None:
    paths = {name: row[0]["path"] for name, row in read(dataset, "json").items()}
    table = pa.table({"file": list(paths.values()), "caption": [f"caption {int(name)}" for name in paths]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"has no column 'key' of keys; it has 'file', 'caption': name it with --key"):
        wt.add_fields(dataset, tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"none of the 40 keys .* is a key of the dataset, .*--match path"):
        wt.add_fields(dataset, tmp_path / "t.parquet", key="file")
    wt.add_fields(dataset, tmp_path / "t.parquet", key="file", match="path")
    assert read(dataset, "txt") == expected("txt")


def test_files_are_matched_with_packed_files_by_their_paths_without_extensions(dataset: Path, tmp_path: Path) -> None:
    paths = [row[0]["path"] for row in read(dataset, "json").values()]
    for path in paths[1:]:
        mask = (tmp_path / "masks" / path).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        mask.write_bytes(path.encode())
    report = wt.add_fields(dataset, tmp_path / "masks", fields={"mask.png": "png"}, match="path")
    assert report.fields == {"mask.png": len(paths) - 1}
    assert (report.missing, report.unknown) == (1, 0)


def test_types_of_values_in_json_lines_choose_the_field(dataset: Path, tmp_path: Path) -> None:
    rows = [
        {"key": key(0), "caption": "x", "count": 3, "vector": [1, 2.5], "tags": ["a"], "mixed": "one", "flag": None},
        {"key": key(1), "caption": "y", "count": 4, "vector": [0, 1], "tags": [], "mixed": 2, "flag": True},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = wt.add_fields(dataset, tmp_path / "t.jsonl")
    assert sorted(report.fields) == ["count.json", "flag.json", "mixed.json", "tags.json", "txt", "vector.npy"]
    found = read(dataset, "txt", "count.json", "mixed.json", "tags.json", subset=[0, 1])
    assert found == {key(0): ("x", 3, "one", ["a"]), key(1): ("y", 4, 2, [])}


def test_more_records_than_fit_into_memory_are_sorted_on_disk(
    dataset: Path, captions: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = shutil.copytree(dataset, tmp_path / "other")
    wt.add_fields(other, captions)
    monkeypatch.setattr(field_source, "MEMORY_BYTES", 1000)
    wt.add_fields(dataset, captions)
    for path in (other / "captions").iterdir():
        assert (dataset / "captions" / path.name).read_bytes() == path.read_bytes()
    assert not (dataset / ".adding").exists()


def test_paths_that_are_not_utf8_are_matched_on_disk_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG")
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / name).write_bytes(out.getvalue())
    wt.pack(tmp_path / "src", tmp_path / "dst", workers=1)
    monkeypatch.setattr(field_source, "MEMORY_BYTES", 0)
    assert wt.add_fields(tmp_path / "dst", [{"__key__": name, "txt": "x"}], match="path").samples == 1


def test_a_line_that_is_not_an_object_is_an_error(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("5\n")
    with pytest.raises(SourceError, match=r"t\.jsonl: a line is '5\\n'; expected an object"):
        wt.add_fields(dataset, tmp_path / "t.jsonl")


# --- what is refused ---


def test_existing_and_reserved_fields_are_refused_and_leave_nothing(dataset: Path, captions: Path) -> None:
    before = sorted(path.name for path in dataset.iterdir())
    for name in ("json", "cls", "jpg", "npy", "label"):
        with pytest.raises(OptionError, match=r"has a field|cannot be added"):
            wt.add_fields(dataset, [{"__key__": key(0), name: b"1"}], name="x")
    assert sorted(path.name for path in dataset.iterdir()) == before
    wt.add_fields(dataset, captions)
    with pytest.raises(OptionError, match=r"captions has added fields already: .*--remove captions"):
        wt.add_fields(dataset, captions)
    with pytest.raises(OptionError, match=r"the dataset has a field 'txt': use another name"):
        wt.add_fields(dataset, [{"__key__": key(0), "txt": "x"}], name="again")


def test_a_key_that_occurs_twice_in_the_source_is_refused(dataset: Path) -> None:
    items = [{"__key__": key(3), "txt": "a"}, {"__key__": key(3), "txt": "b"}]
    with pytest.raises(SourceError, match=f"key '{key(3)}' occurs twice in the source, with field 'txt'"):
        wt.add_fields(dataset, items)
    assert not (dataset / "added").exists()


def test_keys_that_occur_twice_in_the_dataset_are_refused(dataset: Path, few: Path, tmp_path: Path) -> None:
    shutil.copytree(few, tmp_path / "a")
    with wt.ShardWriter(tmp_path / "b" / "b-%d.tar", classes=manifest_of(few).classes) as writer:
        writer.write({"__key__": key(0), "other.txt": "x", "cls": 0})
    wt.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    with pytest.raises(OptionError, match=r"a key occurs twice in .*both"):
        wt.add_fields(tmp_path / "both", [{"__key__": key(0), "txt": "x"}])


def test_strict_refuses_unknown_keys_and_samples_without_a_field(dataset: Path, captions: Path) -> None:
    with pytest.raises(SourceError, match=f"1 keys of the source are unknown, such as '{key(999)}'"):
        wt.add_fields(dataset, captions, strict=True)
    with pytest.raises(SourceError, match="39 of 40 samples get no field"):
        wt.add_fields(dataset, [{"__key__": key(0), "txt": "x"}], strict=True)
    assert manifest_of(dataset).additions == ()


def test_invalid_arguments_are_refused(dataset: Path, captions: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a URL"):
        wt.add_fields("memory://bucket/photos", captions)
    with pytest.raises(OptionError, match="is a pattern of shards"):
        wt.add_fields(f"{dataset}/*.tar", captions)
    with pytest.raises(OptionError, match="match='name'"):
        wt.add_fields(dataset, captions, match="name")
    with pytest.raises(OptionError, match=r"name='\.\./x'"):
        wt.add_fields(dataset, captions, name="../x")
    with pytest.raises(NotADatasetError):
        wt.add_fields(tmp_path / "nothing", captions)
    with pytest.raises(OptionError, match="source is a int"):
        wt.add_fields(dataset, 3)
    with pytest.raises(SampleError, match="it must be a dictionary with text in __key__"):
        wt.add_fields(dataset, [{"txt": "x"}])
    with pytest.raises(SourceError, match="cannot be read"):
        wt.add_fields(dataset, tmp_path / "nothing.csv")
    (dataset / "captions").mkdir()
    (dataset / "captions" / "notes.md").write_text("mine")
    with pytest.raises(DestinationError, match=r"captions contains notes.md: choose another name"):
        wt.add_fields(dataset, captions)
    assert (dataset / "captions" / "notes.md").read_text() == "mine"


def test_a_killed_run_leaves_the_dataset_as_it_was_and_the_next_one_completes(dataset: Path, captions: Path) -> None:
    program = (
        "import os, sys, wds_tools; from wds_tools.upkeep import field_adder\n"
        "field_adder._list_addition = lambda *words: os._exit(9)\n"
        "wds_tools.add_fields(*sys.argv[1:])"
    )
    done = preloaded.run(["-c", program, dataset, captions], cwd=Path(__file__).parents[2], imports=preloaded.COMMANDS)
    assert done.returncode == 9
    assert (dataset / "captions" / "manifest.json").exists()
    assert manifest_of(dataset).additions == ()
    with pytest.raises(MissingFieldError, match="no 'txt'"):
        read(dataset, "txt")
    wt.add_fields(dataset, captions)
    assert read(dataset, "txt") == expected("txt")


def test_a_manifest_that_changes_meanwhile_is_not_replaced(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def items() -> Any:
        raw = json.loads((dataset / "manifest.json").read_text())
        (dataset / "manifest.json").write_text(seal({**raw, "classes": [*raw["classes"], "new"]}))
        yield {"__key__": key(0), "txt": "x"}

    with pytest.raises(DestinationError, match="was changed while fields were added"):
        wt.add_fields(dataset, items())
    assert manifest_of(dataset).classes[-1] == "new"
    assert not (dataset / "added").exists()


def test_two_processes_do_not_add_at_the_same_time(dataset: Path, captions: Path) -> None:
    def items() -> Any:
        with pytest.raises(DestinationError, match="another process is adding fields"):
            wt.add_fields(dataset, captions)
        yield {"__key__": key(0), "other.txt": "x"}

    wt.add_fields(dataset, items())


# --- other commands ---


def test_removed_fields_are_gone_and_can_be_added_again(dataset: Path, captions: Path) -> None:
    before = (dataset / "manifest.json").read_bytes()
    wt.add_fields(dataset, captions)
    with pytest.raises(OptionError, match="has no added fields 'x'; it has 'captions'"):
        wt.remove_fields(dataset, "x")
    assert wt.remove_fields(dataset, "captions").fields == {"clip.npy": COUNT, "txt": COUNT}
    assert (dataset / "manifest.json").read_bytes() == before
    assert not (dataset / "captions").exists()
    wt.add_fields(dataset, captions)


def test_verify_reports_damage_in_added_shards(dataset: Path, captions: Path) -> None:
    wt.add_fields(dataset, captions)
    assert wt.verify(dataset).ok
    path = dataset / "captions" / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    report = wt.verify(dataset)
    assert [damage.shard for damage in report.damages] == ["captions/shard-000001.tar"]


def test_a_missing_or_exchanged_folder_is_an_error_with_a_remedy(dataset: Path, captions: Path, few: Path) -> None:
    wt.add_fields(dataset, captions)
    shutil.move(dataset / "captions", dataset.parent / "moved")
    with pytest.raises(NotADatasetError, match=r"captions/manifest.json is missing: the fields .*--remove captions"):
        read(dataset, "txt")
    shutil.copytree(few, dataset / "captions")
    with pytest.raises(NotADatasetError, match="is not the dataset of the fields that were added"):
        read(dataset, "txt")


@pytest.mark.parametrize(
    "addition",
    [
        {"folder": "../x", "fingerprint": "0" * 32, "fields": {}},
        {"folder": ".x", "fingerprint": "0" * 32, "fields": {}},
        {"folder": "x", "fingerprint": "0", "fields": {}},
        {"folder": "x", "fingerprint": "0" * 32, "fields": {"json": 1}},
        {"folder": "x", "fingerprint": "0" * 32, "fields": {"txt": -1}},
        {"folder": "x"},
        3,
    ],
)
def test_a_manifest_with_an_invalid_addition_is_refused(dataset: Path, addition: Any) -> None:
    raw = json.loads((dataset / "manifest.json").read_text())
    (dataset / "manifest.json").write_text(seal({**raw, "additions": [addition]}))
    with pytest.raises(ManifestError):
        read(dataset, "json")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.torture_except("2")
def test_reshard_writes_the_added_fields_into_the_shards(
    dataset: Path, captions: Path, tmp_path: Path, workers: int
) -> None:
    wt.add_fields(dataset, captions)
    report = wt.reshard(dataset, tmp_path / "new", shard_bytes="200kB", workers=workers)
    assert len(report.manifest.shards) > 1
    assert report.manifest.fields["txt"] == COUNT
    assert report.manifest.additions == ()
    found = read(tmp_path / "new", "json", "txt")
    assert {row[0]["key"]: (row[1],) for row in found.values()} == expected("txt")


def test_unpack_info_append_index_and_merge_know_added_fields(
    dataset: Path, captions: Path, tmp_path: Path, six_photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wt.add_fields(dataset, captions)
    assert wt.unpack(dataset, tmp_path / "out", fields=["txt"], layout="keys").written == COUNT
    assert (tmp_path / "out" / f"{key(5)}.txt").read_text() == "caption 5"
    assert wt.describe(dataset).fields["txt"].samples == COUNT
    wt.merge([dataset], tmp_path / "merged")
    assert "the fields that were added later are not merged: clip.npy, txt" in caplog.text
    assert wt.append(six_photos, dataset, workers=1, repeated="append").packed == 6
    assert manifest_of(dataset).additions[0].folder == "captions"
    assert read(dataset, "txt", subset=list(range(COUNT))) == expected("txt")
    assert "6 of 6 new samples have no txt, which all earlier samples have: to add it to all" in caplog.text
    files = contents(dataset)
    photo = shutil.copy(six_photos / "cat" / "000.jpg", six_photos / "cat" / "new.jpg")
    Path(photo).with_suffix(".txt").write_text("a caption")
    with pytest.raises(OptionError, match=r"new samples have a field 'txt', which add-fields added .* `wds-tools resh"):
        wt.append(six_photos, dataset, workers=1, repeated="append")
    assert contents(dataset) == files
    wt.index_shards(f"{dataset}/shard-*.tar")
    assert manifest_of(dataset).additions[0].folder == "captions"


def test_a_copy_has_the_added_fields(dataset: Path, captions: Path, tmp_path: Path) -> None:
    wt.add_fields(dataset, captions)
    url = "memory://added/copied"
    for path in (path for path in dataset.rglob("*") if path.is_file()):
        with fsspec.open(f"{url}/{path.relative_to(dataset)}", "wb") as file:
            file.write(path.read_bytes())
    report = copy_dataset(url, tmp_path / "copy")
    assert report.copied_bytes > manifest_of(dataset).bytes
    assert wt.verify(tmp_path / "copy").ok
    assert read(tmp_path / "copy", "txt") == expected("txt")
    assert copy_dataset(url, tmp_path / "copy").copied_bytes == 0


def test_added_fields_are_a_dataset_of_their_own(dataset: Path, captions: Path) -> None:
    wt.add_fields(dataset, captions)
    assert read(dataset / "captions", "txt") == expected("txt")
    shards = sorted(map(str, (dataset / "captions").glob("*.tar")))
    assert [Path(path).name for path in shards] == [entry.name for entry in manifest_of(dataset).shards]
    texts = [sample["txt"] for sample in webdataset.WebDataset(shards, shardshuffle=False)]
    assert texts == [f"caption {number}".encode() for number in range(COUNT)]


def test_the_command_adds_and_removes(dataset: Path, captions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["add-fields", *map(str, words)])
        return (end.value.code, *capsys.readouterr())

    code, out, _ = run(dataset, "--from", captions, "--field", "txt=caption", "--name", "blip")
    assert code == 0
    assert out.startswith("added txt (40) to 40 samples, ")
    assert f"1 key of {captions} unknown, such as '{key(999)}'\n" in out
    assert read(dataset, "txt") == expected("txt")
    assert run(dataset, "--remove", "blip")[1] == f"removed txt from {dataset}\n"
    assert run(dataset)[2] == "error: give either --from SRC or --remove NAME\n"
    assert "has no '='" in run(dataset, "--from", captions, "--field", "txt")[2]
    assert field_adder.WORK_NAME == ".adding"
