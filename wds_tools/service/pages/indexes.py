"""Questions about the index of a shard, answered in a helper process: rows, sums, conditions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wds_tools.errors import OptionError, printable, shortened
from wds_tools.format.index import ABSENT, NO_LABEL, Index, from_bytes
from wds_tools.format.index_edit import read_columns
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.lru_cache import LRUCache
from wds_tools.order.where import WhereError, parse
from wds_tools.reading.columns import columns_of, with_columns
from wds_tools.service.pages.image_columns import columns_as_bytes
from wds_tools.service.pages.summary import summary_of
from wds_tools.wording import one_line

_MAX_INDEX_MEMORY = 400 << 20
TEXT_FIELDS = ("txt", "text", "caption", "captions", "json")
"""Ends of the names of fields whose text the grid shows, in order of preference."""

_MAX_TEXT_BYTES = 64 << 10  # of a field whose text the grid shows
_MAX_NAMES = 8  # of fields that the grid shows of a sample without an image
_MAX_KEY = 300  # characters of a key that a page shows


class Indexes:
    """The indexes that were used most recently, by the checksums of their files."""

    def __init__(self) -> None:
        self._kept = LRUCache[str, Index](max_items=2000, max_bytes=_MAX_INDEX_MEMORY)

    def answer(self, message: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer one question. ``{"missing": true}`` means: ask again, with the index as payload."""
        question = message["question"]
        index = self._kept.get(message["index"])
        if not payload and (index is None or set(message.get("further", ())) & set(index.columns)):
            return {"missing": True}, b""
        if index is None:
            index = from_bytes(payload, name="the index", samples=message["samples"])
            self._kept.put(message["index"], index, index.memory_bytes)
        return _about(index, question, message, payload)


def _about(index: Index, question: str, message: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    if question == "rows":
        return {"rows": [row_of(index, row) for row in message["rows"]], "further": list(index.columns)}, b""
    if question == "sample":
        return {"sample": row_of(index, message["row"]), "fields": fields_of(index, message["row"])}, b""
    if question in ("summary", "check"):
        return summary_of(index) if question == "summary" else check_where(index, **message["arguments"]), b""
    if question == "image_columns":
        names = message["further"] if set(message["further"]) <= set(index.columns) else []
        return {}, columns_as_bytes(index, read_columns(payload, names, name="the index") if names else None)
    try:  # "match"
        read = partial(read_columns, payload, name="the index")
        table = with_columns(columns_of(index, message["arguments"]["first"]), index, message["further"], read)
        return {}, matching(index, table, **message["arguments"]).astype("<u4").tobytes()
    except OptionError as error:
        return mistake(error), b""


def row_of(index: Index, row: int) -> dict[str, Any]:
    """Return what the grid shows of a sample, and the location of its text."""
    label = int(index.label[row])
    fields = {name: columns for name, columns in index.fields.items() if columns.offset[row] != ABSENT}
    return {
        "key": shortened(printable(index.keys[row]), _MAX_KEY),
        "label": None if label == NO_LABEL else label,
        "width": int(index.width[row]),
        "height": int(index.height[row]),
        "mode": index.mode[row],
        "bytes": int(sum(int(columns.size[row]) for columns in fields.values())),
        "has_image": any(_is_image(name, is_sized=bool(index.width[row])) for name in fields),
        "names": shortened(printable(", ".join(list(fields)[:_MAX_NAMES])), _MAX_KEY),
        "text": _text_field(fields_of(index, row)),
    }


def _is_image(name: str, *, is_sized: bool) -> bool:
    """Return whether a field may hold an image. An array does if the packer found the size of the image."""
    end = name.rpartition(".")[2]
    return end in IMAGE_FIELDS and (end != "npy" or is_sized)


def _text_field(fields: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the field with the text of a sample, if it has one."""
    ends = {field["name"].rpartition(".")[2]: field for field in reversed(fields) if field["size"] <= _MAX_TEXT_BYTES}
    return next((ends[end] for end in TEXT_FIELDS if end in ends), None)


def fields_of(index: Index, row: int) -> list[dict[str, Any]]:
    """Return the fields of a sample."""
    return [
        {
            "name": name,
            "offset": int(columns.offset[row]),
            "size": int(columns.size[row]),
            "xxh3": f"{int(columns.xxh3[row]):016x}",
        }
        for name, columns in index.fields.items()
        if columns.offset[row] != ABSENT
    ]


def matching(
    index: Index, table: pa.Table, *, where: str, label: int | None, classes: list[str], first: int
) -> NDArray[np.intp]:
    """Return the rows of the samples that have a class and meet a condition, ascending.

    Args:
        index: The index.
        table: The columns that the condition may use.
        where: The condition; "" for none.
        label: The class number; None for any.
        classes: Class names.
        first: Number of the first sample.

    Raises:
        OptionError: The condition is invalid.
    """
    if not where:
        return np.flatnonzero(index.label == label)
    expression = parse(where, columns=table.column_names, classes=classes).expression
    try:
        rows: NDArray[np.intp] = table.filter(expression)["id"].to_numpy() - first
    except (
        KeyError,
        TypeError,
        ValueError,
        OSError,
        NotImplementedError,
    ) as error:  # the errors of pyarrow are among these
        reason = shortened(one_line(error), 300)
        raise OptionError(f"the condition cannot be applied: {reason}") from error
    return rows if label is None else rows[index.label[rows] == label]


def check_where(index: Index, *, where: str, classes: list[str]) -> dict[str, Any]:
    """Return where the mistake in a condition is, or the further columns of the index that it uses."""
    try:
        condition = parse(where, columns=[*columns_of(index, 0).column_names, *index.columns], classes=classes)
    except OptionError as error:
        return mistake(error)
    return {"further": [name for name in index.columns if name in condition.columns]}


def mistake(error: OptionError) -> dict[str, Any]:
    """Return an invalid condition as an answer: the message, and the characters that it is about."""
    problem, span = (error.problem, error.span) if isinstance(error, WhereError) else (str(error), None)
    return {"mistake": {"message": shortened(problem, 1000), "span": span}}
