"""The folder of one `ShardWriter`: what it may write, what it finds there, what it may remove.

While it writes, a hidden file beside the manifest-to-be (``.manifest.json.writing``) is locked and lists the shards
that were begun. It goes away once the manifest is there; if it stays, that run did not end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wds_tools.errors import DestinationError, ManifestError, WdsToolsError
from wds_tools.format import manifest as manifests
from wds_tools.format.index import index_name
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.packing.card import CARD_NAME, card, commit_card, remove_card
from wds_tools.storage.commit import commit_bytes, final_name, sync_folder
from wds_tools.storage.lock import lock_file

SOURCE_KIND = "ShardWriter"
"""What the manifest names as source: only such datasets are replaced."""


class Claim:
    """The folder of one writer: what it may write and remove.

    Args:
        folder: Made if it is not there.
        manifest: File name of the manifest.
    """

    def __init__(self, folder: Path, manifest: str) -> None:
        self.folder = folder
        self.manifest = folder / manifest
        self.mark = folder / f".{manifest}.writing"
        self._lock: int | None = None

    def take(self, first: Path, *, fresh: bool) -> None:
        """Make the folder ours to write the shards from ``first`` on."""
        try:
            self._lock = lock_file(self.mark)
            self._clear(fresh=fresh)
            _refuse_existing(first)
        except BlockingIOError as error:
            raise DestinationError(
                f"another writer is making {self.manifest}; wait for it to end, or give manifest= another name"
            ) from error
        except BaseException as error:
            self.release()
            if isinstance(error, WdsToolsError) or not isinstance(error, OSError):
                raise
            raise DestinationError(f"cannot write to {self.folder}: {error.strerror}; choose another folder") from error

    def begin(self, shard: Path) -> None:
        """Note that a shard is ours, before it is there.

        Raises:
            DestinationError: A file of its name is there.
        """
        _refuse_existing(shard)
        self._note([shard.name])

    def complete(self, manifest: Manifest) -> None:
        """Write the card and the manifest, and let go."""
        if self.manifest.name == MANIFEST_NAME:  # of several datasets in one folder, a card could be of one only
            commit_card(self.folder, card(manifest))
        commit_bytes(self.manifest, manifests.to_json(manifest).encode())
        self.mark.unlink()
        self._close()

    def release(self) -> None:
        """Let go. The list of shards stays if there are any."""
        if self._lock is None:
            return
        if not any((self.folder / name).exists() for name in self._begun()):
            self.mark.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _note(self, names: Sequence[str]) -> None:
        assert self._lock is not None
        os.lseek(self._lock, 0, os.SEEK_END)
        os.write(self._lock, "".join(f"{name}\n" for name in names).encode())
        os.fsync(self._lock)

    def _begun(self) -> list[str]:
        """Return the names of the shards that this file lists; a last line that was cut names none that is there."""
        lines = self.mark.read_text("utf-8", "surrogateescape").splitlines()
        return [line for line in lines if line.endswith(".tar") and "/" not in line]

    def _clear(self, *, fresh: bool) -> None:
        """Refuse what an earlier writer left, or remove it; half-written files go in any case."""
        begun, old = self._begun(), self._old_manifest()
        there = [name for name in begun if (self.folder / name).exists()]
        if old is not None and not fresh:
            raise DestinationError(
                f"{self.manifest} is there already, with {old.samples:,} samples: choose another folder, give "
                "manifest= another name, or pass fresh=True to replace it"
            )
        if there and not fresh:
            raise DestinationError(
                f"{self.folder} holds {len(there)} shards ({there[0]}, ...) of a writer that did not end: pass "
                "fresh=True to remove them and start over, or make a dataset of them with `wds-tools index`"
            )
        if old is not None and (old.source or {}).get("kind") != SOURCE_KIND:
            raise DestinationError(
                f"{self.manifest} was not made by ShardWriter, so fresh=True does not remove it: choose another folder"
            )
        if old is not None:
            self._note([entry.name for entry in old.shards])  # or a kill right here would leave shards of nobody
        self.manifest.unlink(missing_ok=True)  # first, so that a half-removed dataset is never taken for a whole one
        sync_folder(self.folder)
        if self.manifest.name == MANIFEST_NAME:
            remove_card(self.folder)
        self._remove(self._begun())
        assert self._lock is not None
        os.ftruncate(self._lock, 0)

    def _remove(self, shards: Sequence[str]) -> None:
        names = {file for shard in shards for file in (shard, index_name(shard))}
        for path in list(self.folder.iterdir()):
            if path.name in names or final_name(path.name) in {*names, CARD_NAME, self.manifest.name}:
                path.unlink(missing_ok=True)

    def _old_manifest(self) -> Manifest | None:
        try:
            return manifests.from_json(self.manifest.read_bytes(), name=str(self.manifest))
        except FileNotFoundError:
            return None
        except ManifestError as error:
            raise DestinationError(f"{self.manifest} is there and is no manifest ({error}); move it away") from error


def _refuse_existing(shard: Path) -> None:
    for path in (shard, shard.with_name(index_name(shard.name))):
        if os.path.lexists(path):
            raise DestinationError(
                f"{path} is there and is of no unfinished writer; choose another folder or pattern, or move it away"
            )
