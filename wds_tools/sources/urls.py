"""Images behind URLs, through whatever fsspec knows."""

from __future__ import annotations

import time

from wds_tools.errors import SourceError, WdsToolsError
from wds_tools.options import CacheOptions
from wds_tools.storage import open_store, split_folder

URL_BYTES = 150_000
"""What an image behind a URL is taken to be long, because asking for each would take as long as reading it."""

_ATTEMPTS = 3


def fetch(url: str) -> bytes:
    """Return the bytes behind a URL; a failure that may pass is tried again.

    Raises:
        SourceError: It is not there, or does not answer.
    """
    if "::" in url:
        raise SourceError(f"URL {url!r} is a chain of file systems; allowed are plain URLs")
    folder, name = split_folder(url)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return open_store(folder, cache=CacheOptions.of()).read(name)
        except FileNotFoundError as error:
            raise SourceError(f"URL {url!r} is not there") from error
        except WdsToolsError as error:
            if attempt == _ATTEMPTS:
                raise SourceError(f"URL {url!r} cannot be read: {error}") from error
            time.sleep(attempt)
    raise AssertionError("every attempt returns or raises")
