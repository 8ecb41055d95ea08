"""TensorFlow's tf.data over TFRecord files."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from wds_tools.bench.workloads import RAW_SHAPE, FixedCrop, Setup
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View

_SHUFFLE = 1000  # samples in the buffer, as for webdataset
_FILES_PER_WORKER = 4


def prepare(setup: Setup) -> None:
    """Write several files per worker."""
    own = setup.own_folder
    own.mkdir()
    count = _FILES_PER_WORKER * setup.workers
    writers = [tf.io.TFRecordWriter(str(own / f"{index:05d}.tfrecord")) for index in range(count)]
    for index, (path, _) in enumerate(setup.files()):
        writers[index % count].write(setup.payload(path))
    for writer in writers:
        writer.close()


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = setup.workers
    options.deterministic = False
    files = sorted(str(path) for path in setup.own_folder.iterdir())
    records = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files), seed)
        .interleave(tf.data.TFRecordDataset, cycle_length=len(files), num_parallel_calls=tf.data.AUTOTUNE)
    )
    samples = records.repeat().shuffle(_SHUFFLE, seed)
    if setup.workload != "bytes":
        samples = samples.map(lambda data: _sample(data, setup), num_parallel_calls=setup.workers)
    for batch in samples.batch(setup.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options):
        yield len(batch)


def probe_pixels(setup: Setup) -> Sequence[Any] | None:
    """Return the pixels of the probes."""
    view = setup.fixed_view
    if view is None:
        return None
    files = [(Path(setup.tree) / probe).read_bytes() for probe in setup.probes]
    return [_decode_view(data, view).numpy().transpose(2, 0, 1) for data in files]


def _sample(data: Any, setup: Setup) -> Any:
    if setup.workload == "raw":
        return tf.reshape(tf.io.decode_raw(data, tf.uint8), RAW_SHAPE)
    assert setup.view is not None
    image = _decode_view(data, setup.view)
    return tf.image.random_flip_left_right(image) if isinstance(setup.view, RandomResizedCrop) else image


def _decode_view(data: Any, view: View) -> Any:
    """Decode, crop and resize: uint8 [height, width, 3]."""
    if isinstance(view, CenterCrop):
        return _center_crop(_decode(data), view)
    if isinstance(view, Resize):
        return _resized(_decode(data), view.shape)
    shape = tf.io.extract_jpeg_shape(data)
    if isinstance(view, FixedCrop):
        height, width = shape[0], shape[1]
        window = tf.stack([height // 5, width // 7, height * 3 // 5, width * 4 // 7])
    else:
        assert isinstance(view, RandomResizedCrop)
        window = _random_window(shape, view)
    return _resized(tf.image.decode_and_crop_jpeg(data, window, channels=3), view.shape)


def _decode(data: Any) -> Any:
    return tf.image.decode_image(data, channels=3, expand_animations=False)


def _random_window(shape: Any, view: RandomResizedCrop) -> Any:
    """Return top, left, height and width of a random crop, drawn as in TensorFlow's own ImageNet pipelines."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=view.ratio,
        area_range=view.scale,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


def _center_crop(image: Any, view: CenterCrop) -> Any:
    side = tf.cast(view.resize, tf.int32)
    height, width = tf.shape(image)[0], tf.shape(image)[1]
    short = tf.minimum(height, width)
    resized = _resized(image, tf.stack([height * side // short, width * side // short]))
    h, w = view.shape
    top, left = (tf.shape(resized)[0] - h + 1) // 2, (tf.shape(resized)[1] - w + 1) // 2
    return tf.image.crop_to_bounding_box(resized, top, left, h, w)


def _resized(image: Any, shape: Any) -> Any:
    resized = tf.image.resize(image, shape, antialias=True)  # float32, not rounded
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
