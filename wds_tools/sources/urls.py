"""Images at URLs, read through fsspec."""

from __future__ import annotations

import time

from wds_tools.errors import SourceError, WdsToolsError
from wds_tools.options import RemoteOptions
from wds_tools.storage import open_store, split_folder

URL_BYTES = 150_000
"""Estimated length of an image at a URL. To request the real length would take as long as to read it."""

_ATTEMPTS = 3


def fetch(url: str, remote: RemoteOptions) -> bytes:
    """Read the bytes at a URL; errors that may be temporary are retried.

    Raises:
        SourceError: There is no such file, or the server cannot be reached.
    """
    if "::" in url:
        raise SourceError(f"URL {url!r} is a chain of file systems; allowed are plain URLs")
    folder, name = split_folder(url)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return open_store(folder, remote=remote).read(name)
        except FileNotFoundError as error:
            raise SourceError(f"URL {url!r} does not exist") from error
        except WdsToolsError as error:
            if attempt == _ATTEMPTS:
                raise SourceError(f"URL {url!r} cannot be read: {error}") from error
            time.sleep(attempt)
    raise AssertionError("every attempt returns or raises")
