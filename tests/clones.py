"""Copies of the repository, in which tests build and run what users would."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_tracked_files(folder: Path) -> set[str]:
    """Copy the files that git tracks, so that a build leaves nothing in the repository; return their paths.

    In an unpacked source distribution, which git does not know, every file is copied except those of a build.
    """
    if (ROOT / ".git").exists():
        words = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    else:
        skipped = shutil.ignore_patterns("*.so", "build", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, folder, ignore=skipped, dirs_exist_ok=True)
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)  # with its time, by which compiled modules are valid
    return set(names)
