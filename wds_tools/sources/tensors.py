"""Tensor files (``.pt``, ``.pth``).

A file contains a dictionary with ``images`` and ``labels``, also in dictionaries in it; a pair of both; images
alone; or a list of samples, each a pair or a dictionary.
Files are read with ``torch.load(weights_only=True)``, which creates only tensors and plain containers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.sources.array_kinds import of_items
from wds_tools.sources.array_roles import Contents, class_names_in
from wds_tools.sources.arrays import ArraySource
from wds_tools.sources.base import SourceStoreError, is_system_error

_PAIR = ("images", "labels")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_IMAGE_AXES = 3
_PARAMETERS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class TensorSource(ArraySource):
    """A file written by ``torch.save``; its tensors are memory-mapped."""

    kind = "tensors"

    def open(self) -> Contents:
        import torch  # noqa: PLC0415 - only this source needs torch

        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Validating sparse", UserWarning)
                content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch.load raises many types of error for invalid files
            if is_system_error(error):
                raise SourceStoreError(f"{self.path} cannot be read: {error}") from error
            raise SourceError(
                f"{self.path} cannot be read as tensors: {_reason(error)}; allowed are tensors, numbers and text in "
                "dictionaries, lists and tuples"
            ) from error
        contents = Contents()
        reader = _Reader(contents, torch, str(self.path))
        if isinstance(content, Mapping):
            reader.refuse_models(content)
        if isinstance(content, (list, tuple)):
            content = reader.columns(content)
        reader.add("", content if isinstance(content, Mapping) else {"images": content})
        if not contents.arrays:
            raise SourceError(f"{self.path} contains no tensor of images; expected {{'images': ..., 'labels': ...}}")
        return contents


def _reason(error: Exception) -> str:
    """Return why a file cannot be loaded: of torch's long advice, only the class that it does not create."""
    if found := _GLOBAL.search(str(error)):
        return f"it has objects of {found[1]}, which are not created, because a pickle can run code"
    return str(error).strip().partition("\n")[0][:200]


class _Reader:
    """Adds what a file contains to its contents."""

    def __init__(self, contents: Contents, torch: Any, where: str) -> None:
        self._contents, self._torch, self._where = contents, torch, where

    def add(self, prefix: str, entries: Mapping[Any, Any]) -> None:
        """Add the entries of a dictionary, those of dictionaries in it with a path."""
        for key, value in entries.items():
            name = f"{prefix}{key}"
            if name in self._contents.arrays:
                raise SourceError(f"{self._where} has two entries with the name {name!r}: rename one of them")
            if self._is_pair(value):
                value = dict(zip(_PAIR, value, strict=True))  # noqa: PLW2901
            if isinstance(value, Mapping) and class_names_in(value) is None:
                self.add(f"{name}/", value)
                continue
            try:
                array = self._array(value)
            except SourceError as error:
                self._contents.refuse(name, error)
                continue
            if array is None:
                self._contents.add_entry("entry", name, name, value)
            else:
                self._contents.arrays[name] = array

    def _array(self, value: Any) -> Any | None:
        """Return a tensor, or a list, as an array; None for a single value."""
        if isinstance(value, self._torch.Tensor):
            return _to_numpy(value) if value.ndim else None
        return self._array_of(value) if isinstance(value, (list, tuple)) else None

    def _array_of(self, value: Sequence[Any]) -> Any:
        kinds = {type(item) for item in value}
        if kinds in ({int}, {float}, {bool}, {str}):
            return np.asarray(value)
        if kinds == {bytes}:
            return of_items([np.frombuffer(item, np.uint8) for item in value])
        if kinds == {self._torch.Tensor}:
            items = [_to_numpy(item) for item in value]
            return np.stack(items) if all(item.ndim == 0 for item in items) else of_items(items)
        if kinds and all(issubclass(kind, (list, tuple)) for kind in kinds):
            rows = [self._array(item) for item in value]
            if all(isinstance(row, np.ndarray) and row.dtype.kind in "iufb" for row in rows):
                return of_items(rows)
        if kinds <= {int, float}:
            return np.asarray(value, float)
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise SourceError(
            f"is a {type(value).__name__} of {names}; only lists of tensors, of numbers and of text are read"
        )

    def columns(self, content: Sequence[Any]) -> dict[str, Any]:
        """Return a list at the top of a file as images and labels."""
        tensor = self._torch.Tensor
        if all(isinstance(item, Mapping) for item in content) and content:
            if len({frozenset(item) for item in content}) == 1:
                return {str(key): [item[key] for item in content] for key in content[0]}
        elif content and all(isinstance(item, (list, tuple)) and len(item) == len(_PAIR) for item in content):
            if all(isinstance(item[0], tensor) and not isinstance(item[1], (list, tuple, Mapping)) for item in content):
                return dict(zip(_PAIR, ([_plain(item[at]) for item in content] for at in (0, 1)), strict=True))
        elif self._is_pair(content):
            return dict(zip(_PAIR, content, strict=True))
        elif len(content) == 1 and isinstance(content[0], tensor) and content[0].ndim > _IMAGE_AXES:
            return {"images": content[0]}
        elif len(content) > len(_PAIR) and all(
            isinstance(item, tensor) and item.ndim <= _IMAGE_AXES for item in content
        ):
            return {"images": list(content)}
        raise SourceError(
            f"{self._where} contains a {type(content).__name__} of {len(content)} values; allowed are images alone, "
            "(images, labels), a list of images, of pairs (image, label) or of dictionaries with equal keys: stack "
            "images with torch.stack, and save further values in a dictionary"
        )

    def _is_pair(self, value: Any) -> bool:
        """Return whether a value is a pair of several images and their labels."""
        if not isinstance(value, (list, tuple)) or len(value) != len(_PAIR):
            return False
        images, labels = value
        are_images = isinstance(images, self._torch.Tensor) and images.ndim >= _IMAGE_AXES
        are_labels = isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) in (1, 2)
        return are_images and are_labels and len(images) == len(labels)

    def refuse_models(self, content: Mapping[Any, Any]) -> None:
        """Raise an error for the weights of a model, whose entries are parameters and no samples."""
        inner = [value for value in content.values() if isinstance(value, Mapping)]
        for entries in (content, *inner):
            tensors = [name for name, value in entries.items() if isinstance(value, self._torch.Tensor)]
            if tensors and all(str(name).endswith(_PARAMETERS) for name in tensors):
                raise SourceError(
                    f"{self._where} has the weights of a model (state_dict), such as {tensors[0]!r}, and no images; "
                    "expected {'images': ..., 'labels': ...}"
                )


def _plain(value: Any) -> Any:
    """Return a tensor of one value as a number."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _to_numpy(tensor: Any) -> Any:
    try:
        return tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:  # NumPy lacks bfloat16 and smaller types, which fit into float32
        if str(tensor.layout) == "torch.strided" and tensor.is_floating_point():
            return tensor.detach().float().numpy()
        raise SourceError(f"is a tensor of {tensor.dtype} in the layout {tensor.layout}, which is not read") from error
