"""Arrays in files next to a checkpoint: a state records the path of the file, and the hash of its content."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.storage.commit import CommitFile


def hash_of_array(array: NDArray[Any]) -> str:
    """Return the hash of the file that `save` writes."""
    return hash_of(_header(array), array.data)


def hash_of(*parts: bytes | memoryview) -> str:
    """Return the hash of the content of a file."""
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def save(path: str, array: NDArray[Any], digest: str, option: str) -> None:
    """Write an array to a file of NumPy, unless it has this array already: another rank may have written it."""
    try:
        if not (Path(path).is_file() and hash_of(content_of(path, "", OptionError)) == digest):
            with CommitFile(path) as file:
                file.write(_header(array))
                file.write(array.data)
    except OSError as error:
        raise OptionError(f"{option}={path!r} cannot be written ({error.strerror or error})") from error


def saved_content(path: str, digest: str, what: str) -> memoryview:
    """Return the content of a file that a state records.

    Raises:
        ResumeError: The file is missing, cannot be read, or has changed.
    """
    content = content_of(path, what, ResumeError)
    if (actual := hash_of(content)) != digest:
        raise ResumeError(
            f"{path} has changed: its hash is {actual}, and the state records {digest}; restore the file that was "
            "saved with the state"
        )
    return content


def content_of(path: str | os.PathLike[str], what: str, kind: Callable[[str], Exception]) -> memoryview:
    """Return the content of a file; pages of it are read when they are used."""
    try:
        with Path(path).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:  # an empty file cannot be mapped
        return memoryview(b"")
    except OSError as error:
        raise kind(f"{what} in {os.fspath(path)} cannot be read ({error.strerror or error})") from error


def _header(array: NDArray[Any]) -> bytes:
    """Return the start of a file of NumPy that has the array after it."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, np.lib.format.header_data_from_array_1_0(array))
    return content.getvalue()


def save_ids(folder: str | os.PathLike[str], ids: Sequence[int]) -> tuple[str, str]:
    """Write the ids of banned samples to a file of a folder, whose name has their hash; return its path and hash."""
    array = np.array(ids, np.int64)
    digest = hash_of_array(array)
    path = os.path.join(folder, f"ban-{digest}.npy")  # noqa: PTH118 - Path would normalize the string
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"save_ban_to={os.fspath(folder)!r} is not a folder that can be written to ({error.strerror or error})"
        ) from error
    save(path, array, digest, "save_ban_to")
    return path, digest


def read_ids(path: str, digest: str) -> list[int]:
    """Return the ids that `save_ids` has written."""
    content = saved_content(path, digest, "the ids of banned samples")
    try:
        ids: list[int] = np.load(io.BytesIO(content)).tolist()
    except (ValueError, EOFError) as error:
        raise ResumeError(f"{path} is not a file of save_ban_to= ({error})") from error
    return ids
