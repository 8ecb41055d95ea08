"""Each check of `wds-tools doctor` on good and bad facts; and the command, on this machine and on broken ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from wds_tools.images import native
from wds_tools.inspection.datacheck import check_fit, examine_dataset
from wds_tools.inspection.doctor import (
    MAPS_OF_A_WORKER,
    check_cache,
    check_cores,
    check_extras,
    check_fast_path,
    check_gpu,
    check_memory,
    check_open_files,
    check_packages,
    check_python,
    check_security,
    check_shm,
    examine,
    numbers,
    render,
)
from wds_tools.inspection.machine import NATIVE, Imports, Package, Torch, look
from wds_tools.options import CacheOptions
from wds_tools.storage.local import MAX_OPEN_MAPS

NEEDED = [Package("torch", "2.15.0+cu132", "2.10"), Package("pillow", "13.0.0", "13.0"), Package("numpy", "2.0", "2.0")]
CUDA = Torch("2.15.0", cuda="13.2", devices=1, names=("NVIDIA H200",))
NO_GPU = {"gpus": 0, "driver": None, "hidden": None}
GPU = {"gpus": 1, "driver": "580.65", "hidden": None}


# --- the checks ---


def test_versions_are_compared_as_numbers() -> None:
    assert numbers("10.0") > numbers("9.9")
    assert numbers("2.10") > numbers("2.9.1")
    assert numbers("nonsense") < numbers("0.1")


def test_python_that_is_too_old() -> None:
    assert check_python((3, 11, 0)).status == "ok"
    found = check_python((3, 10, 14))
    assert (found.status, found.found) == ("problem", "3.10.14")
    assert "Python 3.11" in found.remedy


def test_packages_that_are_all_there() -> None:
    found = check_packages(NEEDED, Imports())
    assert (found.status, found.found) == ("ok", "torch 2.15.0+cu132, pillow 13.0.0, numpy 2.0")


def test_packages_that_are_missing_or_too_old() -> None:
    lacking = [*NEEDED[1:], Package("torch", "2.9.1", "2.10"), Package("xxhash", None, "3.5")]
    found = check_packages(lacking, Imports({"xxhash": "No module named 'xxhash'"}))
    assert (found.status, found.found) == ("problem", "torch 2.9.1 is too old, xxhash is missing")
    assert found.remedy == "pip install 'torch>=2.10' 'xxhash>=3.5'"


@pytest.mark.parametrize("packages", [NEEDED, []])
def test_packages_that_cannot_be_imported(packages: list[Package]) -> None:
    broken = {"torch": "ImportError: libcudart.so.13: cannot open\nshared object file", "PIL.Image": "no"}
    found = check_packages(packages, Imports(broken))
    assert found.status == "problem"
    assert "torch cannot be imported: ImportError: libcudart.so.13: cannot open shared object file; PIL" in found.found
    assert found.remedy.endswith("pip install --force-reinstall torch pillow")


def test_that_the_compiled_path_is_missing_is_no_broken_package() -> None:
    assert check_packages(NEEDED, Imports({NATIVE: "No module named"})).status == "ok"


def test_source_code_that_is_not_installed() -> None:
    assert check_packages([], Imports()).status == "note"


def test_versions_with_holes() -> None:
    assert check_security(NEEDED).status == "ok"
    found = check_security([Package("pillow", "12.3.0", "10.0"), Package("aiohttp", "3.14.3", "3.10", "http")])
    assert found.status == "problem"
    assert "pillow 12.3.0: a damaged JPEG can run code" in found.found
    assert "CVE-2026-112403" in found.found
    assert found.remedy == "pip install 'pillow>=13.0.0' 'aiohttp>=3.14.4'"
    assert check_security([Package("aiohttp", "3.14.3", "3.10", "http")]).status == "note"
    assert check_security([Package("aiohttp", None, "3.10", "http")]).status == "ok"


def test_missing_parts_of_the_fast_path() -> None:
    there = Imports(simd="avx2")
    found = check_fast_path(there, native=True)
    assert (found.status, found.found) == ("ok", "compiled, AVX2")
    missing = Imports({NATIVE: "ModuleNotFoundError: No module named 'wds_tools.images._native'"})
    unloadable = Imports({NATIVE: "ImportError: libm.so.6:\ncannot open shared object file"})
    for imported, allowed, said, remedy in (
        (missing, True, "Python only: not compiled: batches take longer", "C compiler"),
        (unloadable, True, "cannot be loaded: batches take longer (ImportError: libm.so.6: c", "C"),
        (there, False, "WDS_TOOLS_NATIVE=0", "unset"),
    ):
        found = check_fast_path(imported, native=allowed)
        assert found.status == "note"
        assert said in found.found
        assert remedy in found.remedy


def test_cores_that_a_container_does_not_have() -> None:
    assert check_cores(8, 8, None).found == "8 cores"
    assert check_cores(64, 4, 4).found.startswith("4 of the machine's 64 cores (CPU quota of 4)")
    assert check_cores(64, 4, None).found.startswith("4 of the machine's 64 cores (CPU affinity)")
    assert check_cores(64, 1, 1).status == "note"


def test_memory_that_a_container_does_not_have() -> None:
    assert check_memory(64 * 10**9, None, 8).status == "ok"
    assert check_memory(64 * 10**9, 8 * 10**9, 8).found == "8 GB, the limit of the container; the machine has 64 GB"
    found = check_memory(64 * 10**9, 2 * 10**9, 8)
    assert found.status == "problem"
    assert "8 workers and the main process may take 2.6 GB" in found.found


def test_shared_memory_of_a_container_that_was_started_without_asking_for_more() -> None:
    found = check_shm(64 << 20, 8)
    assert found.status == "note"
    assert "make_loader needs none" in found.found
    assert "--shm-size" in found.remedy
    assert check_shm(None, 1).status == "note"
    assert check_shm(8 << 30, 8).status == "ok"


def test_a_limit_of_open_files_that_is_too_low() -> None:
    assert check_open_files(1024, 4096, 8).status == "ok"
    assert check_open_files(-1, -1, 8).status == "ok"
    found = check_open_files(256, 4096, 8)
    assert (found.status, found.remedy) == ("problem", "ulimit -n 616")
    assert "limits.conf" in check_open_files(256, 512, 8).remedy
    assert check_open_files(1024, 1024, 128).status == "problem"
    assert MAPS_OF_A_WORKER == MAX_OPEN_MAPS


@pytest.mark.parametrize(
    ("torch", "facts", "status", "said"),
    [
        (CUDA, GPU, "ok", "NVIDIA H200 (CUDA 13.2, driver 580.65)"),
        (Torch("2.15", cuda="13.2", error="Found no NVIDIA driver"), NO_GPU, "ok", "none: batches stay in memory"),
        (Torch("2.15"), NO_GPU, "ok", "none: batches stay in memory"),
        (Torch("2.15", hip="7.1", devices=1, names=("MI300X",)), NO_GPU, "ok", "MI300X (ROCm 7.1)"),
        (Torch("2.15"), GPU, "problem", "torch 2.15 is built without CUDA"),
        (
            Torch("2.15", cuda="13.2", error="The driver is too old"),
            GPU,
            "problem",
            "(CUDA 13.2) cannot use it: The dr",
        ),
        (Torch("2.15", cuda="13.2"), GPU, "problem", "no reason given"),
        (Torch("2.15", cuda="13.2"), GPU | {"hidden": ""}, "note", "hidden by CUDA_VISIBLE_DEVICES=''"),
        (Torch("2.15", cuda="13.2"), GPU | {"gpus": 0}, "note", "driver 580.65, but no device in this container"),
        (replace(CUDA, error="CUDA error: out of memory"), GPU, "problem", "CUDA error: out of memory"),
        (None, GPU, "note", "torch cannot be imported"),
        (None, NO_GPU, "note", "torch cannot be imported"),
    ],
)
def test_the_gpu(torch: Torch | None, facts: dict[str, object], status: str, said: str) -> None:
    found = check_gpu(torch, **facts)  # type: ignore[arg-type]
    assert found.status == status, found
    assert said in found.found
    assert bool(found.remedy) == (status != "ok")


def test_a_cache_that_cannot_be_written_or_is_small() -> None:
    folder = Path("/data/cache")
    assert check_cache(folder, writable=True, free=10**11, limit=10**10).status == "ok"
    assert check_cache(folder, writable=False, free=10**11, limit=10**10).status == "problem"
    found = check_cache(folder, writable=True, free=10**9, limit=10**10)
    assert (found.status, found.found) == ("note", "/data/cache, 1 GB free; it takes up to 10 GB")


def test_extras_that_are_not_there_or_too_old() -> None:
    aiohttp, s3fs = Package("aiohttp", "3.15", "3.10", "http"), Package("s3fs", None, "2025.5", "s3")
    found = check_extras([*NEEDED, aiohttp, s3fs])
    assert (found.status, found.found) == ("ok", "http; not there: s3")
    assert found.remedy == "if you need them: pip install 'wds-tools[s3]'"
    assert check_extras([*NEEDED, aiohttp]).found == "http"
    found = check_extras([replace(s3fs, installed="2020.1")])
    assert (found.status, found.found) == ("note", "none; not there: s3; s3fs 2020.1 is too old")


def test_where_the_bytes_of_a_dataset_come_from() -> None:
    sizes = {"memory_bytes": 10**10, "cache_bytes": 10**9}
    assert "the disk is read once" in check_fit(10**9, remote=False, **sizes).found
    assert "every epoch reads the disk" in check_fit(10**11, remote=False, **sizes).found
    assert "fetched once" in check_fit(10**8, remote=True, **sizes).found
    found = check_fit(10**11, remote=True, **sizes)
    assert (found.status, "WDS_TOOLS_CACHE_BYTES=100000000000" in found.remedy) == ("note", True)


# --- a dataset ---


def looked_at(dataset: Path) -> dict[str, tuple[str, str]]:
    """Return the status and the words of each finding."""
    found = examine_dataset(str(dataset), memory_bytes=10**10, cache=CacheOptions.of())
    return {one.name: (one.status, one.found) for one in found}


def test_a_dataset_that_is_whole(packed: Path) -> None:
    found = looked_at(packed)
    assert [status for status, _ in found.values()] == ["ok"] * 4
    assert f"{packed}: 400 samples in 7 shards" in found["dataset"][1]


def test_a_dataset_with_damage(packed_copy: Path) -> None:
    index, shard = packed_copy / "shard-000001.parquet", packed_copy / "shard-000002.tar"
    index.write_bytes(index.read_bytes()[:-1])
    shard.write_bytes(shard.read_bytes()[:-512])
    (packed_copy / "shard-000003.tar").unlink()
    found = looked_at(packed_copy)
    assert found["indexes"][0] == "problem"
    assert "shard-000001" in found["indexes"][1]
    assert found["shards"] == ("problem", "2 of 7 are gone or have another length, such as shard-000002.tar")


def test_what_is_no_dataset(tmp_path: Path) -> None:
    ((name, (status, said)),) = looked_at(tmp_path / "nowhere").items()
    assert (name, status) == ("dataset", "problem")
    assert "no such folder" in said


# --- the command ---


def doctor(*words: str | Path, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command, with packages of ``path`` in place of others."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{path}:{root}" if path else root, **environment}
    command = [sys.executable, "-m", "wds_tools.cli", "doctor", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_this_machine() -> None:
    machine = look()
    assert machine.imports.torch is not None
    assert machine.imports.broken.keys() <= {NATIVE}
    assert machine.usable_cores <= machine.cores
    assert 0 < machine.memory <= machine.memory_bytes
    found = examine(machine)
    assert [one.name for one in found][:3] == ["python", "packages", "security"]
    assert {one.name: one.status for one in found}["python"] == "ok"


def test_the_command_prints_a_table_and_what_to_do(packed: Path, tmp_path: Path) -> None:
    done = doctor(packed, WDS_TOOLS_CACHE_DIR=str(tmp_path), WDS_TOOLS_CACHE_BYTES="1MB", WDS_TOOLS_NATIVE="0")
    assert done.stderr == ""
    names = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isalpha()]
    assert names[-4:] == ["dataset", "indexes", "shards", "reading"]
    assert "Python only: " in done.stdout
    assert native._native is None or "-> unset WDS_TOOLS_NATIVE\n" in done.stdout
    problems = json.loads(doctor("--json", packed, WDS_TOOLS_CACHE_DIR=str(tmp_path)).stdout)
    assert done.returncode == any(one["status"] == "problem" for one in problems)


def test_a_dataset_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    done = doctor(tmp_path / "nowhere")
    assert done.returncode == 1
    assert "no such folder" in done.stdout


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ends the process with signal 11"),
        ("raise SystemExit(3)", "ends the process with exit code 3"),
    ],
)
def test_torch_that_cannot_be_imported_is_said(packed: Path, tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(code)
    done = doctor(packed, path=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"torch cannot be imported: {'ImportError: ' if 'raise Imp' in code else ''}{reason}" in done.stdout
    assert "400 samples in 7 shards" in done.stdout  # which needs no torch


def test_it_works_where_nothing_can_be_imported(packed: Path, tmp_path: Path) -> None:
    for name in ("torch", "numpy", "pyarrow", "PIL", "simplejpeg", "xxhash", "fsspec", "braceexpand", "tqdm"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('broken')")
    done = doctor(packed, path=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "numpy cannot be imported: ImportError: broken; " in done.stdout
    assert "dataset    note     not checked: " in done.stdout


FAKE_TORCH = """
__version__ = "2.15.0+cu132"
class version: cuda, hip = "13.2", None
class cuda:
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda number: "NVIDIA H200")
    init = staticmethod(lambda: None)
def empty(size, pin_memory):
    raise RuntimeError("CUDA error: out of memory")
"""


def test_a_device_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    done = doctor(path=tmp_path)
    assert done.returncode == 1
    assert "gpu        problem" in done.stdout
    assert "CUDA error: out of memory" in done.stdout
    (tmp_path / "torch.py").write_text(FAKE_TORCH.replace('raise RuntimeError("CUDA error: out of memory")', "pass"))
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert "gpu        ok       NVIDIA H200 (CUDA 13.2" in doctor(path=tmp_path).stdout


def test_the_table_says_what_to_do_below_each_line() -> None:
    good, bad = check_python((3, 12, 1)), check_python((3, 9, 1))
    assert render([good]) == "python     ok       3.12.1\n\nall is well"
    assert render([good, bad]).splitlines() == [
        "python     ok       3.12.1",
        "python     problem  3.9.1",
        "                    -> install Python 3.11 or newer",
        "",
        "1 problem, 0 notes",
    ]
