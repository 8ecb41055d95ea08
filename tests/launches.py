"""A counter of the work that a function launches on a device. It needs no device: it counts on `meta` tensors."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
NEEDS_A_RESULT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Launches(TorchDispatchMode):
    """Counts what torch executes on tensors that are not on the CPU.

    torch passes every operation here, functions made of several operations as these. An operation is a kernel unless
    it is an allocation, a view, which only describes memory in another way, or a copy between CPU and device. CUDA
    launches more than one kernel for some operations, so the count is a lower bound.

    Attributes:
        kernels: Number of kernels, by name of the operation.
        copies: Number of copies between CPU and device.
        waits: Operations for which the CPU waits until the device has finished all work: copies without
            ``non_blocking``, tensors made of Python numbers, CPU tensors among those of the device, and operations
            whose result the CPU needs, such as ``item()`` and a selection by a mask.
    """

    def __init__(self):
        super().__init__()
        self.kernels, self.copies, self.waits = Counter(), 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        before = tensors((args, kwargs))
        needs_result = NEEDS_A_RESULT & set(function.tags) and (name != "index" or any(map(is_mask, tensors(args[1:]))))
        if needs_result and not all(tensor.is_cpu for tensor in before):
            self.waits.append(name)
        result = function(*args, **(kwargs or {}))
        both = before + tensors(result)
        if all(tensor.is_cpu for tensor in both):
            return result
        if name == "lift_fresh" or any(tensor.is_cpu and tensor.ndim for tensor in both):
            self.copies += 1
            if name not in ("_to_copy", "copy_") or not argument(function, "non_blocking", args, kwargs or {}):
                self.waits.append(name)
            if name in ("lift_fresh", "_to_copy", "copy_"):
                return result
        if name not in ALLOCATIONS and not is_view(function):
            self.kernels[name] += 1
        return result


def tensors(values):
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def is_mask(tensor):
    return tensor.dtype in (torch.bool, torch.uint8)


def argument(function, name, args, kwargs):
    names = [one.name for one in function._schema.arguments]  # noqa: SLF001 - torch has no public name for it
    return {**dict(zip(names, args, strict=False)), **kwargs}.get(name)


def is_view(function):
    aliases = [one.alias_info for one in function._schema.returns]  # noqa: SLF001
    is_alias = aliases and all(one is not None and not one.is_write for one in aliases)
    return is_alias or torch.Tag.inplace_view in function.tags
