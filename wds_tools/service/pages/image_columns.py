"""Columns of indexes that say what is wrong with images, and the search in them; both run in helper processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from wds_tools.errors import printable, shortened
from wds_tools.format.index import Index
from wds_tools.inspection.problem_columns import columns_of_index
from wds_tools.inspection.problems import ImageColumns, find_problems

_TYPES = {
    "label": np.int64,
    "width": np.int32,
    "height": np.int32,
    "content": np.uint64,
    "is_signed": np.bool_,
    "phash": np.uint64,
    "contrast": np.float32,
    "sharpness": np.float32,
}
_MAX_CLUSTERS = 4
_MAX_SHOWN = 6  # samples of a cluster
_MAX_IDS = 200  # of the samples in a condition, if not all of them fit
_MAX_FOUND = 600  # characters


def columns_as_bytes(index: Index, table: Any) -> bytes:
    """Return the columns of one index that the search needs, one after the other."""
    columns = columns_of_index(index, table)
    return b"".join(getattr(columns, name).astype(kind).tobytes() for name, kind in _TYPES.items())


def problems_of(message: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Answer in the helper process: the problems of a dataset, as values for JSON."""
    parts: dict[str, list[Any]] = {name: [] for name in _TYPES}
    at = 0
    for samples in message["samples"]:
        for name, kind in _TYPES.items():
            parts[name].append(np.frombuffer(payload, kind, samples, at))
            at += samples * np.dtype(kind).itemsize
    columns = ImageColumns(**{name: np.concatenate(arrays) for name, arrays in parts.items()})
    problems = [
        {
            "name": problem.name,
            "status": problem.status,
            "found": shortened(printable(problem.found), _MAX_FOUND),
            "where": problem.where,
            "count": len(problem.samples),
            "first": problem.samples[:_MAX_IDS].tolist(),
            "clusters": [cluster[:_MAX_SHOWN] for cluster in problem.clusters[:_MAX_CLUSTERS]],
        }
        for problem in find_problems(columns, classes=message["classes"])
    ]
    return {"problems": problems, "unsigned": int((columns.has_image & ~columns.is_signed).sum())}, b""
