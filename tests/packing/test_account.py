"""What `pack` states about its source: on stderr or in the log, in the manifest and with ``--dry-run``."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from buckets import Bucketful
from folders import manifest_of
from pictures import encode
from PIL import Image
from terminals import in_terminal

import wds_tools as wt
from wds_tools.errors import DestinationError, LabelError, ManifestError, OptionError, SourceError
from wds_tools.format.account import MAX_PARTS, MAX_REASONS, Account, Part
from wds_tools.format.manifest import from_json, seal
from wds_tools.inspection.stats import describe, format_stats

SKIPPED = Counter({"is empty": 2, "does not have the extension of an image": 1})
OPTIONS: dict[str, Any] = {"workers": 1, "images": "keep"}


def jpeg(colour: int) -> bytes:
    return encode(Image.new("RGB", (12, 8), (colour * 20 % 256, 99, 77)), "JPEG")


@pytest.fixture
def untidy(six_photos: Path) -> Path:
    """Return a folder of six photographs, two empty files and a text file."""
    (six_photos / "cat" / "empty.jpg").touch()
    (six_photos / "fig" / "empty.png").touch()
    (six_photos / "fig" / "notes.md").write_text("figs")
    return six_photos


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a Parquet file, written by pyarrow: images, class numbers, captions, 100 numbers and a binary column."""
    count = 12
    columns: dict[str, Any] = {
        "image": [{"bytes": jpeg(number), "path": f"{number}.jpg"} for number in range(count)],
        "y": [(2, 6, 9, 11)[number % 4] for number in range(count)],
        "caption": [f"number {number}" for number in range(count)],
        **{f"score_{number:03d}": [0.5 * number] * count for number in range(100)},
        "thumbnail": pa.array([None] * count, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
    }
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "table" / "train.parquet")
    return tmp_path / "table" / "train.parquet"


def without_account(folder: Path) -> None:
    """Change a dataset into one of a release whose manifests had no account."""
    raw = json.loads((folder / "manifest.json").read_bytes())
    del raw["account"]
    (folder / "manifest.json").write_text(seal(raw))


# --- What is printed ---


def test_a_folder_takes_one_line(few_photos: Path, tmp_path: Path) -> None:
    done = preloaded.command("pack", few_photos, tmp_path / "dst", "--images", "keep")
    assert done.stderr == f"{few_photos}: 40 images, 8 classes (astronaut, brushes, cat, ...)\n"


def test_skipped_files_are_counted_by_reason_in_one_more_line(untidy: Path, tmp_path: Path) -> None:
    done = preloaded.command("pack", untidy, tmp_path / "dst")
    assert done.stderr.splitlines() == [
        f"{untidy}: 6 images, 2 classes (cat, fig)",
        "  skipped: 3 files (2 are empty, 1 does not have the extension of an image)",
    ]


def test_a_table_of_a_hundred_columns_takes_a_few_lines_and_names_the_label(table: Path, tmp_path: Path) -> None:
    done = preloaded.command("pack", table, tmp_path / "dst")
    lines = done.stderr.splitlines()
    assert lines[0] == f"{table}: 12 images, 4 classes without names (2, 6, 9, ...)"
    assert lines[1] == "  image: column 'image'; label: column 'y'"
    assert lines[2] == "  fields: txt (column 'caption')"
    (scores,) = (line for line in lines if "'score_000', 'score_001'" in line)
    assert scores.endswith("and 95 more")
    assert len(lines) <= 6
    assert all(len(line) < 200 for line in lines)


def test_the_account_comes_before_anything_is_written(untidy: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = preloaded.command("pack", untidy, tmp_path / "file")  # not a folder, so nothing can be written
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [str(untidy), "  skipped", "error"]


@pytest.mark.parametrize("tool", ["append", "reshard"])
def test_append_and_reshard_print_the_account_of_what_they_read(
    tool: str, untidy: Path, few: Path, tmp_path: Path
) -> None:
    if tool == "append":
        dst = Path(shutil.copytree(few, tmp_path / "dst"))
        more = renamed(untidy, tmp_path / "more")
        done = preloaded.command("append", more, dst, "--images", "crop-ready", "--repeated", "append")
        assert done.stderr.splitlines()[0] == f"{more}: 6 images, 2 classes (cat, fig)"
        assert "skipped: 3 files" in done.stderr
    else:
        done = preloaded.command("reshard", few, tmp_path / "dst", "--images", "keep")
        assert done.stderr.splitlines()[0] == f"{few}: 40 images, 8 classes (astronaut, brushes, cat, ...)"
    assert done.returncode == 0


def test_pack_splits_prints_the_account_of_the_source_once(untidy: Path, tmp_path: Path) -> None:
    done = preloaded.command("pack", untidy, tmp_path / "dst", "--split", "train=0.5,val=0.5")
    assert done.stderr.count("6 images") == done.stderr.count("skipped: 3 files") == 1


def test_pack_splits_prints_the_account_of_each_folder(six_photos: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(six_photos, tmp_path / "src" / split)
    done = preloaded.command("pack", tmp_path / "src", tmp_path / "dst", "--split", "folders")
    accounts = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert accounts == [f"{tmp_path}/src/{split}: 6 images, 2 classes (cat, fig)" for split in ("train", "val")]


def test_names_of_the_source_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    rows = {"image": [jpeg(1)], "label": [0], "\x1b[31mred\n": [1]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    done = preloaded.command("pack", tmp_path / "a.parquet", tmp_path / "dst")
    assert done.returncode == 0
    assert done.stderr.replace("\n", "").isprintable()


def test_python_logs_the_account_as_information(
    untidy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "wds_tools"):
        wt.pack(untidy, tmp_path / "dst", progress=True, **OPTIONS)
    (record,) = caplog.records
    assert (record.levelno, record.message.splitlines()[0]) == (
        logging.INFO,
        f"{untidy}: 6 images, 2 classes (cat, fig)",
    )
    assert "2 classes" not in capsys.readouterr().err  # not a second time


def test_python_shows_the_account_above_the_progress_bar(untidy: Path, tmp_path: Path) -> None:
    program = f"import wds_tools as wt; wt.pack({str(untidy)!r}, {str(tmp_path / 'dst')!r}, workers=1, progress=%s)"
    code, shown = in_terminal(["-c", program % None])
    assert (code, shown.count("6 images, 2 classes (cat, fig)")) == (0, 1), shown
    assert shown.index("skipped: 3 files") < shown.index("100%|")
    code, shown = in_terminal(["-c", program % False])
    assert (code, shown) == (0, "")


# --- The report and the manifest ---


def test_the_report_and_the_manifest_have_the_account_with_what_was_skipped_while_packing(
    untidy: Path, tmp_path: Path
) -> None:
    (untidy / "cat" / "bad.jpg").write_bytes(b"not an image")
    report = wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    account = manifest_of(tmp_path / "dst").account
    assert account == report.account == report.manifest.account
    assert (account.unit, account.given, account.packed, account.skipped.total()) == ("file", 10, 6, 4)
    assert account.skipped["is empty"] == 2
    assert sum(count for reason, count in account.skipped.items() if "it starts with" in reason) == 1


def test_the_manifest_names_every_part_of_a_table(table: Path, tmp_path: Path) -> None:
    account = wt.pack(table, tmp_path / "dst", **OPTIONS).account
    assert {part.name for part in account.parts} == {*pq.read_schema(table).names}
    assert Part("column", "y", "label") in account.parts


def test_the_same_source_gives_the_same_manifest_at_another_path(untidy: Path, tmp_path: Path) -> None:
    (untidy / "fig" / "bad.jpg").write_bytes(b"not an image")
    shutil.copytree(untidy, tmp_path / "elsewhere" / untidy.name)
    for number, src in enumerate((untidy, tmp_path / "elsewhere" / untidy.name)):
        wt.pack(src, tmp_path / str(number), **OPTIONS)
    assert (tmp_path / "0" / "manifest.json").read_bytes() == (tmp_path / "1" / "manifest.json").read_bytes()


def test_a_reason_with_the_path_of_the_source_is_the_same_at_another_path(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        pixels = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
        chunk = file.create_dataset("images", data=pixels, chunks=(2, 8, 8, 3), compression="gzip").id.get_chunk_info(0)
    damaged = bytearray((tmp_path / "a.h5").read_bytes())
    damaged[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    accounts = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.h5").write_bytes(damaged)
        accounts.append(wt.pack(tmp_path / folder / "a.h5", tmp_path / folder / "dst", **OPTIONS).account)
    assert accounts[0].skipped == accounts[1].skipped
    ((reason, count),) = accounts[0].skipped.items()
    assert (count, reason.partition(":")[0]) == (2, "a.h5 cannot be read")


def test_a_manifest_holds_a_limited_number_of_names_and_reasons() -> None:
    account = Account("row", given=501, packed=1)
    account.skipped.update(f"reason {'abc'[number % 3] * (number // 3)}" for number in range(500))
    account.parts = [Part("column", f"{number} {'x' * 500}", "json") for number in range(MAX_PARTS + 5)]
    account.notes = [f"note {number}" for number in range(100)]
    held = account.limited()
    assert len(held.parts) == MAX_PARTS
    assert (len(held.skipped), len(held.notes)) == (MAX_REASONS, MAX_REASONS)
    assert held.skipped.total() == 500
    assert "5 further parts of the source, not listed" in held.notes
    assert held.limited() == held
    assert len(json.dumps(held.to_json())) < 300_000


def test_reasons_that_differ_only_in_a_name_are_one() -> None:
    account = Account("row", 3, 0, Counter({"file 'a.jpg' is missing": 1, "file 'b.jpg' is missing": 1, "is empty": 1}))
    assert account.limited().skipped == {"file '...' is missing": 2, "is empty": 1}
    same = Account("sample", 2, 0, Counter({"has no image among its fields 'txt'": 2}))
    assert same.limited().skipped == {"has no image among its fields 'txt'": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"given": 7},
        {"given": "6"},
        {"skipped": {"is empty": -3}},
        {"parts": [{"kind": "column"}]},
        {"parts": [{"kind": "column", "name": 3}]},
        {"notes": None},
    ],
)
def test_a_manifest_with_a_damaged_account_is_refused(untidy: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    raw = json.loads((tmp_path / "dst" / "manifest.json").read_bytes())
    raw["account"] |= change
    with pytest.raises(ManifestError, match="account"):
        from_json(seal(raw))


# --- Datasets of several sources ---


def renamed(folder: Path, copy: Path) -> Path:
    """Copy a folder, with other names of its files."""
    shutil.copytree(folder, copy)
    for path in [path for path in copy.rglob("*") if path.is_file()]:
        path.rename(path.with_name(f"more-{path.name}"))
    return copy


def test_append_adds_the_accounts(untidy: Path, table: Path, tmp_path: Path) -> None:
    wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    more = renamed(untidy, tmp_path / "more")
    report = wt.append(more, tmp_path / "dst", repeated="append", **OPTIONS)
    assert (report.account.given, report.account.packed) == (9, 6)  # of what was appended
    account = manifest_of(tmp_path / "dst").account
    assert (account.unit, account.given, account.packed, account.skipped["is empty"]) == ("file", 18, 12, 4)
    again = wt.append(more, tmp_path / "dst", **OPTIONS)
    assert again.packed == 0
    assert manifest_of(tmp_path / "dst").account == account


def test_merge_adds_the_accounts(untidy: Path, six_photos: Path, tmp_path: Path) -> None:
    wt.pack(untidy, tmp_path / "one", **OPTIONS)
    wt.pack(six_photos, tmp_path / "two", seed=1, **OPTIONS)
    account = wt.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both").manifest.account
    assert (account.given, account.packed, account.skipped.total()) == (18, 12, 6)


def test_reshard_keeps_the_account_of_the_original_source(untidy: Path, tmp_path: Path) -> None:
    original = wt.pack(untidy, tmp_path / "one", **OPTIONS).account
    account = wt.reshard(tmp_path / "one", tmp_path / "two", workers=1).account
    assert (account.unit, account.given, account.packed, account.skipped) == ("file", 9, 6, original.skipped)


def test_indexing_a_dataset_again_keeps_its_account(untidy: Path, tmp_path: Path) -> None:
    account = wt.pack(untidy, tmp_path / "one", **OPTIONS).account
    assert wt.index_shards(str(tmp_path / "one" / "*.tar")).account == account


def test_the_accounts_of_shares_add_up_to_that_of_the_source(untidy: Path, tmp_path: Path) -> None:
    reports = wt.pack_splits(untidy, tmp_path / "dst", split="train=0.5,val=0.5", **OPTIONS)
    accounts = [manifest_of(tmp_path / "dst" / name).account for name in reports]
    assert accounts == [report.account for report in reports.values()]
    assert sum(account.given for account in accounts) == 9
    assert sum(account.packed for account in accounts) == 6


def test_a_field_whose_place_another_label_takes_is_left_out_by_name(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "1", "jpg": jpeg(1), "cls": 3, "json": {"kind": "cat"}, "txt": "a cat"})
    account = wt.pack(tmp_path / "a.tar", tmp_path / "dst", columns={"label": "json:kind"}, **OPTIONS).account
    assert {(part.name, part.role, part.reason) for part in account.parts} == {
        ("jpg", "image", ""),
        ("cls", "", "labels are json:kind"),
        ("json", "label", ""),
        ("json", "entries of json", ""),
        ("txt", "field txt", ""),
    }


# --- Datasets that were packed before manifests had an account ---


def test_a_dataset_without_an_account_is_still_the_same_dataset(untidy: Path, tmp_path: Path) -> None:
    wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    without_account(tmp_path / "dst")
    before = (tmp_path / "dst" / "manifest.json").read_bytes()
    report = wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    assert report.kept == len(report.manifest.shards)
    assert (report.account.given, report.manifest.account) == (9, None)
    assert (tmp_path / "dst" / "manifest.json").read_bytes() == before


def test_what_is_appended_to_a_dataset_without_an_account_is_accounted_for(untidy: Path, tmp_path: Path) -> None:
    wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    without_account(tmp_path / "dst")
    more = renamed(untidy, tmp_path / "more")
    account = wt.append(more, tmp_path / "dst", repeated="append", **OPTIONS).manifest.account
    assert (account.given, account.packed, account.skipped.total()) == (6 + 9, 12, 3)
    assert "6 samples" in account.notes[0]


def test_a_merge_of_datasets_without_an_account_has_none(untidy: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        wt.pack(untidy, tmp_path / str(seed), seed=seed, **OPTIONS)
        without_account(tmp_path / str(seed))
    assert wt.merge([tmp_path / "0", tmp_path / "1"], tmp_path / "both").manifest.account is None


# --- info ---


def test_info_shows_the_account(untidy: Path, table: Path, tmp_path: Path) -> None:
    wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    text = format_stats(describe(tmp_path / "dst"))
    assert "  source       9 files, 6 packed\n" in text
    assert "skipped: 3 files (2 are empty, 1 does not have the extension of an image)" in text
    shown = json.loads(preloaded.command("info", tmp_path / "dst", "--json").stdout)
    assert (shown["account"]["given"], shown["account"]["skipped"]["is empty"]) == (9, 2)
    without_account(tmp_path / "dst")
    assert "source" not in format_stats(describe(tmp_path / "dst"))
    assert describe(tmp_path / "dst").to_dict()["account"] is None


# --- Dry run ---


def test_a_dry_run_prints_the_account_and_ten_samples_and_writes_nothing(photos: Path, tmp_path: Path) -> None:
    done = preloaded.command("pack", photos, tmp_path / "dst", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head == f"{photos}: 400 images, 8 classes (astronaut, brushes, cat, ...)"
    assert len(lines) == 10
    assert [line.split()[3].strip("();") for line in lines] == sorted(line.split("/")[0].strip() for line in lines)
    assert not (tmp_path / "dst").exists()


def test_the_samples_of_a_dry_run_are_those_of_the_files(photos: Path, tmp_path: Path) -> None:
    one, two = (wt.pack(photos, tmp_path / "dst", dry_run=True).preview for _ in range(2))
    assert one == two
    assert len({sample.path for sample in one.samples}) == 10
    for sample in one.samples:
        assert sample.class_name == sample.path.partition("/")[0]
        with Image.open(photos / sample.path) as image:
            assert (image.width, image.height) == (sample.width, sample.height)
            assert sample.kind == {"JPEG": "jpg", "PNG": "png"}[image.format or ""]


def test_a_dry_run_shows_further_fields_with_short_values(table: Path, tmp_path: Path) -> None:
    report = wt.pack(table, tmp_path / "dst", dry_run=True)
    first = report.preview.samples[0]
    assert (first.path, first.label, first.class_name) == ("train.parquet#0", 2, None)
    assert first.fields["txt"] == "'number 0'"
    assert first.fields["score_099"] == "49.5"
    assert str(first).startswith("train.parquet#0: label 2; jpg 12x8; txt='number 0', file_name=\"0.jpg\", ")
    assert len(str(first)) < 300
    assert (report.packed, report.complete, report.manifest.shards) == (0, False, ())
    assert report.account.packed == 12
    assert str(report.preview).count("\n") < 20


def test_a_dry_run_states_why_a_sample_cannot_be_packed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.jpg").write_bytes(jpeg(1))
    (tmp_path / "src" / "b.jpg").write_bytes(b"not an image")
    done = preloaded.command("pack", tmp_path / "src", tmp_path / "dst", "--dry-run")
    assert done.returncode == 0
    assert "a.jpg: no label; jpg 12x8\n" in done.stdout
    assert "b.jpg: cannot be packed: is not a JPEG" in done.stdout


@pytest.mark.parametrize("named", [True, False])
def test_a_dry_run_shows_labels_that_are_known_only_after_reading(tmp_path: Path, named: bool) -> None:
    class Items:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, number: int) -> dict[str, Any]:
            pixels = np.full((8, 6, 3), number, np.uint8)
            return {"image": pixels, "label": "dog" if named else number % 3, "weight": number / 2}

    classes = ["cat", "dog"] if named else None
    report = wt.pack(Items(), tmp_path / "dst", dry_run=True, classes=classes)
    last = report.preview.samples[-1]
    assert (last.path, last.label, last.class_name) == ("Items#29", *((1, "dog") if named else (2, None)))
    assert (last.kind, last.width, last.height, dict(last.fields)) == ("png", 6, 8, {"weight": "14.5"})
    assert not (tmp_path / "dst").exists()


def test_a_dry_run_with_splits_shows_samples_of_each(untidy: Path, tmp_path: Path) -> None:
    done = preloaded.command("pack", untidy, tmp_path / "dst", "--split", "train=0.5,val=0.5", "--dry-run")
    assert done.returncode == 0
    heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [head.partition(",")[0] for head in heads] == ["train", "val"]
    assert done.stdout.count("jpg ") == 6
    assert not (tmp_path / "dst").exists()


def test_a_dry_run_reads_and_writes_urls_like_pack(six_photos: Path, tmp_path: Path) -> None:
    Bucketful.reset()
    report = wt.pack(f"bucket://{six_photos}", f"bucket://{tmp_path}/dst", dry_run=True)
    assert [sample.class_name for sample in report.preview.samples] == ["cat"] * 3 + ["fig"] * 3
    assert all(sample.width for sample in report.preview.samples)
    assert not (tmp_path / "dst").exists()
    assert Bucketful.puts == 0


def test_a_dry_run_fails_as_pack_would(table: Path, untidy: Path, few: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    with pytest.raises(LabelError, match="is not a whole number"):
        wt.pack(table, dst, columns={"label": "score_001"}, dry_run=True)
    with pytest.raises(SourceError, match="3 files cannot be packed"):
        wt.pack(untidy, dst, strict=True, dry_run=True)
    with pytest.raises(DestinationError, match="another dataset"):
        wt.pack(untidy, few, dry_run=True)
    with pytest.raises(OptionError, match="inside the source"):
        wt.pack(untidy, untidy / "dst", dry_run=True)
    with pytest.raises(OptionError, match="dry_run cannot be combined"):
        wt.pack(untidy, dst, dry_run=True, finish=True)
    assert preloaded.command("pack", tmp_path / "none", dst, "--dry-run").returncode == 2
    assert not dst.exists()


def test_a_dry_run_beside_a_finished_dataset_changes_nothing(untidy: Path, tmp_path: Path) -> None:
    wt.pack(untidy, tmp_path / "dst", **OPTIONS)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "dst").iterdir()}
    wt.pack(untidy, tmp_path / "dst", dry_run=True, **OPTIONS)
    wt.pack(untidy, tmp_path / "dst", dry_run=True, fresh=True, seed=3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "dst").iterdir()} == stamps
