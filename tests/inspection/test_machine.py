"""Facts about the machine, read from files in the formats of different systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from wds_tools.inspection.machine import (
    NATIVE,
    Imports,
    Torch,
    active_decoder,
    decoder_text,
    driver_version,
    imports,
    memory_limit,
    packages,
    parse_requirement,
    read_probe,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"memory.max": "8000000000\n"}, 8 * 10**9),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "8000000000\n", "pod/memory.max": "2000000000\n"}, 2 * 10**9),
        ({"memory/memory.limit_in_bytes": "4000000000\n"}, 4 * 10**9),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_the_memory_limit_is_the_lowest_of_the_control_groups(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod\n")
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert memory_limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC 12.2.0", "580.65.06"),
        ("something else\n", "of unknown version"),
        (None, None),
    ],
)
def test_the_driver_version_is_read_from_proc(tmp_path: Path, text: str | None, version: str | None) -> None:
    if text is not None:
        write(tmp_path / "proc/driver/nvidia/version", text)
    assert driver_version(tmp_path) == version


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pillow>=13.0", ("pillow", "13.0", "")),
        ("google-crc32c>=1.6; extra == 'sources'", ("google-crc32c", "1.6", "sources")),
        ('s3fs>=2025.5 ; extra == "s3"', ("s3fs", "2025.5", "s3")),
        ("moto[s3,server]>=5.1; extra == 'test'", ("moto", "5.1", "test")),
        ("numpy<3,>=2.0", ("numpy", "2.0", "")),
        ("click", ("click", "", "")),
    ],
)
def test_a_requirement_is_split_into_name_version_and_extra(text: str, parts: tuple[str, str, str]) -> None:
    assert parse_requirement(text) == parts


def test_the_packages_are_the_requirements_without_extras() -> None:
    found = packages()
    assert all(package.installed for package in found if package.name == "torch")
    names = {package.name for package in found}
    assert "torch" in names
    assert not {"aiohttp", "pytest"} & names
    assert packages("no-such-distribution") == []


def test_a_module_that_cannot_be_imported_is_listed_with_the_reason() -> None:
    found = imports("json", "no_such_module")
    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    assert found == Imports({"no_such_module": reason}, missing=frozenset(["no_such_module"]))


def test_a_module_that_lacks_another_module_is_broken_and_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_another.py").write_text("import no_such_module")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = imports("needs_another")
    assert found.broken.keys() == {"needs_another"}
    assert not found.missing


def test_a_module_whose_import_kills_the_process_is_broken() -> None:
    lines = [{"begins": "numpy"}, {"name": "numpy"}, {"begins": "torch"}]
    assert read_probe(lines, "ends the process with signal 11").broken == {"torch": "ends the process with signal 11"}


def test_facts_about_torch_and_the_compiled_module_are_read_from_the_other_process() -> None:
    lines = [{"begins": "numpy"}, {"name": "numpy"}, {"begins": "torch"}]
    torch = {"version": "2.15.0", "cuda": None, "hip": None, "devices": 0, "names": []}
    assert read_probe([*lines, {"name": "torch", "torch": torch}], "") == Imports({}, Torch("2.15.0"))
    native = [{"begins": NATIVE}, {"name": NATIVE, "simd": "neon"}]
    assert read_probe(native, "") == Imports(simd="neon")


@pytest.mark.parametrize(
    ("imported", "allowed", "text"),
    [
        (Imports(simd="avx2"), True, "compiled, AVX2"),
        (Imports(simd="neon"), True, "compiled, NEON"),
        (Imports(simd="none"), True, "compiled, no SIMD"),
        (Imports(simd="avx512"), True, "compiled, avx512"),
        (Imports(), True, "compiled"),
        (Imports(simd="avx2"), False, "Python only: WDS_TOOLS_NATIVE=0"),
        (Imports({NATIVE: "No module"}, missing=frozenset([NATIVE])), False, "Python only: not compiled"),
        (Imports({NATIVE: "libm.so.6"}), True, "Python only: the compiled module cannot be loaded"),
        (Imports({"torch": "cannot be imported"}, simd="avx2"), True, "compiled, AVX2"),
    ],
)
def test_the_decoder_is_described_as_text(imported: Imports, allowed: bool, text: str) -> None:
    assert decoder_text(imported, allowed=allowed) == text


def test_the_active_decoder_is_the_one_that_another_process_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WDS_TOOLS_NATIVE", raising=False)
    assert active_decoder() == decoder_text(imports(NATIVE), allowed=True)
