"""A folder at a URL: the options of its storage, and how its requests are repeated."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsspec.registry import known_implementations, registry

from wds_tools.options import RemoteOptions
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage_options import secrets_of


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder at a URL, as a client gets it.

    Attributes:
        url: The URL. It may contain user, password and a query.
        options: Options of its storage, by fsspec's names.
        policy: When a request is repeated.
        stop: Ends all waits between two attempts; `Client.close` sets it.
    """

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    stop: threading.Event = field(default_factory=threading.Event, repr=False)

    @classmethod
    def of(cls, url: str, remote: RemoteOptions) -> RemoteFolder:
        """Return a folder with the user's options for its URL."""
        return cls(url, options_for(url, remote.storage_options), RetryPolicy(remote.retry_seconds))

    @property
    def secrets(self) -> frozenset[str]:
        """Texts that appear in no message."""
        return secrets_of(self.options, self.url)


def options_for(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a URL, as arguments of its fsspec file system.

    Options are for all URLs, or, as in fsspec, given for each scheme by its name. The latter is needed where one call
    uses several, such as a table of ``https://`` URLs that is packed to ``s3://``.

    >>> options_for("s3://bucket/a", {"anon": True}), options_for("s3://bucket/a", {"s3": {"anon": True}})
    ({'anon': True}, {'anon': True})
    >>> options_for("https://host/a", {"s3": {"anon": True}})
    {}
    """
    if "::" in url:  # fsspec itself distributes the options over the schemes of a chain
        return dict(options)
    by_scheme = {
        name
        for name, value in options.items()
        if isinstance(value, Mapping) and (name in known_implementations or name in registry)
    }
    if not by_scheme:
        return dict(options)
    return dict(options.get(url.partition("://")[0], {}))
