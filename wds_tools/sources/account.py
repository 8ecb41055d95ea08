"""The account of a source: what it was given, and what became of each part of it.

Every column, array, feature, group and file is used (as what) or left out (why), and every record is packed or skipped
(why). The sums are checked, so nothing is lost without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wds_tools.wording import counted

_SHOWN = 6  # names in a line


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

    def lines(self) -> Iterator[str]:
        """Yield the account as a few lines of text: parts with the same role in one line."""
        roles = dict.fromkeys((part.role, part.kind) for part in self.parts if part.role)
        for role, kind in roles:
            names = [part.name for part in self.parts if (part.role, part.kind) == (role, kind)]
            yield f"{role}: {_named(kind, names)}"
        reasons = dict.fromkeys((part.reason, part.kind) for part in self.parts if part.reason)
        for reason, kind in reasons:
            names = [part.name for part in self.parts if (part.reason, part.kind) == (reason, kind)]
            yield f"left out: {_named(kind, names)} ({reason})"
        yield from self.notes
        skipped = self.skipped.total()
        line = f"{counted(self.given, self.unit)}: {self.packed:,} to pack"
        if skipped:
            reasons_ = "; ".join(f"{count:,} {reason}" for reason, count in self.skipped.most_common(3))
            more = "; ..." if len(self.skipped) > 3 else ""
            line += f", {skipped:,} skipped ({reasons_}{more})"
        yield line

    def to_dict(self) -> dict[str, Any]:
        """Return the account for the manifest: parts by role, and counts."""
        return {
            "unit": self.unit,
            "given": self.given,
            "packed": self.packed,
            "skipped": dict(self.skipped.most_common(20)),
            "parts": [{word: value for word, value in part._asdict().items() if value} for part in self.parts[:1000]],
            "notes": list(self.notes),
        }


def _named(kind: str, names: list[str]) -> str:
    """Return names with their kind: ``column 'y'`` or ``3 columns ('a', 'b', 'c')``."""
    if len(names) == 1:
        return f"{kind} {names[0]!r}"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{counted(len(names), kind)} ({', '.join(map(repr, names[:_SHOWN]))}{more})"
