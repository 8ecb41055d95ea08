"""Images in class folders, on disk or in an archive: which folder is a class, which files are skipped."""

from __future__ import annotations

from collections.abc import Sequence

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.sources.base import FileState, Input, Listing, Skip
from wds_tools.sources.labels import quoted_list
from wds_tools.wording import counted

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".avif")
NOT_AN_IMAGE = f"does not have the extension of an image ({', '.join(EXTENSIONS)})"

ImageFile = tuple[bytes, int, tuple[int, ...]]
"""A file with the extension of an image: (path, size, location)."""


def is_image_name(name: str | bytes) -> bool:
    """Return whether a file name has the extension of an image."""
    return path_text(name).lower().endswith(EXTENSIONS)


def list_tree(
    root: str,
    files: Sequence[ImageFile],
    skipped: list[Skip],
    classes: tuple[str, ...] | None,
    stamp: str = "",
    states: tuple[FileState, ...] = (),
) -> Listing:
    """Return the listing of images in ``<class>/**``, or in a flat folder, which gives no labels.

    Args:
        root: Name of the folder or archive, for error messages.
        files: All files with the extension of an image.
        skipped: Files that were skipped before; more are added.
        classes: Names of the class folders, by number; None numbers those with images in sorted order.
        stamp: `Listing.stamp`.
        states: `Listing.files`.

    Raises:
        SourceError: There is no image, or ``classes`` lacks the name of a class folder.
    """
    files = sorted(files)
    names = sorted({path.partition(b"/")[0] for path, _, _ in files if b"/" in path})
    labels = _class_numbers(root, [path_text(name) for name in names], classes)
    inputs: list[Input] = []
    for path, size, location in files:
        folder, slash, _ = path.partition(b"/")
        if labels and not slash:
            skipped.append(Skip(path_text(path), "is outside the class folders"))
        elif size == 0:
            skipped.append(Skip(path_text(path), "is empty"))
        else:
            inputs.append(Input(path_text(path), size, labels[path_text(folder)] if labels else None, location))
    skipped.sort(key=lambda skip: path_bytes(skip.path))
    if not inputs:
        raise MissingSourceError(_no_images_message(root, skipped))
    return Listing(inputs, skipped, tuple(labels), stamp, files=states)


def _class_numbers(root: str, names: list[str], classes: tuple[str, ...] | None) -> dict[str, int]:
    """Return class name -> number, for ``classes`` or else for the folders found."""
    if classes is None:
        return {name: number for number, name in enumerate(names)}
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise SourceError(
            f"class folder {unknown[0]!r} in {root} is not among the given classes "
            f"({quoted_list(classes)}): add it to them, or move the folder away"
        )
    return {name: number for number, name in enumerate(classes)}


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
