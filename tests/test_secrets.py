"""Secrets in storage options: accepted everywhere in Python, and found nowhere else."""

from __future__ import annotations

import inspect
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from buckets import Bucketful, Vault
from hypothesis import given
from hypothesis import strategies as st
from secret_search import WRONG, assert_hidden, assert_hidden_below, command_lines
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.bench.tune import tune
from wds_tools.cli import main
from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.inspection.contact_sheet import contact_sheet
from wds_tools.options import RemoteOptions
from wds_tools.packing.config import PackOptions
from wds_tools.storage import open_store, upload
from wds_tools.storage.requests.remote_folder import options_for
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage.upload import Bucket
from wds_tools.storage_options import is_secret, parse_storage_options, redacted, secrets_of

SECRET = Vault.SECRET
OPTIONS = {"secret": SECRET}
REMOTE = RemoteOptions.of(storage_options=OPTIONS)
VIEW = wt.CenterCrop(16, resize=20)


@pytest.fixture(autouse=True)
def everything_is_searched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Search logs, output and files for the secret after each test."""
    Bucketful.reset()
    monkeypatch.setattr(upload, "POLICY", RetryPolicy(seconds=0.05, first_seconds=0.001, most_seconds=0.01))
    caplog.set_level(logging.DEBUG)
    yield
    assert_hidden(caplog.text)
    assert_hidden("".join(capfd.readouterr()))
    assert_hidden_below(tmp_path)


@pytest.fixture
def url(few: Path, tmp_path: Path) -> str:
    """Return the URL of a dataset that can be read only with the secret."""
    import shutil

    return f"vault://{shutil.copytree(few, tmp_path / 'vault')}"


# --- Python: every public function ---


READERS: dict[str, Callable[[str, Path], Any]] = {
    "describe": lambda url, _: wt.describe(url, storage_options=OPTIONS),
    "verify": lambda url, _: wt.verify(url, storage_options=OPTIONS).to_dict(),
    "unpack": lambda url, out: wt.unpack(url, out, storage_options=OPTIONS),
    "merge": lambda url, out: wt.merge([url], out, storage_options=OPTIONS),
    "reseal": lambda url, _: wt.reseal(url, storage_options=OPTIONS),
    "index_shards": lambda url, _: wt.index_shards(f"{url}/*.tar", storage_options=OPTIONS),
    "train_test_split": lambda url, _: wt.train_test_split(url, storage_options=OPTIONS),
    "contact_sheet": lambda url, out: contact_sheet(url, out.with_suffix(".png"), remote=REMOTE),
    "tune": lambda url, _: tune(url, batch_size=8, rounds=1, seconds=0.05, remote=REMOTE).to_dict(),
    "make_loader": lambda url, _: next(
        iter(wt.make_loader(url, batch_size=8, view=VIEW, num_workers=0, storage_options=OPTIONS))
    ),
    "StreamingDataset": lambda url, _: next(iter(wt.StreamingDataset(url, view=VIEW, storage_options=OPTIONS))),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.torture_except(
    "describe",
    "verify",
    "unpack",
    "merge",
    "reseal",
    "index_shards",
    "train_test_split",
    "contact_sheet",
    "make_loader",
    "StreamingDataset",
)
def test_a_function_that_reads_a_url_accepts_the_secret_and_keeps_it_out_of_its_result(
    url: str, tmp_path: Path, name: str
) -> None:
    result = READERS[name](url, tmp_path / "out")
    assert_hidden(repr(result))
    assert_hidden(pickle.dumps(result))


@pytest.mark.parametrize(
    "name", sorted({"pack", "pack_splits", "append", "reshard", *READERS} - {"tune", "contact_sheet"})
)
def test_storage_options_is_a_parameter_of_every_public_function_that_accepts_a_url(name: str) -> None:
    parameter = inspect.signature(getattr(wt, name)).parameters["storage_options"]
    assert parameter.kind is parameter.KEYWORD_ONLY


@pytest.mark.parametrize("split", [None, "train=0.5,val=0.5"])
def test_packing_to_a_url_writes_the_secret_into_no_plan_report_or_manifest(
    six_photos: Path, tmp_path: Path, split: str | None
) -> None:
    url = f"vault://{tmp_path / 'vault'}"
    seen: list[bytes] = []

    def look(_number: int, _path: str) -> None:  # before each upload: the spool and what is at the URL
        seen.extend(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        seen.append(command_lines())

    Bucketful.fault = staticmethod(look)
    options: dict[str, Any] = {"shard_bytes": "100kB", "workers": 2, "images": "keep", "storage_options": OPTIONS}
    if split is None:
        report: Any = wt.pack(six_photos, url, **options)
        assert wt.pack(six_photos, url, **options).kept == len(report.manifest.shards)
    else:
        report = wt.pack_splits(six_photos, url, split=split, **options)
    assert seen
    for data in seen:
        assert_hidden(data)
    assert_hidden(repr(report))
    assert_hidden(pickle.dumps(report))


def test_workers_read_with_the_secret_and_it_is_not_in_their_command_lines_or_the_state(url: str) -> None:
    with wt.make_loader(
        url, batch_size=4, view=VIEW, shuffle=True, num_workers=2, storage_options=OPTIONS, retry_seconds=5
    ) as loader:
        for _ in loader:
            assert_hidden(command_lines())
            state = loader.state_dict()
        assert_hidden(f"{loader!r}{loader}")
        assert_hidden(json.dumps(state))
        assert_hidden(pickle.dumps(state))
        buffer = io.BytesIO()
        torch.save({"loader": state}, buffer)
        assert_hidden(buffer.getvalue())
    dataset = wt.StreamingDataset(url, batch_size=4, view=VIEW, storage_options=OPTIONS)
    assert_hidden(f"{dataset!r}{dataset}")
    assert sum(len(labels) for _, labels in DataLoader(dataset, batch_size=4, num_workers=2)) == 40


# --- errors ---


@pytest.mark.parametrize("name", READERS)
def test_an_error_that_contains_the_secret_is_shown_without_it(
    url: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vault, "SECRET", "another")
    with pytest.raises(WdsToolsError, match=r"\*\*\*") as caught:
        READERS[name](url, tmp_path / "out")
    assert_hidden("".join(traceback.format_exception(caught.value)))
    assert_hidden(repr(caught.value))
    assert "403 AccessDenied" in str(caught.value)


def test_a_failed_upload_shows_no_secret(six_photos: Path, tmp_path: Path) -> None:
    with pytest.raises(WdsToolsError, match=r"403 AccessDenied: the secret \*\*\* is wrong") as caught:
        wt.pack(six_photos, f"vault://{tmp_path / 'vault'}", workers=1, storage_options=WRONG)
    assert_hidden("".join(traceback.format_exception(caught.value)))


@given(st.text(min_size=4, max_size=30), st.text(max_size=50), st.text(max_size=50))
def test_no_secret_is_left_in_a_redacted_text(secret: str, before: str, after: str) -> None:
    hidden = redacted(f"{before}{secret}{after}", secrets_of({"client_kwargs": {"session_token": secret}}))
    assert secret not in hidden or set(secret) <= {"*"}


def test_nested_secrets_and_those_in_lists_are_redacted() -> None:
    options = {"token": {"private_key": "abcdef", "type": "service"}, "headers": [("Authorization", "Bearer 12345")]}
    assert redacted("abcdef / Bearer 12345 / service", secrets_of(options)) == "*** / *** / ***"
    assert redacted("us-east-1", secrets_of({"region": "us-east-1", "key": "abcdef"})) == "us-east-1"


@pytest.mark.parametrize(
    "name", ["dbpassword", "pwd", "passphrase", "X-Bearer", "connection_string", "SAS", "sharedkey"]
)
def test_the_value_of_a_secret_is_hidden_by_its_name(name: str) -> None:
    assert is_secret(name)
    assert secrets_of({"client_kwargs": {name: [SECRET.encode()]}}) == {SECRET}


@pytest.mark.parametrize("name", ["look_for_keys", "MaxKeys", "endpoint_url", "region_name", "use_ssl", "timeout"])
def test_a_name_that_only_resembles_that_of_a_secret_is_allowed(name: str) -> None:
    assert parse_storage_options([f"{name}=1"]) == {name: 1}


def test_user_and_password_of_a_url_are_hidden_as_written_and_unquoted() -> None:
    assert secrets_of({}, "sftp://somebody:p%40ssword@host/a@b") == {"somebody", "p%40ssword", "p@ssword"}


# --- objects ---


def test_no_object_that_holds_options_shows_them() -> None:
    shown = [REMOTE, PackOptions("src", "dst", storage_options=OPTIONS), Bucket("vault:///tmp/x", remote=REMOTE)]
    for value in [*shown, open_store("vault:///tmp/x", remote=REMOTE)]:
        assert_hidden(f"{value!r}{value}")


def test_a_wrong_type_of_options_is_refused_without_its_value() -> None:
    for call in (
        lambda: wt.describe("vault:///x", storage_options=f"secret={SECRET}"),  # type: ignore[arg-type]
        lambda: wt.verify("vault:///x", storage_options=[("secret", SECRET)]),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError, match=r"storage_options= is of type") as caught:
            call()
        assert_hidden(str(caught.value))
    with pytest.raises((OptionError, TypeError)) as given_by_position:
        wt.make_loader("vault:///x", OPTIONS, batch_size=3)  # type: ignore[misc]
    assert_hidden(str(given_by_position.value))


# --- the command line ---


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("key", "AWS_ACCESS_KEY_ID"),
        ("secret", "AWS_SECRET_ACCESS_KEY"),
        ("SECRET", "AWS_SECRET_ACCESS_KEY"),
        ("s3.secret", "AWS_SECRET_ACCESS_KEY"),
        ("token", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("account_key", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("sas_token", "AZURE_STORAGE_SAS_TOKEN"),
        ("connection_string", "AZURE_STORAGE_CONNECTION_STRING"),
        ("password", "FSSPEC_SFTP_PASSWORD"),
        ("client_kwargs.aws_secret_access_key", "FSSPEC_"),
        ("client_kwargs.headers.Authorization", "FSSPEC_"),
        ("s3_additional_kwargs.SSECustomerKey", "FSSPEC_"),
    ],
)
def test_the_names_of_secrets_are_refused_with_the_variable_to_use(name: str, remedy: str) -> None:
    with pytest.raises(OptionError, match=rf"--storage-option {name}: .*{remedy}") as caught:
        parse_storage_options([f"{name}={SECRET}"])
    assert_hidden(str(caught.value))


@pytest.mark.parametrize(
    "command",
    [
        *("info X", "verify X", "sample X", "plan X", "tune X", "bench X", "doctor X", "index X", "reseal X"),
        *("pack X Y", "append X Y", "reshard X Y", "merge X -o Y", "unpack X Y"),
    ],
)
def test_every_command_refuses_a_secret(capfd: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--storage-option", f"secret={SECRET}"])
    error = capfd.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("error: --storage-option secret: other users of this machine can read a command line")
    assert_hidden(error)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["anon=true", "use_ssl=False"], {"anon": True, "use_ssl": False}),
        (["max_concurrency=8", "timeout=2.5"], {"max_concurrency": 8, "timeout": 2.5}),
        (["a.b=1", "a.c.d=x=y"], {"a": {"b": 1, "c": {"d": "x=y"}}}),
        (["client_kwargs.endpoint_url=http://h:9"], {"client_kwargs": {"endpoint_url": "http://h:9"}}),
        (["token=anon"], {"token": "anon"}),
        (["profile="], {"profile": ""}),
    ],
)
def test_words_of_the_command_line_are_parsed(words: list[str], options: dict[str, Any]) -> None:
    assert parse_storage_options(words) == options


@pytest.mark.parametrize(
    "words",
    [["anon"], [f"{SECRET}"], ["=1"], [".a=1"], ["a..b=1"], ["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=2", "a=1"]],
)
def test_invalid_words_are_refused_without_their_values(words: list[str]) -> None:
    with pytest.raises(OptionError, match="--storage-option") as caught:
        parse_storage_options(words)
    assert_hidden(str(caught.value))


def test_a_url_with_a_password_is_refused_as_a_value() -> None:
    with pytest.raises(OptionError, match="user name or password") as caught:
        parse_storage_options([f"client_kwargs.endpoint_url=https://me:{SECRET}@host"])
    assert_hidden(str(caught.value))


def test_an_option_of_the_command_line_reaches_the_file_system(
    few: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    begin = Bucketful.__init__

    def record(self: Any, **options: Any) -> None:
        seen.append(options)
        begin(self)

    monkeypatch.setattr(Bucketful, "__init__", record)
    with pytest.raises(SystemExit) as ended:
        main(["info", f"bucket://{few}", "--storage-option", "a.b=1", "--storage-option", "anon=true"])
    assert ended.value.code == 0
    assert "40 in" in capfd.readouterr().out
    assert {"a": {"b": 1}, "anon": True} in seen


def test_options_may_be_given_for_each_scheme() -> None:
    options = {"s3": {"anon": True}, "https": {"headers": {}}}
    assert options_for("s3://bucket/a", options) == {"anon": True}
    assert options_for("gs://bucket/a", options) == {}
    assert options_for("s3://bucket/a", {"client_kwargs": {"a": 1}}) == {"client_kwargs": {"a": 1}}
