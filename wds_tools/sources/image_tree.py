"""Images in class folders, on disk or in an archive: which folder is a class, which files are skipped."""

from __future__ import annotations

from collections.abc import Iterable

from wds_tools.errors import MissingSourceError
from wds_tools.format.label import NONE, name
from wds_tools.sources.base import Collector, Input, Skip
from wds_tools.wording import counted

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".avif")
NOT_AN_IMAGE = f"does not have the extension of an image ({', '.join(EXTENSIONS)})"

ImageFile = tuple[bytes, int, tuple[int, ...]]
"""A file with the extension of an image: (path, size, location)."""


def is_image_name(name: str | bytes) -> bool:
    """Return whether a file name has the extension of an image."""
    return path_text(name).lower().endswith(EXTENSIONS)


def collect_tree(found: Collector, files: Iterable[ImageFile]) -> None:
    """Add the images in ``<class>/**``, or in a flat folder, which gives no labels.

    Args:
        found: Where they are added. Files that were skipped before are in it.
        files: All files with the extension of an image.

    Raises:
        SourceError: There is no image.
    """
    files = sorted(files)
    found.account.given += len(files)
    has_classes = any(b"/" in path for path, _, _ in files)
    for path, size, location in files:
        folder, slash, _ = path.partition(b"/")
        if has_classes and not slash:
            found.skip(path_text(path), "is outside the class folders")
        elif size == 0:
            found.skip(path_text(path), "is empty")
        else:
            label = name(path_text(folder)) if has_classes else NONE
            found.add(Input(path_text(path), size, None, location), label)
    found.skipped.sort(key=lambda skip: path_bytes(skip.path))
    if not found.inputs:
        raise MissingSourceError(_no_images_message(found.where, found.skipped))


def _no_images_message(root: str, skipped: list[Skip]) -> str:
    if not skipped:
        return f"{root} is empty; expected class folders with images, or images ({', '.join(EXTENSIONS)})"
    first, others = skipped[0], counted(len(skipped), "other file")
    return (
        f"{root} contains no image that can be packed, but {others} ({first.path!r} {first.reason}); "
        f"expected <class>/**/*{{{','.join(EXTENSIONS)}}}"
    )


def without_common_folder(files: list[ImageFile]) -> list[ImageFile]:
    """Remove folders that contain all class folders of an archive.

    >>> without_common_folder([(b"photos/cat/1.jpg", 5, ()), (b"photos/dog/2.jpg", 5, ())])[0][0]
    b'cat/1.jpg'
    """
    while files and all(path.count(b"/") > 1 for path, _, _ in files):
        if len({path.partition(b"/")[0] for path, _, _ in files}) > 1:
            break
        files = [(path.partition(b"/")[2], size, location) for path, size, location in files]
    return files


def path_text(path: bytes | str) -> str:
    """Return a path as text; bytes that are not UTF-8 become surrogate escapes."""
    return path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")


def path_bytes(path: str) -> bytes:
    """Return the bytes of a path: the inverse of `path_text`."""
    return path.encode("utf-8", "surrogateescape")
