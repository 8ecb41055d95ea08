"""Which column, array or feature holds what: named by the user, or known by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from wds_tools.errors import OptionError, SourceError
from wds_tools.sources.base import field_bytes

IMAGE = "image"
LABEL = "label"
_KNOWN = {
    IMAGE: "image images img imgs jpg jpeg png webp picture photo pixels data x image_path img_path path file filename "
    "file_name filepath file_path image_url img_url url",
    LABEL: "label labels class classes target targets cls category fine_label species y class_name label_name class_id "
    "category_id label_id",
}
_TEXTS = ("txt", "text", "caption", "captions", "caption.txt")
_EXTENSION = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*\.(txt|json|png|jpg|webp|npy|cls|xml|bin)")
_MAX_FIELD_NAME = 64  # so that a member's header stays one block
_encoder = json.JSONEncoder(separators=(",", ":"))


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return what the user has named: role to column.

    Raises:
        OptionError: A role that there is not.
    """
    columns = dict(columns or {})
    strangers = sorted(set(columns) - {IMAGE, LABEL})
    if strangers:
        raise OptionError(
            f"columns name the role {strangers[0]!r}; allowed are 'image' and 'label', as in image=path, label=species"
        )
    return columns


def pick(role: str, names: Iterable[str], columns: Mapping[str, str], *, where: str) -> str | None:
    """Return the name of the column for a role: the one given, or the first known one that is there.

    Raises:
        SourceError: The one given is not there.
    """
    names = list(names)
    if role in columns:
        if columns[role] in names:
            return columns[role]
        raise SourceError(f"{where} has no {columns[role]!r} for the {role}; it has {_listed(names)}")
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[word] for word in _KNOWN[role].split() if word in lower), None)


def no_image(where: str, names: Iterable[str], what: str = "column") -> SourceError:
    """Return the error that no image was found among ``names``."""
    return SourceError(
        f"{where} has no {what} with images that is known by its name; it has {_listed(list(names))}: "
        "name it, as in --column image=NAME (columns={'image': 'NAME'})"
    )


def field_name(column: str) -> str | None:
    """Return the field that a column becomes by its name, None for one that goes into ``json``.

    >>> field_name("caption"), field_name("mask.png"), field_name("boxes.json"), field_name("width")
    ('txt', 'mask.png', 'boxes.json', None)
    """
    name = column.strip().lower()
    if name in _TEXTS:
        return "txt"
    return name if len(name) <= _MAX_FIELD_NAME and _EXTENSION.fullmatch(name) else None


def plain_name(name: str) -> str:
    """Return a name that can stand in a field's: lower case, without dots and odd characters."""
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")[:40] or "field"


def fact_name(name: str) -> str:
    """Return a name for ``json``, where ``path`` and ``class`` are ours.

    >>> fact_name("width"), fact_name("path")
    ('width', 'path_')
    """
    return f"{name}_" if name in ("path", "class") else name


def facts_bytes(facts: Mapping[str, Any]) -> int:
    """Return the most bytes that facts add to the ``json`` field in a shard."""
    return field_bytes(len(_encoder.encode(facts))) - field_bytes(0) if facts else 0


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(map(repr, names[:most])) or "none") + more
