"""Tensor files (``.pt``, ``.pth``).

A file contains a dictionary with ``images`` and ``labels``, a pair of both, or images alone.
Files are read with ``torch.load(weights_only=True)``, which creates only tensors and plain containers.
"""

from __future__ import annotations

from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.arrays import Arrays, ArraySource

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
            first_line = str(error).strip().partition("\n")[0][:200]
            raise SourceError(
                f"{self.path} cannot be read as tensors: {first_line}; "
                "allowed are tensors in dictionaries, lists and tuples"
            ) from error
        if isinstance(content, torch.Tensor):
            content = (content,)
        if isinstance(content, (list, tuple)):
            content = dict(zip(_PAIR, content, strict=False))
        tensors = {str(name): value for name, value in content.items()} if isinstance(content, dict) else {}
        arrays = {name: value for name, tensor in tensors.items() if (value := _array(tensor)) is not None}
        if not arrays:
            raise SourceError(f"{self.path} contains no tensor of images; expected {{'images': ..., 'labels': ...}}")
        classes = tensors.get("classes")
        are_names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
        return Arrays(arrays, tuple(classes) if are_names and classes else None)


def _array(value: Any) -> Any | None:
    """Return a tensor as a NumPy array; None for scalars, other objects and types that NumPy lacks."""
    if getattr(value, "ndim", 0) == 0:
        return None
    try:
        return value.detach().numpy()
    except TypeError:
        return None  # such as bfloat16, which cannot be pixels or labels
