"""Options of the service, checked before anything is started, and its limits: sizes, deadlines, connections."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from wds_tools.errors import OptionError
from wds_tools.options import RemoteOptions
from wds_tools.service.tokens import read_tokens
from wds_tools.wording import broken_url_remedy


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process of the service accepts.

    Attributes:
        head_bytes: Maximum number of bytes of the headers of a request.
        body_bytes: Maximum number of bytes of the body of a request.
        scan_seconds: Time between two looks for new, changed and removed datasets and files.
        idle_seconds: Time in which a connection has to send its next request, from the first byte to the last.
        report_seconds: Time in which a report has to arrive.
        window_seconds: Length of the windows in which the speed of a client is measured.
        window_bytes: Bytes that a client has to receive in each of these windows, or else it is disconnected.
        connections: Maximum number of connections of a process.
        connections_per_address: Maximum number of connections from one address.
    """

    head_bytes: int = 8192
    body_bytes: int = 65536
    scan_seconds: float = 2.0
    idle_seconds: float = 30.0
    report_seconds: float = 5.0
    window_seconds: float = 60.0  # shorter than a pause for validation, which socket buffers bridge only in part
    window_bytes: int = 256 << 10
    connections: int = 2048
    connections_per_address: int = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of the service, checked by `check`.

    Attributes:
        roots: Folders whose datasets are served.
        host: Address or name to listen on.
        port: TCP port; 0: a free one.
        token_file: File with the tokens; None: no tokens are needed, which is allowed on loopback only.
        tls_cert: File with the certificate and its chain; None: no TLS.
        tls_key: File with its private key; None: it is in ``tls_cert``.
        processes: Number of processes that share the port.
        host_names: Further names of the service.
        upstreams: URLs of datasets that are served through a cache.
        remote: The cache folder, its size, and the options of the storage of upstreams.
        access_log: File that gets a line for each request; ``-``: the standard output; None: there is no such log.
        limits: Sizes, deadlines and numbers.
    """

    roots: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    processes: int = 1
    host_names: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    remote: RemoteOptions = field(default_factory=RemoteOptions.of)
    access_log: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def check(self) -> None:
        """Check the options before anything is started.

        Raises:
            OptionError: An option is invalid, or other machines could read without a token.
        """
        if not 0 <= self.port < 65536:
            raise OptionError(f"port {self.port} is not a TCP port; allowed are 1 to 65535, and 0 for a free one")
        if not self.roots and not self.upstreams:
            raise OptionError("nothing to serve: name a folder with datasets, or --upstream URL")
        self._check_locations()
        if self.processes < 1:
            raise OptionError(f"processes={self.processes}; allowed are whole numbers of 1 and more")
        if self.token_file is None and not is_loopback(self.host):
            raise OptionError(
                f"--host {self.host} lets other machines connect, so it needs tokens: create one with "
                "`wds-tools token create --token-file FILE`, and start with --token-file FILE"
            )
        if self.token_file is not None:
            read_tokens(self.token_file)
        if self.tls_key is not None and self.tls_cert is None:
            raise OptionError("--tls-key needs --tls-cert FILE, the certificate")
        self.tls_context()

    def _check_locations(self) -> None:
        for url in self.upstreams:
            if "://" not in url:
                raise OptionError(
                    f"--upstream {url} is not a URL, such as s3://bucket/photos; name local folders without --upstream"
                )
        for root in self.roots:
            if broken_url_remedy(str(root)) and not root.exists():
                raise OptionError(f"{root} looks like a URL: serve it with --upstream URL")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the settings of TLS; None without TLS.

        Raises:
            OptionError: Certificate or key cannot be read.
        """
        if self.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password=_no_password)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise OptionError(
                f"{self.tls_cert} and {self.tls_key or 'its key'} are not a certificate and its unencrypted key in PEM "
                f"format ({reason})"
            ) from None
        return context

    def url(self, port: int) -> str:
        """Return the URL of the service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}/"


@dataclass(frozen=True, slots=True)
class Started:
    """What the service reports when it accepts connections.

    Attributes:
        url: Its URL.
        datasets: Number of datasets found.
    """

    url: str
    datasets: int


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can connect to an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_password() -> str:
    raise ValueError("the key is encrypted")
