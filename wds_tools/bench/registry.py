"""Who is measured: a table. A peer to come is a line here and a module in `peers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PICTURES = ("train", "eval", "small")
ALL = (*PICTURES, "raw", "bytes")
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    Attributes:
        module: Where it is, in this package; imported only in the process that it runs in.
        needs: What has to be installed, by the names that pip knows; its version is reported.
        note: How it is set up.
        works: The works it can do.
        notes: What is different in a work, above all what is less.
        stores: How large its own format is, in sizes of the material; 0 if it reads what is there.
        floats: Works of which it stores float32 pixels.
    """

    module: str
    needs: tuple[str, ...]
    note: str
    works: tuple[str, ...] = ALL
    notes: Mapping[str, str] = field(default_factory=dict)
    stores: float = 0.0
    floats: tuple[str, ...] = ()

    def says(self, work: str) -> str:
        """Return how it is set up for a work."""
        return "; ".join(filter(None, (self.note, self.notes.get(work, ""))))

    def room_bytes(self, work: str, *, samples: int, size: int, pixels: int) -> int:
        """Return how much disk its own format takes: ``samples`` of ``size`` bytes in all and ``pixels`` each."""
        return _FLOAT_BYTES * 3 * pixels * samples if work in self.floats else round(self.stores * size)


LIMIT, OURS = "limit", "ours"
_DATALOADER = "DataLoader with persistent workers"
_IO = "decoded by torchvision.io, v2 transforms on uint8 tensors with antialias"
_PLAIN_BYTES = {"bytes": "bytes are not verified", "raw": "arrays are not verified"}
CONTENDERS = {
    LIMIT: Contender(
        "limit",
        ("simplejpeg",),
        "",
        notes={
            **dict.fromkeys(PICTURES, "simplejpeg decodes the same files whole; no reading, no resize"),
            "raw": "copies the same bytes within memory, and nothing else",
            "bytes": "reads the same shards from start to end, and nothing else",
        },
    ),
    OURS: Contender(
        "ours",
        ("torch",),
        "shuffle=True, every byte verified",
        notes={
            **dict.fromkeys((*PICTURES, "raw"), "wds_tools.make_loader"),
            "bytes": "wds_tools.StreamingDataset(decode=False), without workers",
        },
    ),
    "crop-ready": Contender(
        "crop_ready",
        ("torch",),
        'ours, the same pictures packed with images="crop-ready": no pixel changes',
        works=PICTURES,
        stores=1.2,
    ),
    "imagefolder": Contender(
        "peers.imagefolder",
        ("torch", "torchvision"),
        f"torchvision's ImageFolder, {_DATALOADER}",
        notes={
            **dict.fromkeys(PICTURES, "its own loader (Pillow), v2 transforms on uint8 tensors with antialias"),
            "raw": f"loader=numpy.load; {_PLAIN_BYTES['raw']}",
            "bytes": f"loader reads the file; {_PLAIN_BYTES['bytes']}",
        },
    ),
    "imagefolder-io": Contender(
        "peers.imagefolder_io",
        ("torch", "torchvision"),
        "as imagefolder, with loader=torchvision.io.decode_image instead of Pillow",
        works=PICTURES,
    ),
    "webdataset": Contender(
        "peers.webdataset",
        ("torch", "torchvision", "webdataset"),
        "WebDataset().shuffle(1000) in a WebLoader, batched before it hands over; it does not pause between epochs",
        notes={
            **dict.fromkeys(PICTURES, "decode('pil'), the transforms of imagefolder"),
            **_PLAIN_BYTES,
            "bytes": f"without workers, which is faster; {_PLAIN_BYTES['bytes']}",
        },
    ),
    "hdf5": Contender(
        "peers.hdf5",
        ("h5py", "torch", "torchvision"),
        f"one HDF5 file behind a {_DATALOADER}",
        notes={
            **dict.fromkeys(("train", "eval"), f"encoded pictures of variable length, {_IO}"),
            "small": "ready float32 tensors [3, 128, 128]: four times the bytes of uint8, nothing to decode or resize",
            "raw": "ready float32 tensors: four times the bytes",
            "bytes": f"byte strings of variable length; {_PLAIN_BYTES['bytes']}",
        },
        stores=1.1,
        floats=("small", "raw"),
    ),
    "hdf5-uint8": Contender(
        "peers.hdf5_uint8",
        ("h5py", "torch"),
        f"one HDF5 file of ready uint8 pixels behind a {_DATALOADER}; nothing to decode or resize",
        works=("small", "raw"),
        notes={"raw": _PLAIN_BYTES["raw"]},
        floats=("small", "raw"),  # a fourth of it
    ),
    "lmdb": Contender(
        "peers.lmdb",
        ("lmdb", "torch", "torchvision"),
        f"one LMDB environment (readahead=False, lock=False, buffers=True) behind a {_DATALOADER}",
        notes={**dict.fromkeys(PICTURES, _IO), **_PLAIN_BYTES},
        stores=1.3,
    ),
    "dali": Contender(
        "peers.dali",
        ("nvidia-dali-cuda120",),
        "on the CPU (device_id=None), threads instead of worker processes, readers.file(random_shuffle=True)",
        notes={
            "train": "decoders.image_random_crop decodes the crop alone; resize with antialias",
            "eval": "decoders.image, resize with antialias, crop",
            "small": "decoders.image, resize with antialias",
            "raw": f"readers.numpy; {_PLAIN_BYTES['raw']}",
            "bytes": _PLAIN_BYTES["bytes"],
        },
    ),
    "ffcv": Contender(
        "peers.ffcv",
        ("ffcv", "torch"),
        "threads instead of worker processes, QUASI_RANDOM order, os_cache=True; compiles before its first batch",
        works=(*PICTURES, "raw"),
        notes={
            **dict.fromkeys(
                ("train", "eval"),
                "the pictures encoded again with quality 90 and at most 512 pixels, as in its own benchmark: fewer "
                "bytes and pixels to decode; cv2's area resize",
            ),
            "small": "the pictures encoded again with quality 90; cv2's area resize",
            "raw": _PLAIN_BYTES["raw"],
        },
        stores=1.5,
    ),
    "tfdata": Contender(
        "peers.tfdata",
        ("tensorflow-cpu",),
        "TFRecord files, shuffle(1000), map and a private pool of as many threads, batch, prefetch",
        notes={
            "train": "decode_and_crop_jpeg decodes the crop alone; resize with antialias",
            **dict.fromkeys(("eval", "small"), "decode_jpeg, resize with antialias"),
            **dict.fromkeys(("raw", "bytes"), "TFRecord verifies its checksums"),
        },
        stores=1.1,
    ),
    "tfdata-plain": Contender(
        "peers.tfdata_plain",
        ("tensorflow-cpu",),
        "as tfdata, resize without antialias: less work, and other pixels",
        works=PICTURES,
        stores=1.1,
    ),
    "litdata": Contender(
        "peers.litdata",
        ("litdata", "torch", "torchvision"),
        "optimize()d into chunks of 64 MB, StreamingDataset(shuffle=True) behind a StreamingDataLoader",
        notes={**dict.fromkeys(PICTURES, f"stored as bytes, {_IO}"), **_PLAIN_BYTES},
        stores=1.1,
    ),
    "mosaic": Contender(
        "peers.mosaic",
        ("mosaicml-streaming", "torch", "torchvision"),
        f"MDS shards of 64 MB, StreamingDataset(shuffle=True) behind a {_DATALOADER}",
        notes={**dict.fromkeys(PICTURES, f"stored as bytes, {_IO}"), **_PLAIN_BYTES},
        stores=1.1,
    ),
}
"""Contenders by name."""
PEERS = tuple(name for name in CONTENDERS if name not in (LIMIT, OURS))
