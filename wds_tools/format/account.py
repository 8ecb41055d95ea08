"""The account of a source: what it was given, and what became of each part of it.

Every column, array, feature, group and file is used (as what) or left out (why), and every record is packed or skipped
(why). The sums are checked, so nothing is lost without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Part(NamedTuple):
    """A part of a source, such as a column, and what becomes of it.

    Attributes:
        kind: "column", "array", "feature", "group", "file", "member" or "entry".
        name: Its name in the source.
        role: What it is packed as, such as "image", "label", "field mask.png" or "json"; "" if it is left out.
        reason: Why it is left out; "" if it is used.
    """

    kind: str
    name: str
    role: str
    reason: str = ""


@dataclass(slots=True)
class Account:
    """What a source was given, and what became of it.

    Attributes:
        unit: What one input is: "file", "row", "record", "sample", "item" or "member".
        given: Number of units that the source has, counted independently of the inputs.
        packed: Number of inputs.
        skipped: Reason -> number of units that are skipped.
        parts: What became of columns, arrays, files and so on.
        notes: Further facts that a user should know before packing.
    """

    unit: str
    given: int = 0
    packed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _declared: dict[tuple[str, str], None] = field(default_factory=dict)

    def declare(self, kind: str, names: Iterable[str]) -> None:
        """State parts that the source has. Each must be used or left out later."""
        self._declared |= dict.fromkeys((kind, name) for name in names)

    def use(self, kind: str, name: str, role: str) -> None:
        """State what a part is packed as."""
        self.parts.append(Part(kind, name, role))

    def leave_out(self, kind: str, name: str, reason: str) -> None:
        """State why a part is not packed."""
        self.parts.append(Part(kind, name, "", reason))

    def close(self, packed: int, reasons: Iterable[str]) -> None:
        """Set the numbers of packed and skipped units, and check that nothing is missing.

        Args:
            packed: Number of inputs.
            reasons: The reason of each skipped unit.

        Raises:
            AssertionError: A part or a unit is neither used nor left out: an error of the source.
        """
        self.packed = packed
        self.skipped = Counter(reasons)
        missing = self._declared.keys() - {(part.kind, part.name) for part in self.parts}
        assert not missing, f"no account of {sorted(missing)[:3]}"
        accounted = packed + self.skipped.total()
        assert accounted == self.given, f"{self.given} {self.unit}s were given, {accounted} are accounted for"
