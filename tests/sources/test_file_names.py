"""Each pattern of names is compared with the names that the table has for it."""

from __future__ import annotations

import pytest

from wds_tools.sources import file_names
from wds_tools.sources.file_names import NamePattern

PATTERNS = {name: value for name, value in vars(file_names).items() if isinstance(value, NamePattern)}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_matches_its_names_and_no_ordinary_ones(name: str) -> None:
    pattern = PATTERNS[name]
    assert [text for text in pattern.names if not pattern.match(text)] == []
    assert [text for text in pattern.others if pattern.match(text)] == []
