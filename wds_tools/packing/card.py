"""The dataset card: a ``README.md`` that explains the folder to people, and names its data files for Hugging Face.

Without a card, ``datasets.load_dataset`` would load the Parquet indexes as the data. The front matter is YAML, as in
the card of a dataset on the Hugging Face Hub (https://huggingface.co/docs/hub/datasets-manual-configuration). A card
ends with its checksum. A README.md that a user wrote or edited has no valid checksum, and is never replaced.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import xxhash

from wds_tools.format.codecs import CODECS
from wds_tools.format.manifest import Manifest
from wds_tools.format.sample import CONVERTED_EXTENSIONS, IMAGE_FIELDS, STORED_EXTENSIONS
from wds_tools.packing.snippet import IMPORT, first_call
from wds_tools.storage.commit import commit_bytes

CARD_NAME = "README.md"

_TYPES = {
    **dict.fromkeys((name[1:] for name in (*STORED_EXTENSIONS, *CONVERTED_EXTENSIONS)), "image"),
    **{name: codec.feature for name, codec in CODECS.items() if codec.feature},
}
"""The Hugging Face type of a field, by its last extension."""

_SEAL = "<!-- wds-tools replaces this file when the dataset changes, unless you edit it: "
_SEALED = re.compile(rf"(.*{re.escape(_SEAL)})([0-9a-f]{{32}}) -->\n".encode(), re.DOTALL)
_log = logging.getLogger("wds_tools")


def _code(*lines: str) -> list[str]:
    return ["```python", *lines, "```", ""]


_LOAD = _code("import datasets  # 4.8 or newer", "", 'splits = datasets.load_dataset("FOLDER")')


def card(manifest: Manifest) -> bytes:
    """Return the card of a dataset. The same manifest gives the same bytes."""
    pattern = _pattern(manifest)
    front = ["configs:", "- config_name: default", f"  data_files: {_yaml(pattern)}", *_features([manifest])]
    lines = [
        f"# {manifest.samples:,} samples",
        "",
        "This folder is a dataset for training, written by wds_tools. To read it, give its path for FOLDER:",
        "",
        *_code(IMPORT, "", first_call("FOLDER", manifest)),
        *_LOAD,
        f"Other readers of WebDataset shards read `{pattern}`. `wds-tools verify FOLDER` compares every byte with its",
        "checksum.",
    ]
    return _sealed(front, lines)


def split_card(manifests: Mapping[str, Manifest]) -> bytes:
    """Return the card of a folder that has a dataset for each split, in a folder of its name."""
    front = ["configs:", "- config_name: default", "  data_files:"]
    for name, manifest in manifests.items():
        front += [f"  - split: {name.replace('-', '_')}", f"    path: {_yaml(f'{name}/{_pattern(manifest)}')}"]
    lines = [
        f"# Splits: {', '.join(manifests)}",
        "",
        "Each folder is a dataset for training, written by wds_tools, with a card of its own:",
        "",
        *(f"- [{name}]({name}/{CARD_NAME}): {manifest.samples:,} samples" for name, manifest in manifests.items()),
        "",
        "To read all of them, give the path of this folder for FOLDER:",
        "",
        *_LOAD,
    ]
    return _sealed([*front, *_features(manifests.values())], lines[:-1])


def is_card(data: bytes) -> bool:
    """Return whether a file is a card of wds_tools that was not edited."""
    match = _SEALED.fullmatch(data)
    return match is not None and xxhash.xxh3_128_hexdigest(match[1]).encode() == match[2]


def may_replace(old: bytes | None, *, where: str) -> bool:
    """Return whether a card may be written: there is no README.md yet, or it is an unedited card.

    Otherwise, if the README.md does not name the data files, a warning shows the lines that it needs.
    """
    if old is None or is_card(old):
        return True
    if b"data_files" not in old:
        _log.warning(
            "%s/%s was written or edited by a user, and is kept. Without a card, datasets.load_dataset() loads the "
            "indexes as the data: begin the file with the lines %s",
            where,
            CARD_NAME,
            ["---", "configs:", "- config_name: default", "  data_files: '*.tar'", "---"],
        )
    return False


def commit_card(folder: Path, data: bytes) -> None:
    """Write a card into a local folder, unless a user wrote or edited the README.md there."""
    path = folder / CARD_NAME
    try:
        old: bytes | None = path.read_bytes()
    except OSError:
        old = b"" if os.path.lexists(path) else None
    if old != data and may_replace(old, where=str(folder)):
        commit_bytes(path, data)


def remove_card(folder: Path) -> None:
    """Remove the card of a dataset. A README.md that a user wrote or edited stays."""
    path = folder / CARD_NAME
    if path.is_file() and is_card(path.read_bytes()):
        path.unlink()


def _sealed(front: Iterable[str], lines: Iterable[str]) -> bytes:
    text = "\n".join(["---", *front, "---", "", *lines, "", _SEAL])
    return f"{text}{xxhash.xxh3_128_hexdigest(text.encode())} -->\n".encode()


def _features(manifests: Iterable[Manifest]) -> list[str]:
    """Return the lines with the types of all fields, or none if the type of a field is not known.

    With types, Hugging Face shows class names, and finds image fields that the first samples lack. Without them, it
    infers the types from the first samples.
    """
    manifests = list(manifests)
    lines = ["dataset_info:", "  features:"]
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.fields):
        type_lines = _type_lines(name, manifests)
        if type_lines is None:
            return []
        lines += [f"  - name: {_yaml(name)}", *(f"    {line}" for line in type_lines)]
    for name in ("__key__", "__url__"):  # datasets adds these to WebDataset samples
        lines += [f"  - name: {name}", "    dtype: string"]
    return lines


def _type_lines(name: str, manifests: list[Manifest]) -> list[str] | None:
    classes = manifests[0].classes
    if name == "cls" and classes and len(set(classes)) == len(classes) and manifests[0].label is None:
        names = (f"      '{number}': {_yaml(word)}" for number, word in enumerate(classes))
        return ["dtype:", "  class_label:", "    names:", *names]
    others = any(field in manifest.fields for manifest in manifests for field in IMAGE_FIELDS if field != "npy")
    if name == "npy" and not others and all(manifest.images for manifest in manifests):
        return ["list:", "  list:", "    list: uint8"]  # stored pixels: [height, width, 3]
    type_ = _TYPES.get(name.rpartition(".")[2])
    return None if type_ is None else [f"dtype: {type_}"]


def _pattern(manifest: Manifest) -> str:
    """Return a pattern for the names of the shards, such as ``shard-*.tar``."""
    starts = {shard.first.name.removesuffix(".tar").rstrip("0123456789") for shard in manifest.shards}
    start = starts.pop() if len(starts) == 1 else ""
    return f"{start}*.tar" if re.fullmatch(r"[\w-]*", start, re.ASCII) else "*.tar"


def _yaml(text: str) -> str:
    """Return a text as a double-quoted YAML string. Characters that UTF-8 or YAML cannot hold are escaped."""
    letters = {'"': '\\"', "\\": "\\\\"}
    return f'"{"".join(letters.get(letter) or _escape(letter) for letter in text)}"'


def _escape(letter: str) -> str:
    code = ord(letter)
    if letter.isprintable():
        return letter
    if 0xD800 <= code < 0xE000:
        return f"\\\\udc{code & 0xFF:02x}"  # a byte that is not UTF-8: YAML has no escape for a lone surrogate
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
