"""The loaders that can be measured. A new peer needs an entry here and a module in `peers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ONE_CROP = ("train", "eval", "small")
_CROPS = (*_ONE_CROP, "ssl")
_DETECTION = ("letterbox", "mosaic")
DECODING = (*_CROPS, "detect", *_DETECTION)
ALL = (*DECODING, "raw", "bytes")
_WITHOUT_MOSAIC = (*_CROPS, "detect", "letterbox", "raw", "bytes")
_WITHOUT_FRAMES = (*_CROPS, "detect", "raw", "bytes")
_WITHOUT_BOXES = (*_CROPS, "raw", "bytes")
NOT_IN_WHEEL = (
    "not part of this installation: the modules that measure peers are in the source repository only; install "
    "wds_tools from a clone with `pip install -e .`"
)
PACKAGE = Path(__file__).parent
"""The folder of the modules of the loaders."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """How one loader is run.

    Attributes:
        module: Its module in this package, imported only in the loader's own process.
        packages: Names for ``pip install``; their versions are reported.
        workload_notes: Additions to ``note`` for a workload, above all work that the loader does
            not do.
        size_ratio: Size of the dataset in the loader's own format, divided by its size as files; 0
            without one.
        stores_floats: Workloads for which it stores float32 pixels.
    """

    module: str
    packages: tuple[str, ...]
    note: str
    workloads: tuple[str, ...] = ALL
    workload_notes: Mapping[str, str] = field(default_factory=dict)
    size_ratio: float = 0.0
    stores_floats: tuple[str, ...] = ()

    def note_for(self, workload: str) -> str:
        """Return how the loader is set up for a workload."""
        return "; ".join(filter(None, (self.note, self.workload_notes.get(workload, ""))))

    def why_unavailable(self, workload: str) -> str:
        """Return why the loader cannot be measured, or "" if it can."""
        if workload not in self.workloads:
            return f"workload {workload!r} is not supported, only {', '.join(self.workloads)}"
        if not PACKAGE.joinpath(*self.module.split(".")).with_suffix(".py").is_file():
            return NOT_IN_WHEEL
        return ""

    def disk_bytes(self, workload: str, *, samples: int, size: int, pixels: int) -> int:
        """Return the size of the dataset in the loader's own format."""
        if workload in self.stores_floats:
            return _FLOAT_BYTES * 3 * pixels * samples
        return round(self.size_ratio * size)


LIMIT, OURS = "limit", "ours"
_DATALOADER = "DataLoader with persistent workers"
_IO = "decoded by torchvision.io, v2 transforms on uint8 tensors with antialias"
_NOT_VERIFIED = {"bytes": "bytes are not verified", "raw": "arrays are not verified"}
LOADERS = {
    LIMIT: Entry(
        "limit",
        ("simplejpeg",),
        "",
        workload_notes={
            **dict.fromkeys(DECODING, "simplejpeg decodes the same files completely; no reading, no resizing"),
            "raw": "copies the same bytes in memory, and nothing else",
            "bytes": "reads the same shards from start to end, and nothing else",
        },
    ),
    OURS: Entry(
        "ours",
        ("torch",),
        "shuffle=True, every byte verified",
        workload_notes={
            **dict.fromkeys((*DECODING, "raw"), "wds_tools.make_loader"),
            "bytes": "wds_tools.StreamingDataset(decode=False), without workers",
        },
    ),
    "crop-ready": Entry(
        "crop_ready",
        ("torch",),
        'ours, the same images packed with images="crop-ready": identical pixels',
        workloads=DECODING,
        size_ratio=1.2,
    ),
    "imagefolder": Entry(
        "peers.imagefolder",
        ("torch", "torchvision"),
        f"torchvision's ImageFolder, {_DATALOADER}",
        workloads=_WITHOUT_MOSAIC,
        workload_notes={
            **dict.fromkeys(_CROPS, "its own loader (Pillow), v2 transforms on uint8 tensors with antialias"),
            **dict.fromkeys(
                ("detect", "letterbox"),
                "its own loader (Pillow), v2 transforms with tv_tensors, antialias; boxes in memory",
            ),
            "raw": f"loader=numpy.load; {_NOT_VERIFIED['raw']}",
            "bytes": f"loader reads the file; {_NOT_VERIFIED['bytes']}",
        },
    ),
    "imagefolder-io": Entry(
        "peers.imagefolder_io",
        ("torch", "torchvision"),
        "as imagefolder, with loader=torchvision.io.decode_image instead of Pillow",
        workloads=(*_CROPS, "detect", "letterbox"),
    ),
    "webdataset": Entry(
        "peers.webdataset",
        ("torch", "torchvision", "webdataset"),
        "WebDataset().shuffle(1000) in a WebLoader, batched in the workers; no pause between epochs",
        workloads=_WITHOUT_FRAMES,
        workload_notes={
            **dict.fromkeys((*_CROPS, "detect"), "decode('pil'), the transforms of imagefolder"),
            **_NOT_VERIFIED,
            "bytes": f"without workers, which is faster; {_NOT_VERIFIED['bytes']}",
        },
    ),
    "hdf5": Entry(
        "peers.hdf5",
        ("h5py", "torch", "torchvision"),
        f"one HDF5 file, {_DATALOADER}",
        workloads=_WITHOUT_BOXES,
        workload_notes={
            **dict.fromkeys(("train", "eval", "ssl"), f"encoded images of variable length, {_IO}"),
            "small": "stored float32 tensors [3, 128, 128]: four times the bytes of uint8, no decoding or resizing",
            "raw": "stored float32 tensors: four times the bytes of uint8",
            "bytes": f"byte strings of variable length; {_NOT_VERIFIED['bytes']}",
        },
        size_ratio=1.1,
        stores_floats=("small", "raw"),
    ),
    "hdf5-uint8": Entry(
        "peers.hdf5_uint8",
        ("h5py", "torch"),
        f"one HDF5 file of stored uint8 pixels, {_DATALOADER}; no decoding or resizing",
        workloads=("small", "raw"),
        workload_notes={"raw": _NOT_VERIFIED["raw"]},
        stores_floats=("small", "raw"),  # an upper bound: uint8 needs a quarter
    ),
    "lmdb": Entry(
        "peers.lmdb",
        ("lmdb", "torch", "torchvision"),
        f"one LMDB environment (readahead=False, lock=False, buffers=True), {_DATALOADER}",
        workloads=_WITHOUT_BOXES,
        workload_notes={**dict.fromkeys(_CROPS, _IO), **_NOT_VERIFIED},
        size_ratio=1.3,
    ),
    "ultralytics": Entry(
        "peers.ultralytics",
        ("ultralytics",),
        "its own data loader with persistent workers, cv2 without antialias, label files read once",
        workloads=_DETECTION,
        workload_notes={
            "mosaic": "decodes one image for each mosaic: the other three come from a buffer of decoded ones, so they "
            "repeat; affine and HSV with its defaults",
        },
        size_ratio=0.1,
    ),
    "albumentations": Entry(
        "peers.albumentations",
        ("albumentations", "torch", "torchvision"),
        f"OpenCV reads the files and resizes without antialias, {_DATALOADER}; boxes in memory",
        workloads=_DETECTION,
        workload_notes={
            "mosaic": "A.Mosaic of the image and three other random ones, which are read and decoded for it; A.Affine "
            "moves its 640 x 640 pixels, so smaller scales leave an empty border; A.HueSaturationValue",
        },
    ),
    "dali": Entry(
        "peers.dali",
        ("nvidia-dali-cuda120",),
        "on the CPU (device_id=None), threads instead of worker processes, readers.file(random_shuffle=True)",
        workloads=_WITHOUT_FRAMES,
        workload_notes={
            "train": "decoders.image_random_crop decodes only the crop; resize with antialias",
            "eval": "decoders.image, resize with antialias, crop",
            "small": "decoders.image, resize with antialias",
            "ssl": "decoders.image once, random_resized_crop with antialias for each crop",
            "detect": "readers.coco, decoders.image, resize with antialias; boxes in memory",
            "raw": f"readers.numpy; {_NOT_VERIFIED['raw']}",
            "bytes": _NOT_VERIFIED["bytes"],
        },
    ),
    "ffcv": Entry(
        "peers.ffcv",
        ("ffcv", "torch"),
        "threads instead of worker processes, QUASI_RANDOM order, os_cache=True; compiles before its first batch",
        workloads=(*_ONE_CROP, "raw"),
        workload_notes={
            **dict.fromkeys(
                ("train", "eval"),
                "images encoded again with quality 90 and at most 512 pixels, as in its own benchmark: fewer bytes "
                "and pixels to decode; cv2's area resize",
            ),
            "small": "images encoded again with quality 90; cv2's area resize",
            "raw": _NOT_VERIFIED["raw"],
        },
        size_ratio=1.5,
    ),
    "tfdata": Entry(
        "peers.tfdata",
        ("tensorflow-cpu",),
        "TFRecord files, shuffle(1000), map and a private pool with one thread per worker, batch, prefetch",
        workloads=(*_ONE_CROP, "raw", "bytes"),
        workload_notes={
            "train": "decode_and_crop_jpeg decodes only the crop; resize with antialias",
            **dict.fromkeys(("eval", "small"), "decode_jpeg, resize with antialias"),
            **dict.fromkeys(("raw", "bytes"), "TFRecord verifies its checksums"),
        },
        size_ratio=1.1,
    ),
    "litdata": Entry(
        "peers.litdata",
        ("litdata", "torch", "torchvision"),
        "chunks of 64 MB written by optimize(), StreamingDataset(shuffle=True) with a StreamingDataLoader",
        workloads=_WITHOUT_BOXES,
        workload_notes={**dict.fromkeys(_CROPS, f"stored as bytes, {_IO}"), **_NOT_VERIFIED},
        size_ratio=1.1,
    ),
    "mosaic": Entry(
        "peers.mosaic",
        ("mosaicml-streaming", "torch", "torchvision"),
        f"MDS shards of 64 MB, StreamingDataset(shuffle=True), {_DATALOADER}",
        workloads=_WITHOUT_BOXES,
        workload_notes={**dict.fromkeys(_CROPS, f"stored as bytes, {_IO}"), **_NOT_VERIFIED},
        size_ratio=1.1,
    ),
}
"""All loaders by name: the limit, ours and the peers."""
PEERS = tuple(name for name in LOADERS if name not in (LIMIT, OURS))
