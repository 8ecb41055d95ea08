"""The files that other programs wrote: each is in the table that names its program, and none is counted twice."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

FOREIGN = Path(__file__).parent / "foreign"
README = (FOREIGN / "README.md").read_text()
SUMMARY = ("expected.json", "expected.npz")  # what the program that wrote the files reads from them
INDEXED = ("mds", "litdata")  # a case is a folder with an index, and with all folders in it
SHARED = "images"  # the images of all annotations


def cases() -> list[Path]:
    """Return the files and folders that are packed or parsed on their own."""
    found = []
    for folder in sorted(path for path in FOREIGN.iterdir() if path.is_dir() and path.name != SHARED):
        if folder.name in INDEXED:
            indexes = sorted(path.parent for path in folder.rglob("index.json"))
            found += [path for path in indexes if not set(path.parents) & set(indexes)]
        else:
            found += sorted(path for path in folder.iterdir() if path.name not in SUMMARY)
    return found


def source(case: Path) -> str:
    return case.relative_to(FOREIGN).parts[0]


def test_at_least_150_files_of_other_programs_are_packed_or_parsed() -> None:
    from conformance_cases import CASES

    written_here = [kind for kind in CASES if kind not in {source(case) for case in cases()}]
    assert len(cases()) + len(written_here) >= 150


def test_the_number_of_cases_of_each_source_is_in_the_table() -> None:
    stated = re.findall(r"^\| `(\w+)` \| (\d+) \|", README, re.MULTILINE)
    assert {name: int(count) for name, count in stated} == Counter(map(source, cases()))


def test_the_program_that_wrote_each_case_is_in_the_table() -> None:
    rows = [line.split(" | ") for line in README.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    patterns = [pattern for row in rows for pattern in re.findall(r"`([^`]+/[^`]+)`", row[0])]
    paths = [str(case.relative_to(FOREIGN)) for case in cases()]
    unnamed = [path for path in paths if not any(fnmatch(f"{path}/", f"{one}/*") for one in patterns)]
    assert unnamed == []
    assert [pattern for pattern in patterns if not list(FOREIGN.glob(pattern))] == []
