"""Fixtures of all tests: the sample photographs, packed once, and the environment of a test."""

from __future__ import annotations

import atexit
import doctest
import gc
import importlib.util
import itertools
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import jpegtools
import mounts
import PIL
import preloaded
import pytest
from _pytest.doctest import DoctestItem, DoctestModule
from buckets import reset_s3, s3_server
from hypothesis import settings
from waiting import wait_for

import wds_tools as wt
from wds_tools.inspection import machine

pytest_plugins = ["client_requests", "cpu_seconds", "photo_fixtures", "torture_cases"]

# Without a deadline, because examples are slow on a busy machine. `make torture` and `make torture-night` name theirs.
for profile, examples in {"default": 6, "torture": 500, "night": 10_000}.items():
    settings.register_profile(profile, deadline=None, max_examples=examples)
settings.load_profile("default")

MANY_TESTS = 1000
"""From this number on, the process of the tests is prepared for many forks."""

# Shells start background jobs with SIGINT ignored, and the programs that the tests start would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files that import what `make lowest` does not install; the extra `test` has it."""
    if collection_path.suffix != ".py" or importlib.util.find_spec("datasets") is not None:
        return None
    imports = re.compile(r"^(import|from) (datasets|pycocotools|conformance_cases)\b", re.MULTILINE)
    return imports.search(collection_path.read_text()) is not None or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect docstring examples that need the reader's data: all their lines are skipped. Put long tests first."""
    texts = [item for item in items if isinstance(item, DoctestItem) and _never_runs(item)]
    items[:] = [item for item in items if item not in texts]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    config.hook.pytest_deselected(items=texts)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt all that is imported from garbage collection, which then is rare; make forks and each test faster."""
    gc.freeze()
    gc.set_threshold(20_000)  # with the default of 700, it takes a tenth of the CPU time of loaders
    # In each test, pytest looks six times for loggers that do not propagate, to add its handlers. It finds them here.
    logging.root.manager = logging.Manager(logging.root)
    if len(session.items) > MANY_TESTS:  # moving the memory takes as long as 20 forks
        preloaded.use_huge_pages()


@pytest.fixture(scope="session", autouse=True)
def fork_server_with_imports(request: pytest.FixtureRequest, no_sync: None) -> Iterator[None]:
    """Let the fork server of this process, if a test starts it, import what workers need: once, not in each worker.

    If many tests run, the server is a fork of this process, which has imported all of it already.
    """
    multiprocessing.set_forkserver_preload(
        ["wds_tools.loading.loader", "torchvision.transforms.v2", "wds_tools.packing.run", "wds_tools.sources.detect"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing.forkserver, "set_forkserver_preload", lambda _: None)  # `pack` names its own
        if len(request.session.items) > MANY_TESTS:  # before a test starts threads, of which a fork has none
            multiprocessing.resource_tracker.ensure_running()
            with pytest.MonkeyPatch.context() as once:
                once.setattr(multiprocessing.util, "spawnv_passfds", _fork_and_run)
                multiprocessing.forkserver.ensure_running()
        yield


def _fork_and_run(_path: str, words: Sequence[str], descriptors: Sequence[int]) -> int:
    """Run the code after ``-c`` in a fork of this process, which keeps only some open files; return its id."""
    if pid := os.fork():
        return pid
    try:
        ends = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for last, following in itertools.pairwise(ends):
            os.closerange(last + 1, following)
        exec(words[-1])
    finally:
        os._exit(0)


def pytest_sessionfinish() -> None:
    """Let the interpreter release everything at its end; nanobind otherwise reports leaks."""
    atexit.register(gc.unfreeze)  # later than pytest collects garbage, which would take seconds


def _end_at_once(process: int) -> None:
    if os.getpid() == process:
        multiprocessing.util._exit_function()  # noqa: SLF001 - ends its processes and removes its folder
        os._exit(0)


if "PYTEST_XDIST_WORKER" in os.environ:  # releasing everything takes seconds
    atexit.register(_end_at_once, os.getpid())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in the docstrings of the package only."""
    found = yield
    in_tests = Path(__file__).parent in file_path.parents
    return [one for one in found if not (in_tests and isinstance(one, DoctestModule))]


def _never_runs(item: DoctestItem) -> bool:
    return all(example.options.get(doctest.SKIP) for example in item.dtest.examples)


@pytest.fixture(scope="session", autouse=True)
def jpeg_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the programs of `jpegtools` on the PATH, so that the suite does not depend on installed ones."""
    folder = tmp_path_factory.mktemp("bin")
    (library,) = Path(PIL.__file__).parents[1].glob("[Pp]illow.libs/libjpeg*")
    for name in jpegtools.PROGRAMS:
        # Isolated and without site-packages, Python starts in half the time.
        words = shlex.join([sys.executable, "-IS", jpegtools.__file__, name, str(library)])
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="session", autouse=True)
def zig_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all tests share the C libraries that ziglang compiles, which takes most of its time."""
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):  # one folder for all processes of a run
            patch.setenv(name, str((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "zig"))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_sync() -> Iterator[None]:
    """Write files without fsync, which takes milliseconds and matters for power failures only. See `faults`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        patch.setattr(os, "sync", lambda: None)
        yield


@pytest.fixture(scope="session")
def few_photos(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Return a folder of 40 photographs, five of each class."""
    folder = tmp_path_factory.mktemp("few_photos")
    for path in photos.glob("*/00[0-4].*"):
        (folder / path.parent.name).mkdir(exist_ok=True)
        (folder / path.parent.name / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory, few_photos: Path) -> Path:
    """Return a packed dataset of 40 photographs, in several shards."""
    folder = tmp_path_factory.mktemp("few") / "packed"
    assert wt.pack(few_photos, folder, shard_bytes="300kB", workers=1).packed == 40
    return folder


@pytest.fixture
def six_photos(photos: Path, tmp_path: Path) -> Path:
    """Return a folder of two classes and six photographs."""
    for name in ("cat", "fig"):
        (tmp_path / "six_photos" / name).mkdir(parents=True)
        for path in sorted((photos / name).iterdir())[:3]:
            shutil.copy(path, tmp_path / "six_photos" / name)
    return tmp_path / "six_photos"


@pytest.fixture
def packed_copy(packed: Path, tmp_path: Path) -> Path:
    """Return a copy of `packed` that a test may damage."""
    return Path(shutil.copytree(packed, tmp_path / "copy"))


@pytest.fixture
def few_copy(few: Path, tmp_path: Path) -> Path:
    """Return a copy of `few` that a test may damage."""
    return Path(shutil.copytree(few, tmp_path / "copy"))


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a new folder, without the link that the fixture of pytest adds. It stays after a failure."""
    failed = request.session.testsfailed
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.mktemp(f"{name}{next(_folders)}", numbered=False)
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path, ignore_errors=True)


_folders = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's cache out of the programs that fixtures start."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WDS_TOOLS_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def cache_of_its_own(request: pytest.FixtureRequest, cache_of_the_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache out of the tests. A test without `tmp_path` needs no folder, unless it writes a cache."""
    has_folder = "tmp_path" in request.fixturenames
    cache = request.getfixturevalue("tmp_path") / "cache" if has_folder else cache_of_the_run / str(next(_folders))
    monkeypatch.setenv("WDS_TOOLS_CACHE_DIR", str(cache))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an S3 server."""
    with s3_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="module")
def moto(moto_server: str) -> str:
    """Return the URL of an S3 server without buckets; see `buckets.empty_s3`."""
    reset_s3(moto_server)
    return moto_server


@pytest.fixture
def hugging_face_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Hugging Face's datasets away from the network and the user's cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    import datasets

    datasets.disable_progress_bars()


@pytest.fixture
def no_probe_of_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `doctor` find that all packages can be imported, without a process that imports them: torch takes 3 s."""
    found = machine.Imports(torch=machine.Torch("2.9"))
    monkeypatch.setattr(machine, "imports", lambda *_names: found)


@pytest.fixture
def forked_packers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the packers of loaders: to import what they need takes longer than to pack a few photographs."""
    program = SimpleNamespace(PIPE=subprocess.PIPE, Popen=preloaded.Program)
    monkeypatch.setattr("wds_tools.packing.background.subprocess", program)


@pytest.fixture
def can_mount(tmp_path: Path) -> None:
    """Skip a test where nothing can be mounted."""
    if reason := mounts.missing(tmp_path):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """Exempt what earlier tests left from garbage collection: tests that collect garbage then take milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_leftovers():
    """Check that a test leaves no child process behind. One that was killed may take a while to end."""
    before = multiprocessing.active_children()
    yield
    wait_for(lambda: not set(multiprocessing.active_children()) - set(before))
