"""The checks of `wds-tools doctor` with good and bad facts; the command with working and broken packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote

import fsspec
import pytest

import wds_tools
from wds_tools.cli import main
from wds_tools.images import native
from wds_tools.inspection.datacheck import examine_datasets
from wds_tools.inspection.doctor import (
    OPEN_SHARDS_PER_PROCESS,
    check_cache,
    check_cores,
    check_fast_path,
    check_gpu,
    check_memory,
    check_open_files,
    check_packages,
    check_python,
    check_shm,
    examine,
    format_findings,
    version_numbers,
)
from wds_tools.inspection.machine import NATIVE, Imports, Package, Torch, inspect_machine
from wds_tools.options import RemoteOptions, source_tree
from wds_tools.storage.local import MAX_OPEN_MAPS

NEEDED = [Package("torch", "2.15.0+cu132", "2.10"), Package("pillow", "13.0.0", "13.0"), Package("numpy", "2.0", "2.0")]
CUDA = Torch("2.15.0", cuda="13.2", devices=1, names=("NVIDIA H200",))
NO_GPU = {"gpus": 0, "driver": None, "hidden": None}
GPU = {"gpus": 1, "driver": "580.65", "hidden": None}


# --- the checks ---


def test_versions_are_compared_as_numbers() -> None:
    assert version_numbers("10.0") > version_numbers("9.9")
    assert version_numbers("2.10") > version_numbers("2.9.1")
    assert version_numbers("nonsense") < version_numbers("0.1")


def test_an_old_version_of_python_is_a_problem() -> None:
    assert check_python((3, 11, 0)).status == "ok"
    found = check_python((3, 10, 14))
    assert (found.status, found.found) == ("problem", "3.10.14")
    assert "Python 3.11" in found.remedy


def test_installed_packages_are_listed() -> None:
    found = check_packages(NEEDED, Imports())
    assert (found.status, found.found) == ("ok", "torch 2.15.0+cu132, pillow 13.0.0, numpy 2.0")


def test_missing_and_old_packages_are_a_problem() -> None:
    lacking = [*NEEDED[1:], Package("torch", "2.9.1", "2.10"), Package("xxhash", None, "3.5")]
    found = check_packages(lacking, Imports({"xxhash": "No module named 'xxhash'"}))
    assert (found.status, found.found) == ("problem", "torch 2.9.1 is too old, xxhash is missing")
    assert found.remedy == "pip install 'torch>=2.10' 'xxhash>=3.5'"


def test_a_server_without_the_packages_of_the_loader_is_a_note() -> None:
    without = [Package("torch", None, "2.10"), Package("webdataset", None, "0.2"), *NEEDED[1:]]
    found = check_packages(without, Imports({"torch": "No module named 'torch'"}))
    assert found.status == "note"
    assert found.found.endswith("packing, verifying and serving work, loaders do not")
    assert check_packages(without, Imports({"torch": "no", "xxhash": "no"})).status == "problem"
    assert check_packages([*without, Package("xxhash", None, "3.5")], Imports()).status == "problem"
    assert check_packages([Package("torchvision", None, "0.19"), *NEEDED], Imports()).status == "problem"


@pytest.mark.parametrize("packages", [NEEDED, []])
def test_packages_that_cannot_be_imported_are_a_problem(packages: list[Package]) -> None:
    broken = {"torch": "ImportError: libcudart.so.13: cannot open\nshared object file", "PIL.Image": "no"}
    found = check_packages(packages, Imports(broken))
    assert found.status == "problem"
    assert "torch cannot be imported: ImportError: libcudart.so.13: cannot open shared object file; PIL" in found.found
    assert found.remedy.endswith("pip install --force-reinstall torch pillow")


def test_a_missing_compiled_module_is_not_a_broken_package() -> None:
    assert check_packages(NEEDED, Imports({NATIVE: "No module named"})).status == "ok"


def test_source_code_that_is_not_installed_is_a_note() -> None:
    assert check_packages([], Imports()).status == "note"


def test_a_missing_broken_or_disabled_compiled_module_is_a_note() -> None:
    installed = Imports(simd="avx2")
    found = check_fast_path(installed, native=True)
    assert (found.status, found.found) == ("ok", "compiled, AVX2")
    missing = Imports({NATIVE: "No module named 'wds_tools.images._native'"}, missing=frozenset([NATIVE]))
    unloadable = Imports({NATIVE: "ImportError: libm.so.6:\ncannot open shared object file"})
    compiler, again = "install a C compiler, then wds-tools again", "install wds-tools again"
    tree = "pip install --editable '/my clones/wds'"
    for imported, allowed, folder, text, remedy in (
        (missing, True, None, "Python only: not compiled: loading is slower", compiler),
        (unloadable, True, None, "cannot be loaded: loading is slower (ImportError: libm.so.6: c", again),
        (installed, False, None, "WDS_TOOLS_NATIVE=0", "unset WDS_TOOLS_NATIVE"),
        (missing, True, "/my clones/wds", "Python imports the source tree /my clones/wds", tree),
        (unloadable, True, "/my clones/wds", "(ImportError: libm.so.6: c", tree),
    ):
        found = check_fast_path(imported, native=allowed, source_tree=folder)
        assert found.status == "note"
        assert text in found.found
        assert found.remedy == remedy


def test_a_source_tree_that_is_not_installed_is_named_in_the_command_that_installs_it() -> None:
    root = str(Path(wds_tools.__file__).parents[1])
    assert source_tree() == root
    assert check_packages([], Imports(), source_tree=root).remedy == f"pip install --editable {quote(root)}"


def test_cores_that_the_process_cannot_use_are_not_counted() -> None:
    assert check_cores(8, 8, None).found == "8 cores"
    assert check_cores(64, 4, 4).found.startswith("4 of the machine's 64 cores (CPU quota of 4)")
    assert check_cores(64, 4, None).found.startswith("4 of the machine's 64 cores (CPU affinity)")
    assert check_cores(64, 1, 1).status == "note"


def test_memory_is_limited_by_the_container() -> None:
    assert check_memory(64 * 10**9, None).status == "ok"
    assert check_memory(64 * 10**9, 8 * 10**9).found == "8 GB, the limit of the container; the machine has 64 GB"
    found = check_memory(64 * 10**9, 10**9)
    assert (found.status, found.remedy) == ("problem", "provide 2 GB or more, or use few workers: num_workers=1")


def test_little_shared_memory_is_a_note() -> None:
    found = check_shm(64 << 20)
    assert found.status == "note"
    assert "make_loader needs none" in found.found
    assert "--shm-size" in found.remedy
    assert check_shm(None).status == "note"
    assert check_shm(8 << 30).status == "ok"


def test_a_low_limit_of_open_files_is_a_problem() -> None:
    assert check_open_files(4096, 4096, 8).status == "ok"
    assert check_open_files(-1, -1, 8).status == "ok"
    assert check_open_files(256, 4096, 8).found == "256 may be open; loaders raise that to 4,096"
    assert check_open_files(256, -1, 8).status == "ok"
    found = check_open_files(256, 2048, 8)
    assert (found.status, "2,152" in found.found) == ("problem", True)
    assert "limits.conf" in found.remedy
    assert check_open_files(2200, 2200, 128).status == "problem"
    assert OPEN_SHARDS_PER_PROCESS == MAX_OPEN_MAPS


@pytest.mark.parametrize(
    ("torch", "facts", "status", "text"),
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
def test_a_gpu_that_torch_cannot_use_is_a_problem_or_a_note_with_the_reason(
    torch: Torch | None, facts: dict[str, object], status: str, text: str
) -> None:
    found = check_gpu(torch, **facts)  # type: ignore[arg-type]
    assert found.status == status, found
    assert text in found.found
    assert bool(found.remedy) == (status != "ok")


def test_a_cache_on_a_full_disk_is_a_note_and_one_that_cannot_be_written_a_problem() -> None:
    folder = Path("/data/cache")
    assert check_cache(folder, writable=True, free=10**11, limit=10**10).status == "ok"
    assert check_cache(folder, writable=False, free=10**11, limit=10**10).status == "problem"
    found = check_cache(folder, writable=True, free=10**9, limit=10**10)
    assert (found.status, found.found) == ("note", "/data/cache, 1 GB free; the limit of the cache is 10 GB")


# --- a dataset ---


def findings_of(dataset: Path) -> dict[str, tuple[str, str]]:
    """Return the status and the text of each finding."""
    found = examine_datasets([str(dataset)], remote=RemoteOptions.of())
    return {one.name: (one.status, one.found) for one in found}


def test_a_valid_dataset_has_only_ok_findings(packed: Path) -> None:
    found = findings_of(packed)
    assert [found[name][0] for name in ("dataset", "indexes", "shards")] == ["ok"] * 3
    assert found["images"] == (
        "note",
        "400 images without a signature: similar, blank and blurred images are not found",
    )
    assert f"{packed}: 400 samples in 7 shards" in found["dataset"][1]


def test_a_remote_dataset_that_is_larger_than_the_cache_is_a_note(packed: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(packed), "/examined", recursive=True)
    for limit, is_noted in ((100_000, True), (10**10, False)):
        found = examine_datasets(["memory://examined"], remote=RemoteOptions.of(cache_bytes=limit))
        notes = [one for one in found if one.name == "reading"]
        assert [one.status for one in notes] == ["note"] * is_noted
        assert all("WDS_TOOLS_CACHE_BYTES=" in one.remedy for one in notes)


def test_damaged_indexes_and_missing_or_truncated_shards_are_problems(packed_copy: Path) -> None:
    index, shard = packed_copy / "shard-000001.parquet", packed_copy / "shard-000002.tar"
    index.write_bytes(index.read_bytes()[:-1])
    shard.write_bytes(shard.read_bytes()[:-512])
    (packed_copy / "shard-000003.tar").unlink()
    found = findings_of(packed_copy)
    assert found["indexes"][0] == "problem"
    assert "shard-000001" in found["indexes"][1]
    assert found["shards"] == ("problem", "2 of 7 are missing or have the wrong length, such as shard-000002.tar")


# --- the command ---


def doctor(*words: str | Path, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command; packages in ``path`` take precedence over installed ones."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{path}:{root}" if path else root, **environment}
    command = [sys.executable, "-m", "wds_tools.cli", "doctor", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.torture
def test_this_machine_can_be_inspected() -> None:
    machine = inspect_machine()
    assert machine.imports.torch is not None
    assert machine.imports.broken.keys() <= {NATIVE}
    assert machine.usable_cores <= machine.cores
    found = examine(machine)
    assert [one.name for one in found][:3] == ["python", "packages", "fast path"]
    assert {one.name: one.status for one in found}["python"] == "ok"


def test_the_command_prints_findings_and_remedies(
    packed: Path,
    no_probe_of_packages: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WDS_TOOLS_CACHE_BYTES", "1MB")
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    with pytest.raises(SystemExit) as end:
        main(["doctor", str(packed)])
    shown, messages = capsys.readouterr()
    assert messages == ""
    names = [line.split()[0] for line in shown.splitlines() if line[:1].isalpha()]
    assert names[-4:] == ["dataset", "indexes", "shards", "images"]
    assert "Python only: " in shown
    assert not native.is_available() or "-> unset WDS_TOOLS_NATIVE\n" in shown
    assert end.value.code == ("  problem  " in shown)


@pytest.mark.torture
def test_the_findings_can_be_printed_as_json(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    done = doctor("--json", packed, path=tmp_path, WDS_TOOLS_CACHE_DIR=str(tmp_path))
    found = {one["name"]: one["status"] for one in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "problem" in found.values()
    assert {"dataset", "indexes", "shards"} <= found.keys()


def test_the_exit_code_is_2_for_a_missing_dataset(
    tmp_path: Path, no_probe_of_packages: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", str(tmp_path / "nowhere")])
    assert "nowhere: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ends the process with signal 11"),
        ("raise SystemExit(3)", "ends the process with exit code 3"),
    ],
)
@pytest.mark.torture_except("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)-ends the process with signal 11")
def test_the_command_reports_why_torch_cannot_be_imported(packed: Path, tmp_path: Path, code: str, reason: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(code)
    done = doctor(packed, path=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"torch cannot be imported: {'ImportError: ' if 'raise Imp' in code else ''}{reason}" in done.stdout
    assert "400 samples in 7 shards" in done.stdout  # does not need torch


def test_the_command_works_if_no_package_can_be_imported(packed: Path, tmp_path: Path) -> None:
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


@pytest.mark.torture
def test_the_command_reports_a_device_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    done = doctor(path=tmp_path)
    assert done.returncode == 1
    assert "gpu        problem" in done.stdout
    assert "CUDA error: out of memory" in done.stdout
    (tmp_path / "torch.py").write_text(FAKE_TORCH.replace('raise RuntimeError("CUDA error: out of memory")', "pass"))
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert "gpu        ok       NVIDIA H200 (CUDA 13.2" in doctor(path=tmp_path).stdout


def test_the_table_has_the_remedy_below_each_finding() -> None:
    good, bad = check_python((3, 12, 1)), check_python((3, 9, 1))
    assert format_findings([good]) == "python     ok       3.12.1\n\nno problems"
    assert format_findings([good, bad]).splitlines() == [
        "python     ok       3.12.1",
        "python     problem  3.9.1",
        "                    -> install Python 3.11 or newer",
        "",
        "1 problem, 0 notes",
    ]
