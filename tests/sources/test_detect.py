"""The format of files that other programs wrote, by their names and first bytes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from foreign_tables import FOREIGN, LABELS, beside_images, packed, png

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.sources.detect import detect


def test_a_mat_file_of_matlab_7_3_is_hdf5(tmp_path: Path) -> None:
    report = wt.pack(FOREIGN.parent / "matlab" / "hwcn.mat", tmp_path / "dst", workers=1)
    assert report.account.packed == report.account.given > 0
    assert detect(FOREIGN.parent / "matlab" / "hwcn.mat") == "hdf5"
    with pytest.raises(SourceError, match=r"v5.mat is MATLAB version 5 .*savez"):
        detect(FOREIGN.parent / "matlab" / "v5.mat")


@pytest.mark.parametrize("name", ["jq-array.json", "polars.json", "csvkit-in.json", "duckdb.json"])
def test_a_json_list_of_objects_is_a_table(name: str, tmp_path: Path) -> None:
    found = packed(beside_images(tmp_path / "src", name), tmp_path / "dst")
    assert {row: one.name for row, one in found.items()} == LABELS


def test_other_json_files_are_tables_only_if_the_user_says_so(tmp_path: Path) -> None:
    path = beside_images(tmp_path / "src", "csvkit-keyed.json")
    with pytest.raises(SourceError, match=r"its format cannot be detected .* --from table"):
        detect(path)
    assert {row: one.name for row, one in packed(path, tmp_path / "dst", kind="json").items()} == LABELS


def test_folders_of_hive_on_two_levels_are_parquet(tmp_path: Path) -> None:
    frame = pd.DataFrame({"image": [png(row) for row in range(6)], "year": [1, 2] * 3, "label": list(LABELS.values())})
    frame.to_parquet(tmp_path / "src", partition_cols=["year", "label"])
    assert detect(tmp_path / "src") == "parquet"
    assert {row: one.name for row, one in packed(tmp_path / "src", tmp_path / "dst").items()} == LABELS


@pytest.mark.parametrize("pattern", ["", "*.tar", "{a,b,c}.tar"])
def test_a_first_archive_without_samples_does_not_decide_what_local_archives_are(pattern: str, tmp_path: Path) -> None:
    members = {"a": ["readme/1.txt"], "b": ["readme/2.txt"], "c": ["1.png", "1.cls", "2.png", "2.cls"]}
    for archive, names in members.items():
        with tarfile.open(tmp_path / f"{archive}.tar", "w") as file:
            for name in names:
                data = png(int(name[-5])) if name.endswith("png") else b"1"
                member = tarfile.TarInfo(name)
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    assert detect(tmp_path / pattern) == "webdataset"


def test_datasets_are_named_by_their_folder_and_can_be_packed_again_without_labels(tmp_path: Path) -> None:
    dst = tmp_path / "all" / "dst"
    for row, name in enumerate(("src/cat/1.png", "src/dog/2.png")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(png(row))
    wt.pack(tmp_path / "src", dst, workers=1)
    with pytest.raises(SourceError, match=r"manifest.json is the manifest of a packed dataset: name its folder"):
        wt.pack(dst / "manifest.json", tmp_path / "again")
    with pytest.raises(SourceError, match=r"all contains packed datasets \('dst'\): name one of them, join them with"):
        wt.pack(tmp_path / "all", tmp_path / "again")
    again = wt.pack(dst, tmp_path / "again", columns={"label": ""}, workers=1)
    assert again.manifest.samples == 2
    assert not again.manifest.has_labels
    assert wt.pack(tmp_path / "all", tmp_path / "both", kind="webdataset", workers=1).manifest.has_labels
    wt.add_fields(dst, [{"__key__": f"{row:09}", "txt": f"row {row}"} for row in range(2)], name="captions")
    assert wt.pack(dst, tmp_path / "with-captions", workers=1).manifest.fields["txt"] == 2
