"""Images in folders: what is a class, what is skipped. The same for a folder on disk and one inside an archive."""

from __future__ import annotations

from collections.abc import Sequence

from wds_tools.errors import SourceError
from wds_tools.sources.base import Input, Listing, Skip
from wds_tools.sources.labels import shortened
from wds_tools.wording import counted

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
NO_IMAGE = f"is not an image by its name; packed are {', '.join(EXTENSIONS)}"

Found = tuple[bytes, int, tuple[int, ...]]
"""A file with an image's extension: (path, size, place)."""


def is_image_name(name: str | bytes) -> bool:
    """Tell whether a file may be an image, by its name."""
    return text(name).lower().endswith(EXTENSIONS)


def list_tree(
    root: str, files: Sequence[Found], skipped: list[Skip], classes: tuple[str, ...] | None, stamp: str = ""
) -> Listing:
    """Make the listing of a tree of images: ``<class>/**``, or images alone, which get no labels.

    Args:
        root: Name of the whole, for error messages.
        files: All files with an image's extension.
        skipped: What was left out already; more is added.
        classes: Names of the class folders, by number; None numbers the sorted names of those that hold images.
        stamp: Of the listing.

    Raises:
        SourceError: No image, or a class folder that ``classes`` does not name.
    """
    files = sorted(files)
    names = sorted({path.partition(b"/")[0] for path, _, _ in files if b"/" in path})
    labels = _number(root, [text(name) for name in names], classes)
    inputs: list[Input] = []
    for path, size, place in files:
        folder, slash, _ = path.partition(b"/")
        if labels and not slash:
            skipped.append(Skip(text(path), "lies outside the class folders"))
        elif size == 0:
            skipped.append(Skip(text(path), "is empty"))
        else:
            inputs.append(Input(text(path), size, labels[text(folder)] if labels else None, place))
    skipped.sort(key=lambda skip: raw(skip.path))
    if not inputs:
        raise SourceError(_nothing(root, skipped))
    return Listing(inputs, skipped, tuple(labels), stamp)


def _number(root: str, names: list[str], classes: tuple[str, ...] | None) -> dict[str, int]:
    """Return class name to number: of the names given, else of the folders found."""
    if classes is None:
        return {name: number for number, name in enumerate(names)}
    strangers = [name for name in names if name not in classes]
    if strangers:
        raise SourceError(
            f"class folder {strangers[0]!r} in {root} is not among the classes given "
            f"({shortened(classes)}): add it to them, or move the folder away"
        )
    return {name: number for number, name in enumerate(classes)}


def _nothing(root: str, skipped: list[Skip]) -> str:
    if not skipped:
        return f"{root} is empty; expected class folders with images, or images ({', '.join(EXTENSIONS)})"
    first, others = skipped[0], counted(len(skipped), "other file")
    return (
        f"{root} holds no image that can be packed, but {others} ({first.path!r} {first.reason}); "
        f"expected <class>/**/*{{{','.join(EXTENSIONS)}}}"
    )


def without_common_folder(files: list[Found]) -> list[Found]:
    """Drop the folders that an archive wraps around its class folders.

    >>> without_common_folder([(b"photos/cat/1.jpg", 5, ()), (b"photos/dog/2.jpg", 5, ())])[0][0]
    b'cat/1.jpg'
    """
    while files and all(path.count(b"/") > 1 for path, _, _ in files):
        if len({path.partition(b"/")[0] for path, _, _ in files}) > 1:
            break
        files = [(path.partition(b"/")[2], size, place) for path, size, place in files]
    return files


def text(path: bytes | str) -> str:
    """Return a path as text, whatever its bytes."""
    return path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")


def raw(path: str) -> bytes:
    """Return a path's bytes."""
    return path.encode("utf-8", "surrogateescape")
