"""Tensor files (``.pt``, ``.pth``).

A file contains a dictionary with ``images`` and ``labels``, a pair of both, or images alone.
Files are read with ``torch.load(weights_only=True)``, which creates only tensors and plain containers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.sources.arrays import Arrays, ArraySource
from wds_tools.sources.base import SourceStoreError, is_system_error

_PAIR = ("images", "labels")


class TensorSource(ArraySource):
    """A file written by ``torch.save``; its tensors are memory-mapped."""

    kind = "tensors"

    def open(self) -> Arrays:
        """Open the file."""
        import torch  # noqa: PLC0415 - only this source needs torch

        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch.load raises many types of error for invalid files
            if is_system_error(error):
                raise SourceStoreError(f"{self.path} cannot be read: {error}") from error
            first_line = str(error).strip().partition("\n")[0][:200]
            raise SourceError(
                f"{self.path} cannot be read as tensors: {first_line}; "
                "allowed are tensors in dictionaries, lists and tuples"
            ) from error
        if isinstance(content, torch.Tensor):
            content = (content,)
        if isinstance(content, (list, tuple)):
            if len(content) > len(_PAIR):
                raise SourceError(
                    f"{self.path} contains a {type(content).__name__} of {len(content)} values; allowed are images "
                    "alone and (images, labels): stack images with torch.stack, and save further values in a dictionary"
                )
            content = dict(zip(_PAIR, content, strict=False))
        tensors = {str(name): value for name, value in content.items()} if isinstance(content, dict) else {}
        classes = tensors.get("classes")
        names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
        if names:
            del tensors["classes"]  # names of classes, not one per image
        arrays = {name: value for name, tensor in tensors.items() if (value := _array(tensor)) is not None}
        if not arrays:
            raise SourceError(f"{self.path} contains no tensor of images; expected {{'images': ..., 'labels': ...}}")
        return Arrays(arrays, tuple(classes) if names and classes else None)


def _array(value: Any) -> Any | None:
    """Return a tensor, or a list of numbers or texts, as a NumPy array; None for scalars and other objects."""
    if isinstance(value, (list, tuple)):
        kinds = {type(item) for item in value}
        return np.asarray(value) if kinds in ({int}, {float}, {bool}, {str}) else None
    if getattr(value, "ndim", 0) == 0:
        return None
    try:
        return value.detach().numpy()
    except TypeError:  # NumPy lacks bfloat16 and smaller types, whose values are also of float32
        is_dense = str(value.layout) == "torch.strided"
        return value.detach().float().numpy() if is_dense and value.is_floating_point() else None
