"""Option parsing: sizes, usable cores and the cache folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools import options
from wds_tools.errors import OptionError
from wds_tools.options import DEFAULT_CACHE_BYTES, RemoteOptions, available_cores, parse_bytes, quota_cores

QUICK = settings(deadline=None)
UNITS = {
    "k": 10**3,
    "M": 10**6,
    "GB": 10**9,
    "tb": 10**12,
    "KiB": 2**10,
    "mi": 2**20,
    "GiB": 2**30,
    "TIB": 2**40,
}


@QUICK
@given(st.integers(1, 2**63 - 1))
def test_an_integer_is_a_number_of_bytes(number: int) -> None:
    assert parse_bytes(number) == number
    assert parse_bytes(str(number)) == number
    assert parse_bytes(f"{number} B") == number


@QUICK
@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_units_multiply_by_powers_of_1000_or_1024(number: int, unit: str, gap: str) -> None:
    assert parse_bytes(f"{number}{gap}{unit}") == number * UNITS[unit]


@QUICK
@given(st.integers(1, 10**7))
def test_decimal_fractions_of_a_unit_are_exact(thousandths: int) -> None:
    assert parse_bytes(f"{thousandths // 1000}.{thousandths % 1000:03d}kB") == thousandths
    assert parse_bytes(f"{thousandths // 1000}.{thousandths % 1000:03d}GB") == thousandths * 10**6


@pytest.mark.parametrize(
    ("value", "size"), [(1e9, 10**9), ("1e9", 10**9), (1e16, 10**16), (1.9, 1), ("2.5e3k", 2_500_000)]
)
def test_floats_and_exponents_are_accepted(value: float | str, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize(
    "value",
    ["", "GB", "-1", -1, 0, "0", "0.5", "1 XB", "1i", "1GBB", "1.GB", "1,000", "ten", True, None, float("nan"),
     float("inf"), "1e999999999", "9" * 400, 2**63, "10000000TB"],
)  # fmt: skip
def test_an_invalid_size_is_refused_with_examples(value: object) -> None:
    with pytest.raises(OptionError, match=r"shard_bytes=.* is not a size; allowed are .*'4MB', '1GB'"):
        parse_bytes(value, what="shard_bytes")  # type: ignore[arg-type]


@QUICK
@given(st.text(max_size=12))
def test_any_text_is_a_valid_size_or_raises_option_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        assert 1 <= parse_bytes(text) < 2**63


def test_available_cores_are_limited_by_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    affinity = len(os.sched_getaffinity(0))
    for quota, cores in ((None, affinity), (1, 1), (1000, affinity)):
        monkeypatch.setattr(options, "quota_cores", lambda quota=quota: quota)
        assert available_cores() == cores


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/\n", {"": "400000 100000"}, 4),
        ("0::/\n", {"": "250000 100000"}, 3),
        ("0::/\n", {"": "50000 100000"}, 1),
        ("0::/\n", {"": "max 100000"}, None),
        ("0::/\n", {"": "nonsense"}, None),
        ("0::/\n", {}, None),
        ("0::/pod/box\n", {"pod": "600000 100000", "pod/box": "max 100000"}, 6),
        ("0::/pod/box\n", {"pod": "600000 100000", "pod/box": "200000 100000", "other": "100000 100000"}, 2),
        ("4:cpu,cpuacct:/docker/1\n0::/docker/1\n", {"docker/1": "200000 100000"}, 2),
        ("4:cpu,cpuacct:/\n", {"": "200000 100000"}, 2),
    ],
)
def test_the_cpu_quota_is_the_smallest_of_the_group_and_its_ancestors(
    tmp_path: Path, group: str, files: dict[str, str], cores: int | None
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(group)
    for name, content in files.items():
        folder = tmp_path / "sys" / "fs" / "cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(content + "\n")
    assert quota_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("250000", 3), ("-1", None)])
def test_the_cpu_quota_of_cgroup_version_1_is_read(tmp_path: Path, quota: str, cores: int | None) -> None:
    group = tmp_path / "sys" / "fs" / "cgroup" / "cpu"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert quota_cores(tmp_path) == cores


def test_there_is_no_quota_without_control_groups(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None


def test_remote_options_come_from_the_arguments_then_the_environment_then_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WDS_TOOLS_CACHE_BYTES", raising=False)
    monkeypatch.delenv("WDS_TOOLS_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert RemoteOptions.of() == RemoteOptions(
        cache_folder=tmp_path / "xdg" / "wds_tools", cache_bytes=DEFAULT_CACHE_BYTES
    )
    monkeypatch.setenv("WDS_TOOLS_CACHE_DIR", str(tmp_path / "variable"))
    monkeypatch.setenv("WDS_TOOLS_CACHE_BYTES", "5GB")
    assert RemoteOptions.of() == RemoteOptions(cache_folder=tmp_path / "variable", cache_bytes=5 * 10**9)
    assert RemoteOptions.of(tmp_path, "1MB") == RemoteOptions(cache_folder=tmp_path, cache_bytes=10**6)


def test_the_default_cache_folder_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WDS_TOOLS_CACHE_DIR", "WDS_TOOLS_CACHE_BYTES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RemoteOptions.of().cache_folder == tmp_path / ".cache" / "wds_tools"
    assert RemoteOptions.of("~/here", None).cache_folder == tmp_path / "here"


@pytest.mark.parametrize("limit", [0, "0", "much"])
def test_an_invalid_cache_size_is_refused(tmp_path: Path, limit: int | str) -> None:
    with pytest.raises(OptionError, match=r"^cache_bytes="):
        RemoteOptions.of(tmp_path, limit)


@pytest.mark.parametrize("variable", ["WDS_TOOLS_CACHE_BYTES", "WDS_TOOLS_READ_AHEAD_BYTES"])
def test_the_error_for_an_invalid_size_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "much")
    with pytest.raises(OptionError, match=f"^{variable}='much' is not a size"):
        RemoteOptions.of()


@pytest.fixture
def no_remote_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE_DIR", "CACHE_BYTES", "READ_AHEAD_BYTES", "RETRY_SECONDS"):
        monkeypatch.delenv(f"WDS_TOOLS_{name}", raising=False)


@pytest.mark.usefixtures("no_remote_variables")
def test_read_ahead_and_retries_come_from_the_arguments_then_the_environment_then_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = RemoteOptions.of()
    assert (defaults.read_ahead_bytes, defaults.retry_seconds) == (None, 300.0)
    monkeypatch.setenv("WDS_TOOLS_READ_AHEAD_BYTES", "64MiB")
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", "2.5")
    found = RemoteOptions.of()
    assert (found.read_ahead_bytes, found.retry_seconds) == (64 << 20, 2.5)
    given = RemoteOptions.of(read_ahead_bytes="1MB", retry_seconds=7)
    assert (given.read_ahead_bytes, given.retry_seconds) == (10**6, 7.0)


@pytest.mark.usefixtures("no_remote_variables")
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_an_invalid_retry_time_is_refused(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("WDS_TOOLS_RETRY_SECONDS", seconds)
    with pytest.raises(OptionError, match=r"(?i)retry_seconds="):
        RemoteOptions.of()


@pytest.mark.parametrize("options", ["anon=True", [("anon", True)], {1: "x"}])
def test_storage_options_that_are_not_a_dict_of_names_are_refused(options: object) -> None:
    with pytest.raises(OptionError, match=r"storage_options= .*expected a dict"):
        RemoteOptions.of(storage_options=options)  # type: ignore[arg-type]


def test_storage_options_are_copied_and_are_not_in_the_repr() -> None:
    given = {"secret": "s3cr3t-sentinel"}
    options = RemoteOptions.of(storage_options=given)
    given.clear()
    assert options.storage_options == {"secret": "s3cr3t-sentinel"}
    assert "s3cr3t-sentinel" not in f"{options!r}{options}"
    assert isinstance(hash(options), int)
