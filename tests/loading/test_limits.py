"""Limits of the system while a loader runs: open files, virtual memory, size of files."""

import shutil
from pathlib import Path

import preloaded
import pytest
from bad_server import BadServer
from buckets import empty_s3

import wds_tools as wt

LIMITED = """
import os, resource, sys
import wds_tools as wt
from wds_tools.errors import WdsToolsError

source, limit, value, batch_size, num_workers = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

def labels(loader):
    return [label for batch in loader for label in batch.label.tolist()]

def loader():
    view = wt.CenterCrop(16, resize=24)
    return wt.make_loader(source, batch_size=batch_size, num_workers=num_workers, view=view, shuffle=True)

with loader() as unlimited:
    expected = labels(unlimited)
with loader() as limited:
    used = len(os.listdir("/proc/self/fd")) if limit == "RLIMIT_NOFILE" else 0
    resource.setrlimit(getattr(resource, limit), (used + value,) * 2)
    try:
        print(labels(limited) == expected)
    except WdsToolsError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 40 shards with one photograph each."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "images" / "cat").mkdir(parents=True)
    for path in sorted((photos / "cat").iterdir())[:40]:
        shutil.copy(path, folder / "images" / "cat")
    assert wt.pack(folder / "images", folder / "packed", shard_bytes="11kB", workers=1).packed == 40
    return folder / "packed"


def under(limit: str, value: int, source: str | Path, *, batch_size: int = 4, num_workers: int = 0) -> str:
    words = ["-c", LIMITED, source, limit, str(value), str(batch_size), str(num_workers)]
    done = preloaded.run(words)
    return f"{done.stdout}{done.stderr}"


def test_more_shards_than_files_may_be_open_are_read(shards):
    assert under("RLIMIT_NOFILE", 20, shards) == "True\n"


@pytest.mark.torture
def test_more_cached_blocks_than_files_may_be_open_are_read(shards, tmp_path):
    server = BadServer({f"/{path.name}": path.read_bytes() for path in shards.iterdir()})
    with server.running():
        assert under("RLIMIT_NOFILE", 30, server.url) == "True\n"


def test_a_batch_of_more_shards_than_files_may_be_open_is_an_error_with_the_remedy(shards):
    out = under("RLIMIT_NOFILE", -20, shards, batch_size=40)  # the unlimited loader has 40 maps, which can be closed
    assert out.startswith("StoreError cannot read ")
    assert "Too many open files: raise the limit of open files with `ulimit -n`" in out


FEW_FROM_THE_START = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
import wds_tools as wt

dataset = sys.argv[2] if len(sys.argv) == 3 else wt.Mixture(sys.argv[2:], weights=[1] * len(sys.argv[2:]))
options = {"view": wt.CenterCrop(16, resize=24), "shuffle": True, "tail": "mask"}
with wt.make_loader(dataset, batch_size=40, num_workers=int(os.environ.get("WORKERS", 0)), **options) as loader:
    print(sum(int(batch.valid.sum()) for batch in loader), loader.epoch_proof().ok)
"""


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.torture_except("False")
def test_a_batch_of_more_shards_than_files_may_be_mapped_is_read(shards, is_remote):
    server = BadServer({f"/{path.name}": path.read_bytes() for path in shards.iterdir()})
    with server.running():
        done = preloaded.run(["-c", FEW_FROM_THE_START, "48", server.url if is_remote else shards])
    assert done.stdout == "40 True\n", done.stderr


@pytest.mark.torture
def test_the_datasets_of_a_mixture_share_the_limit_of_open_files(shards, tmp_path):
    copies = [shutil.copytree(shards, tmp_path / f"copy {number}") for number in range(4)]
    done = preloaded.run(["-c", FEW_FROM_THE_START, "64", *map(str, copies)])
    assert done.stdout == "160 True\n", done.stderr


@pytest.mark.parametrize(("datasets", "limit"), [(2, 150), pytest.param(4, 300, marks=pytest.mark.torture)])
def test_a_mixture_of_datasets_on_s3_with_workers_is_read_with_few_open_files(shards, moto, datasets, limit):
    settings = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "WORKERS": "2"}
    s3 = empty_s3(moto)
    for number in range(datasets):
        for path in shards.iterdir():
            s3.pipe_file(f"bucket/{number}/{path.name}", path.read_bytes())
    program = f"import os\nos.environ |= {settings}\n{FEW_FROM_THE_START}"
    done = preloaded.run(["-c", program, str(limit), *(f"s3://bucket/{number}" for number in range(datasets))])
    assert (done.stdout, done.stderr) == (f"{40 * datasets} True\n", "")


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_permits(shards):
    program = FEW_FROM_THE_START.replace("(int(sys.argv[1]),) * 2", "(48, int(sys.argv[1]))")
    program += "\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert preloaded.run(["-c", program, "200", str(shards)]).stdout == "40 True\n(200, 200)\n"


def test_workers_that_the_limit_of_open_files_does_not_allow_are_an_error_with_the_remedy(shards):
    out = under("RLIMIT_NOFILE", 5, shards, num_workers=2)
    assert out.startswith(("WorkerError", "LoaderError"))
    assert "raise the limit of open files with `ulimit -n`" in out


def test_a_limit_of_the_size_of_files_below_a_batch_is_an_error_with_the_remedy(shards):
    out = under("RLIMIT_FSIZE", 1000, shards)
    assert out.startswith("LoaderError the loader cannot get ")
    assert "the limit of the size of files (`ulimit -f`) applies to shared memory too" in out
