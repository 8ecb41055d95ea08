"""The same photographs in the formats of other loaders, for the programs of docs/migrate.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

CLASSES = 8


class Photos:
    """The folder ``photos`` with its files in sorted order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = sorted((folder / "photos").glob("*/*.jpg"))
        self.names = sorted({path.parent.name for path in self.paths})
        assert len(self.names) == CLASSES
        self.written: set[str] = set()
        self.samples: list[dict[str, Any]] = [
            {"image": path.read_bytes(), "label": self.names.index(path.parent.name)} for path in self.paths
        ]

    def write(self, library: str) -> None:
        """Write what the program of a library reads, once; those that read the folder need nothing."""
        write = getattr(self, f"write_{library.split(maxsplit=1)[0].lower()}", None)
        if write is not None and library not in self.written:
            write()
            self.written.add(library)

    def write_webdataset(self) -> None:
        """Write shards without indexes."""
        import webdataset

        (self.folder / "old").mkdir()
        with webdataset.ShardWriter(f"{self.folder}/old/train-%06d.tar", maxcount=10, verbose=0) as writer:
            for number, item in enumerate(self.samples):
                writer.write({"__key__": f"{number:06}", "jpg": item["image"], "cls": item["label"]})

    def write_hdf5(self) -> None:
        """Write arrays of pixels and labels."""
        import h5py

        images = [Image.open(path).convert("RGB") for path in self.paths]
        with h5py.File(self.folder / "photos.h5", "w") as file:
            file["images"] = np.stack([np.asarray(ImageOps.fit(image, (160, 160))) for image in images])
            file["labels"] = np.array([item["label"] for item in self.samples])

    def write_lmdb(self) -> None:
        """Write encoded images with keys ``class/name``."""
        import lmdb

        with (
            lmdb.open(str(self.folder / "photos.lmdb"), map_size=1 << 26) as database,
            database.begin(write=True) as transaction,
        ):
            for path, item in zip(self.paths, self.samples, strict=True):
                transaction.put(f"{path.parent.name}/{path.stem}".encode(), item["image"])

    def write_tfrecord(self) -> None:
        """Write files of tf.train.Example."""
        from tfrecords import example, frame

        (self.folder / "records").mkdir()
        records = [
            frame(example({"image/encoded": item["image"], "image/class/label": item["label"]}))
            for item in self.samples
        ]
        for number in range(2):
            (self.folder / "records" / f"{number}.tfrecord").write_bytes(b"".join(records[number::2]))

    def write_litdata(self) -> None:
        """Write chunks in this process; ``litdata.optimize`` starts others, which takes seconds."""
        from litdata.streaming import Cache

        cache = Cache(str(self.folder / "chunks"), chunk_bytes=200_000)
        for number, item in enumerate(self.samples):
            cache[number] = item
        cache.done()
        cache.merge()

    def write_mosaicml(self) -> None:
        """Write MDS shards."""
        import streaming

        columns = {"image": "bytes", "label": "int"}
        with streaming.MDSWriter(out=str(self.folder / "mds"), columns=columns, size_limit=200_000) as writer:
            for item in self.samples:
                writer.write(item)
