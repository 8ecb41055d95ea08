"""Class names of a Python object, such as a dataset of torchvision: its attributes ``classes`` and ``class_to_idx``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wds_tools.errors import LabelError
from wds_tools.format.label import quoted
from wds_tools.sources.label_choice import names_by_number


def class_names(items: Any) -> tuple[str, ...]:
    """Return the class names of an object by number; empty without them.

    A part of a dataset, such as torch's ``Subset``, has those of the dataset; several datasets in one, as in
    ``ConcatDataset``, must have the same.

    Raises:
        LabelError: ``classes`` and ``class_to_idx``, or the datasets in one, have other names or another order.
    """
    own = _own_names(items)
    if own:
        return own
    if hasattr(items, "dataset") and hasattr(items, "indices"):
        return class_names(items.dataset)
    parts = getattr(items, "datasets", None)
    if isinstance(parts, (list, tuple)) and hasattr(items, "cumulative_sizes"):
        names = [class_names(part) for part in parts]
        for other in names:
            if other != names[0]:
                raise LabelError(
                    f"the {type(items).__name__} has datasets with different classes ({quoted(names[0])}; "
                    f"{quoted(other)}), whose numbers differ: pack them one at a time, and merge the results"
                )
        return names[0] if names else ()
    return ()


def _own_names(items: Any) -> tuple[str, ...]:
    names: Any = getattr(items, "classes", None)
    numbers = getattr(items, "class_to_idx", None)
    listed = names_in(names.tolist() if hasattr(names, "tolist") else names)
    by_number = names_in(numbers)
    if listed and by_number and set(listed) == set(by_number) and listed != by_number:
        raise LabelError(
            f"the {type(items).__name__} has its classes in a different order in 'classes' ({quoted(listed)}) than in "
            f"'class_to_idx' ({quoted(by_number)}): pass classes=[...]"
        )
    return listed or by_number


def class_lists_of(features: Mapping[str, Any], path: str = "") -> dict[str, tuple[str, ...]]:
    """Return path -> class names of each `ClassLabel` of ``datasets``, also in lists and dictionaries.

    Args:
        features: Name -> feature, as an object or as JSON.
        path: What is before the names.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, outer in features.items():
        feature = _without_lists(outer)
        if _of_feature(feature, "_type") == "ClassLabel":
            found[f"{path}{name}"] = tuple(map(str, _of_feature(feature, "names") or ()))
        elif isinstance(feature, Mapping):
            found |= class_lists_of(feature, f"{path}{name}.")
    return found


def _without_lists(feature: Any) -> Any:
    """Return the feature of the values in a list, at any depth."""
    inner = feature[0] if isinstance(feature, list) and feature else _of_feature(feature, "feature")
    return feature if inner is None else _without_lists(inner)


def _of_feature(feature: Any, name: str) -> Any:
    """Return a property of a feature; a dictionary without a type is the features of its entries."""
    if isinstance(feature, Mapping):
        return feature.get(name) if isinstance(feature.get("_type"), str) else None
    return getattr(feature, name, None)


def names_in(value: Any) -> tuple[str, ...]:
    """Return names from a list of them or of their synonyms, or from a dictionary of names and numbers.

    A number that has no name is its own.
    """
    if isinstance(value, Mapping):
        pairs = [(name, number) if isinstance(number, int) else (number, name) for name, number in value.items()]
        by_number = {number: str(name) for name, number in pairs if isinstance(number, int) and number >= 0}
        return (names_by_number(by_number) or ()) if len(by_number) == len(pairs) else ()
    if not isinstance(value, (list, tuple)):
        return ()
    names = [", ".join(map(str, name)) if isinstance(name, (list, tuple)) else name for name in value]
    return tuple(map(str, names)) if all(isinstance(name, (str, int)) for name in names) else ()
