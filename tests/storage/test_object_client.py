"""The clients for S3, Google Cloud Storage and Azure, against a server that misbehaves, and against moto."""

import dataclasses
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import time
import weakref
from pathlib import Path

import bad_server
import boto3
import client_requests
import fsspec
import pytest
from bad_server import BadServer, certificates
from client_requests import DATA, PATIENT, STALLING, client_of, read

import wds_tools as wt
from wds_tools.errors import ManifestError, OptionError, StoreError, TruncatedShardError
from wds_tools.storage.requests import object_client
from wds_tools.storage.requests.fsspec_client import FsspecClient
from wds_tools.storage.requests.object_client import ObjectClient
from wds_tools.storage.requests.object_options import UnsupportedOptionError, object_storage
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage.requests.s3_client import S3Client

QUICK = dataclasses.replace(client_requests.QUICK, connect_seconds=0.5)
QUICK_STALLING = dataclasses.replace(QUICK, idle_seconds=0.2)
REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("closed_clients")


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch, tmp_path):
    """Remove all settings of AWS, Google, Azure and proxies; the home folder is empty."""
    for name in list(os.environ):
        if name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def server():
    with BadServer({"/b/d/a.tar": DATA, "/b/d/index.json": b'{"a": 1}'}).running() as running:
        yield running


def options_for(server):
    return {"anon": True, "endpoint_url": server.url}


@pytest.fixture(params=[S3Client, ObjectClient])
def kind(request):
    return request.param


@pytest.fixture
def client(server, kind):
    return client_of("s3://b/d", options_for(server), PATIENT, kind=kind)


def test_ranges_and_whole_objects_are_read_without_head(client, server):
    for _ in range(2):
        assert read(client) == DATA[1000:201_000]
    assert read(client, len(DATA) - 1, len(DATA)) == DATA[-1:]
    assert client.read("index.json", most_bytes=100) == b'{"a": 1}'
    assert {request.method for request in server.requests} == {"GET"}
    assert [request.headers.get("if-match") for request in server.requests] == [None, '"one"', '"one"', None]
    counts = client.counts()
    assert (counts.requests, counts.failures, counts.received_bytes) == (4, 0, 400_001 + 8)


# S3Client sends its requests as the client for HTTP does, whose faults test_clients.py tests.
FAULTS = [
    bad_server.status(503, b"<Error><Code>SlowDown</Code></Error>"),
    bad_server.reset,
    bad_server.cut_after(150_000),
    bad_server.stall_after(150_000),
    bad_server.wrong_range,
]
MORE_FAULTS = [
    bad_server.status(429),
    bad_server.status(500),
    bad_server.status(400, b"<Error><Code>RequestTimeout</Code></Error>"),
    bad_server.disconnect,
    bad_server.no_answer,
    bad_server.cut_after(150_000, by=bad_server.reset),
    bad_server.drip(100, 0.02),
    bad_server.short_body,
    bad_server.no_content_range,
    bad_server.closing(),
]


@pytest.mark.parametrize("fault", [*FAULTS, *(pytest.param(one, marks=pytest.mark.torture) for one in MORE_FAULTS)])
def test_a_fault_that_passes_costs_only_time(server, kind, fault):
    client = client_of("s3://b/d", options_for(server), dataclasses.replace(STALLING, connect_seconds=1), kind=kind)
    server.answers.extend([fault] * 2)
    assert read(client) == DATA[1000:201_000]
    server.answers.append(fault)
    if fault not in (bad_server.wrong_range, bad_server.no_content_range):
        assert client.read("a.tar", most_bytes=10**6) == DATA


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (bad_server.status(503, b"<Error><Code>SlowDown</Code></Error>"), r"HTTP 503 .*\(SlowDown\)"),
        (bad_server.drip(100, 0.02), "no response in time|arrived"),
        (bad_server.wrong_range, r"Requested \d+\.\.\d+, got|arrived instead of"),
        pytest.param(bad_server.reset, "error sending request|reset", marks=pytest.mark.torture),
        pytest.param(bad_server.no_answer, "no response in time|arrived", marks=pytest.mark.torture),
        pytest.param(bad_server.cut_after(10), "body error|the response ended", marks=pytest.mark.torture),
        pytest.param(bad_server.no_content_range, "no valid Content-Range", marks=pytest.mark.torture),
    ],
)
def test_a_fault_that_stays_is_a_store_error_in_time_that_names_everything(server, kind, fault, words):
    policy = QUICK_STALLING if "no response in time" in words else QUICK
    client = client_of("s3://b/d", options_for(server), policy, kind=kind)
    server.default, started = fault, time.monotonic()
    with pytest.raises(StoreError, match=words) as caught:
        read(client)
    assert 0.5 <= time.monotonic() - started < 30
    assert caught.value.shard == "a.tar"
    for part in (
        "s3://b/d/a.tar cannot be read",
        f"host {server.url.removeprefix('http://')}, ",
        " attempt",
        "; ",
    ):
        assert part in str(caught.value)
    assert "Debug source" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            bad_server.status(403, b"<Error><Code>ExpiredToken</Code></Error>"),
            r"HTTP 403 .*ExpiredToken.*1 attempt.*renew",
        ),
        (
            bad_server.status(400, b"<Error><Code>ExpiredToken</Code></Error>"),
            r"HTTP 400 .*ExpiredToken.*1 attempt.*renew",
        ),
        (bad_server.status(401), r"HTTP 401.*1 attempt.*credentials"),
        (bad_server.status(412), "was replaced while it was being read"),
        (bad_server.whole_for_range, r"ignores range requests \(HTTP 200 instead of 206\).*1 attempt"),
        (bad_server.status(301), r"(another region|HTTP 301).*1 attempt.*AWS_REGION"),
    ],
)
def test_final_answers_end_at_once(client, server, answer, words):
    server.default = answer
    with pytest.raises(StoreError, match=words):
        read(client)
    assert len(server.requests) == 1


def test_a_missing_object_is_a_file_not_found_error(client, server):
    for request in (lambda: read(client, name="b.tar"), lambda: client.read("b.tar", most_bytes=9)):
        with pytest.raises(FileNotFoundError, match=r"s3://b/d/b\.tar (does not exist|is missing,).*NoSuchKey"):
            request()
    assert len(server.requests) == 2


def test_an_object_that_was_replaced_is_named_so(client, server):
    read(client)
    server.tag, server.objects["/b/d/a.tar"] = '"two"', DATA[::-1]
    with pytest.raises(StoreError, match=r"was replaced while it was being read.*pack changed data"):
        read(client)
    server.objects["/b/d/a.tar"], server.tag = DATA + b"x", '"one"'
    with pytest.raises(TruncatedShardError, match="truncated or replaced"):
        read(client)


@pytest.mark.parametrize("difference", [-1, 1])
def test_an_object_of_another_length_is_a_truncated_shard_error(client, difference):
    with pytest.raises(TruncatedShardError, match=r"has 300,000 bytes"):
        read(client, 0, 10, total=len(DATA) + difference)


def test_a_range_beyond_the_end_of_an_object_is_a_truncated_shard_error(client):
    with pytest.raises(TruncatedShardError, match=r"300,0.0 bytes.*truncated or replaced"):
        read(client, 300_000, 300_010, total=300_010)


def test_an_object_that_is_too_large_for_an_index_is_a_manifest_error(client):
    with pytest.raises(ManifestError, match=r"at most 299,999"):
        client.read("a.tar", most_bytes=299_999)


@pytest.mark.parametrize("endpoint", ["http://nowhere.invalid", "http://127.0.0.1:9"])
def test_an_unreachable_endpoint_is_named(kind, endpoint):
    policy = dataclasses.replace(QUICK, seconds=0.05, connect_seconds=20)
    client = client_of("s3://b/d", {"anon": True, "endpoint_url": endpoint}, policy, kind=kind)
    words = "host name was not found" if "nowhere" in endpoint else "error sending request|ConnectionRefusedError"
    with pytest.raises(StoreError, match=rf"({words}).*host {endpoint.removeprefix('http://')}, "):
        read(client)


@pytest.mark.parametrize("most", [30, pytest.param(200, marks=pytest.mark.torture)])
def test_after_many_cuts_the_bytes_are_right(kind, most):
    draw, cuts = random.Random(3), 0

    def answer(request):
        nonlocal cuts
        start, stop = request.span
        if draw.random() < 0.7 and cuts < most:
            cuts += 1
            way = draw.choice([bad_server.disconnect, bad_server.reset])
            return bad_server.cut_after(draw.randrange(stop - start), by=way)(request)
        return bad_server.good(request)

    policy = RetryPolicy(seconds=300, first_seconds=0, most_seconds=0)
    with BadServer({"/b/d/a.tar": DATA}, default=answer).running() as server:
        client = client_of("s3://b/d", options_for(server), policy, kind=kind)
        while cuts < most:
            start = draw.randrange(len(DATA) - 1)
            stop = draw.randrange(start + 1, len(DATA) + 1)
            assert read(client, start, stop) == DATA[start:stop]


def test_tls_with_a_certificate_of_an_own_authority(tmp_path, monkeypatch, kind):
    trusted, context = certificates(tmp_path)
    with BadServer({"/b/d/a.tar": DATA}).running(context) as server:
        with pytest.raises(
            StoreError, match=r"certificate of the server is not trusted.*[12] attempt"
        ):  # a slow handshake is repeated
            read(client_of("s3://b/d", options_for(server), PATIENT, kind=kind))
        for verify in (str(trusted), False):
            options = {**options_for(server), "client_kwargs": {"verify": verify}}
            assert read(client_of("s3://b/d", options, PATIENT, kind=kind)) == DATA[1000:201_000]
        monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
        assert read(client_of("s3://b/d", options_for(server), PATIENT, kind=kind)) == DATA[1000:201_000]


# Processes


def test_a_process_forked_from_one_that_used_obstore_reads_through_fsspec(client):
    read(client)
    child = os.fork()
    if not child:
        code = 1
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            other = client_of("s3://b/d", {"anon": True, "endpoint_url": "http://127.0.0.1:9"}, QUICK)
            with pytest.raises(StoreError, match="hangs in processes forked from it"):
                ObjectClient(RemoteFolder("s3://b/d", {"anon": True}, QUICK))
            with pytest.raises(StoreError, match="was created in process"):
                read(client)
            code = 0 if isinstance(other, FsspecClient) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("in_cycle", [True, False])
def test_a_forked_process_does_not_free_objects_of_obstore_of_its_parent(in_cycle):
    """It hung in 7 of 150 forks: the object waits for a lock that a thread of the parent held."""
    client = ObjectClient(RemoteFolder("s3://b/d", {"anon": True}, QUICK))
    alive = weakref.ref(client)
    if in_cycle:
        client.itself = client
        gc.collect()
        gc.disable()
        del client
    child = os.fork()
    if not child:
        client = None
        gc.collect()
        os._exit(0 if alive() else 3)
    gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client = None
    gc.collect()
    assert not alive()  # the parent itself frees it


def test_the_client_of_s3_signs_urls_unless_the_requester_pays(client):
    assert isinstance(client_of("s3://b/d", {"anon": True}), S3Client)
    assert isinstance(client_of("s3://b/d", {"anon": True, "requester_pays": True}), ObjectClient)


def test_no_message_contains_the_signature_of_a_url(server):
    client = client_of("s3://b/d", {"key": "AKIAKEY", "secret": "hiddenvalue", "endpoint_url": server.url}, PATIENT)
    assert read(client) == DATA[1000:201_000]
    assert "X-Amz-Signature=" in server.requests[0].path
    server.default = lambda request: request.send(403, f"<Error><Message>{request.path}</Message></Error>".encode())
    with pytest.raises(StoreError, match="HTTP 403") as caught:
        read(client)
    for secret in ("Signature=", "AKIAKEY", "hiddenvalue"):
        assert secret not in str(caught.value)


def test_retry_after_of_s3_is_honoured(server):
    client, started = client_of("s3://b/d", options_for(server), PATIENT), time.monotonic()
    server.answers.append(bad_server.status(503, Retry_After="1"))
    assert read(client) == DATA[1000:201_000]
    assert time.monotonic() - started > 0.9


def test_without_obstore_s3_is_read_through_fsspec(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert isinstance(client_of("s3://b/d", {"anon": True}), FsspecClient)


@pytest.mark.parametrize("scheme", ["gs", "gcs", "az", "abfs"])
def test_google_and_azure_are_read_without_head(server, scheme):
    options = {"anon": True, "endpoint_url": server.url}
    if scheme in {"az", "abfs"}:
        options = {"anon": True, "connection_string": f"AccountName=own;BlobEndpoint={server.url}"}
    client = client_of(f"{scheme}://b/d", options, PATIENT)
    assert isinstance(client, ObjectClient)
    server.answers.extend([bad_server.status(503), bad_server.cut_after(150_000)])
    for _ in range(2):
        assert read(client) == DATA[1000:201_000]
    assert client.read("index.json", most_bytes=100) == b'{"a": 1}'
    assert {request.method for request in server.requests} == {"GET"}
    assert server.requests[-2].headers["if-match"] == '"one"'
    with pytest.raises(FileNotFoundError, match=rf"{scheme}://b/d/none does not exist"):
        client.read("none", most_bytes=9)
    server.default = bad_server.status(403, b"", x_ms_error_code="AuthenticationFailed")
    with pytest.raises(StoreError, match=r"HTTP 403.*1 attempt.*permission"):
        read(client)


# Options


@pytest.mark.parametrize(
    ("url", "options", "config"),
    [
        (
            "s3://b/x/y",
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "eu-west-1"}},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t", "region": "eu-west-1"},
        ),
        (
            "s3a://b",
            {"anon": True, "endpoint_url": "http://h:1/", "default_block_size": 5, "requester_pays": True},
            {
                "skip_signature": True,
                "endpoint": "http://h:1",
                "virtual_hosted_style_request": False,
                "region": "us-east-1",
                "request_payer": True,
            },
        ),
        ("gs://b/x", {"token": "anon", "project": "p"}, {"skip_signature": True}),
        ("gcs://b/x", {"token": "ya29.abc"}, {"bearer_token": "ya29.abc"}),
        (
            "gs://b/x",
            {"endpoint_url": "http://127.0.0.1:4443"},
            {"base_url": "http://127.0.0.1:4443", "skip_signature": True},
        ),
        (
            "gs://b/x",
            {"token": {"type": "service_account", "private_key": "k"}},
            {"service_account_key": json.dumps({"type": "service_account", "private_key": "k"})},
        ),
        ("az://c/x", {"account_name": "a", "account_key": "a2V5"}, {"account_name": "a", "account_key": "a2V5"}),
        ("abfs://c@a.dfs.core.windows.net/x", {"sas_token": "?sig=1"}, {"account_name": "a", "sas_key": "sig=1"}),
        (
            "abfss://c@a.dfs.core.windows.net/x",
            {"tenant_id": "t", "client_id": "i", "client_secret": "s"},
            {"account_name": "a", "tenant_id": "t", "client_id": "i", "client_secret": "s"},
        ),
        ("az://c/x", {"account_name": "a", "anon": True}, {"account_name": "a", "skip_signature": True}),
        (
            "az://c/x",
            {"connection_string": "AccountName=a;AccountKey=a2V5eA==;BlobEndpoint=http://127.0.0.1:10000/a;"},
            {"account_name": "a", "account_key": "a2V5eA==", "endpoint": "http://127.0.0.1:10000/a"},
        ),
    ],
)
def test_options_of_fsspec_become_settings_of_obstore(url, options, config):
    found = object_storage(url, options)
    assert found.config == config
    assert found.bucket in "bc"
    assert found.prefix in {"", "x", "x/y"}
    endpoint = config.get("endpoint") or config.get("base_url") or ""
    assert found.client["allow_http"] == endpoint.startswith("http:")
    if "private_key" not in str(options):  # obstore checks keys
        assert isinstance(client_of(url, options), ObjectClient | S3Client)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        (
            "s3://b",
            {"secert": "hiddenvalue"},
            "unknown storage option for s3://: secert; allowed are anon, client_kwargs",
        ),
        ("gs://b", {"tokn": "hiddenvalue"}, "unknown storage option for gs://: tokn; allowed are anon"),
        ("s3:///x", {}, "needs a bucket"),
        ("s3://b", {"profile": "none"}, "profile .*none"),
    ],
)
def test_invalid_options_are_refused_without_their_values(url, options, words):
    with pytest.raises(OptionError, match=words) as caught:
        client_of(url, options)
    assert "hiddenvalue" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"anon": True, "session": None, "s3_additional_kwargs": {"RequestPayer": "requester"}},
        {"anon": True, "endpoint_url": "https://h", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        {"username": "k", "password": "s"},
        {"client_kwargs": {"aws_access_key_id": "k", "aws_secret_access_key": "s"}},
    ],
)
def test_options_that_only_s3fs_knows_are_read_through_it(options):
    with pytest.raises(UnsupportedOptionError):
        object_storage("s3://b", options)
    assert isinstance(client_of("s3://b", options), FsspecClient)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_settings_of_fsspec_apply(server, monkeypatch, scheme):
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": True, "endpoint_url": "http://127.0.0.1:9"})
    client = client_of(f"{scheme}://b/d", {"endpoint_url": server.url}, PATIENT)
    assert read(client) == DATA[1000:201_000]


def test_no_credentials_are_an_error_with_a_remedy_before_any_request():
    with pytest.raises(StoreError, match=r"no credentials were found for s3://b.*'anon': True"):
        client_of("s3://b/d")


def test_a_profile_without_botocore_is_an_error_that_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    for settings in ({"AWS_PROFILE": "x"}, {"AWS_SHARED_CREDENTIALS_FILE": "/x"}):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            with pytest.raises(StoreError, match="pip install botocore"):
                client_of("s3://b/d")


# S3


@pytest.fixture(scope="module")
def moto(moto):
    """Return the URL of an S3 server with some objects."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    s3 = boto3.client("s3", endpoint_url=moto, **keys)
    s3.create_bucket(Bucket="bucket")
    for name in ("a.tar", "ü b#%+.tar", "below/c.tar"):
        s3.put_object(Bucket="bucket", Key=f"train set/{name}", Body=DATA)
    return moto


@pytest.mark.parametrize("how", ["options", "environment", "profile"])
@pytest.mark.torture_except("environment", "profile")
def test_s3_is_read_with_the_settings_of_options_environment_and_profile(moto, monkeypatch, tmp_path, how):
    options = {}
    if how == "options":
        options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": moto, "region_name": "us-east-1"}}
    elif how == "environment":
        for name, value in {"ENDPOINT_URL": moto, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
    else:
        keys = "[own]\naws_access_key_id = test\naws_secret_access_key = test\n"
        (tmp_path / "keys").write_text(keys)
        (tmp_path / "config").write_text(f"[profile own]\nregion = eu-west-1\nendpoint_url = {moto}\n")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "own")
    client = client_of("s3://bucket/train set", options, PATIENT)
    assert client.list() == ["a.tar", "ü b#%+.tar"]
    assert client.list("below") == ["c.tar"]
    for name in client.list():
        assert read(client, name=name) == DATA[1000:201_000]
    assert client.read("below/c.tar", most_bytes=10**6) == DATA
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/train set/none does not exist"):
        client.read("none", most_bytes=9)
    missing = client_of("s3://nobucket/x", options, PATIENT)
    for request in (lambda: missing.read("none", most_bytes=9), missing.list):
        with pytest.raises(StoreError, match=r"NoSuchBucket.*the bucket or container does not exist: check its name"):
            request()
    with pytest.raises(StoreError, match=r"NoSuchBucket.*does not exist: check its name"):
        wt.describe("s3://nobucket/x", storage_options=options)


@pytest.mark.torture
def test_a_client_works_in_a_spawned_process(moto):
    script = f"""
import multiprocessing, sys
from wds_tools.storage.requests.clients import open_client
from wds_tools.storage.requests.remote_folder import RemoteFolder
OPTIONS = {{"key": "test", "secret": "test", "endpoint_url": {moto!r}}}
def length():
    return len(open_client(RemoteFolder("s3://bucket/train set", OPTIONS)).read("a.tar", most_bytes=10**6))
def child():
    sys.exit(0 if length() == 300_000 else 1)
if __name__ == "__main__":
    assert length() == 300_000
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
    path = Path(os.environ["HOME"]) / "spawned.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, path], env=environment, timeout=300, check=False).returncode == 0


def test_obstore_is_usable_here():
    assert object_client.is_usable()
