"""`export()` writes what DALI, Energon, Hugging Face, timm and wids need, as their own tools write it.

``tool_outputs.json`` has what the tools of DALI 2.4.0 and Energon 7.4.1 wrote for the datasets of `interop_shards`.
`make interop` runs these tools again, and reads the exported datasets with the readers.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import fsspec
import interop_readers
import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
import yaml
from interop_shards import PNG, WRITERS, write_foreign, write_long, write_plain

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import ManifestError, NotADatasetError, OptionError
from wds_tools.format.manifest import seal

META = ".nv-meta/"
RECORDED = json.loads(Path(__file__).with_name("tool_outputs.json").read_text())


def database(path: Path) -> dict[str, Any]:
    connection = sqlite3.connect(path)
    schema = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name")]
    rows = {
        "samples": "SELECT * FROM samples ORDER BY tar_file_id, sample_index",
        "sample_parts": "SELECT * FROM sample_parts ORDER BY tar_file_id, sample_index, content_byte_offset",
    }
    found = {name: [list(row) for row in connection.execute(query)] for name, query in rows.items()}
    connection.close()
    return {"schema": [" ".join(sql.replace("(", "( ").replace(")", " )").split()) for sql in schema], **found}


def as_recorded(name: str) -> dict[str, Any]:
    recorded = RECORDED[name]["sqlite"]
    schema = [" ".join(sql.replace("(", "( ").replace(")", " )").split()) for sql in recorded["schema"]]
    return {**recorded, "schema": schema}


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "plain")


def tars(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


@pytest.mark.parametrize("name", WRITERS)
def test_the_files_for_dali_and_energon_are_those_of_their_tools(name: str, tmp_path: Path) -> None:
    folder, recorded = WRITERS[name](tmp_path / name), RECORDED[name]
    before = tars(folder)
    report = wt.export(folder, "dali,energon")
    indexes = {path.name: path for path in folder.glob("*.idx")}
    assert sorted(indexes) == sorted(key for key in recorded if key.endswith(".idx"))
    for file, path in indexes.items():
        found = path.read_bytes().hex() if file.endswith(".tar.idx") else path.read_text()
        assert found == recorded[file]
    for file in (".nv-meta/.info.json", ".nv-meta/dataset.yaml"):
        assert (folder / file).read_text() == recorded[file]
    assert database(folder / ".nv-meta" / "index.sqlite") == as_recorded(name)
    theirs, ours = map(yaml.safe_load, (recorded[f"{META}split.yaml"], (folder / f"{META}split.yaml").read_text()))
    assert ours == {**theirs, "split_parts": {"train": sorted(before), "val": [], "test": []}}  # theirs has braces
    assert tars(folder) == before
    small = (".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml")
    written = [name for names in report.files.values() for name in names]
    assert sorted(written) == sorted([*indexes, *(f"{META}{file}" for file in small)])


def test_the_shards_are_not_opened(plain: Path) -> None:
    for path in plain.glob("*.tar"):
        path.write_bytes(bytes(path.stat().st_size))
    wt.export(plain, ["dali", "energon", "hf", "timm", "wids"])
    assert (plain / "plain-00.idx").read_text() == RECORDED["plain"]["plain-00.idx"]


def test_a_second_export_writes_the_same_bytes_and_verify_knows_the_files(plain: Path) -> None:
    wt.export(plain, "dali,energon,hf,timm,wids")
    before = {str(path): path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    wt.export(plain, "dali,energon,hf,timm,wids")
    after = {str(path): path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    assert after == before
    report = wt.verify(plain)
    assert (report.ok, report.strangers) == (True, [])


def test_timm_reads_the_exported_dataset(packed_copy: Path) -> None:
    from timm.data import create_dataset

    wt.export(packed_copy, "timm")
    dataset = create_dataset("wds/", str(packed_copy), split="train", input_key="jpg;png", batch_size=10)
    read = [(np.asarray(image).shape, label) for image, label in dataset]
    assert len(dataset) == len(read) == 40
    assert sorted(label for _, label in read) == sorted(
        int(label) for path in packed_copy.glob("*.parquet") for label in pq.read_table(path)["label"].to_pylist()
    )


def test_timm_takes_labels_from_the_json_entry_that_index_found(tmp_path: Path) -> None:
    from timm.data import create_dataset

    with wt.ShardWriter(tmp_path / "a-%d.tar") as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "png": PNG, "json": {"label": number}})
    for path in tmp_path.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    wt.index_shards(f"{tmp_path}/*.tar", label="json:label")
    wt.export(tmp_path, "timm,energon", split="val")
    dataset = create_dataset("wds/", str(tmp_path), split="val", input_key="jpg;png", batch_size=1)
    assert sorted(label for _, label in dataset) == [0, 1, 2, 3]
    meta = yaml.safe_load((tmp_path / ".nv-meta" / "dataset.yaml").read_text())
    assert meta["field_map"] == {"image": "png", "label": "json[label]"}
    assert yaml.safe_load((tmp_path / ".nv-meta" / "split.yaml").read_text())["split_parts"]["val"] == ["a-0.tar"]


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_hugging_face_reads_the_exported_folder(
    packed_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(tmp_path)), ("HF_DATASETS_CACHE", str(tmp_path))):
        monkeypatch.setenv(name, value)
    import datasets

    datasets.disable_progress_bars()
    (packed_copy / "README.md").unlink()
    assert wt.export(packed_copy, "hf").files == {"hf": ["README.md"]}
    stream = datasets.load_dataset(str(packed_copy), split="train", streaming=True)
    assert stream.features["cls"].names == [found.name for found in wt.describe(packed_copy).classes]
    assert sum(1 for _ in stream.decode(False)) == 40


def test_a_readme_and_a_dataset_yaml_of_the_user_are_kept(plain: Path) -> None:
    (plain / "README.md").write_text("mine, data_files")
    (plain / ".nv-meta").mkdir()
    (plain / ".nv-meta" / "dataset.yaml").write_text("mine")
    report = wt.export(plain, ["hf", "energon"])
    assert sorted(report.kept) == [".nv-meta/dataset.yaml", "README.md"]
    assert (plain / "README.md").read_text() == "mine, data_files"
    assert (plain / ".nv-meta" / "dataset.yaml").read_text() == "mine"


def test_the_list_for_wids_has_every_shard(plain: Path) -> None:
    wt.export(plain, "wids")
    listed = json.loads((plain / "shardindex.json").read_text())
    assert (listed["wids_version"], listed["__kind__"], listed["name"]) == (1, "wids-shard-index-v1", "plain")
    assert listed["shardlist"] == [
        {"url": path.name, "nsamples": count, "filesize": path.stat().st_size}
        for path, count in zip(sorted(plain.glob("*.tar")), (2, 2, 1), strict=True)
    ]


def test_timm_keeps_other_splits_of_a_folder_with_several_manifests(plain: Path) -> None:
    (plain / "manifest.json").unlink()
    (plain / "README.md").unlink()
    wt.index_shards(f"{plain}/plain-0[01].tar", manifest="train.json")
    wt.index_shards(f"{plain}/plain-02.tar", manifest="val.json")
    for split in ("train", "val"):
        wt.export(plain / f"{split}.json", "timm", split=split)
    splits = json.loads((plain / "_info.json").read_text())["splits"]
    assert {name: (split["num_samples"], split["shard_lengths"]) for name, split in splits.items()} == {
        "train": (4, [2, 2]),
        "val": (1, [1]),
    }
    with pytest.raises(OptionError, match="one of several datasets in its folder"):
        wt.export(plain / "val.json", "hf")


def test_white_space_in_keys_becomes_an_underscore_for_dali(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "my photo", "png": PNG})
    wt.export(tmp_path, "dali")
    assert (tmp_path / "a-0.idx").read_text() == "v1.2 1\npng 512 69 my_photo.png\n"


def test_names_that_wids_cannot_read_are_refused(tmp_path: Path) -> None:
    write_long(tmp_path)
    with pytest.raises(OptionError, match=r"wids: it reads names of at most 100 bytes, and member 'b{120}\.cls'"):
        wt.export(tmp_path, "wids")


def test_samples_with_different_fields_are_exported(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "0", "png": PNG})
        writer.write({"__key__": "1", "txt": "x"})
        writer.write({"__key__": "2", "png": PNG, "txt": "x"})
    wt.export(tmp_path, "dali,energon")
    assert (tmp_path / "a-0.idx").read_text() == (
        "v1.2 3\npng 512 69 0.png\ntxt 1536 1 1.txt\npng 2560 69 2.png txt 3584 1 2.txt\n"
    )
    assert "CaptioningSample" in (tmp_path / ".nv-meta" / "dataset.yaml").read_text()


def test_a_dataset_without_images_is_a_crude_dataset_for_energon(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "0", "features.npy": np.zeros(3)})
    wt.export(tmp_path, "energon")
    assert yaml.safe_load((tmp_path / ".nv-meta" / "dataset.yaml").read_text()) == {
        "__module__": "megatron.energon",
        "__class__": "CrudeWebdataset",
    }


def test_repeated_keys_are_refused_for_energon_before_anything_is_written(plain: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with wt.ShardWriter(other / "a-%d.tar", classes=["cat", "fig"]) as writer:
        writer.write({"__key__": "000", "png": PNG, "cls": 0})
    wt.merge([plain, other], tmp_path / "both")
    with pytest.raises(OptionError, match=r"cannot be exported to energon: key '000' occurs in .*wds-tools reshard"):
        wt.export(tmp_path / "both", "dali,energon")
    assert not list((tmp_path / "both").glob("*.idx"))


def test_an_index_of_an_older_release_without_long_headers_is_refused(tmp_path: Path) -> None:
    folder = write_long(tmp_path)
    path, manifest = folder / "long-0.parquet", folder / "manifest.json"
    table = pq.read_table(path)
    kept = [name for name in table.column_names if not name.endswith(".header")]
    assert len(kept) == len(table.column_names) - 3
    pq.write_table(table.select(kept), path)
    raw = json.loads(manifest.read_text())
    index = {"index_bytes": path.stat().st_size, "index_xxh3": xxhash.xxh3_128_hexdigest(path.read_bytes())}
    raw["shards"][0] |= index
    manifest.write_text(seal(raw))
    with pytest.raises(ManifestError, match="does not record where its tar headers are: rebuild it with"):
        wt.export(folder, "energon")
    wt.index_shards(f"{folder}/long-*.tar")
    wt.export(folder, "energon")
    assert (folder / "long-0.tar.idx").read_bytes().hex() == RECORDED["long"]["long-0.tar.idx"]


def test_merge_keeps_the_recorded_headers(tmp_path: Path) -> None:
    write_foreign(tmp_path / "foreign")
    wt.merge([tmp_path / "foreign"], tmp_path / "merged")
    wt.export(tmp_path / "merged", "energon")
    assert (tmp_path / "merged" / "shard-000001.tar.idx").read_bytes().hex() == RECORDED["foreign"]["foreign-1.tar.idx"]


def test_a_dataset_at_a_url_is_exported_to_the_url(plain: Path) -> None:
    url = "memory://exports/plain"
    for path in plain.iterdir():
        with fsspec.open(f"{url}/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    report = wt.export(url, "dali,energon,timm")
    wt.export(plain, "dali,energon,timm")
    for name in (name for names in report.files.values() for name in names):
        with fsspec.open(f"{url}/{name}", "rb") as file:
            assert file.read() == (plain / name).read_bytes()


def test_invalid_arguments_are_refused(plain: Path) -> None:
    for to in ("", "tensorflow", "dali,", []):
        with pytest.raises(OptionError, match="allowed are 'coco', 'yolo', 'dali', 'energon', 'hf', 'timm', 'wids'"):
            wt.export(plain, to)
    with pytest.raises(OptionError, match="split='a b'"):
        wt.export(plain, "timm", split="a b")
    with pytest.raises(NotADatasetError, match="is a pattern of shards"):
        wt.export(f"{plain}/*.tar", "dali")


def test_the_command_lists_the_files_and_how_to_read_them(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", str(plain), "--to", "dali,timm"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "dali: 3 files, plain-00.idx, plain-01.idx, plain-02.idx" in out
    assert "index_paths=" in out
    assert "timm: 1 file, _info.json" in out
    assert "create_dataset('wds/'" in out


# --- the readers and their tools: `make interop` ---


@pytest.fixture(params=WRITERS)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = WRITERS[request.param](tmp_path / request.param)
    wt.export(folder, "dali,energon" if request.param == "long" else "dali,energon,wids")
    return folder


def keys_of(folder: Path) -> list[str]:
    return [key for path in sorted(folder.glob("*.parquet")) for key in pq.read_table(path)["key"].to_pylist()]


@pytest.mark.interop
def test_the_tools_still_write_what_was_recorded(exported: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    programs, bare = Path(sys.executable).parent, tmp_path / "bare"
    bare.mkdir()
    for path in exported.glob("*.tar"):
        shutil.copy(path, bare)
        subprocess.run([programs / "wds2idx", bare / path.name], check=True)
    options = ["--non-interactive", "--num-workers", "1", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    subprocess.run([programs / "energon", "prepare", *options, bare], check=True)
    for path in bare.glob("*.idx"):
        assert path.read_bytes() == (exported / path.name).read_bytes()
    theirs, ours = (database(folder / ".nv-meta" / "index.sqlite") for folder in (bare, exported))
    assert theirs == ours


@pytest.mark.interop
@pytest.mark.parametrize("reader", ["dali", "energon", "litdata", "ray", "wids"])
def test_a_reader_gets_every_sample(exported: Path, reader: str) -> None:
    if reader == "wids" and not (exported / "shardindex.json").exists():
        with pytest.raises(OptionError, match=r"wids: it reads names of at most 100 bytes, and member 'b{120}.cls'"):
            wt.export(exported, "wids")
        return
    samples, keys = interop_readers.read(reader, exported), sorted(keys_of(exported))
    assert len(samples) == len(keys)
    assert sorted(key for key, _ in samples if key is not None) == ([] if reader == "dali" else keys)
    assert {image for _, image in samples} == ({None} if reader == "energon" else {PNG})


@pytest.mark.interop
def test_a_reader_that_does_not_end_in_time_is_ended(exported: Path) -> None:
    with pytest.raises(AssertionError, match=r"ray did not read .* within 0\.2 s"):
        interop_readers.read("ray", exported, seconds=0.2)
