"""The signature of an image: a perceptual hash, and three measures of its luma; the columns that have it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wds_tools.format.index import number_array, text_array
from wds_tools.format.index_edit import add_columns

HASH = "phash"
_DIGITS = 16


class Signature(NamedTuple):
    """What is computed from the luma of an image at a reduced size, after its EXIF orientation is applied.

    Attributes:
        phash: Perceptual hash with 64 bits, as ``imagehash.phash`` defines it: near duplicates differ in few bits.
        brightness: Mean, 0 to 255.
        contrast: Standard deviation; 0 for an image of one colour.
        sharpness: Root mean square of the second derivative, at a shorter side of 64 to 127 samples; of 32 to 63 if the
            image has less than 256 pixels. Small values mean a blurred image.
    """

    phash: int
    brightness: float
    contrast: float
    sharpness: float


@dataclass(frozen=True, slots=True)
class Signatures:
    """The signatures of n images.

    Attributes:
        hashes: uint64 [n].
        are_present: bool [n], whether an image has a signature.
        measures: float32 [n, 3], brightness, contrast and sharpness.
    """

    hashes: NDArray[np.uint64]
    are_present: NDArray[np.bool_]
    measures: NDArray[np.float32]

    @classmethod
    def of(cls, table: pa.Table) -> Signatures:
        """Return the signatures in the `COLUMNS` of an index."""
        hashes, present = parse_hashes(table.column(0))
        try:
            measures = [column.cast(pa.float32()).to_numpy(zero_copy_only=False) for column in table.columns[1:]]
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
        return cls(hashes, present, np.stack(measures, axis=1))

    def __len__(self) -> int:
        return len(self.hashes)

    def row(self, i: int) -> Signature | None:
        """Return the signature of one image, or None."""
        return Signature(int(self.hashes[i]), *self.measures[i].tolist()) if self.are_present[i] else None


COLUMNS = Signature._fields
"""Names of the columns of the index. They are null for an image without a signature."""


def has_signatures(columns: Sequence[str]) -> bool:
    """Return whether an index with these further columns has signatures."""
    return set(COLUMNS) <= set(columns)


def add_signatures(data: bytes, signatures: Sequence[Signature | None]) -> bytes:
    """Return an index with a signature for each of its samples, or None for those that have none."""
    present = np.array([signature is not None for signature in signatures], np.bool_)
    hashes = [None if signature is None else f"{signature.phash:0{_DIGITS}x}" for signature in signatures]
    columns = {HASH: text_array(hashes)}
    for name in COLUMNS[1:]:
        measures = [0 if signature is None else getattr(signature, name) for signature in signatures]
        columns[name] = number_array(np.array(measures, np.float32), present)
    return add_columns(data, pa.table(columns))


def parse_hashes(column: Any) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the hashes of a column ``phash``, uint64 [n], and which rows have one, bool [n].

    The column has 16 hexadecimal digits, the text of ``imagehash.phash``: conditions and JSON take text, but no numbers
    above 2**63.

    Raises:
        ValueError: A value is not 16 hexadecimal digits.

    >>> parse_hashes(pa.array(["8000000000000001", None]))
    (array([9223372036854775809,                   0], dtype=uint64), array([ True, False]))
    """
    texts = column.cast(pa.string()).to_pylist()
    present = np.array([text is not None for text in texts], bool)
    joined = "".join(text for text in texts if text is not None)
    if len(joined) != _DIGITS * int(present.sum()) or any(len(text) != _DIGITS for text in texts if text is not None):
        raise ValueError(f"column {HASH!r} has values that are not {_DIGITS} hexadecimal digits")
    hashes = np.zeros(len(present), np.uint64)
    hashes[present] = np.frombuffer(bytes.fromhex(joined), ">u8")
    return hashes, present
