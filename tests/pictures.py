"""Images of tests as the bytes of a file."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """Return an image as Pillow writes it; the options are those of its ``save``."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
