"""Text for messages and reports: counts and sizes, packages that are not installed, broken URLs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

NOT_ON_SERVERS = ("torch", "torchvision", "webdataset")
"""Required packages that only loaders need: packing, verifying and serving work without them."""

_BROKEN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])")  # `Path` removes one of two slashes
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")


def human_bytes(size: float) -> str:
    """Return a size in bytes as text with three digits and a decimal unit (1 kB = 1000 bytes).

    >>> human_bytes(999), human_bytes(15_934), human_bytes(6_373_376), human_bytes(2.5e12)
    ('999 B', '15.9 kB', '6.37 MB', '2.50 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.2f} TB"


def counted(count: int, word: str, plural: str | None = None) -> str:
    """Return a count with its noun in the singular or plural.

    >>> counted(1, "shard"), counted(2000, "class", "classes")
    ('1 shard', '2,000 classes')
    """
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def one_line(message: object) -> str:
    r"""Return a message or the message of an error without line breaks.

    >>> one_line(ValueError("Invalid value:\n  no column"))
    'Invalid value: no column'
    """
    return " ".join(str(message).split())


def first_few(texts: Iterable[str], limit: int = 5) -> str:
    """Return the first texts, and how many more there are.

    >>> first_few("abc"), first_few("abc", limit=1)
    ('a, b, c', 'a and 2 more')
    """
    texts = list(texts)
    more = f" and {len(texts) - limit:,} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more


def missing_package(what: str, error: ModuleNotFoundError) -> str:
    """Return the message if one of `NOT_ON_SERVERS` is not installed; "" for an error about another module."""
    package = (error.name or "").partition(".")[0]  # the module that was imported first may be torch.utils.data
    if package not in NOT_ON_SERVERS or sys.modules.get(package) is not None:
        return ""
    names = "torch torchvision" if package.startswith("torch") else package
    return f"{what} requires {package}, which is not installed: pip install {names}"


def broken_url_remedy(spec: str) -> str:
    """Return how to correct a path that looks like a URL with one slash, begins with ~, or is a Windows path; else "".

    >>> broken_url_remedy("s3:/bucket/train")
    's3:/bucket/train looks like a URL that lost a slash: write s3://bucket/train, in Python as text, not as a Path'
    >>> broken_url_remedy("~/photos")
    "~/photos begins with ~, which only shells replace: write the full path, in Python os.path.expanduser('~/photos')"
    >>> broken_url_remedy("shards/photos"), broken_url_remedy("s3://bucket/train"), broken_url_remedy("~photos")
    ('', '', '')
    """
    if spec == "~" or spec.startswith("~/"):
        return (
            f"{spec} begins with ~, which only shells replace: write the full path, in Python "
            f"os.path.expanduser({spec!r})"
        )
    if _WINDOWS_PATH.match(spec):
        path = f"/mnt/{spec[0].lower()}/{spec[3:]}".replace("\\", "/")
        return f"{spec} is a Windows path; this is Linux: in the Windows Subsystem for Linux, write {path}"
    match = _BROKEN_URL.match(spec)
    if match is None:
        return ""
    return (
        f"{spec} looks like a URL that lost a slash: write {match[1]}://{spec[match.end() :]}, in Python as text, not "
        "as a Path"
    )
