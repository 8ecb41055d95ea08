"""What a training loop waits for, and what would help: the sentence of `Loader.report`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from wds_tools.format.manifest import Manifest
from wds_tools.images.schedule import AnyView
from wds_tools.loading.pipeline.statistics import PeriodStats
from wds_tools.stages import STEP, cause_name
from wds_tools.wording import counted, human_bytes

_WORK = ("read", "verify", "slice", "decode", "resize", "write", "transform", "other")  # the stages of workers
_MIN_SHARE = 0.01  # smaller causes are not listed
_MARGIN = 1.1  # workers are not all busy all the time
_FAR_LARGER = 4  # pixels of the smallest image, divided by pixels of the view
_RECEIVING_SECONDS = 15e-6  # for a sample that a worker on another machine has sent
_RECEIVING_BYTE_SECONDS = 55e-6 / 150_528  # and for each of its bytes
_RECEIVING_CORES = 0.5  # share of the cores of this rank that may receive
_LINE_BYTES = 25e9 / 8  # in a second, assumed
_MIN_GAIN = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of a loader that a remedy depends on.

    Attributes:
        cores: Cores that the workers of this rank may use.
        read_ahead_bytes: Bytes of a remote dataset that are read before they are needed.
        has_large_images: Whether the images have far more pixels than the view.
        has_one_size: Whether the view gives all images of a batch one size.
        sample_bytes: Bytes of the tensors of a sample; 0 if they are not known.
        is_elsewhere: Whether the workers are on other machines.
    """

    cores: int
    is_remote: bool
    read_ahead_bytes: int
    has_large_images: bool
    has_one_size: bool
    is_crop_ready: bool
    device: str
    sample_bytes: int = 0
    is_elsewhere: bool = False


def has_large_images(manifest: Manifest, view: AnyView | None) -> bool:
    """Return whether all images have far more pixels than the view; False if it is not known."""
    if manifest.images is None or view is None or view.shape is None:
        return False
    return manifest.images.min_height * manifest.images.min_width >= _FAR_LARGER * view.shape[0] * view.shape[1]


class Diagnosis(NamedTuple):
    """What a loop waits for."""

    finding: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, self))


def diagnose(stats: PeriodStats, setting: Setting) -> Diagnosis:
    """Return what a loop waited for, and what would help."""
    if not stats.batches or not stats.seconds:
        return Diagnosis("no batch has been received yet: iterate over the loader first")
    cause = stats.main_cause
    if cause == STEP:
        share = _percent(stats.share(stats.step_seconds))
        return Diagnosis(f"the loop did not wait: the training step takes {share} of the time")
    by_size = sorted(stats.waits.items(), key=lambda entry: -entry[1])
    listed = ", ".join(
        f"{cause_name(other)} {_percent(stats.share(seconds))}"
        for other, seconds in by_size
        if stats.share(seconds) >= _MIN_SHARE
    )
    finding = f"{cause_name(cause)}: the loop waited {_percent(stats.wait_share)} of the time ({listed})"
    return Diagnosis(finding, _remedy(cause, stats, setting))


def workers_needed(stats: PeriodStats) -> int | None:
    """Return how many workers would load as fast as the loop trains; None if the loop does nothing but wait.

    The work of all workers on the batches of the period must fit into the time that is left if the loop does not wait
    for workers.
    """
    work = sum(stats.stage_seconds[name] for name in _WORK)
    left = stats.step_seconds + stats.waits["copy"] + stats.stage_seconds["hand_over"]
    left += stats.stage_seconds["batch_transform"]
    return math.ceil(_MARGIN * work / left) if left > 0.001 * stats.seconds else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _more_workers(stats: PeriodStats, setting: Setting, *, otherwise: str) -> str:
    """Return how many more workers would help, or another remedy if this rank does not have the cores."""
    needed = workers_needed(stats)
    if needed is not None and needed <= stats.workers:
        return "the workers are fast enough on average: a larger prefetch_factor= evens out slow batches"
    if setting.is_elsewhere:
        most = _most_elsewhere(stats, setting)
        if needed is None or (most and needed > most):
            return f"more workers would help{f', up to {most} in all' if most else ''}"
    if needed is not None and (needed <= setting.cores or setting.is_elsewhere):
        more = needed - stats.workers
        return f"{more} more worker{'s' if more > 1 else ''} would cover it" if stats.workers else _from_zero(needed)
    cores = counted(setting.cores, "core")
    otherwise += _elsewhere(stats, setting, needed)
    if stats.workers < setting.cores:
        helped = (
            f"{setting.cores - stats.workers} more would help" if stats.workers else _from_zero(setting.cores, "help")
        )
        return f"{helped}, but {cores} for this rank do not cover it: {otherwise}"
    return f"all {cores} for this rank are used: {otherwise}" if setting.cores > 1 else f"{cores} is used: {otherwise}"


def _elsewhere(stats: PeriodStats, setting: Setting, needed: int | None) -> str:
    """Return whether it pays to load on other machines, if that is known; decision 0102 has the arithmetic."""
    most = _most_elsewhere(stats, setting)
    if not most:
        return ""
    if most < _MIN_GAIN * setting.cores:
        limit = "the network" if _received(setting) > _LINE_BYTES / setting.sample_bytes else "the cores that receive"
        return f"; decoding on other machines would not pay, because {limit} would limit it"
    return f", or decode on other machines with num_workers=RayWorkers({min(needed or most, most)})"


def _most_elsewhere(stats: PeriodStats, setting: Setting) -> int:
    """Return how many workers elsewhere this rank and the network can serve; 0 if it is not known."""
    if not setting.sample_bytes or not stats.samples:
        return 0
    work = sum(stats.stage_seconds[name] for name in _WORK) / stats.samples
    return math.ceil(min(_received(setting), _LINE_BYTES / setting.sample_bytes) * work)


def _received(setting: Setting) -> float:
    """Return how many samples this rank can receive in a second."""
    return setting.cores * _RECEIVING_CORES / (_RECEIVING_SECONDS + _RECEIVING_BYTE_SECONDS * setting.sample_bytes)


def _from_zero(workers: int, effect: str = "cover it") -> str:
    return f"num_workers={workers} instead of 0 would {effect}"


def _remedy(cause: str, stats: PeriodStats, setting: Setting) -> str:
    """Return what would help."""
    if cause == "storage":
        return _for_storage(stats, setting)
    if cause == "decoding":
        return _more_workers(stats, setting, otherwise=_less_to_decode(setting))
    if cause == "transform":
        otherwise = "use a cheaper transform=, or do its work on the device in batch_transform="
        return _more_workers(stats, setting, otherwise=otherwise)
    if cause == "hand_over":
        return _for_hand_over(stats, setting)
    if cause == "copy":
        one_size = "use a view= that gives all images one size, as these are copied from pinned memory, "
        return (
            f"copies to {setting.device} are too slow: copy uint8 images and convert them there (batch_transform=), "
            f"{'' if setting.has_one_size else one_size}or use larger batches"
        )
    return {
        "start": "workers are started once and stay for later epochs: create the loader once, before the first epoch",
        "packing": "pack={'images': 'keep'} packs five times as fast, and later epochs do not wait for the packer"
        if setting.is_crop_ready
        else "the source or the cores limit the packer; later epochs do not wait for it",
    }[cause]


def _for_storage(stats: PeriodStats, setting: Setting) -> str:
    read, fetched = human_bytes(stats.share(stats.bytes_read)), human_bytes(stats.share(stats.fetched.fetched_bytes))
    if not setting.is_remote:
        return f"it read {read}/s: use a faster disk, or more memory, so that the system keeps the files in it"
    if not stats.fetched.fetched_bytes and stats.fetched.cached_blocks == stats.fetched.blocks:
        return (
            f"it read {read}/s from the cache, which has all that was needed: put the cache on a faster disk "
            "(cache_dir=), or use more memory, so that the system keeps it there"
        )
    ahead = human_bytes(setting.read_ahead_bytes)
    return (
        f"it fetched {fetched}/s: raise read_ahead_bytes= (now {ahead}), use a faster connection, or a cache that "
        "holds the dataset (cache_bytes=), which helps from the second epoch on"
    )


def _less_to_decode(setting: Setting) -> str:
    if setting.has_large_images:
        smaller = "the images are far larger than the view, so pack them with images='resize'"
        return smaller if setting.is_crop_ready else f"{smaller}, or with images='crop-ready' to keep their pixels"
    return "use a smaller view=" if setting.is_crop_ready else "pack the images with images='crop-ready'"


def _for_hand_over(stats: PeriodStats, setting: Setting) -> str:
    if stats.stage_seconds["batch_transform"] > stats.waits["hand_over"] / 2:
        share = _percent(stats.share(stats.stage_seconds["batch_transform"]))
        return f"batch_transform= runs in the training process and takes {share}: move its work to transform="
    if setting.is_elsewhere and setting.sample_bytes:
        speed = human_bytes(stats.share(stats.samples * setting.sample_bytes))
        return f"{speed}/s arrived from other machines: use a faster network, a smaller view= or fewer fields="
    if setting.has_one_size:
        return "use fewer fields=: values without a fixed size are sent through pipes"
    return (
        "use fewer fields=, and a view= that gives all images one size, as these are written to shared memory and not "
        "sent through pipes"
    )
