"""`zip` ends with its shortest argument: where data are packed, that would leave values out without a word."""

from __future__ import annotations

from pathlib import Path

import wds_tools

PACKAGE = Path(wds_tools.__file__).parent
PACKS = ("format", "sources", "reading", "packing", "upkeep")
MAY_BE_UNEQUAL = {
    "format/class_notes.py",  # compares two lists of classes, of which one may have more at its end
    "format/image_header.py",  # lists of offsets and lengths of a TIFF, of which one may be missing
    "sources/array_roles.py",  # compares two paths
    "sources/text_table.py",  # a row may end early, and longer ones are refused
}


def test_zip_is_strict_where_data_are_packed() -> None:
    """The rule B905 of the linter finds calls that do not state it."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for folder in PACKS
        for path in (PACKAGE / folder).rglob("*.py")
        if "strict=False" in path.read_text()
    }
    assert found <= MAY_BE_UNEQUAL
