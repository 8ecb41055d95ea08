"""Batches and samples as values that can be compared with ``==``."""

from __future__ import annotations

from typing import Any

import torch


def plain(value: Any) -> Any:
    """Return a value in which each tensor is its dtype, shape and bytes; lists of numbers would take far longer."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
