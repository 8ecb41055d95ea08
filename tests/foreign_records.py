"""Packs records that other programs wrote, and returns what webdataset reads from the shards."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sources_conformance import image_of, stored

import wds_tools as wt
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.detect import open_source

FOREIGN = Path(os.environ.get("FOREIGN_FILES") or Path(__file__).parent / "foreign")
"""The files that other programs wrote; `make interop` lets the newest versions write them."""


@dataclass(frozen=True)
class Sample:
    """A packed sample: number and name of its class, RGB pixels as a checksum, entries of ``json``, all fields."""

    label: int | None
    name: str | None
    pixels: str
    facts: dict[str, Any]
    fields: dict[str, Any]


def expected(folder: str) -> dict[str, list[dict[str, Any]]]:
    """Return what the library that wrote the files of a folder read from them."""
    found: dict[str, list[dict[str, Any]]] = json.loads((FOREIGN / folder / "expected.json").read_bytes())
    return found


def packed(src: Path, dst: Path, **options: Any) -> list[Sample]:
    """Return the packed samples in the order of the records."""
    report = wt.pack(src, dst, images="keep", workers=1, shuffle=False, **options)
    classes = report.manifest.classes
    samples = []
    for fields in stored(dst):
        label = int(fields["cls"]) if "cls" in fields else None
        facts = json.loads(fields["json"])
        name = classes[label] if classes and label is not None else None
        facts.pop("class", None)
        samples.append(Sample(label, name, checksum(image_of(fields)), facts, fields))
    return samples


def checksum(image: bytes) -> str:
    """Return a checksum of the pixels of an encoded image as RGB."""
    with Image.open(BytesIO(image)) as opened:
        return checksum_of(np.asarray(opened.convert("RGB")))


def checksum_of(pixels: np.ndarray) -> str:
    return hashlib.md5(np.ascontiguousarray(pixels).tobytes()).hexdigest()


def account_of(src: Path, **options: Any) -> tuple[dict[str, str], Any]:
    """Return name -> role or reason, and the account, of a listing."""
    account = open_source(src, options=SourceOptions(**options)).scan().account
    return {part.name: part.role or part.reason for part in account.parts}, account
