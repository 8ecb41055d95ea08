"""What is probably wrong with the images and labels of datasets: a pure function of columns of their indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.format.index import NO_LABEL
from wds_tools.images import native
from wds_tools.images.near_duplicates import BLANK_CONTRAST, DISTANCE, clusters_of
from wds_tools.wording import counted

BLURRED_SHARPNESS = 12
"""Images with less sharpness are probably blurred: 1 % of sharp photographs have less."""

_TINY_PART = 8  # of the median of the shorter sides
_EXTREME_RATIO = 4
_MAX_LISTED = 1000  # in a condition


@dataclass(frozen=True, slots=True)
class ImageColumns:
    """Columns of the indexes of a dataset, with a row for each of its n samples.

    Attributes:
        label: int64 [n], class number, `NO_LABEL` for none.
        width: int32 [n], 0 without an image.
        height: int32 [n], 0 without an image.
        content: uint64 [n], XXH3-64 of the bytes of the image.
    """

    label: NDArray[np.int64]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    content: NDArray[np.uint64]
    is_signed: NDArray[np.bool_]
    phash: NDArray[np.uint64]
    contrast: NDArray[np.float32]
    sharpness: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def has_image(self) -> NDArray[np.bool_]:
        """Whether each sample has an image: bool [n]."""
        return self.width > 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Samples of a dataset with one kind of problem.

    Attributes:
        name: Kind of the problem: ``copies``, ``similar``, ``labels``, ``blank``, ``blurred``, ``tiny``, ``narrow``,
            ``classes`` or ``leak``.
        status: ``problem`` for what is certainly wrong, ``note`` for what should be looked at.
        samples: int64 [n], ids of the samples, ascending. Of copies and similar images, one of each cluster, the
            largest, is not among them.
        where: Condition that selects them, for ``where=``; empty if they are too many to be listed in it.
        clusters: For copies, similar images, labels and leaks: ids of the samples of each cluster; those of a leak are
            of both datasets, each as (number of the dataset, id).
    """

    name: str
    status: Literal["note", "problem"]
    found: str
    samples: NDArray[np.int64]
    where: str
    clusters: list[list[int]] | list[list[tuple[int, int]]] = field(default_factory=list)


def find_problems(columns: ImageColumns, *, classes: Sequence[str] = (), distance: int = DISTANCE) -> list[Problem]:
    """Return the problems of a dataset."""
    return [*_duplicates(columns, distance), *_by_condition(columns), *_small_classes(columns, classes)]


def find_leaks(
    first: ImageColumns, other: ImageColumns, *, names: tuple[str, str], distance: int = DISTANCE
) -> list[Problem]:
    """Return the samples of the first of two datasets whose images are in the other too; empty if there are none."""
    joined = ImageColumns(
        *(np.concatenate([getattr(first, name), getattr(other, name)]) for name in ImageColumns.__slots__)
    )
    of_other = np.arange(len(joined)) >= len(first)
    _, cluster = _clusters(joined, distance)
    groups = [group for group in _groups(cluster) if of_other[group].any() and not of_other[group].all()]
    if not groups:
        return []
    samples = np.sort(np.concatenate([group[group < len(first)] for group in groups]))
    copies = np.isin(first.content[samples], other.content[other.has_image])
    text = (
        f"{counted(len(samples), 'image')} of {names[0]} also in {names[1]}: {int(copies.sum()):,} with the same "
        f"bytes, {int((~copies).sum()):,} similar"
    )
    pairs = [
        [(int(row >= len(first)), int(row) - (len(first) if row >= len(first) else 0)) for row in group.tolist()]
        for group in groups
    ]
    return [Problem("leak", "problem", text, samples, _ids_condition(samples), pairs)]


def can_compare(columns: ImageColumns) -> NDArray[np.bool_]:
    """Return which images have a hash that says something: bool [n]."""
    return columns.is_signed & (columns.contrast >= BLANK_CONTRAST)


def _clusters(columns: ImageColumns, distance: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the clusters of images with the same bytes, and of similar images: int64 [n] each, -1 for none."""
    copies, similar = np.full(len(columns), -1), np.full(len(columns), -1)
    copies[columns.has_image] = clusters_of(columns.content[columns.has_image], 0)
    compared = can_compare(columns)
    if native.is_available():
        similar[compared] = clusters_of(columns.phash[compared], distance)
    # images without a hash are at least similar to their copies
    unsigned = columns.has_image & (similar < 0)
    similar[unsigned] = copies[unsigned] + len(columns)
    return copies, similar


def _groups(cluster: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows of each cluster that has several: int64 [n] each, ascending."""
    rows = np.flatnonzero(cluster >= 0)
    _, index, counts = np.unique(cluster[rows], return_inverse=True, return_counts=True)
    several = counts[index] > 1
    rows, index = rows[several], index[several]
    order = np.argsort(index, kind="stable")
    edges = np.flatnonzero(np.diff(index[order])) + 1
    return [group for group in np.split(rows[order], edges) if len(group)]


def _duplicates(columns: ImageColumns, distance: int) -> Iterator[Problem]:
    copies, similar = _clusters(columns, distance)
    same = _groups(copies)
    if same:
        samples = np.sort(np.concatenate([group[1:] for group in same]))
        text = f"{counted(len(samples), 'image')} with the same bytes as an earlier one, in {_in_clusters(same)}"
        yield Problem("copies", "note", text, samples, _ids_condition(samples), _as_lists(same))
    groups = _groups(similar)
    near = [group for group in groups if len(np.unique(columns.content[group])) > 1]
    if near:
        area = columns.width.astype(np.int64) * columns.height
        samples = np.sort(np.concatenate([np.delete(group, np.argmax(area[group])) for group in near]))
        text = (
            f"{counted(len(samples), 'image')} similar to a larger one, in {_in_clusters(near)} (hashes differ in at "
            f"most {distance} of 64 bits)"
        )
        yield Problem("similar", "note", text, samples, _ids_condition(samples), _as_lists(near))
    different = [group for group in groups if len(np.unique(columns.label[group])) > 1]
    if different:
        samples = np.sort(np.concatenate(different))
        same_bytes = sum(len(np.unique(columns.label[group])) > 1 for group in same)
        text = (
            f"{counted(len(samples), 'image')} with different labels in {_in_clusters(different)} of copies or similar "
            f"images; in {same_bytes:,} the bytes are the same"
        )
        status: Literal["note", "problem"] = "problem" if same_bytes else "note"
        yield Problem("labels", status, text, samples, _ids_condition(samples), _as_lists(different))


def _by_condition(columns: ImageColumns) -> Iterator[Problem]:
    """Yield the problems that a condition on columns of the index describes."""
    has_image, width, height = columns.has_image, columns.width.astype(np.int64), columns.height.astype(np.int64)
    shorter = np.minimum(width, height)
    least = int(np.median(shorter[has_image])) // _TINY_PART if has_image.any() else 0
    is_blank = columns.is_signed & (columns.contrast < BLANK_CONTRAST)
    conditions = [
        ("blank", "of one colour", is_blank, f"contrast < {BLANK_CONTRAST}"),
        (
            "blurred",
            "probably blurred",
            columns.is_signed & ~is_blank & (columns.sharpness < BLURRED_SHARPNESS),
            f"sharpness < {BLURRED_SHARPNESS} and contrast >= {BLANK_CONTRAST}",
        ),
        (
            "tiny",
            f"tiny: the shorter side has less than {least} pixels, an eighth of the median",
            has_image & (shorter < least),
            f"width > 0 and (width < {least} or height < {least})",
        ),
        (
            "narrow",
            f"more than {_EXTREME_RATIO} times as wide as high, or as high as wide",
            has_image & ((width > _EXTREME_RATIO * height) | (height > _EXTREME_RATIO * width)),
            f"width > {_EXTREME_RATIO} * height or height > {_EXTREME_RATIO} * width",
        ),
    ]
    for name, what, mask, where in conditions:
        if mask.any():
            yield Problem(name, "note", f"{counted(int(mask.sum()), 'image')} {what}", np.flatnonzero(mask), where)


def _small_classes(columns: ImageColumns, classes: Sequence[str]) -> Iterator[Problem]:
    numbers, counts = np.unique(columns.label[columns.label != NO_LABEL], return_counts=True)
    single = numbers[counts == 1].tolist()
    if single:
        shown = ", ".join(classes[number] if 0 <= number < len(classes) else str(number) for number in single[:5])
        more = f" and {len(single) - 5:,} more" if len(single) > 5 else ""
        where = _condition("label", single)
        text = f"{counted(len(single), 'class', 'classes')} with one sample: {shown}{more}"
        yield Problem("classes", "note", text, np.flatnonzero(np.isin(columns.label, single)), where)


def _in_clusters(groups: Sequence[NDArray[np.int64]]) -> str:
    return counted(len(groups), "cluster")


def _ids_condition(samples: NDArray[np.int64]) -> str:
    return _condition("id", samples.tolist())


def _condition(column: str, values: list[int]) -> str:
    """Return a condition for a column with one of these values; empty if they are too many."""
    if len(values) == 1:
        return f"{column} == {values[0]}"
    return f"{column} in ({', '.join(map(str, values))})" if len(values) <= _MAX_LISTED else ""


def _as_lists(groups: Sequence[NDArray[np.int64]]) -> list[list[int]]:
    return [group.tolist() for group in groups]
