"""Ray clusters of several nodes, in processes of this machine: nodes are killed, added, and lack something.

One cluster is for all tests of commands and of loaders, because starting one takes ten seconds.
"""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import preloaded
import pytest
from buckets import empty_s3
from folders import contents
from waiting import wait_for

import wds_tools as wt

pytestmark = [pytest.mark.frameworks, pytest.mark.long]
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def started():
    """Return a cluster whose first node has no CPUs. Ray needs short paths for its files."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    from ray import cluster_utils

    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}.items():
            patch.setenv(name, value)
        started = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False},
        )
        patch.setenv("RAY_ADDRESS", started.address)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        yield started
        started.shutdown()
    for number, handler in handlers.items():  # Ray replaces them
        signal.signal(number, handler)


def remove_nodes(cluster):
    for node in [node for node in cluster.list_all_nodes() if not node.is_head()]:
        cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def one_node(started):
    """Start a node with two CPUs, which `make test` needs once; a test with nodes of its own ends it."""
    remove_nodes(started)
    started.add_node(num_cpus=2)


@pytest.fixture
def cluster(started):
    """Return the cluster without nodes; those that a test adds end with it."""
    remove_nodes(started)
    yield started
    remove_nodes(started)


def start(folder, words):
    """Start Python; its folder is not that of the repository, which Ray would add to the path of all nodes."""
    return preloaded.Process(words, cwd=folder, imports=preloaded.COMMANDS)


def start_command(folder, *words):
    """Start a command."""
    return start(folder, ["-m", "wds_tools", *words, "--engine", "ray"])


def output_of(process):
    status = process.wait()
    assert status == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.torture
def test_a_node_is_killed_and_one_is_added_between_buckets(cluster, few_photos, moto, monkeypatch, tmp_path):
    settings = {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    s3 = empty_s3(moto)
    for photo in few_photos.rglob("*.*"):
        s3.put_file(str(photo), f"bucket/raw/{photo.parent.name}/{photo.name}")
    whole = wt.pack("s3://bucket/raw", tmp_path / "whole", shard_bytes="60kB", images="keep", workers=1)
    assert len(whole.manifest.shards) > 8
    first = cluster.add_node(num_cpus=1)
    words = ("--shard-bytes", "60kB", "--images", "keep")
    process = start_command(tmp_path, "pack", "s3://bucket/raw", "s3://bucket/train", *words)

    def some_arrived():
        assert process.poll() is None, process.stderr
        return len(s3.glob("bucket/train/*.tar")) >= 2

    wait_for(some_arrived, poll_seconds=0.2)
    cluster.add_node(num_cpus=1)
    cluster.remove_node(first, allow_graceful=False)
    output_of(process)
    s3.invalidate_cache()
    assert {path.removeprefix("bucket/train/"): s3.cat_file(path) for path in s3.find("bucket/train")} == contents(
        tmp_path / "whole"
    )


COMMANDS = """
import json, sys
import ray
from wds_tools.cli import main
ray.init(log_to_driver=False, logging_level="ERROR")  # once for all commands
for words in json.loads(sys.argv[1]):
    try:
        main([*words, "--engine", "ray"])
    except SystemExit as end:
        assert not end.code, words
"""


def test_the_commands_write_what_one_machine_writes(one_node, few_photos, few, tmp_path):
    from wds_tools.reading.opening import open_shards

    keys = [key for shard in range(3) for key in open_shards(few).index(shard).keys]
    captions = tmp_path / "captions.csv"
    captions.write_text("key,txt\n" + "".join(f"{key},a photo of {key}\n" for key in keys))
    one, ours = tmp_path / "one", tmp_path / "ours"
    for folder in (one, ours):
        folder.mkdir()
        for shard in few.glob("*.tar"):
            shutil.copy(shard, folder)
    options = {"shard_bytes": "300kB", "images": "keep", "workers": 1}
    wt.pack(few_photos, tmp_path / "alone", **options)
    wt.pack(few_photos, tmp_path / "together", task=(0, 3), **options)  # as if it had been interrupted
    wt.reshard(few, tmp_path / "whole", shard_bytes="500kB")
    wt.index_shards(f"{one}/*.tar")
    wt.add_fields(one, captions)
    commands = [
        ["pack", few_photos, tmp_path / "together", "--shard-bytes", "300kB", "--images", "keep"],
        ["verify", few],
        ["reshard", few, tmp_path / "dst", "--shard-bytes", "500kB", "--num-cpus", "2"],
        ["index", f"{ours}/*.tar"],
        ["add-fields", ours, "--from", captions],
    ]
    assert "is undamaged" in output_of(start(tmp_path, ["-c", COMMANDS, json.dumps(commands, default=str)]))
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")
    assert contents(ours) == contents(one)


@pytest.mark.torture
def test_what_a_node_lacks_is_named_with_the_node(cluster, packed, tmp_path):
    package, path = REPOSITORY / "wds_tools", tmp_path / "path"
    missing, other, not_compiled = tmp_path / "missing", tmp_path / "other", tmp_path / "not_compiled"
    (missing / "wds_tools").mkdir(parents=True)
    (missing / "wds_tools/__init__.py").write_text("raise ImportError('No module named wds_tools')\n")
    shutil.copytree(package, other / "wds_tools")
    init = other / "wds_tools/__init__.py"
    init.write_text(f"{init.read_text()}\n__version__ = '9.9'\n")
    shutil.copytree(package, not_compiled / "wds_tools", ignore=shutil.ignore_patterns("*.so"))
    name = os.uname().nodename
    cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(path)})
    for folder, expected in {
        missing: f"error: {name} cannot import wds_tools (No module named wds_tools): install the same version on all",
        other: f"error: {name} has wds_tools 9.9, and the starting process {wt.__version__}: install the same",
        not_compiled: f"error: on {name}: a worker process on {name} differs from the process that started it",
    }.items():
        path.unlink(missing_ok=True)
        path.symlink_to(folder)
        process = start_command(tmp_path, "verify", packed)
        assert (process.wait(), expected in process.stderr) == (2, True), process.stdout + process.stderr


TRAINING = """
import json, sys, time
from pathlib import Path
import torch
import xxhash
import wds_tools as wt

def slow(image):
    time.sleep(0.005)
    return 255 - image

def pairs(image):
    return image, image[:, :8]

def fails(image):
    raise KeyError("no such colour")

def ends(image):
    import os
    os._exit(1)

def digest(batch):
    found = xxhash.xxh3_64()
    for value in batch:
        for one in value if isinstance(value, (list, tuple)) else [value]:
            found.update(one.numpy().tobytes() if isinstance(one, torch.Tensor) else repr(one).encode())
    return found.hexdigest()

def main(options, epochs=1, pause=None, resume=None, leave=None, **others):
    expressions = {"num_workers", "view", "transform", "fields"} & set(options)
    options = {**options, **{name: eval(options[name]) for name in expressions}}
    global loader  # it is open at the end of the program
    loader = wt.make_loader(**options, **others)
    if resume:
        loader.load_state_dict(json.loads(Path(resume).read_text()))
    steps = 0
    for _ in range(epochs):
        for batch in loader:
            print("batch", digest(batch), flush=True)
            steps += 1
            if steps == pause:
                Path("paused").touch()
                while not Path("continue").exists():
                    time.sleep(0.02)
            if steps == leave:
                Path("state.json").write_text(json.dumps(loader.state_dict()))
                return
    print(json.dumps(loader.stats().to_dict()["epoch"]), loader.report(), file=sys.stderr)

if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
"""
LOADER = {
    "batch_size": 48,
    "view": "wt.RandomResizedCrop(32, flip=True)",
    "shuffle": True,
    "seed": 3,
    "transform": "slow",
    "fields": "('image', 'label', '__key__')",
    "tail": "pad",
}
ELSEWHERE = "wt.RayWorkers(2)"


def train(folder, data, workers, *, options=LOADER, **arguments):
    """Start a program that prints a digest of each batch."""
    program = folder / "train.py"
    program.write_text(TRAINING)
    given = {"options": {"dataset": str(data), "num_workers": workers, **options}, **arguments}
    return preloaded.Process([program, json.dumps(given)], cwd=folder)


def digests(process):
    """Return the digests that a training prints; Ray prints lines of its own about nodes."""
    return [line for line in output_of(process).splitlines() if line.startswith("batch ")]


def test_batches_of_workers_on_a_node_are_those_of_this_process(one_node, few, tmp_path):
    options = {**LOADER, "batch_size": 8}
    ours = train(tmp_path, few, "wt.RayWorkers(1)", options=options, epochs=2)  # each worker imports torch
    theirs = train(tmp_path, few, "0", options=options, epochs=2)
    assert (found := digests(ours)) == digests(theirs)
    assert len({*found}) == len(found) > 4
    stats = json.loads(ours.stderr.splitlines()[-1].partition("} ")[0] + "}")
    assert stats["stage_seconds"]["transform"] > 0.005 * stats["samples"]
    assert stats["waits"]["transform"] > stats["waits"]["hand_over"]


@pytest.mark.torture
def test_a_node_is_killed_and_one_is_added_in_an_epoch_and_the_run_is_resumed(cluster, packed, tmp_path):
    ours = tmp_path / "ours"
    ours.mkdir()
    first, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    options = {**LOADER, "batch_size": 16, "sample_transform": None}
    process = train(ours, packed, ELSEWHERE, options=options, epochs=2, pause=3)
    wait_for((ours / "paused").exists)
    cluster.remove_node(first, allow_graceful=False)
    cluster.add_node(num_cpus=1)
    (ours / "continue").touch()
    found = digests(process)
    assert "is lost" in process.stderr
    expected = digests(train(tmp_path, packed, "0", options=options, epochs=2))
    assert found == expected
    left = train(ours, packed, ELSEWHERE, options=options, leave=4)
    part = digests(left)
    assert "is lost" not in left.stderr  # the workers are stopped before Ray at the end of the program
    resumed = digests(train(ours, packed, ELSEWHERE, options=options, epochs=2, resume="state.json"))
    assert part + resumed == expected


@pytest.mark.torture
@pytest.mark.parametrize(
    "changes",
    [
        {"transform": "pairs"},
        {"on_error": "replace", "max_errors": 3},
        {
            "fields": "{'image': wt.Image(view=wt.CenterCrop(32)), 'wide': wt.Image(), 'label': wt.Label()}",
            "batch_size": 36,
        },
        {"fields": "{'image': wt.Image(view=wt.Resize(32), pad=0), '__key__': wt.Key()}"},
        {"fields": "('image', 'label')", "view": "None"},
        {"view": "wt.Mosaic(48)", "batch_size": 15},
    ],
    ids=["late-layout", "replaced", "two-images", "padded", "lists", "partners"],
)
def test_other_kinds_of_batches_are_those_of_this_process(cluster, packed, tmp_path, changes):
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    options = {**LOADER, **changes}
    if "Image(" in options["fields"]:
        del options["view"], options["transform"]
    data = tmp_path / "data"
    shutil.copytree(packed, data)
    if "on_error" in changes:
        shard = next(data.glob("*.tar"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    ours, theirs = (train(tmp_path, data, workers, options=options) for workers in (ELSEWHERE, "0"))
    assert digests(ours) == digests(theirs)
    assert ("replaced" in ours.stderr) == ("replaced" in theirs.stderr) == ("on_error" in changes)


@pytest.mark.torture
def test_what_a_transform_raises_and_a_transform_that_ends_its_process(cluster, packed, tmp_path):
    cluster.add_node(num_cpus=2)
    process = train(tmp_path, packed, "wt.RayWorkers(2)", options={**LOADER, "transform": "fails"})
    local = train(tmp_path, packed, "2", options={**LOADER, "transform": "fails"})
    assert process.wait() == local.wait() == 1
    assert process.stderr.splitlines()[-1] == local.stderr.splitlines()[-1]
    assert "raised in a worker" in process.stderr
    process = train(tmp_path, packed, "wt.RayWorkers(2)", options={**LOADER, "transform": "ends"})
    assert process.wait() == 1
    assert "3 workers were lost with one task" in process.stderr


@pytest.mark.torture
def test_what_a_node_of_a_loader_lacks_is_named_with_the_node(cluster, packed, tmp_path):
    process = train(tmp_path, packed, "wt.RayWorkers(2)", stall_seconds=3)
    assert process.wait() == 1
    assert (
        "there was no worker for 3 s (stall_seconds=): RayWorkers(count=2, num_cpus=1) needs 1 CPUs" in process.stderr
    )
    missing = tmp_path / "missing"
    (missing / "wds_tools").mkdir(parents=True)
    (missing / "wds_tools/__init__.py").write_text("raise ImportError('No module named wds_tools')\n")
    cluster.add_node(num_cpus=2, env_vars={"PYTHONPATH": str(missing)})
    process = train(tmp_path, packed, "wt.RayWorkers(2)")
    assert process.wait() == 1
    name = os.uname().nodename
    assert f"{name} cannot import wds_tools (No module named wds_tools): install the same version" in process.stderr


@pytest.mark.torture
def test_nothing_is_left_in_ray_after_ctrl_c(cluster, packed, tmp_path):
    cluster.add_node(num_cpus=2)
    process = train(tmp_path, packed, "wt.RayWorkers(1)", pause=1)
    wait_for((tmp_path / "paused").exists, poll_seconds=0.2)
    assert len(workers_of_ray()) == 1
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    assert "KeyboardInterrupt" in process.stderr
    wait_for(lambda: not workers_of_ray(), poll_seconds=0.5)


def workers_of_ray():
    """Return the ids of the processes that run a worker of a loader."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::task"):
                found.append(path.parent.name)
        except OSError:
            pass
    return found
