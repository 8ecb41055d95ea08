"""TurboLoader: one tar of JPEGs, read and decoded by threads of C++."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Collection, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import turboloader

from wds_tools.bench.workloads import Setup

_TAR = "images.tar"


def prepare(setup: Setup) -> None:
    """Write a tar of the files: it reads a single one."""
    setup.own_folder.mkdir()
    _write(setup.own_folder / _TAR, (path for path, _ in setup.files()))


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch.

    Its threads are one pool of the process, with one for each core, whatever ``num_workers`` is: so they are held to
    as many cores as there are workers.
    """
    cores = sorted(os.sched_getaffinity(0))
    options = {"num_workers": setup.workers, "shuffle": True, "seed": seed, "drop_last": True}
    loader = _loader(setup.own_folder / _TAR, setup, train_aug=setup.workload == "train", **options)
    try:
        epoch = 0
        while True:
            loader.set_epoch(epoch)  # otherwise all epochs have the same order and the same crops
            for images, _ in loader:
                _hold_to(cores[: setup.workers])
                yield len(images)
            epoch += 1
    finally:
        _hold_to(cores)


def probe_pixels(setup: Setup) -> Sequence[Any] | None:
    """Return the pixels of the probes; its random crops have no fixed view."""
    if setup.workload == "train":
        return None
    path = Path(setup.folder) / f"{setup.name}-probes.tar"
    _write(path, (Path(setup.tree) / probe for probe in setup.probes))
    images = np.concatenate([images for images, _ in _loader(path, setup)])
    return list(np.rint(images * 255).astype(np.uint8))


def _loader(path: Path, setup: Setup, **options: Any) -> Any:
    assert setup.view is not None
    return turboloader.DataLoader(
        str(path),
        batch_size=setup.batch_size,
        output_format="pytorch",
        image_size=setup.view.shape,
        antialias=True,
        **options,
    )


def _hold_to(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - names, not paths
        os.sched_setaffinity(int(thread), cores)


def _write(path: Path, files: Iterable[Path]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, file in enumerate(files):
            info, data = tarfile.TarInfo(f"{number:08d}{file.suffix}"), file.read_bytes()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
