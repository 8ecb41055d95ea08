"""Collects the rows of an index while its shard is written or scanned. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wds_tools.format.image_header import ImageInfo
from wds_tools.format.index import ABSENT, NO_LABEL, FieldColumns, Index
from wds_tools.format.tar import BLOCK


@dataclass(slots=True)
class IndexBuilder:
    """Collects the rows of an index while its shard is written or scanned."""

    keys: list[str] = field(default_factory=list)
    fields: list[dict[str, tuple[int, int, int]]] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    images: list[ImageInfo | None] = field(default_factory=list)
    headers: list[dict[str, int]] = field(default_factory=list)
    has_other_members: bool = False
    """Whether the shard has members that are not fields, so that the fields do not follow each other."""

    def add(
        self,
        key: str,
        fields: dict[str, tuple[int, int, int]],
        label: int | None = None,
        image: ImageInfo | None = None,
        headers: dict[str, int] | None = None,
    ) -> None:
        """Add the row of a sample."""
        self.keys.append(key)
        self.fields.append(fields)
        self.labels.append(label)
        self.images.append(image)
        self.headers.append(headers or {})

    def build(self, *, shard: str, shard_bytes: int, shard_xxh3: str) -> Index:
        """Return the index of the finished shard; the arguments are attributes of `Index`."""
        names = list(dict.fromkeys(name for row in self.fields for name in row))
        absent = (ABSENT, 0, 0)
        has_headers = self.has_other_members or any(self.headers)
        fields = {}
        for name in names:
            offset, size, xxh3 = zip(*(row.get(name, absent) for row in self.fields), strict=True)
            header = [row.get(name, BLOCK) for row in self.headers] if has_headers else None
            fields[name] = FieldColumns(
                np.array(offset, np.int64),
                np.array(size, np.int64),
                np.array(xxh3, np.uint64),
                None if header is None else np.array(header, np.int32),
            )
        return Index(
            shard=shard,
            shard_bytes=shard_bytes,
            shard_xxh3=shard_xxh3,
            keys=self.keys,
            fields=fields,
            label=np.array([NO_LABEL if label is None else label for label in self.labels], np.int64),
            width=np.array([image.width if image else 0 for image in self.images], np.int32),
            height=np.array([image.height if image else 0 for image in self.images], np.int32),
            mode=[image.mode if image else "" for image in self.images],
            orientation=np.array([image.orientation if image else 1 for image in self.images], np.int8),
            restart=np.array([image.restart if image else 0 for image in self.images], np.int32),
            mcu_width=np.array([image.mcu_width if image else 0 for image in self.images], np.int8),
            mcu_height=np.array([image.mcu_height if image else 0 for image in self.images], np.int8),
        )
