"""`wds-tools copy`: verified, resumable, and complete or without a manifest."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import bad_server
import preloaded
import pytest
from bad_server import BadServer
from servers import in_thread

import wds_tools as wt
from wds_tools.errors import ChecksumError, DestinationError, ManifestError, NotADatasetError, OptionError, StoreError
from wds_tools.format.manifest import seal
from wds_tools.service.tokens import create_token
from wds_tools.storage.lock import COPY_NAME, lock_file
from wds_tools.upkeep import copier
from wds_tools.upkeep.copier import copy_dataset


@pytest.fixture
def server(few: Path) -> Iterator[BadServer]:
    server = BadServer({f"/{path.name}": path.read_bytes() for path in few.iterdir()})
    with server.running():
        yield server


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_copy_is_the_same_dataset(server: BadServer, few: Path, tmp_path: Path) -> None:
    report = copy_dataset(server.url, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(few)
    assert (report.manifest.samples, report.kept_bytes) == (40, 0)
    assert wt.verify(tmp_path / "copy").ok


def test_the_same_call_again_copies_nothing(server: BadServer, tmp_path: Path) -> None:
    copy_dataset(server.url, tmp_path / "copy")
    requests = len(server.requests)
    report = copy_dataset(server.url, tmp_path / "copy")
    assert report.copied_bytes == 0
    assert len(server.requests) == requests + 1  # the manifest


def test_missing_and_short_files_of_a_copy_are_copied_again(server: BadServer, few: Path, tmp_path: Path) -> None:
    copy_dataset(server.url, tmp_path / "copy")
    first, second, *_ = sorted((tmp_path / "copy").glob("*.tar"))
    first.unlink()
    second.write_bytes(b"short")
    copy_dataset(server.url, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(few)


def start(server: BadServer, dst: Path, answers: int) -> preloaded.Process:
    """Start a copy that waits for ever after some answers; return it when it does."""
    server.answers.extend([bad_server.good] * answers + [bad_server.no_answer] * 100)
    process = preloaded.Process(["-m", "wds_tools.cli", "copy", server.url, dst], imports=preloaded.COMMANDS)
    while len(server.requests) < answers + copier.THREADS:
        time.sleep(0.01)
    server.answers.clear()
    return process


def test_a_copy_that_was_killed_is_continued_and_has_no_manifest_before(
    server: BadServer, few: Path, tmp_path: Path
) -> None:
    process = start(server, tmp_path / "copy", 5)
    process.kill()
    process.wait()
    assert not (tmp_path / "copy" / "manifest.json").exists()
    report = copy_dataset(server.url, tmp_path / "copy")
    assert report.kept_bytes > 0
    assert files(tmp_path / "copy") == files(few)


def test_an_unfinished_file_is_continued_from_its_last_byte(server: BadServer, few: Path, tmp_path: Path) -> None:
    dst = tmp_path / "copy"
    (dst / COPY_NAME).mkdir(parents=True)
    shutil.copy(few / "manifest.json", dst / COPY_NAME)
    shard = (few / "shard-000000.tar").read_bytes()
    (dst / COPY_NAME / "shard-000000.tar.part").write_bytes(shard[:70_000])
    copy_dataset(server.url, dst)
    assert [r.span for r in server.requests if r.path == "/shard-000000.tar"] == [(70_000, len(shard))]
    assert files(dst) == files(few)


def test_a_damaged_part_of_an_earlier_run_is_noticed(server: BadServer, few: Path, tmp_path: Path) -> None:
    dst = tmp_path / "copy"
    (dst / COPY_NAME).mkdir(parents=True)
    shutil.copy(few / "manifest.json", dst / COPY_NAME)
    (dst / COPY_NAME / "shard-000000.tar.part").write_bytes(b"\0" * 70_000)
    copy_dataset(server.url, dst)
    assert files(dst) == files(few)


def test_a_damaged_shard_at_the_url_is_named_and_not_kept(server: BadServer, tmp_path: Path) -> None:
    data = bytearray(server.objects["/shard-000001.tar"])
    data[1000] ^= 1
    server.objects["/shard-000001.tar"] = bytes(data)
    with pytest.raises(ChecksumError, match=r"shard-000001\.tar.*its XXH3-128 is"):
        copy_dataset(server.url, tmp_path / "copy")
    assert not (tmp_path / "copy" / "shard-000001.tar").exists()
    assert not (tmp_path / "copy" / "manifest.json").exists()


def test_a_missing_shard_at_the_url_is_named(server: BadServer, tmp_path: Path) -> None:
    del server.objects["/shard-000001.tar"]
    with pytest.raises(StoreError, match=r"shard-000001\.tar is missing, but its manifest lists it"):
        copy_dataset(server.url, tmp_path / "copy")


def test_a_url_without_a_manifest_is_refused(server: BadServer, tmp_path: Path) -> None:
    with pytest.raises(NotADatasetError, match=r"has no manifest\.json"):
        copy_dataset(f"{server.url}/none", tmp_path / "copy")


def test_a_folder_with_something_else_is_refused(server: BadServer, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(DestinationError, match=r"contains a\.txt, and is not a copy"):
        copy_dataset(server.url, tmp_path)
    with pytest.raises(DestinationError, match="is a copy of another dataset"):
        copy_dataset(server.url, packed)
    assert not (packed / COPY_NAME).exists()


def test_two_copies_into_one_folder_exclude_each_other(server: BadServer, tmp_path: Path) -> None:
    lock = lock_file(tmp_path / "copy" / COPY_NAME / "lock")
    try:
        with pytest.raises(DestinationError, match="another program is copying into"):
            copy_dataset(server.url, tmp_path / "copy")
    finally:
        os.close(lock)


@pytest.mark.parametrize("name", [".copying", "manifest.json", "README.md"])
def test_a_manifest_with_names_that_the_copy_needs_is_refused(
    server: BadServer, few: Path, tmp_path: Path, name: str
) -> None:
    raw = json.loads((few / "manifest.json").read_bytes())
    raw["shards"][0]["name"] = name
    server.objects["/manifest.json"] = seal(raw).encode()
    with pytest.raises(ManifestError, match="this name has another use"):
        copy_dataset(server.url, tmp_path / "copy")


def test_only_urls_are_copied_and_only_to_folders(tmp_path: Path) -> None:
    for url, dst in ((str(tmp_path), tmp_path / "copy"), ("http://h/a", "s3://b/a")):
        with pytest.raises(OptionError, match="copy reads a URL and writes a local folder"):
            copy_dataset(url, dst)


def test_the_command_copies_from_the_service_with_a_token(few: Path, tmp_path: Path) -> None:
    _, secret = create_token(tmp_path / "tokens.json")
    with in_thread(few, token_file=tmp_path / "tokens.json") as url:
        command = ["copy", f"{url}/data/{few.name}", tmp_path / "copy"]
        environment = {**os.environ, "WDS_TOOLS_RETRY_SECONDS": "1"}
        done = preloaded.command(*command, env=environment)
        assert done.returncode == 1
        assert "HTTP 401" in done.stderr
        assert "the request has no token: send" in done.stderr
        assert f"set WDS_TOOLS_TOKEN={url}=TOKEN" in done.stderr
        environment["WDS_TOOLS_TOKEN"] = f"{url}={secret}"
        done = preloaded.command(*command, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "copied 40 samples in" in done.stdout
    assert files(tmp_path / "copy") == files(few)


def test_an_interrupted_command_reports_how_to_continue(server: BadServer, tmp_path: Path) -> None:
    process = start(server, tmp_path / "copy", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert "run the same command again to continue" in process.stderr
