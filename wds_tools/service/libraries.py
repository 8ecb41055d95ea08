"""Several libraries as one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from wds_tools.service.contents import Content, Library, Summary

_log = logging.getLogger("wds_tools")


class ScannedLibrary(Library, Protocol):
    """A library that looks for changes when `scan` is called."""

    async def scan(self) -> None:
        """Look for new, changed and removed datasets."""

    def close(self) -> None:
        """Close files and connections."""


class Libraries:
    """Several libraries; of two datasets with the same name, the one of the first library is served."""

    def __init__(self, libraries: Sequence[ScannedLibrary]) -> None:
        self._libraries = libraries

    def summaries(self) -> list[Summary]:
        """Return all datasets, sorted by name."""
        by_name = {summary.name: summary for library in reversed(self._libraries) for summary in library.summaries()}
        return [by_name[name] for name in sorted(by_name)]

    def problems(self) -> dict[str, str]:
        """Return the names of datasets with errors, and the error of each."""
        return {name: text for library in reversed(self._libraries) for name, text in library.problems().items()}

    def find(self, dataset: str) -> Summary | None:
        """Return a dataset by its name."""
        return next((summary for library in self._libraries if (summary := library.find(dataset))), None)

    async def files(self, dataset: str) -> Mapping[str, int]:
        """Return the names and lengths of the files of a dataset."""
        library = self._library_of(dataset)
        return await library.files(dataset) if library else {}

    async def open(self, dataset: str, name: str) -> Content | None:
        """Return a file of a dataset."""
        library = self._library_of(dataset)
        return await library.open(dataset, name) if library else None

    async def scan(self) -> None:
        """Look for changes. If one library fails, the others are scanned all the same."""
        for library in self._libraries:
            try:
                await library.scan()
            except Exception:
                _log.exception("a library cannot be scanned for datasets")

    def close(self) -> None:
        """Close files and connections."""
        for library in self._libraries:
            library.close()

    def _library_of(self, dataset: str) -> ScannedLibrary | None:
        return next((library for library in self._libraries if library.find(dataset)), None)
