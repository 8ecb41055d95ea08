"""The block cache: contents, limits, locks, and processes that are killed."""

import fcntl
import multiprocessing
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.storage.cache.blocks import CHECKSUM_BYTES, BlockCache, cached_datasets, damaged_blocks

URL = "s3://bucket/train"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "blocks"


def blocks_of(folder: Path) -> list[Path]:
    """Return the files of blocks, and temporary files."""
    return [path for path in folder.glob("*/*") if path.name != "url"]


def usage_of(folder: Path) -> int:
    return int((folder / "usage").read_text())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in blocks_of(folder))


def test_a_stored_block_is_returned_as_a_mapping(folder):
    blocks = BlockCache(folder, 10**6, url=URL)
    assert blocks.put("a", b"one")
    assert bytes(blocks.get("a", 3)) == b"one"
    assert blocks.get("b", 3) is None
    assert blocks.contains("a")
    assert not blocks.contains("b")


def test_blocks_of_datasets_with_equal_names_do_not_collide(folder):
    first, second = (BlockCache(folder, 10**6, url=url) for url in ("s3://a", "s3://b"))
    first.put("x", b"1")
    second.put("x", b"2")
    assert bytes(first.get("x", 1)) == b"1"
    assert bytes(second.get("x", 1)) == b"2"


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda _: b"", lambda b: b + b"x"])
def test_a_block_of_another_length_is_missing_and_removed(folder, change):
    BlockCache(folder, 10**6, url=URL).put("a", b"content" * 100)
    (path,) = blocks_of(folder)
    path.write_bytes(change(path.read_bytes()))
    assert BlockCache(folder, 10**6, url=URL).get("a", 700) is None
    assert not path.exists()


def test_an_evicted_block_stays_valid_for_those_that_have_it(folder):
    blocks = BlockCache(folder, 300_000, url=URL)
    blocks.put("kept", b"k" * 100_000)
    view = blocks.get("kept", 100_000)
    for number in range(10):
        blocks.put(f"{number}", bytes(100_000))
    assert not blocks.contains("kept")
    assert bytes(view) == b"k" * 100_000


def test_the_least_recently_used_block_is_evicted_first(folder):
    blocks = BlockCache(folder, 2_000_000, url=URL)
    blocks.put("kept", b"k" * 10_000)
    for number in range(150):
        blocks.put(f"block {number}", bytes(20_000))
        assert blocks.contains("kept")
        assert size_of(folder) <= 2_000_000
    assert blocks.contains("block 149")
    assert not blocks.contains("block 0")


def test_a_released_block_is_evicted_before_others(folder):
    blocks = BlockCache(folder, 1_000_000, url=URL)
    for number in range(9):
        blocks.put(f"{number}", bytes(100_000))
    blocks.release(["7", "8", "missing"])
    blocks.put("new", bytes(100_000))
    assert [blocks.contains(f"{number}") for number in range(7)] == [True] * 7
    assert not (blocks.contains("7") and blocks.contains("8"))


def test_a_block_larger_than_the_limit_is_not_stored_and_warned_of_once(folder, caplog):
    blocks = BlockCache(folder, 1000, url=URL)
    assert not blocks.put("a", bytes(2000))
    assert not blocks.put("b", bytes(2000))
    assert size_of(folder) == 0
    assert caplog.text.count("cache_bytes=1,000") == 1


def test_a_cache_that_cannot_be_written_raises_no_error(tmp_path, caplog):
    (tmp_path / "blocks").write_text("a file where the folder should be")
    blocks = BlockCache(tmp_path / "blocks", 10**6, url=URL)
    assert not blocks.put("a", b"x")
    assert blocks.get("a", 1) is None
    assert "cannot be cached" in caplog.text


def claim_without_access_to_the_folder(folder: Path) -> None:
    (folder / "usage").chmod(0)
    if os.getuid() == 0:  # root has access all the same
        os.setuid(65_534)
    blocks = BlockCache(folder, 10**6, url=URL)
    with blocks.claim("a", wait=True) as first, blocks.claim("b", wait=False) as second:
        os._exit(0 if first and second and not blocks.put("a", b"x") else 1)


def test_a_block_of_a_cache_of_another_user_can_be_claimed(folder):
    BlockCache(folder, 10**6, url=URL).put("a", b"x")
    process = multiprocessing.get_context("fork").Process(target=claim_without_access_to_the_folder, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0


def map_with_a_memory_limit(folder: Path) -> None:
    names, size = "abcdef", 8 << 20
    blocks = BlockCache(folder, 10**9, url=URL)
    for name in names:
        blocks.put(name, bytes(size))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * size,) * 2)
    one_by_one = [blocks.get(name, size) is not None for name in names]
    kept = [blocks.get(name, size) for name in names]
    os._exit(0 if all(one_by_one) and kept[0] is not None and kept[-1] is None else 1)


def test_blocks_that_memory_does_not_allow_to_map_count_as_missing(folder):
    process = multiprocessing.get_context("fork").Process(target=map_with_a_memory_limit, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0


def write_with_a_file_size_limit(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    blocks = BlockCache(folder, 10**6, url=URL)
    os._exit(0 if not blocks.put("large", bytes(100_000)) and blocks.put("small", bytes(1000)) else 1)


def test_a_write_that_fails_is_not_an_error_and_leaves_nothing(folder):
    folder.mkdir()
    process = multiprocessing.get_context("fork").Process(target=write_with_a_file_size_limit, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert size_of(folder) == 1000 + CHECKSUM_BYTES
    assert usage_of(folder) == 1000 + CHECKSUM_BYTES


@pytest.mark.parametrize("content", ["", "many" * 5, None])
def test_a_lost_byte_count_is_counted_again(folder, content):
    blocks = BlockCache(folder, 1_000_000, url=URL)
    for number in range(5):
        blocks.put(f"{number}", bytes(100_000))
    if content is None:
        (folder / "usage").unlink()
    else:
        (folder / "usage").write_text(content)
    blocks.put("5", bytes(100_000))
    assert usage_of(folder) == size_of(folder) == 6 * (100_000 + CHECKSUM_BYTES)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40_000), st.sampled_from("pdr")), max_size=60))
def test_the_byte_count_is_exact_and_below_the_limit(tmp_path_factory, steps):
    folder, sizes = tmp_path_factory.mktemp("blocks"), {}
    blocks = BlockCache(folder, 100_000, url=URL)
    for name, size, step in steps:
        if step == "d":
            blocks.drop(str(name))
            sizes.pop(name, None)
        elif step == "r":
            blocks.release([str(name)])
        elif name not in sizes or not blocks.contains(str(name)):
            assert blocks.put(str(name), bytes([name]) * size)
            sizes[name] = size
        assert size_of(folder) <= 100_000
        for known, known_size in sizes.items():
            found = blocks.get(str(known), known_size)
            assert found is None or bytes(found) == bytes([known]) * known_size
    if steps and (folder / "usage").exists():
        assert usage_of(folder) == size_of(folder)


LIMIT = 600_000


def put_forever(folder: Path, seed: int) -> None:
    blocks, number = BlockCache(folder, LIMIT, url=URL), 0
    while True:
        number += 1
        blocks.put(f"{seed} {number}", bytes([number % 256]) * 30_000)


def test_many_processes_keep_the_limit_and_kills_leave_only_whole_blocks(folder):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=put_forever, args=(folder, seed)) for seed in range(4)]
    BlockCache(folder, LIMIT, url=URL).put("first", b"")
    for process in processes:
        process.start()
    largest = looks = 0
    while largest < 0.9 * LIMIT or looks < 10:  # until blocks have to be evicted, and then for a while
        time.sleep(0.01)
        looks += largest >= 0.9 * LIMIT
        with (folder / "usage").open("r+b") as locks:
            fcntl.lockf(locks, fcntl.LOCK_EX, 1, 0)  # nobody reserves bytes while they are counted
            largest = max(largest, sum(size_if_there(path) for path in blocks_of(folder)))
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    assert largest <= LIMIT
    blocks = BlockCache(folder, LIMIT, url=URL)
    for number in range(100):  # the folder is usable, and keeps its limit
        assert blocks.put(f"after {number}", bytes(30_000))
    assert size_of(folder) <= LIMIT
    (dataset,) = cached_datasets(folder)
    assert not any(is_damaged for _, is_damaged in damaged_blocks(dataset))


def size_if_there(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def hold(folder: Path, name: str, pipe) -> None:
    with BlockCache(folder, 10**6, url=URL).claim(name, wait=True) as is_claimed:
        pipe.send(is_claimed)
        time.sleep(60)


def test_a_claimed_block_is_free_when_its_holder_is_killed(folder):
    folder.mkdir()
    receiver, sender = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(folder, "a", sender))
    process.start()
    assert receiver.recv()
    blocks = BlockCache(folder, 10**6, url=URL)
    with blocks.claim("a", wait=False) as is_claimed:
        assert not is_claimed
    with blocks.claim("b", wait=False) as is_claimed:
        assert is_claimed
    process.kill()
    process.join()
    with blocks.claim("a", wait=True) as is_claimed:
        assert is_claimed


def test_cached_datasets_lists_each_dataset_with_its_size(folder):
    BlockCache(folder, 10**6, url="s3://b/y").put("1", bytes(1000))
    other = BlockCache(folder, 10**6, url="s3://b/x")
    other.put("1", bytes(500))
    other.put("2", bytes(500))
    found = cached_datasets(folder)
    assert [(dataset.url, dataset.blocks, dataset.bytes) for dataset in found] == [
        ("s3://b/x", 2, 1000 + 2 * CHECKSUM_BYTES),
        ("s3://b/y", 1, 1000 + CHECKSUM_BYTES),
    ]
    assert all(time.time() - dataset.last_use < 600 for dataset in found)


def test_damaged_blocks_are_found(folder):
    blocks = BlockCache(folder, 10**6, url=URL)
    for number in range(5):
        blocks.put(f"{number}", bytes(1000))
    paths = sorted(blocks_of(folder))
    with paths[2].open("r+b") as file:
        file.seek(500)
        file.write(b"x")
    (dataset,) = cached_datasets(folder)
    assert list(damaged_blocks(dataset)) == [(path, path == paths[2]) for path in paths]


def content_of(number: int) -> bytes:
    return number.to_bytes(4, "little") * (500 + number % 3000)


def use_at_random(folder: Path, seed: int) -> None:
    """Put, read, drop and release blocks of 40 names until killed; end with status 1 after a wrong byte."""
    blocks, random_numbers = BlockCache(folder, 200_000, url=URL), random.Random(seed)
    while True:
        number = random_numbers.randrange(40)
        name, content = str(number), content_of(number)
        step = random_numbers.choice(["put", "put", "get", "get", "drop", "release"])
        if step == "put":
            with blocks.claim(name, wait=True):
                if not blocks.contains(name):
                    blocks.put(name, content)
        elif step == "get":
            found = blocks.get(name, len(content))
            if found is not None and found != content:
                os._exit(1)
        elif step == "drop":
            blocks.drop(name)
        else:
            blocks.release([name])


def check_races_and_kills(folder: Path, kills: int) -> None:
    context, random_numbers = multiprocessing.get_context("fork"), random.Random(0)
    processes = [context.Process(target=use_at_random, args=(folder, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for seed in range(4, 4 + kills):
        time.sleep(random_numbers.random() * 0.02)
        position = random_numbers.randrange(4)
        processes[position].kill()
        processes[position].join()
        assert processes[position].exitcode == -signal.SIGKILL
        processes[position] = context.Process(target=use_at_random, args=(folder, seed))
        processes[position].start()
    for process in processes:
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    (dataset,) = cached_datasets(folder)
    assert not any(is_damaged for _, is_damaged in damaged_blocks(dataset))
    assert size_of(folder) <= 200_000
    with BlockCache(folder, 200_000, url=URL).claim("0", wait=False) as is_claimed:
        assert is_claimed


def test_processes_that_race_and_are_killed_never_leave_a_wrong_byte(folder):
    check_races_and_kills(folder, 4)


@pytest.mark.torture
@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.night) for run in (1, 2))])
def test_a_thousand_kills_never_leave_a_wrong_byte(folder, run):
    check_races_and_kills(folder, 1000)
