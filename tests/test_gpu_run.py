"""`make gpu`: what the machine lacks is named, and the tests and the benchmark need no fixtures of the suite."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import gpu_run
import preloaded
import pytest

ROOT = Path(__file__).parents[1]


def run_without_packages(wheels):
    """Run it in a Python that has only the standard library."""
    command = [sys.executable, "-I", "-S", ROOT / "tests" / "gpu_run.py", "--wheels", wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


def write_wheel(path):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("click.py", "")
        wheel.writestr("click-8.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: click\nVersion: 8.1\n")
        wheel.writestr("braceexpand.py", "")
        wheel.writestr("braceexpand-0.1.7.dist-info/METADATA", "Name: braceexpand\nVersion: 0.1.7\n")


def test_packages_that_are_missing_or_too_old_are_named_with_what_to_do(tmp_path):
    write_wheel(tmp_path / "wheels" / "two-1-py3-none-any.whl")
    error = run_without_packages(tmp_path / "wheels")
    assert error.startswith(f"make gpu: {sys.executable} (Python ")
    assert "\n  torch>=2.4: No module named 'torch'\n" in error
    assert "\n  pytest: No module named 'pytest'\n" in error
    assert "\n  click>=8.2: this is 8.1\n" in error
    assert "braceexpand" not in error  # it was taken from the wheel
    assert "name a Python that has them: make gpu PYTHON=..." in error
    assert "run `make gpu-wheels` on a machine with network" in error


def test_wheels_for_another_version_of_python_are_reported(tmp_path):
    write_wheel(tmp_path / "wheels" / "two-1-cp38-cp38-linux_x86_64.whl")
    error = run_without_packages(tmp_path / "wheels")
    assert "has wheels for cp38: make gpu-wheels GPU_PYTHON=" in error
    assert "No module named" not in error


def test_a_machine_without_a_gpu_is_reported_last_and_the_exit_status_is_1(tmp_path):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = preloaded.run([ROOT / "tests" / "gpu_run.py", "--wheels", tmp_path / "none"], env=environment)
    assert done.returncode == 1
    assert re.search(r"\nit needs a CUDA device: torch \S+ sees none", done.stderr)
    assert done.stderr.count("\n") == 2
    assert done.stdout == ""


def test_the_compiled_module_is_taken_from_the_wheel_if_the_repository_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    with zipfile.ZipFile(tmp_path / "wds_tools-0.1.0-cp311-abi3-any.whl", "w") as wheel:
        wheel.writestr("wds_tools/images/_native.abi3.so", b"new")
        wheel.writestr("wds_tools/errors.py", b"new")
    for _ in range(2):
        gpu_run.take_compiled_module(tmp_path)
        assert (tmp_path / "wds_tools" / "images" / "_native.abi3.so").read_bytes() == b"new"
        assert not (tmp_path / "wds_tools" / "errors.py").exists()


def test_the_tests_are_collected_without_the_configuration_of_the_suite(tmp_path):
    variables = {**gpu_run.environment(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = preloaded.run(gpu_run.tests("--collect-only", "-q", "-W", "error")[1:], env=variables, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert "test_cuda.py::test_batches_on_a_side_stream_equal_those_in_cpu_memory" in done.stdout


@pytest.mark.torture
def test_a_rehearsal_prints_the_table(tmp_path):
    command = [*gpu_run.benchmark()[1:], "--rehearse"]
    done = preloaded.run(command, env={**gpu_run.environment(tmp_path), "OMP_NUM_THREADS": "1"}, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0] == "| measured | result |"
    assert "| 4 batches compared with the CPU's | 0 different |" in rows
    assert any("of the loop on one repeated batch" in row for row in rows)
