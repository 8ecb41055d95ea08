"""The account of a source: what it was given, and what became of each part of it.

Every column, array, feature, group and file is used (as what) or left out (why), and every record is packed or skipped
(why). The sums are checked, so nothing is lost silently. The manifest of a dataset holds the account.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from wds_tools.wording import counted, first_few, one_line

MAX_PARTS = 1000
"""Maximum number of parts of a source that a manifest names."""

MAX_REASONS = 20
"""Maximum number of reasons, and of notes, in a manifest."""

MAX_TEXT = 200
"""Maximum number of characters of a name, a reason or a note in a manifest."""

_MAX_SHOWN = 60  # characters of a name or a reason in a line of text
_GROUPS = 4  # lines for further roles; reasons of a line
_OTHERS = "others"
_PLURAL = {"is": "are", "has": "have", "does": "do", "was": "were"}  # first word of a reason
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_CLAUSE = re.compile(r"[:;] | \(")  # what follows the first clause of a reason
_FIELD = "field "


class Part(NamedTuple):
    """A part of a source, such as a column, and how it is used.

    Attributes:
        kind: "column", "array", "feature", "group", "field", "file", "member" or "entry".
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
    """What a source had, and how it was packed or why it was left out.

    Attributes:
        unit: What one input is: "file", "row", "record", "sample", "item" or "member".
        given: Number of units that the source has, counted independently of the inputs.
        packed: Number of inputs.
        skipped: Reason -> number of units that are skipped.
        attached: Role -> number of units that are parts of inputs, such as the captions of images.
        parts: How columns, arrays, files and so on are used.
        notes: Further facts that a user should know before packing.
        options: What the user stated about the source, see `SourceOptions.stated`.
    """

    unit: str
    given: int = 0
    packed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    attached: Counter[str] = field(default_factory=Counter)
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    _declared: dict[tuple[str, str], None] = field(default_factory=dict, repr=False, compare=False)

    def declare(self, kind: str, names: Iterable[str]) -> None:
        """State parts that the source has. Each must be used or left out later."""
        self._declared |= dict.fromkeys((kind, name) for name in names)

    def use(self, kind: str, name: str, role: str) -> None:
        """State what a part is packed as."""
        self.parts.append(Part(kind, name, role))

    def leave_out(self, kind: str, name: str, reason: str) -> None:
        """State why a part is not packed."""
        self.parts.append(Part(kind, name, "", reason))

    def attach(self, role: str, count: int = 1) -> None:
        """State units that are not inputs themselves, but parts of inputs."""
        self.attached[role] += count

    def close(self, packed: int, reasons: Iterable[str]) -> None:
        """Set the numbers of packed and skipped units, and check that nothing is missing."""
        self.packed = packed
        self.skipped = Counter(reasons)
        missing = self._declared.keys() - {(part.kind, part.name) for part in self.parts}
        assert not missing, f"no account of {sorted(missing)[:3]}"
        accounted = packed + self.skipped.total() + self.attached.total()
        assert accounted == self.given, f"{self.given} {self.unit}s were given, {accounted} are accounted for"

    def of_part(self, packed: int, reasons: Iterable[str]) -> Account:
        """Return the account of some of the units, such as the units of a split."""
        skipped = Counter(reasons)
        given = packed + skipped.total()
        return replace(self, given=given, packed=packed, skipped=skipped, attached=Counter())

    def after_reading(self, reasons: Iterable[str]) -> Account:
        """Return the account after inputs were skipped because they could not be read."""
        more = Counter(reasons)
        return replace(self, packed=self.packed - more.total(), skipped=self.skipped + more)

    def after(self, earlier: Account) -> Account:
        """Return the account of a rewritten dataset: the account of its source, followed by this one."""
        left_out = [part for part in self.parts if not part.role]
        return replace(
            earlier,
            packed=self.packed,
            skipped=earlier.skipped + self.skipped,
            parts=[*earlier.parts, *left_out],
            notes=[*earlier.notes, *self.notes],
            options={**earlier.options, **{name: text for name, text in self.options.items() if name != "from"}},
        )

    @classmethod
    def unknown(cls, samples: int) -> Account:
        """Return an account for a dataset that has none."""
        note = f"the origin of {counted(samples, 'sample')} is unknown: they have no account"
        return cls("sample", samples, samples, notes=[note])

    def united(self, other: Account) -> Account:
        """Return the account of two sources together. Parts and notes that both have occur once."""
        return Account(
            self.unit if self.unit == other.unit else "sample",
            self.given + other.given,
            self.packed + other.packed,
            self.skipped + other.skipped,
            self.attached + other.attached,
            list(dict.fromkeys([*self.parts, *other.parts])),
            list(dict.fromkeys([*self.notes, *other.notes])),
            {**other.options, **self.options},
        )

    def lines(self) -> list[str]:
        """Return what became of the parts, and what is skipped, as a few lines of text. Long lists are summarised."""
        return [*self._roles(), *self._attached(), *self._left_out(), *self._skipped()]

    def _roles(self) -> list[str]:
        roles: dict[str, list[Part]] = {}
        for part in self.parts:
            if part.role:
                roles.setdefault("fields" if part.role.startswith(_FIELD) else part.role, []).append(part)
        fields = roles.pop("fields", [])
        main = [f"{role}: {_named(roles.pop(role))}" for role in ("image", "label") if role in roles]
        lines = ["; ".join(main)] if main else []
        if fields:
            names = [(part, part.role.removeprefix(_FIELD)) for part in fields]
            named = [shown(name) if name == part.name else f"{shown(name)} ({_named([part])})" for part, name in names]
            lines.append(f"fields: {first_few(named)}")
        lines += [f"{role}: {_named(parts)}" for role, parts in list(roles.items())[:_GROUPS]]
        if remaining := [part for parts in list(roles.values())[_GROUPS:] for part in parts]:
            lines.append(f"further roles: {_named(remaining)}")
        return lines

    def _attached(self) -> list[str]:
        named = [f"{count:,} as {shown(role)}" for role, count in _by_count(self.attached)]
        return [f"parts of samples: {counted(self.attached.total(), self.unit)} ({first_few(named)})"] if named else []

    def _left_out(self) -> list[str]:
        reasons: dict[str, list[Part]] = {}
        for part in self.parts:
            if not part.role:
                reasons.setdefault(part.reason, []).append(part)
        named = [f"{_named(parts)} ({shown(reason)})" for reason, parts in reasons.items()]
        return [f"left out: {first_few(named, _GROUPS)}"] if named else []

    def _skipped(self) -> list[str]:
        if not self.skipped:
            return []
        reasons = [_counted(reason, count) for reason, count in _by_count(self.skipped)]
        return [f"skipped: {counted(self.skipped.total(), self.unit)} ({first_few(reasons, _GROUPS)})"]

    def limited(self) -> Account:
        """Return the account as a manifest holds it."""
        return from_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the account for a manifest: the same for the same source, and of limited length."""
        notes = [_short(note) for note in self.notes[:MAX_REASONS]]
        if (hidden := len(self.parts) - MAX_PARTS) > 0:
            notes = [*notes[: MAX_REASONS - 1], f"{counted(hidden, 'further part')} of the source, not listed"]
        return {
            "unit": self.unit,
            "given": self.given,
            "packed": self.packed,
            "skipped": _limited(self.skipped),
            **({"attached": _limited(self.attached)} if self.attached else {}),
            "parts": [
                {"kind": part.kind, "name": _short(part.name)}
                | ({"role": _short(part.role)} if part.role else {"reason": _short(part.reason)})
                for part in self.parts[:MAX_PARTS]
            ],
            "notes": notes,
            **({"options": dict(self.options)} if self.options else {}),
        }


def shown(text: str, limit: int = _MAX_SHOWN) -> str:
    """Return a text for one line of a terminal: short and printable. Of a long one, only the first clause is shown."""
    text = one_line(text)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= limit else _short(_CLAUSE.split(text, maxsplit=1)[0], limit)


def from_json(raw: Any) -> Account:
    """Read the account of a manifest.

    Raises:
        ValueError: It is not an account, or its sums are wrong.
    """
    try:
        parts = [
            Part(part["kind"], part["name"], part.get("role", ""), part.get("reason", "")) for part in raw["parts"]
        ]
        skipped, attached = Counter(dict(raw["skipped"])), Counter(dict(raw.get("attached", {})))
        counts = (raw["given"], raw["packed"], skipped, attached)
        account = Account(raw["unit"], *counts, parts, list(raw["notes"]), dict(raw.get("options", {})))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"account is {str(raw)[:MAX_TEXT]!r}; expected the keys that the format specifies") from error
    texts = [account.unit, *skipped, *attached, *account.notes, *(text for part in parts for text in part)]
    texts += [*account.options, *account.options.values()]
    numbers = [account.given, account.packed, *skipped.values(), *attached.values()]
    if not all(isinstance(text, str) for text in texts) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise ValueError("account has a value of a type other than the format specifies")
    if account.given != account.packed + skipped.total() + attached.total():
        raise ValueError(f"account has {account.given} given, which is not the sum of packed, skipped and attached")
    return account


def _by_count(reasons: Counter[str]) -> list[tuple[str, int]]:
    """Return reasons and their counts, most frequent first. Reasons that differ only in quoted text are one."""
    variants: dict[str, list[str]] = {}
    for reason in reasons:
        variants.setdefault(_QUOTED.sub("'...'", reason), []).append(reason)
    counts = {
        same[0] if len(same) == 1 else form: sum(map(reasons.__getitem__, same)) for form, same in variants.items()
    }
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _limited(counts: Counter[str]) -> dict[str, int]:
    """Return at most `MAX_REASONS` reasons with their counts; the rarest are counted together."""
    by_count, limited = _by_count(counts), Counter[str]()
    kept = MAX_REASONS - (len(by_count) > MAX_REASONS)
    for index, (reason, count) in enumerate(by_count):
        limited[_short(reason) if index < kept else _OTHERS] += count
    return dict(limited)


def _named(parts: Iterable[Part]) -> str:
    """Return the kind and the names of parts: "column 'y'", or "columns 'a', 'b' and 98 more"."""
    kinds = []
    for kind, group in groupby(parts, attrgetter("kind")):
        names = [repr(shown(part.name)) for part in group]
        plural = kind.replace("entry", "entrie") + "s"
        kinds.append(f"{kind if len(names) == 1 else plural} {first_few(names)}")
    return ", ".join(kinds)


def _counted(reason: str, count: int) -> str:
    """Return a count of units with the reason, with the right verb: "1 is empty", "2 are empty", "2: file '...' is"."""
    verb, space, noun = shown(reason).partition(" ")
    if verb not in _PLURAL:
        return f"{count:,}: {verb}{space}{noun}"
    return f"{count:,} {_PLURAL[verb] if count > 1 else verb}{space}{noun}"


def _short(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
