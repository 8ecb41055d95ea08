"""Datasets of `pack` are listed from their indexes: the shards are read once, when they are packed."""

import shutil

import numpy as np
import pytest
from PIL import Image

import wds_tools as wt
from wds_tools.errors import SourceError, StoreError


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


def reshard(src, dst, **options):
    return wt.reshard(src, dst, **{"shard_bytes": "400kB", "workers": 1, "progress": False, **options})


def without_indexes(src, folder):
    """Return a copy of a dataset whose indexes are missing, so that its shards are read to be listed."""
    copied = shutil.copytree(src, folder)
    for path in copied.glob("*.parquet"):
        path.unlink()
    return copied


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    """Return a dataset with masks, text and samples without some fields, labels or JSON."""
    folder = tmp_path_factory.mktemp("fields") / "packed"
    with wt.ShardWriter(folder / "written" / "%d.tar", maxcount=15) as writer:
        for number in range(40):
            image = np.full((16, 16, 3), number, np.uint8)
            more = {"txt": "a" * number} if number % 3 else {}
            mask = {"mask.png": Image.fromarray(image[:, :, 0])} if number % 4 else {}
            label = {"cls": number % 5} if number % 7 else {}
            writer.write({"__key__": f"k{number:04d}", "png": Image.fromarray(image), **more, **mask, **label})
    wt.reshard(folder / "written", folder / "dataset", shard_bytes="30kB", progress=False, workers=1)
    return folder / "dataset"


@pytest.mark.parametrize("name", ["few", "fields"])
@pytest.mark.torture_except("fields")
def test_shards_from_indexes_are_those_of_shards_that_are_read(request, tmp_path, name):
    src = request.getfixturevalue(name)
    for number, options in enumerate(({}, {"shuffle": True})):
        copied, read, listed = (tmp_path / f"{kind}-{number}" for kind in ("copy", "read", "listed"))
        reports = reshard(without_indexes(src, copied), read, **options), reshard(src, listed, **options)
        assert content(listed) == content(read)
        assert reports[0].account == reports[1].account
        assert reports[0].manifest.classes == reports[1].manifest.classes
        src = listed  # a dataset whose JSON has the keys


def damage(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_only_the_first_samples_are_read_before_packing(few_copy, tmp_path):
    last = sorted(few_copy.glob("*.tar"))[-1]
    damage(last, 0)  # the name of a member
    with pytest.raises(StoreError, match=rf"{last.name} is damaged, or changed while it was packed"):
        reshard(few_copy, tmp_path / "x")
    assert (tmp_path / "x" / "shard-000000.tar").exists()


@pytest.mark.parametrize("what", ["missing", "damaged", "of another shard"])
@pytest.mark.torture_except("missing", "damaged")
def test_a_shard_without_a_valid_index_is_read(few, few_copy, tmp_path, what):
    first, second, *_ = sorted(few_copy.glob("*.parquet"))
    if what == "missing":
        second.unlink()
    elif what == "damaged":
        damage(second, 100)
    else:
        shutil.copy(first, second)
    reshard(few_copy, tmp_path / "x")
    reshard(few, tmp_path / "y")
    assert content(tmp_path / "x") == content(tmp_path / "y")


@pytest.mark.torture
def test_worker_processes_pack_what_was_listed_from_indexes(few, tmp_path):
    for workers in (1, 2):
        reshard(few, tmp_path / f"{workers}", workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_a_truncated_shard_is_an_error_before_packing(few_copy, tmp_path):
    path = sorted(few_copy.glob("*.tar"))[-1]
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(SourceError, match=rf"{path.name} cannot be packed"):
        wt.pack(few_copy, tmp_path / "x", kind="webdataset", dry_run=True, progress=False)
