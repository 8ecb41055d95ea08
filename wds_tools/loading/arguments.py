"""Checks of argument names and types at the call of `make_loader`, `StreamingDataset` and `set_epoch`.

`checked` compares a call with the signature of the function and with the table `RULES`. For argument names of torch's
DataLoader and similar libraries, the error message names the argument to use instead.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np
import torch

from wds_tools.errors import OptionError
from wds_tools.images.schedule import is_view
from wds_tools.loading.mixture import Mixture
from wds_tools.loading.samples.columns import are_fields
from wds_tools.loading.workers.ray_workers import RayWorkers

_P = ParamSpec("_P")
_R = TypeVar("_R")


class OnlyIterable:
    """Base of what is read with a ``for`` loop: ``next(x)`` and ``x[0]`` are errors that name the remedy."""

    _for_data_loader: ClassVar[str] = ""
    """What to give torch's DataLoader instead, which reads a dataset that it does not know by number."""

    def __next__(self) -> Any:
        raise TypeError(f"{type(self).__name__} is not an iterator: next(iter(...)) returns the first item of an epoch")

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(
            f"{type(self).__name__} has no items by number: next(iter(...)) returns the first item of an epoch, "
            f"subset=[...] selects samples by their ids, and a for loop reads all{self._for_data_loader}"
        )


def checked(hints: Mapping[str, str] = MappingProxyType({})) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that checks the names and values of arguments. The signature stays the same.

    The decorated function raises TypeError for an unknown argument, and OptionError for a value that `RULES` does not
    allow. NumPy scalars are converted to Python numbers.

    Args:
        hints: Argument name of another library → what to use instead.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        parameters = inspect.signature(function).parameters
        function_name = function.__qualname__.removesuffix(".__init__")
        positional = [name for name, item in parameters.items() if item.kind is item.POSITIONAL_OR_KEYWORD]
        keyword_only = [name for name, item in parameters.items() if item.kind is item.KEYWORD_ONLY]

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if keyword_only and len(args) > len(positional):
                raise TypeError(
                    f"{function_name}() takes only {positional[-1]!r} as a positional argument; pass the others by "
                    f"keyword, such as {keyword_only[0]}={_short_repr(args[len(positional)])}"
                )
            for name in kwargs:
                if name not in parameters:
                    raise TypeError(f"{function_name}() has no argument {name!r}: {_hint(name, hints, parameters)}")
            is_source = (
                kwargs.get("pack_to") is not None
            )  # then the dataset is whatever `pack` takes, and Packing checks it

            def value_of(name: str, value: Any) -> Any:
                return value if is_source and name == "dataset" else _checked_value(name, value)

            checked_args = [value_of(name, value) for name, value in zip(positional, args, strict=False)]
            checked_kwargs = {name: value_of(name, value) for name, value in kwargs.items()}
            return function(*checked_args, **checked_kwargs)

        return call

    return decorate


def _hint(name: str, hints: Mapping[str, str], parameters: Iterable[str]) -> str:
    if name in hints:
        return hints[name]
    names = [parameter for parameter in parameters if parameter != "self"]
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names)}"


def _checked_value(name: str, value: Any) -> Any:
    """Return the value of an argument, or raise OptionError if the rules do not allow it."""
    value = value.item() if isinstance(value, np.generic) else value
    is_allowed, allowed_values = RULES.get(name, (_anything, ""))
    if not is_allowed(value):
        raise OptionError(f"{name}={_short_repr(value)}; allowed are {allowed_values}")
    return value


def _short_repr(value: Any) -> str:
    text = "{...}" if isinstance(value, Mapping) else repr(value)  # storage options may contain secrets
    return text if len(text) <= 100 else f"{text[:97]}..."


def _anything(_: Any) -> bool:
    return True


def _is_integer_from(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _or_none(is_allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_allowed(value)


def _one_of(*choices: Any) -> Callable[[Any], bool]:
    return lambda value: value in choices if isinstance(value, str | None) else False


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and value != ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_dataset(value: Any) -> bool:
    return all(map(_is_one_dataset, value.datasets)) if isinstance(value, Mixture) else _is_one_dataset(value)


def _is_one_dataset(value: Any) -> bool:
    return all(map(_is_path, value)) if isinstance(value, list | tuple) else _is_path(value)


def _is_batch_transform(value: Any) -> bool:
    return callable(value) or isinstance(value, list | tuple) or hasattr(value, "needs_labels")


def _is_ban(value: Any) -> bool:
    return _is_path(value) or isinstance(value, list | tuple | set | frozenset | np.ndarray)


def _is_device(value: Any) -> bool:
    return isinstance(value, str | torch.device) or _is_integer_from(0)(value)


def _is_num_workers(value: Any) -> bool:
    return value == "auto" if isinstance(value, str) else isinstance(value, RayWorkers) or _is_integer_from(0)(value)


RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "dataset": (
        _is_dataset,
        (
            "the folder or URL of a packed dataset, its manifest, a brace pattern of indexed shards, a list "
            "of them, and for several datasets a wds_tools.Mixture(['a', 'b'], weights=[1, 1]); pack a Dataset object "
            "first, with wds_tools.pack(dataset, 'shards/name'), or during the first epoch, with pack_to='shards/name'"
        ),
    ),
    "batch_size": (_is_integer_from(1), "whole numbers of 1 and more"),
    "view": (
        _or_none(is_view),
        (
            "wds_tools.RandomResizedCrop(...), CenterCrop(...), Resize(...), Schedule(...), Buckets(...) and None; "
            "pass a transform of torchvision, or your own, as transform="
        ),
    ),
    "epoch": (_is_integer_from(0), "whole numbers of 0 and more"),
    "seed": (_is_integer_from(0), "whole numbers from 0 to 2**63 - 1"),
    "num_workers": (
        _or_none(_is_num_workers),
        "whole numbers of 0 and more, 'auto', wds_tools.RayWorkers(...) and None",
    ),
    "device": (
        _or_none(_is_device),
        "names such as 'cuda' and 'cuda:1', CUDA device indices, torch.device and None",
    ),
    "device_prefetch": (_is_integer_from(1), "whole numbers of 1 and more"),
    "fields": (
        are_fields,
        (
            "'image', 'label', '__key__' or a stored field, lists of them, and mappings from the name in the batch to "
            "such a name or to wds_tools.Image(...), Frames(...), Mask(...), Array(...), Boxes(...), Keypoints(...), "
            "Text(...), Label(), MultiHot(...), Key() or Field(...)"
        ),
    ),
    "transform": (_or_none(callable), "functions of one image, transforms of torchvision and Albumentations, and None"),
    "collate_fn": (_or_none(callable), "functions of a list of samples, and None"),
    "sample_transform": (
        _or_none(callable),
        "functions of a dictionary, transforms of torchvision.transforms.v2 and of Albumentations, and None",
    ),
    "batch_transform": (
        _or_none(_is_batch_transform),
        "functions, transforms of torchvision.transforms.v2, steps such as RandomHorizontalFlip(), lists, and None",
    ),
    "tail": (_one_of("drop", "pad", "mask"), "'drop', 'pad' and 'mask'"),
    "prefetch_factor": (_is_integer_from(1), "whole numbers of 1 and more"),
    "ban": (
        _or_none(_is_ban),
        "text files with one key or sample id per line, lists of keys (str), lists of sample ids (int), and None",
    ),
    "save_ban_to": (_or_none(_is_path), "paths of folders, and None"),
    "pack_to": (_or_none(_is_path), "paths of folders, URLs, and None"),
    "pack": (_or_none(_is_mapping), "dictionaries of options of wds_tools.pack, such as {'images': 'keep'}, and None"),
    "rank": (_or_none(_is_integer_from(0)), "whole numbers of 0 and more, and None"),
    "world_size": (_or_none(_is_integer_from(1)), "whole numbers of 1 and more, and None"),
    "lanes": (_or_none(_is_integer_from(1)), "whole numbers of 1 and more, and None"),
    "cache_dir": (_or_none(_is_path), "paths of folders, and None"),
    "multiprocessing_context": (_one_of(None, "fork", "forkserver", "spawn"), "'fork', 'forkserver', 'spawn' and None"),
    "stall_seconds": (_is_seconds, "numbers above 0"),
    "retry_seconds": (_or_none(_is_seconds), "numbers above 0, and None"),
    "storage_options": (_or_none(_is_mapping), "dictionaries of fsspec options, such as {'anon': True}, and None"),
    "decode": (_is_bool, "True and False"),
    "progress": (_or_none(_is_bool), "True, False and None"),
    "report_to": (_or_none(_is_text), "origins of a server, such as 'http://node1:8080', and None"),
    "path": (_is_path, "paths of files"),
    "seconds": (_is_seconds, "numbers above 0"),
    "steps": (_is_integer_from(1), "whole numbers of 1 and more"),
}
"""Argument → check, and the allowed values as text. Arguments that are not listed are checked where they are used."""

_SAMPLER_HINT = "shuffle= orders the samples; where=, subset= and class_weights= select them"
_HINTS = {
    "batch_sampler": _SAMPLER_HINT,
    "buffer_size": "use shuffle= with the size of the shuffle buffer, such as shuffle=10_000",
    "data": "the dataset is the first argument",
    "drop_last": "use tail='drop', which is the default, or tail='pad'",
    "generator": "use seed=",
    "path": "the dataset is the first argument",
    "root": "the dataset is the first argument",
    "sampler": _SAMPLER_HINT,
    "size": "use view=, such as view=wds_tools.CenterCrop(224, resize=256)",
    "split": "each split is a separate dataset, such as 'shards/photos/train'",
    "target_transform": "labels have their stored values; change them in the training loop",
    "transforms": "use transform=, which is one function or a v2.Compose of several",
}
LOADER_HINTS = {
    **_HINTS,
    "in_order": "batches are always in order",
    "n_workers": "use num_workers=",
    "persistent_workers": "workers always stay alive between epochs",
    "pin_memory": "use device='cuda': batches are copied there from pinned memory",
    "pin_memory_device": "use device=",
    "timeout": "use stall_seconds=",
    "worker_init_fn": "random numbers of transform= are seeded for each sample, from its position in the epoch",
    "workers": "use num_workers=",
}
_DATALOADER_ARGUMENTS = (
    "collate_fn in_order multiprocessing_context n_workers num_workers persistent_workers pin_memory pin_memory_device "
    "prefetch_factor timeout worker_init_fn workers"
)
_LOADER_ARGUMENTS = "batch_transform device device_prefetch progress report_to stall_seconds"
DATASET_HINTS = {
    **_HINTS,
    **dict.fromkeys(_DATALOADER_ARGUMENTS.split(), "pass it to the DataLoader that reads this dataset"),
    "num_workers": "pass it to the DataLoader that reads this dataset; RayWorkers are for make_loader()",
    **dict.fromkeys(_LOADER_ARGUMENTS.split(), "it is an argument of make_loader()"),
}
