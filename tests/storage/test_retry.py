"""The policy of failed requests: its times as arithmetic, its messages, and that no message contains a secret."""

import logging
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import ManifestError, OptionError, StoreError
from wds_tools.storage.requests import retry
from wds_tools.storage.requests.failures import (
    Failure,
    clean_url,
    code_in,
    failure_of,
    failure_of_status,
    retry_after_seconds,
    without_secrets,
)
from wds_tools.storage.requests.retry import Attempts, Outages, RetryPolicy, call
from wds_tools.storage_options import secrets_of

QUICK = RetryPolicy(seconds=0.2, first_seconds=0.001, most_seconds=0.01)
FAILURES = st.builds(
    Failure,
    st.just("busy"),
    retry_after=st.none() | st.floats(0, 1e9),
    received=st.integers(0, 99_999),
)


# The times


@given(
    seconds=st.floats(0.1, 1000),
    failures=st.lists(FAILURES, min_size=1, max_size=200),
    durations=st.lists(st.floats(0, 20), min_size=200, max_size=200),
    shares=st.lists(st.floats(0, 1), min_size=200, max_size=200),
)
def test_the_last_attempt_starts_when_the_time_is_over_and_delays_have_full_jitter(
    seconds, failures, durations, shares
):
    policy, now = RetryPolicy(seconds=seconds), 50.0
    asked = []

    def uniform(low, high):
        asked.append((low, high))
        return low + (high - low) * shares[len(asked) - 1]

    attempts = Attempts(policy, now, uniform)
    for number, (failure, duration) in enumerate(zip(failures, durations, strict=False)):
        now += duration
        delay = attempts.delay_after(failure, now)
        assert attempts.count == number + 1
        if delay is None:
            assert now >= 50 + seconds
            break
        assert now < 50 + seconds
        assert asked[-1] == (0, min(20, 0.1 * 2**number))
        least = max(0.0, failure.retry_after or 0.0)
        assert min(least, 50 + seconds - now) <= delay <= min(least + 20, 50 + seconds - now)
        now += delay
        assert now <= 50 + seconds + 1e-6


def test_with_immediate_failures_the_time_allows_dozens_of_attempts_on_average():
    now, attempts = 0.0, Attempts(RetryPolicy(), 0.0)
    while (delay := attempts.delay_after(Failure("busy"), now)) is not None:
        now += delay
    assert now == pytest.approx(300)
    assert 20 < attempts.count < 100


def test_progress_starts_the_time_again_and_a_little_of_it_does_not():
    attempts = Attempts(RetryPolicy(seconds=10), 0.0, max)
    assert attempts.delay_after(Failure("cut", received=99_999), 9.9) == pytest.approx(0.1)
    assert attempts.delay_after(Failure("cut", received=100_000), 10.0) == pytest.approx(0.1)
    assert attempts.delay_after(Failure("cut"), 19.9) == pytest.approx(0.1)
    assert attempts.delay_after(Failure("cut"), 20.0) is None


def test_an_upload_that_takes_longer_than_the_time_is_still_repeated():
    attempts = Attempts(RetryPolicy(seconds=300), 0.0, max, least=5)
    delays = [attempts.delay_after(Failure("reset"), 1000.0 * (number + 1)) for number in range(5)]
    assert delays == [0.1, 0.2, 0.4, 0.8, None]


def test_a_permanent_failure_ends_at_once():
    assert Attempts(RetryPolicy(), 0.0).delay_after(Failure("forbidden", retry=False), 0.0) is None


@given(st.integers(0, 10**9))
def test_retry_after_is_read_as_a_number(seconds):
    assert retry_after_seconds(f" {seconds} ", time.time()) == (seconds if seconds < 10**9 else None)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(0, 4 * 10**9))
def test_retry_after_is_read_as_a_date(date, now):
    date = date.replace(tzinfo=UTC, microsecond=0)
    assert retry_after_seconds(format_datetime(date, usegmt=True), now) == max(0.0, date.timestamp() - now)


@given(st.none() | st.text(), st.floats(0, 4e9))
def test_any_retry_after_is_a_wait_of_finite_length_or_none(value, now):
    found = retry_after_seconds(value, now)
    assert found is None or (found >= 0 and math.isfinite(found))


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_an_invalid_time_is_refused(seconds):
    with pytest.raises(OptionError, match="retry_seconds"):
        RetryPolicy(seconds=seconds)


# What is tried again


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_these_statuses_are_tried_again(status):
    assert failure_of_status(status).retry


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 411, 412, 416, 301])
def test_these_statuses_are_final(status):
    assert not failure_of_status(status).retry
    assert failure_of_status(status).missing == (status in {404, 410})


def test_a_timeout_that_s3_reports_with_http_400_is_tried_again():
    assert failure_of_status(400, code="RequestTimeout").retry


class ClientError(Exception):
    """An error as botocore raises it."""

    def __init__(self, status, code):
        super().__init__("An error occurred")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code, "Message": "Late."}}


class ClientResponseError(Exception):
    """An error as aiohttp and httpx raise it."""

    def __init__(self, status):
        super().__init__("bad")
        self.status = status


class NoCredentialsError(Exception):
    pass


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "again", "status"),
    [
        (ClientError(503, "SlowDown"), True, 503),
        (ClientError(400, "ExpiredToken"), False, 400),
        (chained(PermissionError("denied"), ClientError(403, "AccessDenied")), False, 403),
        (chained(OSError(5, "error"), ClientError(500, "InternalError")), True, 500),
        (ClientResponseError(429), True, 429),
        (ClientResponseError(401), False, 401),
        (ConnectionResetError("reset"), True, None),
        (TimeoutError(), True, None),
        (OSError("the store is busy"), True, None),
        (FileNotFoundError("x"), False, None),
        (PermissionError("x"), False, None),
        (NoCredentialsError("x"), False, None),
        (ValueError("invalid"), False, None),
        (ImportError("no module"), False, None),
    ],
)
def test_errors_of_client_libraries_are_classified(error, again, status):
    failure = failure_of(error)
    assert failure.retry == again
    assert failure.status == status
    assert failure.missing == isinstance(error, FileNotFoundError)


@pytest.mark.parametrize(
    ("body", "headers", "found"),
    [
        (b'<?xml version="1.0"?><Error><Code>SlowDown</Code></Error>', {}, ("SlowDown", "")),
        (b'{"error": {"code": 403, "message": "No.", "status": "FORBIDDEN"}}', {}, ("FORBIDDEN", "No.")),
        (b'{"error": "invalid_grant"}', {}, ("invalid_grant", "")),
        (b"", {"X-Ms-Error-Code": "ServerBusy"}, ("ServerBusy", "")),
        (b"[1]", {}, ("", "")),
        (b"{broken", {}, ("", "")),
        (b"\xff\xfe<html>", {}, ("", "")),
    ],
)
def test_the_code_of_the_store_is_found(body, headers, found):
    assert code_in(body, headers) == found


@given(st.binary(max_size=300) | st.text(alphabet='{}[]":,<>/Codermsageio ', max_size=100).map(str.encode))
def test_any_body_of_an_error_is_read_without_an_exception(body):
    code, message = code_in(body, {})
    assert len(code) <= 100
    assert len(message) <= 1000 or body.lstrip().startswith(b"{")


# call()


def failing(*failures, result="done"):
    left = list(failures)

    def request():
        if left:
            raise left.pop(0)
        return result

    return request


def test_a_request_is_repeated_until_it_succeeds():
    assert call(QUICK, failing(Failure("busy"), ConnectionResetError(), OSError("x")), url="s3://b/x") == "done"


def test_the_error_names_host_status_code_attempts_seconds_and_the_remedy():
    def request():
        raise failure_of_status(503, code="SlowDown", message="Reduce your request rate.")

    with pytest.raises(StoreError) as caught:
        call(QUICK, request, url="s3://b/a.tar?sig=1", host="s3.example.com:443", shard="a.tar", offset=lambda: 17)
    text = str(caught.value)
    assert "s3://b/a.tar cannot be read: HTTP 503 Service Unavailable (SlowDown: Reduce your request rate.)" in text
    assert "host s3.example.com:443, " in text
    assert " attempts in 0.2 s); the store limits the rate of requests" in text
    assert (caught.value.shard, caught.value.offset) == ("a.tar", 17)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("code", ["ExpiredToken", "TokenRefreshRequired"])
def test_expired_credentials_are_named_as_such(code):
    with pytest.raises(StoreError, match=rf"{code}.*1 attempt in .*credentials have expired: renew them"):
        call(QUICK, failing(failure_of_status(403, code=code)), url="s3://b/x")


def test_a_missing_object_is_a_file_not_found_error():
    with pytest.raises(FileNotFoundError, match="https://host/x does not exist"):
        call(QUICK, failing(failure_of_status(404)), url="https://me:word@host/x")


def test_errors_of_this_package_are_passed_on():
    with pytest.raises(ManifestError, match="too large"):
        call(QUICK, failing(ManifestError("too large")), url="s3://b/x")
    with pytest.raises(KeyError):
        call(QUICK, failing(KeyError("x")), url="s3://b/x", passed_on=(KeyError,))


def test_half_of_the_time_gives_one_warning_with_url_and_reason_for_all_requests_to_a_host(caplog, monkeypatch):
    monkeypatch.setattr(retry, "_warned", {})
    with caplog.at_level(logging.WARNING, "wds_tools"), ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(_fail_for_a_while, name) for name in "abcdefgh"]:
            assert isinstance(done.exception(), StoreError)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert re.match("s3://bucket/[a-h] could not be read for ", warnings[0])
    assert ": busy; the attempts end after 0 s without progress" in warnings[0]


class Clock:
    """A clock that only advances when a function waits."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_the_seconds_of_a_warning_and_of_an_error_begin_with_the_last_progress(caplog, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(retry, "_warned", {})
    monkeypatch.setattr(retry, "time", clock)
    cuts = [Failure("cut", received=10**6)] * 5

    def request():
        clock.sleep(10)
        raise cuts.pop() if cuts else Failure("busy")

    with pytest.raises(StoreError, match=r"busy .*attempts in (2[0-9]|30).* s"):
        call(RetryPolicy(seconds=20), request, url="s3://b/x", wait=clock.sleep)
    (warning,) = (record.getMessage() for record in caplog.records)
    seconds = re.search(r"could not be read for (\d+) s: busy; the attempts end after 20 s", warning)
    assert 0 < int(seconds[1]) < 20
    assert clock.now > 1060


def test_an_outage_without_attempts_is_forgotten():
    outages = Outages()
    outages.failed("a", since=0.0, now=10.0, until=30.0)
    assert outages.current("b", 29.0).since == 0.0
    assert outages.current("b", 30.0) is None
    outages.failed("b", since=40.0, now=41.0, until=61.0)
    assert outages.current("a", 42.0).since == 40.0


def _fail_for_a_while(name):
    policy = RetryPolicy(seconds=0.4, first_seconds=0.01, most_seconds=0.02)
    return call(policy, failing(*[Failure("busy")] * 999), url=f"s3://bucket/{name}")


def test_an_event_ends_the_wait_at_once():
    stop, started = threading.Event(), time.monotonic()
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(StoreError, match="closed after a failure: busy"):
        call(RetryPolicy(), failing(*[Failure("busy", retry_after=100.0)] * 9), url="s3://b/x", stop=stop)
    assert time.monotonic() - started < 50


def test_a_wait_may_raise():
    def wait(_seconds):
        raise InterruptedError("cancelled")

    with pytest.raises(InterruptedError):
        call(RetryPolicy(), failing(Failure("busy")), url="s3://b/x", wait=wait)


# Secrets

SECRET = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789+/=_-", min_size=8, max_size=40)


@given(SECRET, st.sampled_from(["secret", "token", "sas_token", "account_key", "connection_string", "password"]))
def test_the_value_of_a_secret_option_is_in_no_message(secret, name):
    secrets = secrets_of({name: secret, "endpoint_url": "http://127.0.0.1:9000", "anon": False})
    assert secret not in without_secrets(f"signing with {secret!r} failed ({secret})", secrets)
    assert without_secrets("connect to http://127.0.0.1:9000", secrets) == "connect to http://127.0.0.1:9000"


@given(SECRET)
def test_urls_in_messages_lose_user_password_query_and_fragment(secret):
    word = quote(secret, safe="")
    text = f"GET https://me:{word}@host/a.tar?sig={secret}&x=1#{secret} and /container/x?sig={secret}: refused"
    assert secret not in without_secrets(text)
    assert word not in without_secrets(text)
    assert clean_url(f"https://{word}@host:80/a?{secret}") == "https://host:80/a"


def test_headers_in_storage_options_are_secret():
    secrets = secrets_of({"client_kwargs": {"headers": {"X-Own": "abcdefgh", "Authorization": "Bearer xyz12345"}}})
    assert secrets == {"abcdefgh", "Bearer xyz12345", "xyz12345"}


def test_an_error_of_a_library_that_quotes_a_secret_is_cleaned():
    error = OSError(
        "cannot connect: https://host/x?X-Amz-Signature=abc; Authorization: Bearer tokentoken; key=hunter22"
    )
    with pytest.raises(StoreError) as caught:
        call(RetryPolicy(seconds=0.01), failing(*[error] * 99), url="s3://b/x", secrets=frozenset({"hunter22"}))
    for secret in ("abc", "tokentoken", "hunter22"):
        assert secret not in str(caught.value)
