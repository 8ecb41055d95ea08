"""Which of the user's storage options are for a URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.registry import known_implementations, registry


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
