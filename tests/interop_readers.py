"""Programs that read a folder of shards with other libraries: ``python interop_readers.py READER FOLDER``.

Each prints a JSON list of the samples that it got: key and image as hexadecimal digits, None for what the reader does
not give. They run in processes of their own, because a reader may wait for ever, and leave processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 180.0
_Sample = tuple[str | None, bytes | None]


def read(reader: str, folder: Path, seconds: float = SECONDS) -> list[_Sample]:
    """Return the samples that a reader gets.

    Raises:
        AssertionError: It failed, or did not end in time.
    """
    program = [sys.executable, __file__, reader, str(folder)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{reader} did not read {folder} within {seconds:g} s") from None
    finally:
        _end_group(process)
    assert process.returncode == 0, errors.decode(errors="replace")[-4000:]
    found = json.loads(output.decode().strip().rpartition("\n")[2])
    return [(key, None if image is None else bytes.fromhex(image)) for key, image in found]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _dali(folder: Path) -> Iterator[_Sample]:
    from nvidia.dali import fn, pipeline_def

    paths = sorted(map(str, folder.glob("*.tar")))

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        indexes = [f"{path.removesuffix('.tar')}.idx" for path in paths]
        return fn.readers.webdataset(paths=paths, index_paths=indexes, ext=["png"], name="reader")

    built = pipeline()
    built.build()
    for _ in range(built.epoch_size("reader")):
        yield None, built.run()[0].at(0).tobytes()


def _energon(folder: Path) -> Iterator[_Sample]:
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset

    dataset = get_train_dataset(
        str(folder),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        repeat=False,
    )
    for batch in get_loader(dataset):
        for key in batch.__key__:
            yield key, None


def _litdata(folder: Path) -> Iterator[_Sample]:
    """Read each shard as one raw object, and the members of it as a tar."""
    import litdata
    from litdata.raw.indexer import FileIndexer

    cache = folder.with_name(f"{folder.name}-litdata")
    shards = litdata.StreamingRawDataset(str(folder), cache_dir=str(cache), indexer=FileIndexer(extensions=[".tar"]))
    for number in range(len(shards)):
        with tarfile.open(fileobj=io.BytesIO(shards[number])) as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None and member.name.endswith(".png"):
                    yield member.name.removesuffix(".png"), content.read()


def _ray(folder: Path) -> Iterator[_Sample]:
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    for row in ray.data.read_webdataset(sorted(map(str, folder.glob("*.tar"))), decoder=None).iter_rows():
        yield str(row["__key__"]), bytes(row["png"])
    ray.shutdown()


def _wids(folder: Path) -> Iterator[_Sample]:
    import wids

    dataset = wids.ShardListDataset(str(folder / "shardindex.json"), base=str(folder), transformations=[])
    for number in reversed(range(len(dataset))):
        sample = dataset[number]
        yield sample["__key__"], sample[".png"].read()


READERS = {"dali": _dali, "energon": _energon, "litdata": _litdata, "ray": _ray, "wids": _wids}

if __name__ == "__main__":
    samples = [(key, None if image is None else image.hex()) for key, image in READERS[sys.argv[1]](Path(sys.argv[2]))]
    sys.stdout.write(f"{json.dumps(samples)}\n")
