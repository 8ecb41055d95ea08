"""`MultiHot`: several class numbers of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.format.label_lists import LABELS
from wds_tools.loading.fields.base import Column, check_field
from wds_tools.loading.fields.padding import is_length
from wds_tools.loading.fields.paths import AtPath
from wds_tools.loading.part import Part
from wds_tools.reading.shardset import ShardSet


@dataclass(frozen=True)
class MultiHot(AtPath):
    """Several class numbers of a sample: a float32 tensor [batch, classes], 1 for each of its classes, otherwise 0.

    As ``torch.nn.BCEWithLogitsLoss`` takes it.

    Attributes:
        field: Stored field with a list of class numbers or names: ``"labels.json"`` (the default), as `pack` writes it,
            or other JSON.
        path: Names that lead to the list in JSON, see `Boxes`. Lists in lists are joined, so that
            ``MultiHot("json", path="objects.category")`` has the classes of all objects.
        classes: Number of classes, or their names by number. None (the default) takes the class list of the dataset.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = LABELS
    _: KW_ONLY
    path: str = ""
    classes: int | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_field(self, "'labels.json' or 'json'")
        self.check_path()
        is_names = not isinstance(self.classes, (int, str, type(None)))
        if self.classes is not None and not (is_length(self.classes) or (is_names and len(self.classes) > 0)):  # type: ignore[arg-type]
            raise OptionError(
                f"wds_tools.MultiHot(classes={self.classes!r}); allowed are whole numbers of 1 and more, lists of "
                "class names, and None for the class list of the dataset"
            )

    @property
    def place(self) -> str:
        """The place of the numbers, as in `Manifest.field_classes`."""
        return f"{self.field}:{self.path}" if self.path else self.field

    def opened(self, shards: ShardSet) -> MultiHot:
        """Return it with the classes of the dataset, if it has none.

        Raises:
            OptionError: The dataset has no class list for it.
        """
        classes: Any = self.classes
        if classes is None:
            if self.place not in shards.manifest.field_classes:
                raise OptionError(
                    f"wds_tools.MultiHot({self.field!r}{f', path={self.path!r}' if self.path else ''}): {shards.name} "
                    f"has no class list for {self.place!r}: give the number of classes or their names, as classes=20"
                )
            classes = shards.manifest.field_classes[self.place].names
        return replace(self, classes=classes if isinstance(classes, int) else tuple(classes))

    def load(self, part: Part, column: Column) -> list[torch.Tensor]:
        """Return for each sample 1 for each of its classes: float32 [classes].

        Raises:
            SampleError: A value is neither the number nor the name of a class.
        """
        names = self.classes if isinstance(self.classes, tuple) else ()
        count = len(names) if names else self.classes
        numbers = {name: number for number, name in enumerate(names)}
        assert isinstance(count, int), "open_dataset() has set the classes"
        found = []
        for i, value in enumerate(self.values(part)):
            row = torch.zeros(count)
            for one in _flattened(value):
                number = numbers.get(one) if isinstance(one, str) else one
                if type(number) is not int or not 0 <= number < count:
                    allowed = f"class numbers from 0 to {count - 1}{', and class names' if names else ''}"
                    raise self.invalid(part, i, f"the label {str(one)[:40]!r}", allowed)
                row[number] = 1
            found.append(row)
        return found


def _flattened(value: Any) -> list[Any]:
    """Return the elements of a list and of the lists in it; a single value is a list of one."""
    return [one for part in value for one in _flattened(part)] if isinstance(value, list) else [value]
