"""ShardWriter writes the same samples as webdataset's writer, and only complete shards."""

from __future__ import annotations

import inspect
import json
import logging
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
import webdataset
from folders import contents
from PIL import Image

import wds_tools as wt
from wds_tools import ShardWriter
from wds_tools.errors import DecodeError, DestinationError, ManifestError, OptionError, SampleError
from wds_tools.format.index import NO_LABEL, from_bytes
from wds_tools.format.manifest import Manifest, from_json
from wds_tools.format.tar import END
from wds_tools.reading.opening import open_shards

REPOSITORY = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def manifest_of(folder: Path, name: str = "manifest.json") -> Manifest:
    return from_json((folder / name).read_bytes())


def small(count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(start, start + count):
        yield {"__key__": f"{number:04}", "bin": bytes([number % 256]) * 1000, "cls": number % 3}


def failing(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from samples
    raise ZeroDivisionError


def write_all(folder: Path, samples: Iterator[dict[str, Any]], **options: Any) -> ShardWriter:
    with ShardWriter(folder / "a-%06d.tar", **options) as writer:
        for sample in samples:
            writer.write(sample)
    return writer


def run(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return preloaded.run(["-c", script], cwd=cwd, imports=preloaded.COMMANDS)


# --- same calls as webdataset's writer ---


def a_users_loop(photos: Path) -> Iterator[dict[str, Any]]:
    for number, path in enumerate(sorted(photos.glob("*/*.jpg"))[:60]):
        with Image.open(path) as image:
            yield {
                "__key__": f"photo/{number:06}",
                "__note__": "left out by both",
                "jpg": path.read_bytes() if number % 2 else image.convert("RGB"),
                "png": np.asarray(image.convert("L").resize((16, 16))),
                "cls": number % 7,
                "txt": path.name,
                "json": {"number": number, "path": str(path)},
                "box.npy": np.arange(4.0) * number,
            }


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_same_loop_gives_the_same_samples_as_webdatasets_writer(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    read = {}
    for name, kind in (("theirs", webdataset.ShardWriter), ("ours", ShardWriter)):
        with kind(str(tmp_path / name / "train-%06d.tar"), maxcount=25, verbose=0) as sink:
            for sample in a_users_loop(photos):
                sink.write(sample)
        urls = sorted(map(str, (tmp_path / name).glob("*.tar")))
        assert [Path(url).name for url in urls] == [f"train-{number:06d}.tar" for number in range(3)]
        decoded = webdataset.WebDataset(urls, shardshuffle=False).decode("rgb8")
        read[name] = [
            {field: value for field, value in sample.items() if field not in ("__url__", "__local_path__")}
            for sample in decoded
        ]
    assert len(read["ours"]) == 60
    for ours, theirs in zip(read["ours"], read["theirs"], strict=True):
        assert list(ours) == list(theirs)
        for field, value in theirs.items():
            assert np.array_equal(ours[field], value) if isinstance(value, np.ndarray) else ours[field] == value


def test_every_parameter_of_webdatasets_writer_exists_at_the_same_position() -> None:
    ours = list(inspect.signature(ShardWriter).parameters)
    theirs = [name for name in inspect.signature(webdataset.ShardWriter).parameters if name != "kw"]
    assert ours[: len(theirs)] == theirs
    further = [name for name in inspect.signature(webdataset.TarWriter).parameters if name != "fileobj"]
    assert set(further) <= set(ours)
    for name in theirs[:5]:
        assert inspect.signature(ShardWriter).parameters[name].default == (
            inspect.signature(webdataset.ShardWriter).parameters[name].default
        )


@pytest.mark.parametrize(
    "option",
    [
        {"opener": open},
        {"user": "me"},
        {"group": "us"},
        {"mode": 0o600},
        {"compress": True},
        {"compress": "gz"},
        {"keep_meta": True},
        {"mtime": 1e9},
        {"format": "pax"},
    ],
)
def test_unsupported_options_are_refused_not_ignored(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        ShardWriter(tmp_path / "a-%d.tar", **option)
    assert names(tmp_path) == []


def test_options_with_their_only_supported_value_change_nothing_that_is_written(tmp_path: Path) -> None:
    write_all(tmp_path / "default", small(3))
    write_all(tmp_path / "named", small(3), mtime=0, compress=False, keep_meta=False)
    assert contents(tmp_path / "named") == contents(tmp_path / "default")
    with tarfile.open(tmp_path / "named" / "a-000000.tar") as archive:
        assert archive.getnames()[:2] == ["0000.bin", "0000.cls"]
        assert {member.mtime for member in archive} == {0}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a.tar", "has no valid placeholder for a number"),
        ("a-%d-%d.tar", "has no valid placeholder for a number"),
        ("a-%s", "expected a file name with one number"),
        ("a-%d.tgz", "expected a file name with one number"),
        ("a-%d.tar.gz", "expected a file name with one number"),
        ("%d/a.tar", "expected a file name with one number"),
        ("s3://bucket/a-%d.tar", "is not a local path"),
        ("pipe:cat > a-%d.tar", "is not a local path"),
    ],
)
def test_an_invalid_pattern_is_refused(tmp_path: Path, monkeypatch: Any, pattern: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message):
        ShardWriter(pattern)
    assert names(tmp_path) == []


def test_a_name_that_is_invalid_in_a_manifest_is_refused_before_a_sample_is_written(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="rename the file"):
        ShardWriter(f"{tmp_path}/a\n-%d.tar")
    assert names(tmp_path) == []


@pytest.mark.parametrize("option", [{"maxcount": 0}, {"start_shard": -1}, {"maxsize": 0}, {"manifest": "a/b.json"}])
def test_an_option_out_of_range_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        ShardWriter(tmp_path / "a-%d.tar", **option)
    assert names(tmp_path) == []


# --- written files ---


def test_the_result_is_a_dataset_that_verify_and_the_loader_read(photos: Path, tmp_path: Path) -> None:
    paths = sorted(photos.glob("*/*.jpg"))[:40]
    classes = sorted({path.parent.name for path in paths})
    writer = ShardWriter(tmp_path / "out" / "t-%04d.tar", maxcount=16, classes=classes, shuffled=True)
    with writer:
        for number, path in enumerate(paths):
            writer.write({"__key__": f"{number}", "jpg": path.read_bytes(), "cls": classes.index(path.parent.name)})
    assert writer.total == 40
    assert names(tmp_path / "out") == [
        "README.md",
        "manifest.json",
        *(f"t-{number:04d}.{kind}" for number in range(3) for kind in ("parquet", "tar")),
    ]
    report = wt.verify(tmp_path / "out")
    assert report.ok
    assert not report.strangers
    made = writer.manifest
    assert made == manifest_of(tmp_path / "out")
    assert (made.samples, made.fields, made.classes, made.shuffled) == (
        40,
        {"cls": 40, "jpg": 40},
        tuple(classes),
        True,
    )
    with wt.make_loader(tmp_path / "out", batch_size=40, view=wt.Resize((32, 32)), num_workers=1) as loader:
        _, labels = next(iter(loader))
    assert labels.tolist() == [classes.index(path.parent.name) for path in paths]


def test_gnu_tar_lists_a_written_shard(tmp_path: Path) -> None:
    write_all(tmp_path, small(3))
    done = subprocess.run(["tar", "-tf", tmp_path / "a-000000.tar"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split() == [f"{number:04}.{field}" for number in range(3) for field in ("bin", "cls")]


def test_label_and_image_size_are_in_the_index(photos: Path, tmp_path: Path) -> None:
    path = next(photos.glob("*/*.jpg"))
    with ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "a", "jpg": path.read_bytes(), "cls": 5})
        writer.write({"__key__": "b", "png": np.zeros((4, 7), np.uint8), "cls": " 3.0"})
        writer.write({"__key__": "c", "txt": "no image"})
    index = from_bytes((tmp_path / "a-0.parquet").read_bytes(), name="a")
    with Image.open(path) as image:
        assert (index.width[0], index.height[0]) == image.size
    assert index.width.tolist()[1:] == [7, 0]
    assert index.height.tolist()[1:] == [4, 0]
    assert index.label.tolist() == [5, 3, NO_LABEL]
    assert index.mode[1:] == ["L", ""]


def test_names_in_cls_are_classes_when_the_writer_is_closed(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a-%d.tar", maxcount=2) as writer:
        for key, name in enumerate(["fig", "cat", None, "dog"]):
            writer.write({"__key__": f"{key}", "txt": "x", **({"cls": name} if name else {})})
    assert writer.manifest is not None
    assert writer.manifest.classes == ("cat", "dog", "fig")
    found = [from_bytes((tmp_path / f"a-{n}.parquet").read_bytes(), name="a").label.tolist() for n in range(2)]
    assert found == [[2, 0], [NO_LABEL, 1]]
    assert wt.verify(tmp_path).ok


def test_a_number_after_a_name_is_refused_at_once(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "a", "txt": "x", "cls": "fig"})
        with pytest.raises(SampleError, match="either numbers or names"):
            writer.write({"__key__": "b", "txt": "x", "cls": 3})
    assert writer.manifest is not None
    assert writer.manifest.samples == 1


@pytest.mark.parametrize("maxsize", [10_240, 12_800, 50_000])
def test_no_shard_exceeds_maxsize_or_could_hold_another_sample(tmp_path: Path, maxsize: int) -> None:
    made = write_all(tmp_path, small(100), maxsize=maxsize).manifest
    sample_bytes = 2 * 512 + 1024 + 512
    assert made.samples == 100
    for entry in made.shards:
        assert (tmp_path / entry.name).stat().st_size == entry.bytes <= maxsize
        assert entry.bytes == entry.samples * sample_bytes + len(END)
    assert all(entry.bytes + sample_bytes > maxsize for entry in made.shards[:-1])


def test_a_sample_larger_than_maxsize_gets_a_shard_of_its_own(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a-%d.tar", maxsize="10kB") as writer:
        for key, size in (("a", 10), ("b", 50_000), ("c", 10)):
            writer.write({"__key__": key, "bin": bytes(size)})
    assert [entry.samples for entry in writer.manifest.shards] == [1, 1, 1]


def test_maxcount_and_start_shard_are_respected(tmp_path: Path) -> None:
    made = write_all(tmp_path, small(7), maxcount=3, start_shard=10).manifest
    assert [(entry.name, entry.samples) for entry in made.shards] == [
        ("a-000010.tar", 3),
        ("a-000011.tar", 3),
        ("a-000012.tar", 1),
    ]


def test_equal_loops_give_equal_bytes(tmp_path: Path) -> None:
    write_all(tmp_path / "one", small(20), maxcount=6)
    write_all(tmp_path / "two", ({**dict(reversed(sample.items()))} for sample in small(20)), maxcount=6)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_post_is_called_with_each_shard_after_its_index_is_written(tmp_path: Path) -> None:
    seen = []

    def post(path: str) -> None:
        assert Path(path).exists()
        assert Path(path).with_suffix(".parquet").exists()
        seen.append(Path(path).name)

    write_all(tmp_path, small(5), maxcount=2, post=post)
    assert seen == ["a-000000.tar", "a-000001.tar", "a-000002.tar"]


def test_verbose_logs_and_prints_nothing(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    with caplog.at_level(logging.INFO, "wds_tools"):
        write_all(tmp_path / "a", small(1))
        write_all(tmp_path / "b", small(1), verbose=0)
    assert [record.message for record in caplog.records] == [f"writing {tmp_path}/a/a-000000.tar after 0 samples"]
    assert capsys.readouterr() == ("", "")


def test_an_encoder_can_be_a_function_a_mapping_or_none(tmp_path: Path) -> None:
    encoders = {
        "function": lambda sample: {"__key__": sample["__key__"], "bin": bytes(sample["value"])},
        "table": {"value": bytes},
        "none": None,
    }
    for name, encoder in encoders.items():
        with ShardWriter(tmp_path / name / "a-%d.tar", encoder=encoder) as writer:
            writer.write({"__key__": "a", "value": b"\0\0\0" if name == "none" else 3})
        assert open_shards(tmp_path / name).index(0).keys == ["a"]
    with (
        pytest.raises(SampleError, match="is not encoded; expected bytes"),
        ShardWriter(tmp_path / "x-%d.tar", encoder=False) as writer,
    ):
        writer.write({"__key__": "a", "cls": 3})
    with (
        pytest.raises(SampleError, match=r"no function for it; it has \['value'\]"),
        ShardWriter(tmp_path / "x-%d.tar", encoder=encoders["table"]) as writer,
    ):
        writer.write({"__key__": "a", "cls": 3})


# --- invalid samples ---


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"jpg": b"x"}, "__key__ None"),
        ({"__key__": 3, "txt": "x"}, "__key__ 3"),
        ({"__key__": "a"}, "has no fields"),
        ({"__key__": "a.b", "txt": "x"}, "would be read back"),
        ({"__key__": "a", "TXT": "x"}, "lower-case fields"),
        ({"__key__": "a/", "txt": "x"}, "would be read back"),
        ({"__key__": "a", "pyd": [1]}, "key a: field 'pyd' cannot hold list"),
        ({"__key__": "a", "cls": 9}, "allowed are 0 to 2"),
        ({"__key__": "a", "cls": "cat"}, "allowed are 0 to 2"),
        ({"__key__": "k0", "txt": "again"}, "was already written"),
    ],
)
def test_an_invalid_sample_is_refused_and_writing_continues(
    tmp_path: Path, sample: dict[str, Any], message: str
) -> None:
    with ShardWriter(tmp_path / "a-%d.tar", classes=["x", "y", "z"]) as writer:
        writer.write({"__key__": "k0", "txt": "x", "cls": 0})
        with pytest.raises(SampleError, match=message):
            writer.write(sample)
        writer.write({"__key__": "k1", "txt": "x", "cls": 1})
    assert open_shards(tmp_path).index(0).keys == ["k0", "k1"]
    assert wt.verify(tmp_path).ok


def test_bytes_that_are_not_an_image_are_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})
        with pytest.raises(DecodeError, match="field 'jpg' is not a JPEG, PNG, WebP, TIFF, GIF or AVIF"):
            writer.write({"__key__": "b", "jpg": b"BM"})
    assert writer.manifest.samples == 1


# --- errors and interrupted runs ---


def test_after_an_error_finished_shards_stay_and_there_is_no_manifest(tmp_path: Path) -> None:
    def loop() -> None:
        with ShardWriter(tmp_path / "a-%06d.tar", maxcount=3) as writer:
            for sample in small(8):
                writer.write(sample)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        loop()
    shards = [f"a-00000{number}.{kind}" for number in range(2) for kind in ("parquet", "tar")]
    assert names(tmp_path) == [".manifest.json.writing", *shards]
    before = contents(tmp_path)
    with pytest.raises(DestinationError, match=r"2 shards \(a-000000.tar, ...\) of a writer that did not finish"):
        loop()
    assert contents(tmp_path) == before
    # The remedy in the message works.
    (tmp_path / ".manifest.json.writing").unlink()
    assert wt.index_shards(f"{tmp_path}/a-*.tar").samples == 6


def test_fresh_starts_over_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_all(tmp_path, failing(small(8, start=50)), maxcount=3)
    write_all(tmp_path, small(4), maxcount=3, fresh=True)
    write_all(tmp_path / "whole", small(4), maxcount=3)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert left == contents(tmp_path / "whole")


def test_an_error_before_the_first_shard_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_all(tmp_path, failing(small(1)))
    assert names(tmp_path) == []
    write_all(tmp_path, small(1))


def test_a_dataset_is_replaced_only_with_fresh(tmp_path: Path) -> None:
    write_all(tmp_path, small(8), maxcount=3)
    before = contents(tmp_path)
    with pytest.raises(DestinationError, match=r"already exists, with 8 samples: .* fresh=True"):
        ShardWriter(tmp_path / "a-%06d.tar")
    with pytest.raises(DestinationError, match="already exists"):
        ShardWriter(tmp_path / "other-%06d.tar")
    assert contents(tmp_path) == before
    (tmp_path / "notes.txt").write_text("mine")
    write_all(tmp_path, small(2), fresh=True)
    assert names(tmp_path) == ["README.md", "a-000000.parquet", "a-000000.tar", "manifest.json", "notes.txt"]


def test_fresh_does_not_remove_files_of_other_tools(packed_copy: Path, tmp_path: Path) -> None:
    before = contents(packed_copy)
    with pytest.raises(DestinationError, match="was not written by ShardWriter"):
        ShardWriter(packed_copy / "shard-%06d.tar", fresh=True)
    assert contents(packed_copy) == before
    (tmp_path / "a-000000.tar").write_bytes(b"somebody's")
    with pytest.raises(DestinationError, match="exists and does not belong to an unfinished writer"):
        ShardWriter(tmp_path / "a-%06d.tar", fresh=True)
    assert (tmp_path / "a-000000.tar").read_bytes() == b"somebody's"


def test_an_existing_file_is_an_error_when_its_shard_is_started(tmp_path: Path) -> None:
    (tmp_path / "a-000001.tar").write_bytes(b"somebody's")
    with pytest.raises(DestinationError, match=r"a-000001\.tar exists"):
        write_all(tmp_path, small(5), maxcount=2)
    assert (tmp_path / "a-000001.tar").read_bytes() == b"somebody's"
    assert not (tmp_path / "manifest.json").exists()


def test_two_writers_in_one_folder_need_different_manifests(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "train-%d.tar", manifest="train.json") as train:
        with pytest.raises(DestinationError, match="another writer is writing"):
            ShardWriter(tmp_path / "val-%d.tar", manifest="train.json")
        with ShardWriter(tmp_path / "val-%d.tar", manifest="val.json") as val:
            for number, sample in enumerate(small(10)):
                (val if number % 5 == 0 else train).write(sample)
    assert manifest_of(tmp_path, "train.json").samples == 8
    assert manifest_of(tmp_path, "val.json").samples == 2
    assert wt.verify(tmp_path / "train.json").ok


def test_close_without_a_sample_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="no sample was written"):
        ShardWriter(tmp_path / "a-%d.tar").close()
    assert names(tmp_path) == []


def test_close_can_be_called_again_and_no_sample_can_be_written_after_it(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a-%d.tar")
    writer.write(next(small(1)))
    writer.close()
    writer.close()
    with pytest.raises(DestinationError, match="accepts no more samples: it was closed"):
        writer.write(next(small(1)))
    assert manifest_of(tmp_path).samples == 1


def test_close_after_a_failed_write_writes_no_manifest(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a-%d.tar", maxcount=1, post=lambda _: 1 / 0)
    writer.write(next(small(1)))
    with pytest.raises(ZeroDivisionError):
        writer.write(next(small(1, start=1)))
    with pytest.raises(DestinationError, match="accepts no more samples: an earlier write failed"):
        writer.write(next(small(1, start=2)))
    with pytest.raises(DestinationError, match="was not completed: an earlier write failed"):
        writer.close()
    assert not (tmp_path / "manifest.json").exists()
    assert (tmp_path / "a-0.tar").exists()


LOOP = """
import os
from wds_tools import ShardWriter
with ShardWriter("a-%06d.tar", maxcount=3, fresh=True) as writer:
    for number in range(20):
        writer.write({"__key__": f"{number:04}", "bin": bytes([number]) * 1000, "cls": number % 3})
        KILL
"""


@pytest.mark.parametrize("moment", [0, 5, 19])
def test_after_a_kill_fresh_gives_the_bytes_of_a_run_without_one(tmp_path: Path, moment: int) -> None:
    killed = run(LOOP.replace("KILL", f"if number == {moment}: os.kill(os.getpid(), 9)"), tmp_path)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "manifest.json").exists()
    if moment > 3:
        with pytest.raises(DestinationError, match="did not finish"):
            ShardWriter(tmp_path / "a-%06d.tar")
    done = run(LOOP.replace("KILL", ""), tmp_path)
    assert done.returncode == 0, done.stderr
    write_all(tmp_path / "whole", small(20), maxcount=3)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert left == contents(tmp_path / "whole")


# Writes in a forked process that is killed before its n-th change of the disk, for each n until one run completes.
KILL_EVERYWHERE = """
import os, sys
from wds_tools import ShardWriter
from wds_tools.packing import shard_writer, writer_lock

def attempt(number):
    left = number
    def hook(event, arguments):
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if writes or event in ("os.rename", "os.remove", "os.truncate", "os.rmdir"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), 9)
    sys.addaudithook(hook)
    with ShardWriter(f"{number}/a-%06d.tar", maxcount=8, fresh=True) as writer:
        for key in range(20):
            writer.write({"__key__": f"{key:04}", "bin": bytes([key]) * 1000, "cls": key % 3})
    os._exit(0)

number = 1
while True:
    child = os.fork()
    if not child:
        attempt(number)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -9:
        break
    number += STEP
print(number)
"""


@pytest.mark.parametrize(("replaces", "step"), [(False, 5), (False, 1), (True, 1)])
@pytest.mark.torture_except("False-5")
def test_fresh_recovers_from_a_kill_at_any_change_of_the_disk(tmp_path: Path, replaces: bool, step: int) -> None:
    write_all(tmp_path / "whole", small(20), maxcount=8)
    for number in range(1, 61, step):
        if replaces:
            write_all(tmp_path / str(number), small(12, start=100), maxcount=3)
    done = run(f"STEP = {step}\n{KILL_EVERYWHERE}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert 10 < int(done.stdout) <= 60
    for number in range(1, int(done.stdout), step):
        folder = tmp_path / str(number)
        if (folder / "manifest.json").exists():
            assert wt.verify(folder).ok
        write_all(folder, small(20), maxcount=8, fresh=True)
        assert contents(folder) == contents(tmp_path / "whole"), number


def test_a_full_disk_is_an_error_with_the_number_of_kept_shards(tmp_path: Path) -> None:
    script = (
        "import resource\nfrom wds_tools import ShardWriter\n"
        "with ShardWriter('a-%d.tar', maxcount=2) as writer:\n"
        "    writer.write({'__key__': '0', 'bin': bytes(1000)})\n"
        "    writer.write({'__key__': '1', 'bin': bytes(1000)})\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "    for key in range(2, 4): writer.write({'__key__': str(key), 'bin': bytes(900_000)})\n"
    )
    done = run(script, tmp_path)
    assert done.returncode == 1
    assert "DestinationError: cannot write a-%d.tar: File too large; 1 finished shards are kept" in done.stderr
    assert names(tmp_path) == [".manifest.json.writing", "a-0.parquet", "a-0.tar"]


def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    script = (
        "import resource\nfrom wds_tools import ShardWriter\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with ShardWriter('a-%d.tar', maxcount=50) as writer:\n"
        "    for number in range(1000):\n"
        "        writer.write({'__key__': str(number), 'bin': bytes(200_000)})\n"
        "        if number == 100: before = peak()\n"
        "print(peak() - before)"
    )
    done = run(script, tmp_path)
    assert int(done.stdout) < 30_000, "kB, of 180,000 that were written"


def test_the_source_in_the_manifest_is_shard_writer(tmp_path: Path) -> None:
    write_all(tmp_path, small(1))
    assert json.loads((tmp_path / "manifest.json").read_text())["source"] == {
        "kind": "ShardWriter",
        "pattern": "a-%06d.tar",
    }


def test_an_array_that_is_not_an_image_can_be_the_only_field(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(2):
            writer.write({"__key__": str(number), "npy": np.full((2, 8), number)})
    with wt.make_loader(tmp_path, batch_size=2, fields=("npy",), num_workers=0) as loader:
        assert next(iter(loader)).npy[:, 0, 0].tolist() == [0, 1]
