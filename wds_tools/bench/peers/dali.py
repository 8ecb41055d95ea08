"""NVIDIA's DALI on the CPU."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from nvidia.dali import fn, pipeline_def, types

from wds_tools.bench.workloads import FixedCrop, Setup
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    pipeline = _pipeline(setup, batch_size=setup.batch_size, num_threads=setup.workers, device_id=None, seed=seed)
    pipeline.build()
    while True:
        samples, *_others = pipeline.run()
        yield len(samples) if setup.workload == "bytes" else len(samples.as_array())


def probe_pixels(setup: Setup) -> Sequence[Any] | None:
    """Return the pixels of the probes."""
    view = setup.fixed_view
    if view is None:
        return None
    files = [str(Path(setup.tree) / probe) for probe in setup.probes]
    pipeline = _probe_pipeline(files, view, batch_size=len(files), num_threads=1, device_id=None)
    pipeline.build()
    (images,) = pipeline.run()
    return list(images.as_array())


@pipeline_def  # type: ignore[untyped-decorator]
def _pipeline(setup: Setup) -> Any:
    files = [str(path) for path, _ in setup.files()]
    if setup.workload == "raw":
        return fn.readers.numpy(files=files, random_shuffle=True)
    view = setup.view
    if setup.workload == "detect":
        assert view is not None
        annotations = {"file_root": setup.tree, "annotations_file": str(setup.annotations), "random_shuffle": True}
        encoded, boxes, _labels = fn.readers.coco(**annotations, ltrb=True, ratio=True)
        return _view(fn.decoders.image(encoded), view), boxes * float(view.shape[0] if view.shape else 1)
    encoded, _labels = fn.readers.file(files=files, random_shuffle=True, name="reader")
    if view is None:
        return encoded
    if setup.crops:
        images = fn.decoders.image(encoded)
        return tuple(_random_crop(images, crop) for crop in setup.crops)
    if isinstance(view, RandomResizedCrop):
        crop = fn.decoders.image_random_crop(encoded, random_area=view.scale, random_aspect_ratio=view.ratio)
        return _as_chw(_resized(crop, view.shape), mirror=fn.random.coin_flip(probability=0.5))
    return _view(fn.decoders.image(encoded), view)


def _random_crop(images: Any, view: View) -> Any:
    assert isinstance(view, RandomResizedCrop)
    options = {"random_area": view.scale, "random_aspect_ratio": view.ratio, "antialias": True}
    crop = fn.random_resized_crop(images, size=view.shape, interp_type=types.INTERP_LINEAR, **options)
    return _as_chw(crop, mirror=fn.random.coin_flip(probability=0.5))


@pipeline_def  # type: ignore[untyped-decorator]
def _probe_pipeline(files: list[str], view: View) -> Any:
    encoded, _labels = fn.readers.file(files=files)
    if not isinstance(view, FixedCrop):
        return _view(fn.decoders.image(encoded), view)
    shape = fn.cast(fn.peek_image_shape(encoded), dtype=types.INT32)  # height, width, channels
    height, width = shape[0], shape[1]
    crop = fn.slice(
        fn.decoders.image(encoded),
        fn.stack(height // 5, width // 7),
        fn.stack(height * 3 // 5, width * 4 // 7),
        axes=(0, 1),
    )
    return _as_chw(_resized(crop, view.shape))


def _view(images: Any, view: View) -> Any:
    if isinstance(view, CenterCrop):
        resized = fn.resize(images, resize_shorter=view.resize, interp_type=types.INTERP_LINEAR, antialias=True)
        return _as_chw(resized, crop=view.shape)
    assert isinstance(view, Resize)
    return _as_chw(_resized(images, view.shape or ()))


def _resized(images: Any, shape: tuple[int, ...]) -> Any:
    return fn.resize(images, size=shape, interp_type=types.INTERP_LINEAR, antialias=True)


def _as_chw(images: Any, **options: Any) -> Any:
    """Crop, flip and transpose in one step: uint8 [3, height, width]."""
    return fn.crop_mirror_normalize(images, dtype=types.UINT8, output_layout="CHW", mean=[0.0], std=[1.0], **options)
