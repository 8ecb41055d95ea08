"""Locks of folders, next to processes that are forked while they are held."""

import os
import signal
from pathlib import Path

import pytest

from wds_tools.storage.lock import is_locked, lock_file, unlock


def test_a_process_that_was_forked_meanwhile_does_not_keep_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = lock_file(path)
    worker = os.fork()
    if worker == 0:
        signal.pause()
    try:
        assert is_locked(path)
        with pytest.raises(BlockingIOError):
            lock_file(path)
        unlock(lock)
        assert not is_locked(path)
        unlock(lock_file(path))
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
