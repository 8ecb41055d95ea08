"""Clients of remote storage against servers that misbehave: exactly the right bytes, or the named error in time."""

import dataclasses
import gc
import logging
import os
import pickle
import random
import threading
import time
import warnings

import bad_server
import fsspec
import pytest
from bad_server import BadServer, certificates
from client_requests import DATA, PATIENT, QUICK, QUICK_STALLING, STALLING, client_of, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wds_tools.errors import ManifestError, OptionError, StoreError, TruncatedShardError
from wds_tools.storage.requests.retry import RetryPolicy

TOKEN_XML = (
    b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)
pytestmark = pytest.mark.usefixtures("closed_clients")


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server():
    with BadServer({"/d/a.tar": DATA, "/d/index.json": b'{"a": 1}'}).running() as running:
        yield running


@pytest.fixture
def client(server):
    return client_of(f"{server.url}/d", {}, PATIENT)


@pytest.fixture
def quick_client(server):
    return client_of(f"{server.url}/d", {}, QUICK)


# Correct answers


def test_ranges_and_whole_objects_are_read_on_one_connection(client, server):
    assert read(client) == DATA[1000:201_000]
    assert read(client, len(DATA) - 1, len(DATA)) == DATA[-1:]
    assert read(client, 5, 5) == b""
    assert client.read("index.json", most_bytes=100) == b'{"a": 1}'
    assert client.list() == ["a.tar", "index.json"]
    assert server.connections == 1
    assert {request.method for request in server.requests} == {"GET"}  # no HEAD
    counts = client.counts()
    assert (counts.requests, counts.failures, counts.received_bytes) == (4, 0, 200_001 + 8)


def test_the_first_etag_is_sent_with_later_requests(client, server):
    for _ in range(2):
        read(client)
    assert [request.headers.get("if-match") for request in server.requests] == [None, '"one"']


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_a_server_without_a_strong_etag_gets_no_condition(client, server, tag):
    server.tag = tag
    for _ in range(2):
        assert read(client) == DATA[1000:201_000]
    assert all("if-match" not in request.headers for request in server.requests)


@pytest.mark.parametrize("answer", [bad_server.chunked, bad_server.closing(), bad_server.closing(bad_server.chunked)])
def test_chunked_answers_and_connections_closed_after_each_answer_are_not_failures(client, server, answer):
    server.default = answer
    for _ in range(5):
        assert read(client) == DATA[1000:201_000]
        assert client.read("a.tar", most_bytes=10**6) == DATA
    assert client.counts().failures == 0


def test_connection_close_in_the_header_is_not_a_failure(client, server):
    server.default = bad_server.announced_close
    for _ in range(3):
        assert read(client) == DATA[1000:201_000]
    assert client.counts().failures == 0


def test_threads_share_a_client(client, server):
    wrong = []

    def work(seed):
        draw = random.Random(seed)
        for _ in range(20):
            start = draw.randrange(len(DATA) - 1)
            stop = draw.randrange(start + 1, min(len(DATA), start + 50_000) + 1)
            if read(client, start, stop) != DATA[start:stop]:
                wrong.append((start, stop))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
    assert server.connections <= 8


# Faults that pass


@pytest.mark.parametrize(
    "fault",
    [
        bad_server.status(503),
        bad_server.status(503, Retry_After="0"),
        bad_server.status(429, b'{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}'),
        bad_server.status(500, b"x" * 100_000),
        bad_server.status(408),
        bad_server.status(425),
        bad_server.reset,
        bad_server.disconnect,
        bad_server.no_answer,
        bad_server.cut_after(50_000),
        bad_server.cut_after(50_000, by=bad_server.reset),
        bad_server.stall_after(50_000),
        bad_server.drip(100, 0.02),
        bad_server.short_body,
        bad_server.wrong_range,
        bad_server.no_content_range,
        bad_server.html,
        bad_server.status(204),
    ],
)
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.torture)])
def test_a_fault_that_passes_costs_only_time(server, fault, times):
    client = client_of(f"{server.url}/d", {}, STALLING)
    server.answers.extend([fault] * times)
    assert read(client) == DATA[1000:201_000]
    assert client.counts().failures >= times
    server.answers.extend([fault] * times)
    if fault not in (bad_server.wrong_range, bad_server.no_content_range):
        assert client.read("a.tar", most_bytes=10**6) == DATA


def test_a_cut_answer_is_continued_from_the_byte_reached(client, server):
    server.answers.append(bad_server.cut_after(50_000))
    read(client)
    first, second = (request.headers["range"] for request in server.requests)
    assert first == "bytes=1000-200999"
    start = int(second.removeprefix("bytes=").partition("-")[0])
    assert 1000 < start <= 51_000
    assert client.counts().received_bytes == 200_000


def test_a_whole_object_that_is_cut_is_continued(client, server):
    server.answers.append(bad_server.cut_after(50_000))
    assert client.read("a.tar", most_bytes=10**6) == DATA
    assert server.requests[1].headers["range"] == "bytes=50000-"
    assert server.requests[1].headers["if-match"] == '"one"'


def test_a_whole_object_that_is_replaced_meanwhile_is_read_again(client, server):
    def replace(request):
        server.objects["/d/a.tar"], server.tag = DATA[::-1], '"two"'
        bad_server.good(request)

    server.answers.extend([bad_server.cut_after(50_000), replace])
    assert client.read("a.tar", most_bytes=10**6) == DATA[::-1]


def test_retry_after_is_honoured(server):
    for answer in (bad_server.status(503, Retry_After="1"), bad_server.retry_at(2)):
        client, started = client_of(f"{server.url}/d", {}, PATIENT), time.monotonic()
        server.answers.append(answer)
        assert read(client) == DATA[1000:201_000]
        assert 0.9 < time.monotonic() - started < 50


def test_retry_after_does_not_exceed_the_time_of_the_policy(quick_client, server):
    server.default, started = bad_server.status(429, Retry_After="100000"), time.monotonic()
    with pytest.raises(StoreError, match=r"HTTP 429.*2 attempts in \d+\.\d s.*limits the rate"):
        read(quick_client)
    assert time.monotonic() - started < 30


# Faults that do not pass


@pytest.mark.parametrize("next_name", ["a.tar", "b.tar"])
def test_a_request_after_others_have_failed_for_all_of_the_time_has_one_attempt(quick_client, server, next_name):
    server.default = bad_server.status(503)
    with pytest.raises(StoreError, match=r"\d+ attempts in \d+\.\d s"):
        read(quick_client)
    count = len(server.requests)
    with pytest.raises(StoreError, match=rf"{next_name} cannot be read: HTTP 503 .*{count + 1} attempts in "):
        read(quick_client, name=next_name)
    assert len(server.requests) == count + 1


def test_an_object_that_fails_while_others_are_read_has_its_time_once(quick_client, server):
    def choose(request):
        (bad_server.status(503) if request.path == "/d/a.tar" else bad_server.good)(request)

    server.default = choose
    for _ in range(2):
        with pytest.raises(StoreError, match="HTTP 503"):
            read(quick_client)
        count = len(server.requests)
        assert quick_client.read("index.json", most_bytes=100) == b'{"a": 1}'
    with pytest.raises(StoreError, match="HTTP 503"):
        read(quick_client)
    assert len(server.requests) == count + 2


def test_after_an_answer_requests_for_other_objects_have_the_whole_time_again(quick_client, server):
    server.default = bad_server.status(503)
    with pytest.raises(StoreError, match="HTTP 503"):
        read(quick_client)
    server.answers.append(bad_server.good)
    assert quick_client.read("index.json", most_bytes=100) == b'{"a": 1}'
    count = len(server.requests)
    with pytest.raises(StoreError, match="HTTP 503"):
        read(quick_client, name="b.tar")
    assert len(server.requests) > count + 10


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (bad_server.status(503, b"<Error><Code>SlowDown</Code></Error>"), r"HTTP 503 .*\(SlowDown\)"),
        (bad_server.reset, "reset"),
        (bad_server.disconnect, "closed connection without"),
        (bad_server.no_answer, r"no bytes arrived for 0\.2 s"),
        (bad_server.drip(100, 0.02), r"fewer than 10,000 bytes arrived in 0\.2 s"),
        (bad_server.cut_after(10), "the response ended"),
        (bad_server.wrong_range, r"bytes [\d,]+ to [\d,]+ arrived instead of 1,000 to 201,000"),
        (bad_server.no_content_range, "no valid Content-Range"),
        (bad_server.html, "an HTML page arrived instead of data"),
    ],
)
def test_a_fault_that_stays_is_a_store_error_in_time_that_names_everything(server, fault, words):
    policy = QUICK_STALLING if "arrived in" in words or "no bytes" in words else QUICK
    client = client_of(f"{server.url}/d", {}, policy)
    server.default, started = fault, time.monotonic()
    with pytest.raises(StoreError, match=words) as caught:
        read(client)
    assert 0.5 <= time.monotonic() - started < 30
    host = server.url.removeprefix("http://")
    assert caught.value.shard == "a.tar"
    for part in (f"{server.url}/d/a.tar cannot be read", f"host {host}, ", " attempts in ", "; "):
        assert part in str(caught.value)


def test_a_server_that_ignores_ranges_is_final_and_its_body_is_not_read(client, server):
    sent = threading.Event()

    def whole(request):
        request.send(200, length=10**12)
        for _ in range(1000):
            request.connection.sendall(bytes(1 << 20))
        sent.set()

    server.default = whole
    with pytest.raises(StoreError, match=r"ignores range requests \(HTTP 200 instead of 206\).*1 attempt"):
        read(client)
    assert not sent.is_set()


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (403, TOKEN_XML, r"HTTP 403 Forbidden \(ExpiredToken: The provided token has expired\.\).*1 attempt .*renew"),
        (403, b"", "HTTP 403.*1 attempt .*permission"),
        (401, b"", "HTTP 401.*1 attempt .*credentials"),
        (400, b"", "HTTP 400.*1 attempt "),
        (412, b"", "was replaced while it was being read"),
    ],
)
def test_final_statuses_end_at_once(client, server, code, body, words):
    server.default = bad_server.status(code, body)
    with pytest.raises(StoreError, match=words):
        read(client)
    assert len(server.requests) == 1


def test_a_missing_object_is_a_file_not_found_error(client, server):
    for request in (lambda: read(client, name="b.tar"), lambda: client.read("b.tar", most_bytes=9)):
        with pytest.raises(FileNotFoundError, match=r"/d/b\.tar (does not exist|is missing, but its manifest)"):
            request()
    assert len(server.requests) == 2


@pytest.mark.parametrize("tag", ['"one"', None])
def test_an_object_that_was_replaced_is_named_so(client, server, tag):
    server.tag = tag
    read(client)
    if tag:
        server.tag, server.objects["/d/a.tar"] = '"two"', DATA[::-1]
        with pytest.raises(StoreError, match=r"was replaced while it was being read.*pack changed data"):
            read(client)
    server.objects["/d/a.tar"] = DATA + b"x"
    with pytest.raises((TruncatedShardError, StoreError), match="replaced"):
        read(client)


def test_an_object_that_is_replaced_within_a_range_is_named_so(client, server):
    def replaced(request):
        server.tag, server.objects["/d/a.tar"] = '"two"', DATA[::-1]
        bad_server.good(request)

    server.answers.extend([bad_server.cut_after(50_000), replaced])
    with pytest.raises(StoreError, match="was replaced while it was being read"):
        read(client)


def test_a_server_that_ignores_if_match_and_sends_another_etag_is_noticed(client, server):
    read(client)
    server.default = lambda request: request.send(
        206, DATA[slice(*request.span)], ETag='"two"', Content_Range=f"bytes 1000-200999/{len(DATA)}"
    )
    with pytest.raises(StoreError, match=r'its ETag was "one" and is "two"'):
        read(client)


@pytest.mark.parametrize("difference", [-1, 1])
def test_an_object_of_another_length_is_a_truncated_shard_error(client, server, difference):
    with pytest.raises(TruncatedShardError, match=r"has 300,000 bytes.*truncated or replaced") as caught:
        read(client, 0, 10, total=len(DATA) + difference)
    assert caught.value.shard == "a.tar"
    assert len(server.requests) == 1


def test_a_range_beyond_the_end_of_an_object_is_a_truncated_shard_error(client, server):
    with pytest.raises(TruncatedShardError, match=r"has 300,000 bytes"):
        read(client, 300_000, 300_010, total=300_010)
    server.default = bad_server.status(416)  # S3 does not send the length
    with pytest.raises(TruncatedShardError, match=r"ends before byte 300,000, .*records 300,010 bytes"):
        read(client, 300_000, 300_010, total=300_010)
    with pytest.raises(StoreError, match=r"HTTP 416.*1 attempt"):
        read(client, 300_000, 300_010, total=None)


@pytest.mark.parametrize("answer", [bad_server.good, bad_server.chunked])
def test_an_object_that_is_too_large_for_an_index_is_a_manifest_error(client, server, answer):
    server.default = answer
    with pytest.raises(ManifestError, match=r"a manifest or an index has at most 299,999"):
        client.read("a.tar", most_bytes=299_999)
    assert client.read("a.tar", most_bytes=300_000) == DATA


def test_a_compressed_answer_is_refused(client, server):
    server.default = bad_server.status(200, b"\x1f\x8b", Content_Encoding="gzip")
    with pytest.raises(StoreError, match=r"compresses.*1 attempt"):
        client.read("index.json", most_bytes=100)


def test_a_host_name_that_does_not_exist_is_named(caplog):
    client = client_of("http://nowhere.invalid/d", {}, dataclasses.replace(QUICK, seconds=0.05))
    with pytest.raises(StoreError, match=r"host name was not found.*host nowhere\.invalid.*DNS"):
        read(client)


def test_an_unreachable_server_is_named():
    client = client_of("http://127.0.0.1:9/d", {}, QUICK)
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9/d/a\.tar cannot be read: ConnectionRefusedError"):
        read(client)


@pytest.mark.parametrize("wrong", [(0, 10, 9), (5, 4, 0), (-1, 1, 2)])
def test_a_buffer_of_another_size_is_refused(client, wrong):
    start, stop, size = wrong
    with pytest.raises(ValueError, match="do not fit"):
        client.read_range("a.tar", start, stop, memoryview(bytearray(size)), total_bytes=None)


# Cuts at random bytes


def check_cuts(count, seed, context=None):
    """Read an object with answers that are cut at random bytes, in random ways, until there were enough cuts."""
    draw, cuts = random.Random(seed), 0
    ways = [bad_server.disconnect, bad_server.reset]

    def answer(request):
        nonlocal cuts
        start, stop = request.span
        if draw.random() < 0.7 and cuts < count:
            cuts += 1
            return bad_server.cut_after(draw.randrange(stop - start), by=draw.choice(ways))(request)
        return draw.choice([bad_server.good, bad_server.chunked])(request)

    policy = RetryPolicy(seconds=300, first_seconds=0, most_seconds=0)
    with BadServer({"/d/a.tar": DATA}, default=answer).running(context) as server:
        client = client_of(f"{server.url}/d", {}, policy)
        while cuts < count:
            start = draw.randrange(len(DATA) - 1)
            stop = draw.randrange(start + 1, len(DATA) + 1)
            assert read(client, start, stop) == DATA[start:stop]
        client.close()


@pytest.mark.parametrize("cuts", [50, pytest.param(500, marks=pytest.mark.torture)])
def test_after_many_cuts_the_bytes_are_right(cuts):
    check_cuts(cuts, seed=1)


@pytest.mark.parametrize("cuts", [30, pytest.param(300, marks=pytest.mark.torture)])
def test_after_many_cuts_under_tls_the_bytes_are_right(tmp_path, monkeypatch, cuts):
    trusted, context = certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    check_cuts(cuts, seed=3, context=context)


@pytest.mark.torture
def test_after_20000_cuts_the_bytes_are_right():
    check_cuts(20_000, seed=2)


# Redirects, credentials and options


def test_a_redirect_to_another_host_gets_no_credentials(server):
    options = {"headers": {"X-Api-Key": "secretkey", "X-Trace": "1"}, "client_kwargs": {"auth": ("me", "password")}}
    with BadServer({"/d/a.tar": DATA}).running() as other:
        server.default = bad_server.redirect(other.url)
        client = client_of(f"{server.url}/d", options, PATIENT)
        for _ in range(2):
            assert read(client) == DATA[1000:201_000]
        assert server.connections == 1
    for request in server.requests:
        assert request.headers["authorization"] == "Basic bWU6cGFzc3dvcmQ="
        assert request.headers["x-api-key"] == "secretkey"
    for request in other.requests:
        assert not {"authorization", "x-api-key"} & set(request.headers)
        assert request.headers["x-trace"] == "1"


def test_a_redirect_without_end_is_an_error(client, server):
    server.default = bad_server.redirect(server.url)
    with pytest.raises(StoreError, match="more than 5 redirects"):
        read(client)


def test_a_redirect_to_a_file_is_not_followed(client, server):
    server.default = bad_server.redirect("file://")
    with pytest.raises(StoreError, match="which is not followed"):
        read(client)


def test_user_and_password_of_the_url_are_sent_and_never_shown(server):
    url = server.url.replace("http://", "http://me:pass%20word@")
    client = client_of(f"{url}/d?sig=topsecret", {}, PATIENT)
    assert read(client) == DATA[1000:201_000]
    assert server.requests[0].headers["authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert server.requests[0].path == "/d/a.tar?sig=topsecret"
    server.default = bad_server.status(403, b"<Error><Message>sig topsecret, pass%20word</Message></Error>")
    with pytest.raises(StoreError) as caught:
        read(client)
    assert client.url == f"{server.url}/d"
    for secret in ("pass%20word", "sig=topsecret"):
        assert secret not in str(caught.value)


def test_names_are_quoted_once(server):
    server.objects |= {"/a%20b/x%23%25.tar": DATA, "/a%2520b/x%23.tar": DATA}
    assert read(client_of(f"{server.url}/a b", {}, PATIENT), name="x#%.tar") == DATA[1000:201_000]
    assert read(client_of(f"{server.url}/a%20b", {}, PATIENT), name="x#%.tar") == DATA[1000:201_000]
    encoded = client_of(f"{server.url}/a%2520b", {"encoded": True}, PATIENT)
    assert read(encoded, name="x%23.tar") == DATA[1000:201_000]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "hiddenvalue"}, "unknown storage option for http:// and https://: token; allowed are client_kwargs"),
        ({"client_kwargs": {"proxy": "hiddenvalue"}}, "unknown client_kwargs .*: proxy; allowed are auth, headers"),
        ({"client_kwargs": {"auth": "hiddenvalue"}}, "not a pair"),
        ({"client_kwargs": "hiddenvalue"}, "is not a dict"),
        ({"headers": {"X-A": "hiddenvalue\r\nX-B: 1"}}, "line break"),
    ],
)
def test_invalid_options_are_refused_without_their_values(options, words):
    with pytest.raises(OptionError, match=words) as caught:
        client_of("https://host/d", options)
    assert "hiddenvalue" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://", "http:///d", "http://host:port/d"])
def test_an_invalid_url_is_refused(url):
    with pytest.raises(OptionError, match="is not a valid URL"):
        client_of(url)


def test_a_proxy_of_the_environment_is_used(monkeypatch):
    with BadServer({"http://data.example/d/a.tar": DATA}).running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:word@"))
        client = client_of("http://data.example/d", {}, PATIENT)
        assert read(client) == DATA[1000:201_000]
    assert proxy.requests[0].headers["host"] == "data.example"
    assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6d29yZA=="


def test_no_proxy_is_honoured(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert read(client_of(f"{server.url}/d", {}, PATIENT)) == DATA[1000:201_000]


# TLS


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_tls_with_a_certificate_of_an_own_authority(tmp_path, monkeypatch, variable):
    trusted, context = certificates(tmp_path)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with BadServer({"/d/a.tar": DATA}).running(context) as server:
        with pytest.raises(StoreError, match=r"certificate of the server is not trusted.*1 attempt.*SSL_CERT_FILE"):
            read(client_of(f"{server.url}/d", {}, PATIENT))
        monkeypatch.setenv(variable, str(trusted))
        client = client_of(f"{server.url}/d", {}, STALLING)
        server.answers.extend([bad_server.cut_after(50_000), bad_server.stall_after(20_000)])
        for _ in range(3):
            assert read(client) == DATA[1000:201_000]
        assert client.counts().failures >= 2
        client.close()


@pytest.mark.parametrize("tag", ['"one"', None])
def test_chunked_and_closed_answers_under_tls(tmp_path, monkeypatch, tag):
    trusted, context = certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    for answer in (bad_server.chunked, bad_server.closing(), bad_server.announced_close):
        with BadServer({"/d/a.tar": DATA}, tag=tag, default=answer).running(context) as server:
            client = client_of(f"{server.url}/d", {}, PATIENT)
            for _ in range(3):
                assert read(client) == DATA[1000:201_000]
                assert client.read("a.tar", most_bytes=10**6) == DATA
            assert client.counts().failures == 0
            client.close()


def test_tls_through_a_proxy(tmp_path, monkeypatch):
    trusted, context = certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with BadServer({"/d/a.tar": DATA}).running(context) as server, bad_server.Tunnel(server.url) as tunnel:
        monkeypatch.setenv("https_proxy", f"http://me:word@{tunnel.address}")
        client = client_of(server.url.replace("127.0.0.1", "localhost") + "/d", {}, PATIENT)
        assert read(client) == DATA[1000:201_000]
        assert tunnel.heads[0].startswith(f"CONNECT localhost:{server.url.rpartition(':')[2]} HTTP/1.")
        assert "Proxy-Authorization: Basic bWU6d29yZA==" in tunnel.heads[0]
        assert "authorization" not in {name for request in server.requests for name in request.headers}
        client.close()


def test_a_certificate_for_another_name_is_refused(tmp_path, monkeypatch):
    trusted, context = certificates(tmp_path, host="other.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with (
        BadServer({"/d/a.tar": DATA}).running(context) as server,
        pytest.raises(StoreError, match=r"certificate of the server is not trusted.*1 attempt"),
    ):
        read(client_of(f"{server.url}/d", {}, PATIENT))


def test_a_redirect_from_https_to_http_is_not_followed(tmp_path, monkeypatch, server):
    trusted, context = certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with (
        BadServer(default=bad_server.redirect(server.url)).running(context) as secure,
        pytest.raises(StoreError, match="which is not followed from https://"),
    ):
        read(client_of(f"{secure.url}/d", {}, PATIENT))
    assert not server.requests


# Life of a client


def test_close_ends_requests_at_once(server):
    server.default = bad_server.no_answer
    client = client_of(f"{server.url}/d", {}, PATIENT)
    ended = []

    def work():
        with pytest.raises(StoreError, match="closed"):
            read(client)
        ended.append(time.monotonic())

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    while len(server.requests) < 4:
        time.sleep(0.01)
    started = time.monotonic()
    client.close()
    [thread.join(30) for thread in threads]
    assert len(ended) == 4
    assert max(ended) - started < 30
    with pytest.raises(StoreError, match="is closed"):
        read(client)


def test_a_shared_event_ends_the_waits_of_a_client(server):
    server.default, stop = bad_server.status(503, Retry_After="1000"), threading.Event()
    client = client_of(f"{server.url}/d", {}, RetryPolicy(), stop)
    threading.Timer(0.2, stop.set).start()
    started = time.monotonic()
    with pytest.raises(StoreError, match="HTTP 503"):
        read(client)
    assert time.monotonic() - started < 100  # and not 1000, the time that the server asks for


@pytest.mark.parametrize("scheme", ["http", "memory"])
def test_a_forked_process_cannot_use_a_client_of_its_parent(client, scheme):
    if scheme == "memory":
        client = client_of("memory://d", {}, PATIENT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, from Python 3.12 on
        child = os.fork()
    if not child:
        code = 1
        try:
            client.list()
        except StoreError as error:
            code = 0 if "was created in process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_client_cannot_be_pickled(client):
    with pytest.raises(TypeError, match="open_client"):
        pickle.dumps(client)


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.torture_except("False")
def test_a_client_leaves_no_open_sockets(server, close):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests left
    client = client_of(f"{server.url}/d", {}, PATIENT)
    server.answers.extend([bad_server.cut_after(5), bad_server.status(503), bad_server.html])
    read(client)
    if close:
        client.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        gc.collect()
    assert not [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)]


def test_attempts_are_logged_at_debug_level_without_secrets(server, caplog):
    server.answers.append(bad_server.status(503))
    client = client_of(f"{server.url}/d?sig=topsecret", {}, PATIENT)
    with caplog.at_level(logging.DEBUG, "wds_tools"):
        read(client)
    assert "attempt 1 failed" in caplog.text
    assert "topsecret" not in caplog.text


# fsspec


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.pipe({"/clients/a.tar": DATA, "/clients/index.json": b"{}", "/clients/below/x.tar": b"1"})
    yield client_of("memory://clients", {}, PATIENT)
    system.rm("/clients", recursive=True)


def test_a_client_of_fsspec_reads_and_lists(memory):
    assert read(memory) == DATA[1000:201_000]
    assert memory.read("index.json", most_bytes=9) == b"{}"
    assert memory.list() == ["a.tar", "index.json"]
    assert memory.list("below") == ["x.tar"]
    with pytest.raises(FileNotFoundError, match=r"memory://clients/none does not exist"):
        memory.read("none", most_bytes=9)
    with pytest.raises(ManifestError, match="at most 9"):
        memory.read("a.tar", most_bytes=9)
    with pytest.raises(TruncatedShardError, match="300,000"):
        read(memory, total=5)


def test_a_client_of_fsspec_repeats_failed_requests(memory, monkeypatch):
    system, faults = type(fsspec.filesystem("memory")), [OSError("busy"), TimeoutError(), None]
    cat = system.cat_file

    def flaky(self, path, start=None, end=None, **options):
        if faults and (fault := faults.pop(0)):
            raise fault
        return cat(self, path, start, end, **options)[: None if not faults else 10]

    monkeypatch.setattr(system, "cat_file", flaky)
    assert read(memory) == DATA[1000:201_000]
    faults[:] = [PermissionError("denied")]
    with pytest.raises(StoreError, match=r"PermissionError: denied .*1 attempt"):
        read(memory)


@pytest.mark.parametrize(
    ("url", "options", "error", "words"),
    [
        ("nonsense://x/y", {}, StoreError, "Protocol not known"),
        ("sftp://host/x", {}, StoreError, r"pip install 'paramiko'"),
    ],
)
def test_a_url_that_fsspec_does_not_open_is_an_error(url, options, error, words, monkeypatch):
    if url.startswith("sftp"):
        monkeypatch.setitem(__import__("sys").modules, "paramiko", None)
    with pytest.raises(error, match=words):
        client_of(url, options)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)))
def test_every_range_is_read_exactly(memory, start, stop):
    start, stop = sorted((start, stop))
    assert read(memory, start, stop) == DATA[start:stop]
