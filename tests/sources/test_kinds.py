"""The kinds of sources: what ``--from`` accepts, and what the documentation lists."""

from __future__ import annotations

import re
from pathlib import Path

import wds_tools
from wds_tools.sources.detect import KINDS

PAGE = Path(wds_tools.__file__).parents[1] / "docs" / "sources.md"
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*)(?: \((.*?)\))? \| (.*?) \|")


def test_the_page_lists_every_kind_with_its_other_names_and_what_it_is() -> None:
    lines = PAGE.read_text().partition("| kind | what it is |")[2].partition("\n\n")[0].splitlines()
    listed = {}
    for found in filter(None, map(ROW.match, lines)):
        for kind in re.findall(r"\w+", found[1]):
            listed[kind] = (found[3], tuple(re.findall(r"\w+", found[2] or "")))
    assert listed == {kind: (one.what, one.aliases) for kind, one in KINDS.items()}
