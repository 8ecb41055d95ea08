"""Tensor files (``.pt``, ``.pth``): a dictionary with ``images`` and ``labels``, a pair of both, or images alone.

They are read by ``torch.load(weights_only=True)`` only, which builds tensors and plain containers and nothing else.
"""

from __future__ import annotations

from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.arrays import Arrays, ArraySource

_PAIR = ("images", "labels")


class TensorSource(ArraySource):
    """A file that ``torch.save`` wrote; its tensors are mapped, not loaded."""

    kind = "tensors"

    def open(self) -> Arrays:
        """Open the file."""
        import torch  # noqa: PLC0415 - packing anything else never loads it

        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # of many kinds, for a file that may hold anything
            first = str(error).strip().partition("\n")[0][:200]
            raise SourceError(
                f"{self.path} cannot be read as tensors: {first}; allowed are tensors in dictionaries, lists and tuples"
            ) from error
        if isinstance(content, torch.Tensor):
            content = (content,)
        if isinstance(content, (list, tuple)):
            content = dict(zip(_PAIR, content, strict=False))
        tensors = {str(name): value for name, value in content.items()} if isinstance(content, dict) else {}
        arrays = {name: value for name, tensor in tensors.items() if (value := _array(tensor)) is not None}
        if not arrays:
            raise SourceError(f"{self.path} holds no tensor of images; allowed are {{'images': ..., 'labels': ...}}")
        classes = tensors.get("classes")
        names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
        return Arrays(arrays, tuple(classes) if names and classes else None)


def _array(value: Any) -> Any | None:
    if getattr(value, "ndim", 0) == 0:
        return None
    try:
        return value.detach().numpy()
    except TypeError:
        return None  # of a type that NumPy lacks, which holds no pixels and no labels
