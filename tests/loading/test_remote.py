"""Loaders that read from a server: the same batches as from a folder, or the named error, whatever the server does."""

import contextlib
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import bad_server
import mounts
import numpy as np
import preloaded
import pytest
from bad_server import BadServer
from piped import piped
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import ChecksumError, MissingFileError, OptionError, StoreError
from wds_tools.inspection.forecast import forecast
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.storage.cache.fetcher import DIRECT_SHARE

BATCH = 16


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, photos):
    """Return a packed dataset of 200 images in about 10 shards."""
    folder = tmp_path_factory.mktemp("remote")
    for path in photos.glob("*/*[02468].*"):
        link = folder / "images" / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    wt.pack(folder / "images", folder / "photos", shard_bytes="250kB", workers=1, images="keep")
    return folder / "photos"


@pytest.fixture
def server(dataset):
    server = BadServer({f"/{path.name}": path.read_bytes() for path in dataset.iterdir()})
    with server.running():
        yield server


VIEW = wt.CenterCrop(64, resize=72)


def content(batch):
    """Return the keys of a batch, and a sum of the pixels of each image."""
    return list(batch.key), batch.image.sum((1, 2, 3)).tolist()


def epochs_of(source, *, count=1, workers=2, **options):
    """Return the batches of some epochs as (keys, bytes of the images)."""
    batches = []
    with wt.make_loader(
        source, batch_size=BATCH, shuffle=True, num_workers=workers, fields=("image", "__key__"), view=VIEW, **options
    ) as loader:
        for _ in range(count):
            batches += [content(batch) for batch in loader]
    return batches


@pytest.fixture(scope="session")
def expected(dataset):
    return epochs_of(dataset, count=2, workers=0)


def ranges_of(server, suffix=".tar"):
    """Return (path, start, stop) of each range that was requested of a file."""
    return [(r.path, *r.span) for r in server.requests if r.path.endswith(suffix) and r.span]


def bytes_of(server):
    return sum(stop - start for _, start, stop in ranges_of(server))


def size_of(dataset):
    return sum(path.stat().st_size for path in dataset.glob("*.tar"))


def fetchers():
    """Return the process numbers of the fetcher processes that were started for this test."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_fetcher = b"fetcher_process" in (path / "cmdline").read_bytes()
            cache = f"WDS_TOOLS_CACHE_DIR={os.environ['WDS_TOOLS_CACHE_DIR']}".encode()
            if is_fetcher and cache in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def two_epochs_of(server, *, workers=2, method=None, **options):
    """Read two epochs; return the batches, and what was requested and counted after each epoch."""
    with wt.make_loader(
        server.url,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        fields=("image", "__key__"),
        view=VIEW,
        multiprocessing_context=method,
        **options,
    ) as loader:
        first = [content(batch) for batch in loader]
        after = [(loader.fetch_statistics, len(server.requests))]
        second = [content(batch) for batch in loader]
        after.append((loader.fetch_statistics, len(server.requests)))
        return SimpleNamespace(batches=first + second, after=after, fetchers=fetchers(), server=server)


@pytest.fixture(scope="module")
def two_epochs(dataset, tmp_path_factory, quick_collections):
    """Read two epochs with two workers, and wait for the end of the fetcher without the garbage collector."""
    server = BadServer({f"/{path.name}": path.read_bytes() for path in dataset.iterdir()})
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch, server.running():
            patch.setenv("WDS_TOOLS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
            found = two_epochs_of(server)
            wait_for(lambda: not fetchers())
    finally:
        gc.enable()
    return found


def test_batches_are_those_of_the_local_folder_and_the_second_epoch_requests_nothing(two_epochs, expected):
    assert_read(two_epochs, expected)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "spawn")])
@pytest.mark.torture
def test_batches_do_not_depend_on_workers_and_their_start_method(server, dataset, expected, workers, method):
    assert_read(two_epochs_of(server, workers=workers, method=method), expected)


def assert_read(found, expected):
    (_, requests), (statistics, last) = found.after
    assert found.batches == expected
    assert statistics.requests == requests == last
    assert statistics.fetched_bytes >= bytes_of(found.server)
    assert statistics.cached_blocks > 0
    assert statistics.hit_rate == pytest.approx(0.5, abs=0.1)  # a few blocks are counted late
    assert not [request for request in found.server.requests if request.method == "HEAD"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture
def test_the_partners_of_a_mosaic_cost_no_further_requests(server, dataset, workers):
    fields = {"image": wt.Image(view=wt.Mosaic(48)), "key": wt.Key()}
    options = {"batch_size": BATCH, "shuffle": 40, "num_workers": workers, "fields": fields}
    with wt.make_loader(dataset, **options) as loader:
        expected = [content(batch) for _ in range(2) for batch in loader]
    with wt.make_loader(server.url, **options) as loader:
        first = [content(batch) for batch in loader]
        requests = len(server.requests)
        assert first + [content(batch) for batch in loader] == expected
        assert len(server.requests) == requests
    spans = [span for span in ranges_of(server) if span[2] - span[1] > 20_000]
    assert len(spans) == len(set(spans))
    assert sum(stop - start for _, start, stop in ranges_of(server)) < 1.3 * bytes_of(server)


@pytest.mark.torture
def test_each_block_is_fetched_once_by_many_workers(server, dataset):
    epochs_of(server.url, workers=4)
    spans = [span for span in ranges_of(server) if span[2] - span[1] > 20_000]
    assert len(spans) == len(set(spans))
    assert bytes_of(server) <= 1.02 * size_of(dataset)
    files = [request.path for request in server.requests if not request.path.endswith(".tar")]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_blocks_of_which_weights_draw_nothing_are_not_read(server, dataset, workers):
    shards = open_shards(dataset).manifest.shards
    weights = np.repeat([number % 3 == 0 for number in range(len(shards))], [shard.samples for shard in shards])
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers, "fields": ("image", "__key__")}
    with wt.make_loader(server.url, view=VIEW, **options) as loader:
        loader.reweight(samples=weights.astype(float))
        keys = [key for _ in range(2) for batch in loader for key in batch.key]
        assert len(keys) > 2 * weights.sum()
        assert set(keys) == {sample.key for step in range(12) for sample in loader.explain(step).samples}
        found = loader.explain(0).reading
    spans = ranges_of(server)
    assert {path for path, _, _ in spans} == {f"/{shard.name}" for shard in shards[::3]}
    blocks = [span for span in spans if span[2] - span[1] > 20_000]
    assert len(blocks) == len(set(blocks))
    passes = -(-len(weights) // weights.sum())
    assert len(shards[::3]) * (passes - 1) <= found.blocks <= len(shards[::3]) * passes + 1
    assert found.share == pytest.approx(1, abs=0.3)


def test_a_loader_needs_the_requests_bytes_and_hits_that_plan_shows(two_epochs, dataset):
    assert_forecast(dataset, True, *(statistics for statistics, _ in two_epochs.after))


@pytest.mark.parametrize(("name", "shuffle"), [("dataset", False), ("packed", True)])
@pytest.mark.torture
def test_other_loaders_need_the_requests_bytes_and_hits_that_plan_shows(request, name, shuffle):
    folder = request.getfixturevalue(name)
    server = BadServer({f"/{path.name}": path.read_bytes() for path in folder.iterdir()})
    options = {"batch_size": BATCH, "shuffle": shuffle, "num_workers": 2, "fields": ("image", "__key__"), "view": VIEW}
    with server.running(), wt.make_loader(server.url, **options) as loader:
        statistics = []
        for _ in range(2):
            for _ in loader:
                pass
            statistics.append(loader.fetch_statistics)
    assert_forecast(folder, shuffle, *statistics)


def assert_forecast(folder, shuffle, first, both):
    found = forecast(open_shards(folder), batch_size=BATCH, shuffle=shuffle)
    # Fewer requests: adjacent blocks are fetched together, at most all of a shard. More or fewer: samples of the first
    # batch. They are 6 of mean length; their number depends on their lengths and on which blocks have arrived before.
    fewer = found.requests_per_node - 1 - 2 * found.shards
    assert found.requests_per_node - fewer - 8 <= first.requests <= found.requests_per_node + 8
    # Less: headers and the ends of shards, 10 kB each, are in no block. More: samples of the first batch.
    files = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".json", ".parquet"))
    read, ends = found.read_bytes_per_node, 12_000 * found.shards
    assert read - ends <= first.fetched_bytes - files <= (1 + DIRECT_SHARE) * read
    assert both.requests - first.requests == found.requests_later_per_node == 0
    assert found.hit_rate_later == 1.0
    # A worker may fetch a block before the fetcher knows that it will be needed, so a few are counted late.
    assert both.cached_blocks / (both.blocks / 2) == pytest.approx(1.0, abs=0.2)


def test_two_ranks_share_one_fetcher_and_fetch_each_block_once(server, dataset, tmp_path):
    program = textwrap.dedent("""
        import sys, wds_tools as wt
        from wds_tools.errors import StoreError
        with wt.make_loader(sys.argv[1], batch_size=8, shuffle=True, num_workers=2, rank=int(sys.argv[2]), world_size=2,
                            fields=("image", "__key__"), view=wt.CenterCrop(64, resize=72)) as loader:
            print(sum(len(batch.key) for batch in loader), flush=True)
            sys.stdin.read()
    """)
    first_rank, second_rank = (["-c", program, server.url, str(rank)] for rank in range(2))
    with piped(first_rank) as (_, _, first), piped(second_rank) as (_, _, second):
        counts = [int(output.readline()) for output in (first, second)]
        assert len(fetchers()) == 1
    assert counts[0] == counts[1] > 80
    assert bytes_of(server) <= 1.02 * size_of(dataset)
    manifests = [request for request in server.requests if request.path == "/manifest.json"]
    assert len(manifests) <= 2


def test_the_fetcher_process_ends_with_the_last_loader_without_the_garbage_collector(two_epochs):
    assert len(two_epochs.fetchers) == 1  # the fixture has waited for its end


@pytest.mark.torture
def test_the_fetcher_process_ends_when_the_training_is_killed(server):
    program = textwrap.dedent("""
        import sys, wds_tools as wt
        loader = wt.make_loader(sys.argv[1], batch_size=8, num_workers=2, view=wt.CenterCrop(64, resize=72))
        for batch in loader:
            print("ready", flush=True)
            sys.stdin.read()
    """)
    with piped(["-c", program, server.url]) as (training, _, output):
        assert output.readline() == "ready\n"
        assert len(fetchers()) == 1
        training.kill()
    wait_for(lambda: not fetchers())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_the_fetcher_process_ends_when_the_training_is_killed_while_the_server_does_not_answer(server, workers):
    def choose(request):
        (bad_server.no_answer if request.path.endswith(".tar") else bad_server.good)(request)

    server.default = choose
    program = """
import sys, wds_tools as wt
view = wt.CenterCrop(64, resize=72)
list(wt.make_loader(sys.argv[1], batch_size=8, num_workers=int(sys.argv[2]), view=view))
"""
    training = preloaded.Process(["-c", program, server.url, workers])
    wait_for(lambda: ranges_of(server))
    assert len(fetchers()) == 1
    training.kill()
    assert training.wait() == -signal.SIGKILL
    assert training.stderr == ""
    wait_for(lambda: not fetchers())


@pytest.mark.torture
def test_a_fetcher_process_whose_parent_was_killed_while_it_started_writes_nothing(tmp_path):
    program = [sys.executable, "-c", "from wds_tools.storage.cache.fetcher_process import main; main()"]
    with (tmp_path / "errors").open("w") as errors:
        subprocess.run(program, stdin=subprocess.DEVNULL, stderr=errors, check=True)
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process:
            process.stdout.close()
            process.stdin.write(pickle.dumps((str(tmp_path / "socket"), "http://127.0.0.1:1", RemoteOptions.of())))
    (started,) = fetchers()
    os.kill(started, signal.SIGKILL)
    assert (tmp_path / "errors").read_text() == ""


CONNECTIONS = """
import os, resource, sys
from pathlib import Path
from wds_tools.options import RemoteOptions
from wds_tools.storage.cache.fetcher_process import FetcherConnection

url, folder = sys.argv[1:]
remote = RemoteOptions(cache_folder=Path(folder))
(started, start), (done, stop) = os.pipe(), os.pipe()
if not (child := os.fork()):
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))  # its fetcher process inherits it
    first = FetcherConnection(url, remote)
    os.write(start, b"x")
    os.read(done, 1)
    os._exit(first.statistics.requests)  # 0
os.read(started, 1)
others = [FetcherConnection(url, remote) for _ in range(40)]
print([other.statistics.requests for other in others] == [0] * 40)
os.write(stop, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.torture
def test_a_fetcher_process_without_descriptors_closes_new_connections_and_keeps_the_others(server, tmp_path):
    done = preloaded.run(["-c", CONNECTIONS, server.url, tmp_path])
    assert (done.stdout, done.stderr) == ("True\n0\n", "")


def test_workers_fetch_for_themselves_after_the_fetcher_process_was_killed(server, expected, caplog):
    batches = []
    with wt.make_loader(
        server.url,
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        fields=("image", "__key__"),
        view=VIEW,
        read_ahead_bytes=1000,
    ) as loader:
        for number, batch in enumerate(loader):
            batches.append(content(batch))
            if number == 2:
                for process in fetchers():
                    os.kill(process, signal.SIGKILL)
    assert batches == expected[: len(expected) // 2]


def test_the_samples_of_the_first_batch_are_requested_before_blocks(two_epochs, dataset):
    spans = ranges_of(two_epochs.server)
    assert all(stop - start < 20_000 for _, start, stop in spans[:3])
    assert bytes_of(two_epochs.server) <= 1.02 * size_of(dataset)


def test_indexes_of_the_first_batch_are_read_before_the_first_iteration(server, dataset):
    with wt.make_loader(server.url, batch_size=BATCH, shuffle=True, num_workers=2, view=VIEW) as loader:
        wait_for(lambda: any(request.path.endswith(".parquet") for request in server.requests))
        assert not ranges_of(server)
        next(iter(loader))
    paths = [request.path for request in server.requests if request.path.endswith(".parquet")]
    assert len(paths) == len(set(paths))


def test_all_workers_share_the_first_batch(dataset, tmp_path):
    def note_worker(image):
        (tmp_path / str(os.getpid())).touch()
        return image

    options = {"fields": ("image", "__key__"), "view": VIEW, "transform": note_worker, "subset": list(range(BATCH))}
    with wt.make_loader(dataset, batch_size=BATCH, num_workers=0, **options) as loader:
        expected = content(next(iter(loader)))
    (tmp_path / str(os.getpid())).unlink()
    with wt.make_loader(dataset, batch_size=BATCH, num_workers=2, **options) as loader:  # an epoch of one batch
        assert [content(batch) for batch in loader] == [expected]
    assert len(list(tmp_path.iterdir())) == 2


def test_streaming_dataset_reads_the_same_samples_as_from_the_folder(server, dataset):
    from torch.utils.data import DataLoader

    def samples(source, workers):
        data = wt.StreamingDataset(source, batch_size=8, shuffle=True, fields=("image", "__key__"), view=VIEW)
        return [content(batch) for batch in DataLoader(data, batch_size=8, num_workers=workers)]

    assert samples(server.url, 2) == samples(dataset, 0)
    assert bytes_of(server) <= 1.04 * size_of(dataset)  # each of two workers fetches its first samples on their own


FAULTS = {
    "503 with Retry-After": [bad_server.status(503, retry_after="1")] * 5,
    "429": [bad_server.status(429)] * 3,
    "reset": [bad_server.reset] * 4,
    "reset in the body": [bad_server.cut_after(1000, by=bad_server.reset)] * 4,
    "short body": [bad_server.short_body] * 4,
    "HTML page": [bad_server.html] * 4,
    "wrong range": [bad_server.wrong_range] * 4,
    "connection closed": [bad_server.disconnect] * 4,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.torture_except("reset in the body")
def test_batches_do_not_change_when_requests_fail_for_a_while(server, expected, fault):
    with wt.make_loader(
        server.url, batch_size=BATCH, shuffle=True, num_workers=0, fields=("image", "__key__"), view=VIEW
    ) as loader:
        server.answers.extend(FAULTS[fault])
        batches = [content(batch) for batch in loader]
    assert not server.answers
    assert batches == expected[: len(batches)]


def test_a_request_for_the_manifest_is_repeated(server, dataset):
    server.answers.extend([bad_server.status(503)] * 3)
    with wt.make_loader(server.url, batch_size=BATCH, num_workers=0, view=VIEW) as loader:
        assert loader.samples == wt.describe(dataset).samples


def failing(server, path, answer):
    """Let every request for an object get this answer."""

    def choose(request):
        (answer if request.path == path else bad_server.good)(request)

    server.default = choose


def test_a_missing_shard_is_named(server):
    del server.objects["/shard-000003.tar"]
    missing = rf"{server.url}/shard-000003\.tar is missing, but its manifest lists it \(HTTP 404.*upload it again"
    with pytest.raises(MissingFileError, match=missing) as caught:
        epochs_of(server.url)
    assert caught.value.shard == "shard-000003.tar"
    assert isinstance(caught.value, FileNotFoundError)


def test_a_missing_index_is_named(server):
    del server.objects["/shard-000003.parquet"]
    missing = rf"{server.url}/shard-000003\.parquet is missing, but its manifest lists it.*wds-tools index"
    with pytest.raises(MissingFileError, match=missing):
        epochs_of(server.url, workers=0)


def test_an_expired_token_is_named_with_the_code_of_the_store(server):
    body = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"
    failing(server, "/shard-000003.tar", bad_server.status(403, body, content_type="application/xml"))
    with pytest.raises(StoreError, match=r"403.*ExpiredToken"):
        epochs_of(server.url, workers=0)


def test_a_server_without_ranges_is_an_error_and_no_shard_is_read_whole(server):
    failing(server, "/shard-000003.tar", bad_server.whole_for_range)
    with pytest.raises(StoreError, match="range"):
        epochs_of(server.url, workers=0)


def test_an_outage_ends_with_an_error_that_names_attempts_and_time(server):
    failing(server, "/shard-000003.tar", bad_server.status(503))
    with pytest.raises(StoreError, match=r"503.*attempts"):
        epochs_of(server.url, workers=0, retry_seconds=1)


@pytest.mark.torture
def test_a_request_that_takes_longer_than_the_stall_limit_ends_with_the_error_of_the_request(server):
    def fail_late(request):
        time.sleep(1.2)  # longer than retry_seconds and stall_seconds together
        bad_server.status(503)(request)

    failing(server, "/shard-000003.tar", fail_late)
    with pytest.raises(StoreError, match=r"shard-000003.tar cannot be read: HTTP 503"):
        epochs_of(server.url, retry_seconds=0.5, stall_seconds=0.5)


@pytest.mark.parametrize(("workers", "tagged", "after"), [(0, True, 1), (0, False, 6), (2, True, 6), (2, False, 1)])
@pytest.mark.torture_except("2-False-1")
def test_shards_replaced_in_the_middle_of_an_epoch_are_reported_as_such_and_yield_no_wrong_sample(
    packed, workers, tagged, after
):
    server = BadServer(
        {f"/{path.name}": path.read_bytes() for path in packed.iterdir()}, tag='"one"' if tagged else None
    )
    options = {"batch_size": 4, "shuffle": 20, "fields": ("image", "__key__"), "view": VIEW, "num_workers": workers}

    def replace_after_some_ranges(request):
        if len(ranges_of(server)) > after and server.tag != '"two"':
            server.tag = '"two"' if tagged else None
            server.objects = {name: data[::-1] if name.endswith(".tar") else data for name, data in original.items()}
        bad_server.good(request)

    original, server.default, batches, started = server.objects, replace_after_some_ranges, [], time.monotonic()
    with (
        server.running(),
        wt.make_loader(server.url, **options, read_ahead_bytes=1000, retry_seconds=100) as loader,
        pytest.raises((StoreError, ChecksumError), match=r"shard-00000\d\.tar.* was replaced"),
    ):
        batches.extend(content(batch) for batch in loader)
    assert time.monotonic() - started < 50  # without waiting for retry_seconds
    with wt.make_loader(packed, **options) as loader:
        assert batches == [content(batch) for _, batch in zip(batches, loader, strict=False)]


def test_a_cache_below_the_shuffle_window_is_refused_with_the_numbers(server, dataset):
    with pytest.raises(OptionError, match=r"cache_bytes=100,000 is less than the shuffle window.*use cache_bytes of"):
        epochs_of(server.url, cache_bytes=100_000)


def test_a_cache_that_cannot_be_written_streams_with_a_warning(server, expected, tmp_path):
    (tmp_path / "file").write_text("")
    batches = epochs_of(server.url, cache_dir=tmp_path / "file" / "cache")
    assert batches == expected[: len(batches)]


ON_A_SMALL_DISK = """
import sys, mounts
mounts.enter()
url, disk = sys.argv[1:]
mounts.make_small(disk, 1500)
import json
import wds_tools as wt
options = {"view": wt.CenterCrop(64, resize=72), "fields": ("image", "__key__"), "num_workers": 2}
with wt.make_loader(url, batch_size=16, shuffle=True, cache_dir=f"{disk}/cache", **options) as loader:
    print(json.dumps([(batch.key, batch.image.sum((1, 2, 3)).tolist()) for _ in range(2) for batch in loader]))
"""


@pytest.mark.torture
def test_a_disk_that_becomes_full_below_the_cache_during_an_epoch_changes_no_batch(
    server, dataset, expected, tmp_path, can_mount
):
    (tmp_path / "disk").mkdir()
    done = mounts.run(ON_A_SMALL_DISK, server.url, tmp_path / "disk", imports=preloaded.IMPORTS)
    assert done.returncode == 0, done.stderr
    assert [tuple(batch) for batch in json.loads(done.stdout)] == expected
    for line in done.stderr.splitlines():
        assert line.endswith("blocks cannot be cached: No space left on device; samples are fetched one by one")
    assert done.stderr
    assert bytes_of(server) > size_of(dataset)  # the second epoch fetches what the disk lacks


@pytest.mark.torture
def test_a_cache_larger_than_the_window_but_smaller_than_the_dataset_keeps_a_part(server, dataset):
    limit = size_of(dataset) * 3 // 4
    with wt.make_loader(
        server.url,
        batch_size=BATCH,
        shuffle=20,
        num_workers=2,
        fields=("__key__", "image"),
        view=VIEW,
        cache_bytes=limit,
        read_ahead_bytes="100kB",
    ) as loader:
        keys = [key for _ in range(3) for batch in loader for key in batch.key]
        assert len(keys) == 3 * len(loader) * BATCH
    # Two later epochs fetch the quarter that the cache lacks, and what the window and early evictions take: together
    # about half; on a busy machine, requests for single samples add to it. Without the order of releases they would
    # fetch everything again, three times the dataset in all.
    assert bytes_of(server) < 2.6 * size_of(dataset)


@pytest.mark.torture
def test_a_mixture_of_remote_and_local_datasets_reads_both(server, dataset):
    mixture = wt.Mixture([server.url, dataset], weights=[1, 1])
    local = wt.Mixture([dataset, dataset], weights=[1, 1])
    assert epochs_of(mixture) == epochs_of(local)
