"""The folder of a `ShardWriter`: its lock, and the removal of what an earlier writer left.

While a writer runs, it holds a lock on a hidden file next to its manifest (``.manifest.json.writing``). This lock file
lists the shards that the writer has started. It is removed once the manifest is written. If it remains, that writer did
not finish.
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
from wds_tools.storage.lock import WRITER_LOCK_NAME, lock_file, unlock

SOURCE_KIND = "ShardWriter"
"""Kind of the source in the manifest. Only datasets with this kind are replaced."""


class WriterLock:
    """The lock of one writer on its folder."""

    def __init__(self, folder: Path, manifest: str) -> None:
        self.folder = folder
        self.manifest = folder / manifest
        self.lock_path = folder / WRITER_LOCK_NAME.format(manifest)
        self._lock: int | None = None

    def acquire(self, first: Path, *, fresh: bool) -> None:
        """Lock the folder, and remove what an earlier writer left.

        Raises:
            DestinationError: The folder is in use, is not writable, or holds files that must not be replaced.
        """
        try:
            self._lock = lock_file(self.lock_path)
            self._remove_leftovers(fresh=fresh)
            _refuse_existing(first)
        except BlockingIOError as error:
            raise DestinationError(
                f"another writer is writing {self.manifest}; wait until it ends, or pass another name as manifest="
            ) from error
        except BaseException as error:
            self.release()
            if isinstance(error, WdsToolsError) or not isinstance(error, OSError):
                raise
            raise DestinationError(f"cannot write to {self.folder}: {error.strerror}; choose another folder") from error

    def register_shard(self, shard: Path) -> None:
        """Add a shard to the list in the lock file, before the shard is created."""
        _refuse_existing(shard)
        self._append_names([shard.name])

    def complete(self, manifest: Manifest) -> None:
        """Write the card and the manifest, and release the lock."""
        if self.manifest.name == MANIFEST_NAME:  # one card cannot describe several datasets
            commit_card(self.folder, card(manifest))
        commit_bytes(self.manifest, manifests.to_json(manifest).encode())
        self.lock_path.unlink()
        self._close()

    def release(self) -> None:
        """Release the lock. The lock file stays if a shard of its list exists."""
        if self._lock is None:
            return
        if not any((self.folder / name).exists() for name in self._registered_shards()):
            self.lock_path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None

    def _append_names(self, names: Sequence[str]) -> None:
        assert self._lock is not None
        os.lseek(self._lock, 0, os.SEEK_END)
        os.write(self._lock, "".join(f"{name}\n" for name in names).encode())
        os.fsync(self._lock)

    def _registered_shards(self) -> list[str]:
        """Return the names of the shards in the lock file. A truncated last line matches no existing file."""
        lines = self.lock_path.read_text("utf-8", "surrogateescape").splitlines()
        return [line for line in lines if line.endswith(".tar") and "/" not in line]

    def _remove_leftovers(self, *, fresh: bool) -> None:
        """Remove half-written files of an earlier writer; with ``fresh``, also its shards and its dataset."""
        old = self._old_manifest()
        existing = [name for name in self._registered_shards() if (self.folder / name).exists()]
        if old is not None and not fresh:
            raise DestinationError(
                f"{self.manifest} already exists, with {old.samples:,} samples: choose another folder, pass another "
                "name as manifest=, or pass fresh=True to replace it"
            )
        if existing and not fresh:
            raise DestinationError(
                f"{self.folder} holds {len(existing)} shards ({existing[0]}, ...) of a writer that did not finish: "
                "pass fresh=True to remove them and start over; to keep them as a dataset of the samples so far, "
                f"remove {self.lock_path.name} and run `wds-tools index`"
            )
        if old is not None and (old.source or {}).get("kind") != SOURCE_KIND:
            raise DestinationError(
                f"{self.manifest} was not written by ShardWriter, so fresh=True does not remove it: "
                "choose another folder"
            )
        if old is not None:
            # Listed first: after a kill at this point, the next writer still knows whose shards these are.
            self._append_names([entry.name for entry in old.shards])
        self.manifest.unlink(missing_ok=True)  # first, so that a partly removed dataset never looks complete
        sync_folder(self.folder)
        if self.manifest.name == MANIFEST_NAME:
            remove_card(self.folder)
        self._remove(self._registered_shards())
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
            raise DestinationError(
                f"{self.manifest} exists and is not a valid manifest ({error}); move it away"
            ) from error


def _refuse_existing(shard: Path) -> None:
    for path in (shard, shard.with_name(index_name(shard.name))):
        if os.path.lexists(path):
            raise DestinationError(
                f"{path} exists and does not belong to an unfinished writer; "
                "choose another folder or pattern, or move it away"
            )
