"""`reshard(in_place=True)`: images become crop-ready in the dataset's own folder, under running readers.

The oracle is `pack` with ``images="crop-ready"``, which reads the source again.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import mounts
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servers
import webdataset
from folders import contents, manifest_of

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import (
    ChecksumError,
    DestinationError,
    ManifestError,
    NotADatasetError,
    OptionError,
    StoreError,
)
from wds_tools.format.manifest import seal
from wds_tools.reading.opening import open_shards
from wds_tools.storage.lock import lock_file

VIEW = wt.RandomResizedCrop(32)
COMMAND = ["wds_tools", "reshard", "--in-place", "--images=crop-ready", "--workers=1"]


def make_crop_ready(folder: Path) -> Any:
    return wt.reshard(folder, in_place=True, images="crop-ready", workers=1, progress=False)


@pytest.fixture(scope="module")
def several(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 18 photographs, two of them PNG."""
    folder = tmp_path_factory.mktemp("several") / "images"
    for path in [*photos.glob("*/00[0-1].*"), *sorted(photos.glob("*/*.png"))[:2]]:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / path.parent.name / path.name).unlink(missing_ok=True)
        (folder / path.parent.name / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def reference(several: Path) -> dict[str, Path]:
    """Return the photographs, packed as they are and crop-ready. Not to be changed."""
    found = {images: several.parent / images for images in ("keep", "crop-ready")}
    for images, folder in found.items():
        wt.pack(several, folder, images=images, shard_bytes="80kB", workers=1)
    return found


@pytest.fixture
def kept(reference: dict[str, Path], tmp_path: Path) -> Path:
    """Return the photographs, packed as they are."""
    return servers.copy_of(reference["keep"], tmp_path / "photos")


def loader_of(dataset: object, **options: Any) -> Any:
    given = {"batch_size": 4, "view": VIEW, "fields": ("image", "label", "__key__"), "num_workers": 0, "shuffle": True}
    return wt.make_loader(dataset, **given | {"seed": 5} | options)


def seen(batches: Any) -> list[tuple[list[str], bytes]]:
    """Return the keys and pixels of batches."""
    return [(list(batch.key), batch.image.numpy().tobytes()) for batch in batches]


def epoch_of(dataset: object, **options: Any) -> list[tuple[list[str], bytes]]:
    with loader_of(dataset, **options) as loader:
        return seen(loader)


def shards_of(folder: Path) -> list[bytes]:
    return [(folder / entry.name).read_bytes() for entry in manifest_of(folder).shards]


def test_the_shards_are_byte_for_byte_those_of_a_crop_ready_pack(reference, kept):
    before, crop_ready = manifest_of(kept), manifest_of(reference["crop-ready"])
    readme = (kept / "README.md").read_bytes()
    report = make_crop_ready(kept)
    after = manifest_of(kept)
    assert len(after.shards) > 2
    assert shards_of(kept) == shards_of(reference["crop-ready"])
    assert (report.manifest, report.packed, report.kept) == (after, before.samples, 0)
    assert after.fingerprint == crop_ready.fingerprint != before.fingerprint
    same = ("fields", "classes", "images", "account", "label", "field_classes", "shuffled", "samples")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    listed = {name for entry in after.shards for name in (entry.name, entry.index)}
    assert {path.name for path in kept.iterdir()} == {"manifest.json", "README.md", *listed}
    assert (kept / "README.md").read_bytes() == readme
    assert wt.verify(kept).ok
    for entry, other in zip(after.shards, crop_ready.shards, strict=True):
        tables = [pq.read_table(kept / entry.index), pq.read_table(reference["crop-ready"] / other.index)]
        assert tables[0].equals(tables[1])


def test_the_order_stays_and_pixels_are_those_of_a_crop_ready_pack(kept):
    before = epoch_of(kept)
    make_crop_ready(kept)
    assert epoch_of(kept) == before


def test_a_saved_state_is_for_the_dataset_before_and_after(reference, kept, tmp_path, capsys):
    with loader_of(kept) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = seen(batches)
    make_crop_ready(kept)
    with loader_of(kept) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        first = seen([next(batches)])
        later = loader.state_dict()
        assert first + seen(batches) == expected
    with loader_of(reference["keep"]) as loader:
        loader.load_state_dict(later)
        assert seen(loader) == expected[1:]
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(SystemExit, match="0"):
        main(["plan", str(kept), "--state", str(tmp_path / "state.json"), "--step", "1"])
    shown = capsys.readouterr().out
    assert all(key in shown for key in expected[0][0])


def test_the_order_does_not_depend_on_the_new_lengths(photos, tmp_path):
    """Here crop-ready images are a tenth as long, so that blocks of 2 MB have ten times as many samples."""
    options = {"fields": ("image", "__key__"), "shuffle": 12}  # a window of 12 samples
    (tmp_path / "images").mkdir()
    for number, path in enumerate(sorted(photos.glob("*/*.jpg"))[:30]):
        (tmp_path / "images" / f"{number}.jpg").write_bytes(path.read_bytes() + bytes(200_000))
    wt.pack(tmp_path / "images", tmp_path / "photos", images="keep", workers=1)
    before = epoch_of(tmp_path / "photos", **options)
    assert make_crop_ready(tmp_path / "photos").manifest.bytes < 1_000_000
    assert epoch_of(tmp_path / "photos", **options) == before


def test_an_unrelated_crop_ready_pack_has_another_order(reference):
    """Otherwise the two tests above would show nothing."""
    assert epoch_of(reference["keep"]) != epoch_of(reference["crop-ready"])


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"fields": ("image", "__key__", "json")}])
@pytest.mark.torture_except("options1")
def test_a_running_loader_goes_on(kept, options):
    expected = epoch_of(kept, **options)
    with loader_of(kept, **options) as loader:
        batches = iter(loader)
        first = [next(batches)]
        make_crop_ready(kept)
        assert seen([*first, *batches]) == expected
        loader.set_epoch(0)
        assert seen(loader) == expected


def test_a_running_loader_takes_the_new_files_in_its_next_epoch(kept):
    """Otherwise the old ones would take disk space as long as the training runs."""
    with loader_of(kept) as loader:
        list(loader)
        make_crop_ready(kept)
        assert removed_files_in_use(kept)
        list(loader)
        assert not removed_files_in_use(kept)


@pytest.mark.torture
def test_running_loaders_with_few_open_files_see_each_epoch_unchanged(photos, tmp_path):
    """Shards are closed and opened all the time, while another process rewrites them."""
    wt.pack(photos, tmp_path / "many", images="keep", shard_bytes="60kB", workers=1)
    assert len(manifest_of(tmp_path / "many").shards) > 100
    for workers in (0, 2):
        dataset = servers.copy_of(tmp_path / "many", tmp_path / f"workers-{workers}")
        options = {"num_workers": workers, "batch_size": 16}
        with loader_of(dataset, **options) as loader:
            expected = [seen(loader) for _ in range(3)]
        gc.collect()  # closes the shards of that loader
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            program = "import sys, wds_tools as wt; wt.reshard(sys.argv[1], in_place=True, images='crop-ready')"
            process = subprocess.Popen([sys.executable, "-c", program, dataset])
            with loader_of(dataset, **options) as loader:
                for epoch in expected:
                    assert seen(loader) == epoch
                while process.poll() is None:
                    loader.set_epoch(2)
                    assert seen(loader) == expected[2]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert process.wait() == 0
        assert wt.verify(dataset).ok
        assert sum(entry.before is not None for entry in manifest_of(dataset).shards) > 100


def removed_files_in_use(folder: Path) -> list[str]:
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line and line.endswith("(deleted)")]


def test_a_dataset_that_was_opened_before_goes_on(kept):
    expected = epoch_of(kept)
    with loader_of(kept) as loader:
        stored = wt.StreamingDataset(kept, shuffle=False, decode=False)
        make_crop_ready(kept)
        assert seen(loader) == expected
        assert [sample["__key__"] for sample in stored] == [
            sample["__key__"] for sample in wt.StreamingDataset(kept, shuffle=False, decode=False)
        ]


def test_a_loader_that_has_read_the_indexes_but_no_shard_goes_on(kept):
    options = {"where": "width > 0"}
    expected = epoch_of(kept, **options)
    with loader_of(kept, **options) as loader:
        make_crop_ready(kept)
        assert seen(loader) == expected


def test_a_loader_of_a_dataset_at_a_server_goes_on(kept, tmp_path):
    expected = epoch_of(kept)
    with servers.in_thread(kept.parent) as url:
        address, options = f"{url}/data/photos", {"cache_dir": tmp_path / "cache"}
        with loader_of(address, **options) as loader:
            batches = iter(loader)
            first = [next(batches)]
            make_crop_ready(kept)
            assert seen([*first, *batches]) == expected
            loader.set_epoch(0)
            assert seen(loader) == expected
        assert epoch_of(address, **options) == expected


def test_a_dataset_that_was_replaced_by_another_one_is_still_an_error(kept, six_photos):
    with loader_of(kept) as loader:
        make_crop_ready(kept)
        wt.pack(six_photos, kept, fresh=True, workers=1)
        with pytest.raises(StoreError, match="replaced by another version"):
            list(loader)
    assert not list(kept.glob("*crop-ready*"))


def test_fields_that_were_added_stay_and_can_be_added_and_removed(kept, tmp_path):
    keys = [f"{number:09d}" for number in range(manifest_of(kept).samples)]
    for name in ("before", "after"):
        pq.write_table(pa.table({"key": keys, f"{name}.txt": [f"{name} {key}" for key in keys]}), tmp_path / name)
        (tmp_path / name).rename(tmp_path / f"{name}.parquet")
    wt.add_fields(kept, tmp_path / "before.parquet")
    make_crop_ready(kept)
    wt.add_fields(kept, tmp_path / "after.parquet")
    listed = manifest_of(kept)
    wt.index_shards(str(kept / "*.tar"))
    assert (manifest_of(kept).shards, manifest_of(kept).additions) == (listed.shards, listed.additions)
    assert wt.verify(kept).ok
    with wt.make_loader(kept, batch_size=4, num_workers=0, fields=("__key__", "before.txt", "after.txt")) as loader:
        batch = next(iter(loader))
    assert list(batch[1]) == [f"before {key}" for key in batch[0]]
    assert list(batch[2]) == [f"after {key}" for key in batch[0]]
    wt.reshard(kept, tmp_path / "again", workers=1)
    assert manifest_of(tmp_path / "again").fields.keys() > {"before.txt", "after.txt"}
    wt.remove_fields(kept, "before")
    assert not (kept / "before").exists()
    with pytest.raises(OptionError, match="name the folder of that dataset"):
        make_crop_ready(kept / "after")


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        return [(info.name, archive.extractfile(info).read()) for info in archive]


@pytest.fixture
def foreign(photos: Path, tmp_path: Path) -> Path:
    """Return a dataset of shards that webdataset wrote, and tar members that are not fields."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    paths = sorted((photos / "cat").glob("*.jpg"))[:6]
    for shard in range(2):
        with webdataset.TarWriter(str(folder / f"train-{shard}.tar")) as writer:
            for number, path in enumerate(paths[3 * shard : 3 * shard + 3]):
                writer.write(
                    {
                        "__key__": f"{'a' * 120}/{path.stem}" if number == 1 else path.stem,
                        "jpg": path.read_bytes(),
                        "mask.jpg": path.read_bytes(),
                        "txt": f"caption {number}",
                        "cls": number,
                    }
                )
    with tarfile.open(folder / "train-0.tar", "a") as archive:
        info = tarfile.TarInfo("README")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    for shard in range(2):  # as img2dataset writes it
        keys = [name.partition(".")[0] for name, _ in members(folder / f"train-{shard}.tar") if name.endswith(".cls")]
        pq.write_table(pa.table({"key": keys, "similarity": [0.1, 0.2, 0.3]}), folder / f"train-{shard}.parquet")
    wt.index_shards(str(folder / "train-{0..1}.tar"))
    return folder


def test_shards_of_another_program_keep_everything_but_the_image(foreign):
    old = manifest_of(foreign)
    before = [members(foreign / entry.name) for entry in old.shards]
    table = (foreign / "train-0.parquet").read_bytes()
    make_crop_ready(foreign)
    new = manifest_of(foreign)
    assert [entry.name for entry in new.shards] == ["train-0-crop-ready.tar", "train-1-crop-ready.tar"]
    after = [members(foreign / entry.name) for entry in new.shards]
    assert [[name for name, _ in shard] for shard in after] == [[name for name, _ in shard] for shard in before]
    changed = {
        a[0].rpartition(".")[2]
        for one, two in zip(before, after, strict=True)
        for a, b in zip(one, two, strict=True)
        if a != b
    }
    assert changed == {"jpg"}
    masks = [[data for name, data in shard if name.endswith("mask.jpg")] for shard in (*before, *after)]
    assert masks[:2] == masks[2:]
    assert wt.verify(foreign).ok
    assert (foreign / "train-0.parquet").read_bytes() == table  # it belongs to the other program


def test_columns_of_the_index_stay(foreign):
    make_crop_ready(foreign)
    with wt.make_loader(foreign, batch_size=1, num_workers=0, fields="__key__", where="similarity > 0.15") as loader:
        assert len(loader) == 4


def test_a_dataset_that_was_opened_before_has_the_new_indexes(foreign):
    shards = open_shards(foreign)
    make_crop_ready(foreign)
    assert shards.columns(0, ["similarity"])["similarity"].to_pylist() == [0.1, 0.2, 0.3]
    assert [shards.index(number).shard for number in range(2)] == [entry.name for entry in manifest_of(foreign).shards]
    assert shards.manifest.shards == manifest_of(foreign).shards


def test_a_second_call_and_a_pack_of_the_same_source_find_nothing_to_do(several, kept, capsys):
    make_crop_ready(kept)
    before = contents(kept)
    assert make_crop_ready(kept).kept == len(manifest_of(kept).shards)
    options = {"shard_bytes": "80kB", "workers": 1}
    for images in ("keep", "crop-ready"):
        assert wt.pack(several, kept, images=images, **options).kept == len(manifest_of(kept).shards)
    with pytest.raises(DestinationError, match="images was 'crop-ready' and is 'resize"):
        wt.pack(several, kept, resize=32, **options)
    assert contents(kept) == before


def test_samples_can_be_appended_after_it_and_made_crop_ready_too(kept, six_photos, tmp_path):
    before = [key for keys, _ in epoch_of(kept, shuffle=False) for key in keys]
    make_crop_ready(kept)
    with pytest.raises(OptionError, match="packed with images='crop-ready'"):
        wt.append(six_photos, kept, images="keep", workers=1)
    assert wt.append(six_photos, kept, images="crop-ready", repeated="append", workers=1).packed == 6
    names = [entry.name for entry in manifest_of(kept).shards]
    assert names[-1] == f"shard-{len(names) - 1:06d}.tar"
    assert wt.append(six_photos, kept, images="crop-ready", workers=1).packed == 0
    assert [key for keys, _ in epoch_of(kept, shuffle=False) for key in keys][: len(before)] == before
    assert wt.verify(kept).ok
    assert make_crop_ready(kept).kept == len(names)


def test_a_state_of_an_epoch_that_was_interrupted_before_an_append_and_the_rewriting(kept, six_photos):
    with loader_of(kept) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = seen(batches)
    wt.append(six_photos, kept, images="keep", repeated="append", workers=1)
    make_crop_ready(kept)
    with loader_of(kept) as loader:
        loader.load_state_dict(state)
        assert seen(loader) == expected


def test_a_damaged_shard_is_refused_and_stays(kept):
    name = manifest_of(kept).shards[1].name
    data = bytearray((kept / name).read_bytes())
    (kept / name).unlink()  # a hard link to the reference
    data[len(data) // 2] ^= 1
    (kept / name).write_bytes(data)
    with pytest.raises(ChecksumError, match="has changed since it was packed") as error:
        make_crop_ready(kept)
    assert error.value.shard == name
    assert (kept / name).read_bytes() == data
    assert [report.shard for report in wt.verify(kept).damages] == [name]


def test_what_is_not_possible_is_refused(kept, tmp_path, monkeypatch):
    before = contents(kept)
    for options in ({"images": "keep"}, {"images": "resize", "resize": 32}, {"shuffle": True}, {"dst": tmp_path / "x"}):
        with pytest.raises(OptionError, match="in place, only --images crop-ready"):
            wt.reshard(kept, in_place=True, **{"images": "crop-ready"} | options)
    with pytest.raises(OptionError, match="is a URL"):
        wt.reshard("s3://bucket/photos", in_place=True, images="crop-ready")
    with pytest.raises(OptionError, match="name its folder DST"):
        wt.reshard(kept)
    with pytest.raises(NotADatasetError, match="no such folder"):
        make_crop_ready(tmp_path / "nothing")
    shutil.copy(kept / "manifest.json", kept / "train.json")
    with pytest.raises(OptionError, match=r"train\.json lists shards"):
        make_crop_ready(kept)
    (kept / "train.json").unlink()
    lock = lock_file(kept / ".packing" / "lock")
    with pytest.raises(DestinationError, match="another packer is writing"):
        make_crop_ready(kept)
    (kept / ".packing" / "plan.json").write_text('{"onto": "x"}')
    os.close(lock)
    with pytest.raises(DestinationError, match="unfinished pack or append"):
        make_crop_ready(kept)
    shutil.rmtree(kept / ".packing")
    assert contents(kept) == before


def test_the_command_runs_at_low_priority_and_states_what_it_did(kept):
    program = (
        "import sys, os; from wds_tools.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(os.getpriority(os.PRIO_PROCESS, 0))"
    )
    words = ["reshard", "--in-place", "--images", "crop-ready", kept]
    done = preloaded.run(["-c", program, *words], imports=preloaded.COMMANDS)
    shards = len(manifest_of(kept).shards)
    assert done.stdout.startswith(f"rewrote {shards} shards of {kept} in "), done.stderr
    assert done.stdout.splitlines()[-1] == "19"
    again = preloaded.command(*words)
    assert again.stdout.startswith(f"nothing to rewrite: {kept} is crop-ready already: ")


@pytest.fixture(scope="module")
def two_shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Return a dataset of four images and two shards, as packed and after a run without faults."""
    if reason := faults.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("two_shards")
    for name in ("cat", "fig"):
        (folder / "src" / name).mkdir(parents=True)
        for path in sorted((photos / name).glob("*.jpg"))[:2]:
            shutil.copy(path, folder / "src" / name)
    wt.pack(folder / "src", folder / "keep", images="keep", shard_bytes="60kB", workers=1)
    make_crop_ready(servers.copy_of(folder / "keep", folder / "whole"))
    assert len(manifest_of(folder / "whole").shards) == 2
    return {"keep": folder / "keep", "whole": folder / "whole"}


def fault_and_rerun(fault: str, call: str, number: int, two_shards: dict[str, Path], folder: Path) -> Any:
    """Let a call fail, check that the dataset is complete, and run again; return the failing run."""
    dataset = servers.copy_of(two_shards["keep"], folder / f"{fault}-{call}-{number}")
    done = faults.run_with_fault([*COMMAND, dataset], call, number, fault)
    assert done.returncode in (0, 1, -signal.SIGKILL), done.stderr
    assert done.returncode != 1 or done.stderr.splitlines()[-1].startswith("error: "), done.stderr
    assert wt.verify(dataset).ok, f"{fault} at {call} number {number}"
    tars = list(dataset.glob("*.tar")) + list(dataset.glob(".*.tar.*.tmp"))
    assert len(tars) <= 3
    make_crop_ready(dataset)
    found = contents(dataset)
    assert found == contents(two_shards["whole"]), f"{fault} at {call} number {number}"
    return done


@pytest.mark.parametrize(
    ("call", "number"),
    [("write", 1), ("write", 5), ("fsync", 4), ("rename", 2), ("rename", 3), ("unlink", 3), ("unlink", 4)],
)
@pytest.mark.torture_except("write-5", "rename-2", "unlink-3")
def test_a_rerun_recovers_from_a_kill_and_the_dataset_is_always_complete(call, number, two_shards, tmp_path):
    assert fault_and_rerun("KILL", call, number, two_shards, tmp_path).returncode == -signal.SIGKILL


@pytest.mark.parametrize(("call", "number"), [("write", 2), ("rename", 1), ("rename", 3)])
@pytest.mark.torture_except("rename-1")
def test_a_failing_call_is_a_clear_error_and_a_rerun_recovers(call, number, two_shards, tmp_path):
    done = fault_and_rerun("ENOSPC", call, number, two_shards, tmp_path)
    assert done.returncode == 1
    assert "No space left on device; the dataset is intact: fix the cause, then run the same command" in done.stderr


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["KILL", "ENOSPC", "EIO"])
@pytest.mark.parametrize("call", ["write", "fsync", "rename", "unlink", "mkdir", "rmdir"])
def test_a_rerun_recovers_from_a_fault_at_any_call(call, fault, two_shards, tmp_path):
    for number in range(1, 200):
        status = fault_and_rerun(fault, call, number, two_shards, tmp_path).returncode
        if not status and (fault == "KILL" or number > 40):
            break
    assert number > 1


SMALL_DISK = """
import pathlib, shutil, sys, mounts
mounts.enter()
import wds_tools as wt
src, disk, size = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
mounts.make_small(disk, size)
shutil.copytree(src, disk / "dataset")
wt.reshard(disk / "dataset", in_place=True, images="crop-ready", workers=1)
assert wt.verify(disk / "dataset").ok
"""


def test_the_disk_needs_space_for_one_more_shard(reference, tmp_path, can_mount):
    size = sum(map(len, contents(reference["keep"]).values())) // 1024
    (tmp_path / "disk").mkdir()
    done = mounts.run(SMALL_DISK, reference["keep"], tmp_path / "disk", size + 150)  # a shard has 80 kB
    assert done.returncode == 0, done.stderr


def test_a_manifest_with_a_wrong_earlier_entry_is_refused(kept):
    make_crop_ready(kept)
    path = kept / "manifest.json"
    raw = json.loads(path.read_bytes())
    name = raw["shards"][0]["name"]
    wrong = [
        {"other.tar": raw["rewritten"][name]},
        {name: {**raw["rewritten"][name], "name": "../outside.tar"}},
        {name: {**raw["rewritten"][name], "name": raw["shards"][1]["name"]}},
        {name: {**raw["rewritten"][name], "samples": 1}},
        [name],
        {name: 1},
    ]
    for rewritten in wrong:
        path.write_text(seal(raw | {"rewritten": rewritten}))
        with pytest.raises(ManifestError, match="breaks the format"):
            wt.describe(kept)
