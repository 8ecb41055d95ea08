"""What the tests of all clients read, and the policies that they use."""

import dataclasses
import random

import pytest

from wds_tools.storage.requests.clients import open_client
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import RetryPolicy

DATA = random.Random(7).randbytes(300_000)
# For requests that must succeed on a busy machine as well: PATIENT, or STALLING where the server stops sending.
PATIENT = RetryPolicy(
    seconds=60, first_seconds=0.001, most_seconds=0.01, connect_seconds=30, idle_seconds=30, progress_bytes=10_000
)
STALLING = dataclasses.replace(PATIENT, idle_seconds=0.2)
# For requests that must fail: QUICK, or QUICK_STALLING where the server stops sending.
QUICK = dataclasses.replace(PATIENT, seconds=0.5, connect_seconds=2)
QUICK_STALLING = dataclasses.replace(QUICK, idle_seconds=0.2)


def read(client, start=1000, stop=201_000, name="a.tar", total=300_000):
    buffer = bytearray(stop - start)
    client.read_range(name, start, stop, memoryview(buffer), total_bytes=total)
    return bytes(buffer)


_opened = []


def client_of(url, *options_and_policy, kind=open_client):
    """Return the client for a URL; options and policy as in `RemoteFolder`. The fixture `closed_clients` closes it."""
    _opened.append(kind(RemoteFolder(url, *options_and_policy)))
    return _opened[-1]


@pytest.fixture
def closed_clients():
    """Close all clients at the end of a test: sockets that are collected later are warnings in another test."""
    yield
    while _opened:
        _opened.pop().close()
