"""`zip` ends with its shortest argument: where data are packed, that would leave values out without a word."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wds_tools

PACKAGE = Path(wds_tools.__file__).parent
PACKS = ("format", "sources", "reading", "packing", "upkeep")
MAY_BE_UNEQUAL = {
    "format/image_header.py",  # lists of offsets and lengths of a TIFF, of which one may be missing
    "sources/array_roles.py",  # compares two paths
    "sources/masks.py",  # compares two paths
    "sources/text_table.py",  # a row may end early, and longer ones are refused
}


def strictness(path: Path) -> list[object]:
    """Return the argument ``strict`` of each call of zip in a file; None where it is missing."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    zips = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "zip"]
    given = [{word.arg: word.value for word in node.keywords}.get("strict") for node in zips]
    return [value.value if isinstance(value, ast.Constant) else None for value in given]


@pytest.mark.parametrize("folder", sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
def test_zip_states_whether_it_is_strict_and_is_where_data_are_packed(folder: str) -> None:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        is_strict = strictness(path)
        assert None not in is_strict, name
        assert folder not in PACKS or name in MAY_BE_UNEQUAL or all(is_strict), name
