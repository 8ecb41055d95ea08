"""Listings of buckets: folders side by side, with the same objects as one listing of everything."""

from __future__ import annotations

import threading
import time
from typing import Any

import fsspec
import pytest
from buckets import empty_s3

from wds_tools.options import RemoteOptions
from wds_tools.sources.detect import open_source
from wds_tools.storage.requests import listing
from wds_tools.storage.requests.listing import LISTS, list_objects

LAYOUTS = {
    "classes": [f"c{number}/{name}.jpg" for number in range(40) for name in "ab"],
    "few folders": ["train/c/1.jpg", "train/d/2.jpg", "val/c/deep/er/3.jpg", "top.jpg", "train/near.txt"],
    "flat": ["1.jpg", "2.jpg"],
    "folder objects": ["", "c/", "c/1.jpg", "c/d/", "c/d/2.jpg", "empty/"],
    "a name that is a folder": ["c", "c/1.jpg"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.torture_except("a name that is a folder")
def test_the_objects_of_a_bucket_are_those_of_one_listing(moto, monkeypatch, layout):
    for name, value in {"ENDPOINT_URL": moto, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client = empty_s3(moto)
    for name in LAYOUTS[layout]:
        client.pipe_file(f"bucket/photos/{name}", b"x" * len(name)) if name and name[-1] != "/" else client.call_s3(
            "put_object", Bucket="bucket", Key=f"photos/{name}", Body=b""
        )
    client.pipe_file("bucket/photos-2/other.jpg", b"x")
    found = list_objects("s3://bucket/photos/", RemoteOptions.of())
    with monkeypatch.context() as patch:
        patch.setattr(listing, "_BY_PREFIX", set())
        assert found == list_objects("s3://bucket/photos/", RemoteOptions.of())
    assert {name for name in LAYOUTS[layout] if name[-1:] not in ("", "/")} <= set(found)
    assert list_objects("s3://bucket/nothing", RemoteOptions.of()) == {}


class SlowStore(fsspec.AbstractFileSystem):
    """10 folders of 10 folders of 4 objects; each listing of at most 10 entries takes a moment."""

    protocol = "slow"
    running: int = 0
    most: int = 0
    requests: int = 0
    _lock = threading.Lock()

    def _page(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for _page in range(0, max(1, len(entries)), 10):
            with SlowStore._lock:
                SlowStore.requests += 1
                SlowStore.running += 1
                SlowStore.most = max(SlowStore.most, SlowStore.running)
            time.sleep(0.01)
            with SlowStore._lock:
                SlowStore.running -= 1
        return entries

    def _keys(self, path: str) -> list[str]:
        keys = [f"b/{one}/{two}/{name}.jpg" for one in range(10) for two in range(10) for name in range(4)]
        return [key for key in keys if key.startswith(f"{path.rstrip('/')}/")]

    def ls(self, path: str, **_: Any) -> list[dict[str, Any]]:
        path = self._strip_protocol(path)
        names = {"/".join(key.split("/")[: path.count("/") + 2]) for key in self._keys(path)}
        kinds = [{"name": name, "size": 5, "type": "file" if name.endswith(".jpg") else "directory"} for name in names]
        return self._page(kinds)

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:  # type: ignore[override]
        path = self._strip_protocol(path)
        return {
            entry["name"]: entry
            for entry in self._page([{"name": key, "size": 5, "type": "file"} for key in self._keys(path)])
        }

    def cat_file(self, path: str, *_: Any, **__: Any) -> bytes:
        raise FileNotFoundError(path)


fsspec.register_implementation("slow", SlowStore, clobber=True)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowStore]:
    SlowStore.running = SlowStore.most = SlowStore.requests = 0
    monkeypatch.setattr(listing, "_BY_PREFIX", {"slow"})
    return SlowStore


def test_folders_of_a_bucket_are_listed_side_by_side(slow):
    assert len(list_objects("slow://b", RemoteOptions.of())) == 400
    assert LISTS // 2 < slow.most <= LISTS


def test_folders_with_few_objects_each_are_listed_together(slow, monkeypatch):
    monkeypatch.setattr(listing, "_MOST_FOLDERS", 5)
    assert len(list_objects("slow://b", RemoteOptions.of())) == 400
    assert slow.requests == 1 + 40  # the folders, then all objects


def test_a_bucket_is_listed_once_to_detect_its_kind_and_to_pack_it(slow):
    source = open_source("slow://b")
    after_detecting = slow.requests
    assert after_detecting
    with pytest.raises(Exception, match="pack"):
        source.scan()
    assert slow.requests == after_detecting
