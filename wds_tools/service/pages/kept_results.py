"""Results about a version of a dataset that outlive the service: blocks of the cache folder, within its size limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from wds_tools import __version__
from wds_tools.storage.cache.blocks import BlockCache

_URL = "results of the page"  # what `wds-tools cache list` shows
_FORMAT = 1  # of the results
_MAX_BYTES = 16 << 20


class KeptResults:
    """Results by what they are about. Those of other releases are computed again.

    Args:
        folder: Folder of the cache.
        limit_bytes: Size limit of that folder in bytes; the least recently used blocks are evicted first.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._blocks = BlockCache(folder, limit_bytes, url=_URL, without="results are computed again after a restart")

    async def find(self, what: str, version: str) -> dict[str, Any] | None:
        """Return a result, or None if there is none.

        Args:
            what: Its kind.
            version: XXH3-128 of the manifest, which has the checksums of all indexes.
        """
        return await asyncio.to_thread(self._find, _name(what, version))

    async def put(self, what: str, version: str, result: dict[str, Any]) -> None:
        """Keep a result, if it is not too long."""
        data = json.dumps(result).encode()
        if len(data) <= _MAX_BYTES:
            await asyncio.to_thread(self._blocks.put, _name(what, version), data)

    def _find(self, name: str) -> dict[str, Any] | None:
        if not self._blocks.contains(name):  # marks it as used now
            return None
        data = self._blocks.get_verified(name)
        value = None if data is None else json.loads(bytes(data))
        return value if isinstance(value, dict) else None


def _name(what: str, version: str) -> str:
    return f"{what} {_FORMAT} of {version} by {__version__}"
