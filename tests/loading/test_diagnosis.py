"""The sentence of `Loader.report`, for figures that are given; test_statistics.py checks it with real loaders."""

from dataclasses import replace

import pytest

from wds_tools import stages
from wds_tools.loading.pipeline.diagnosis import Setting, diagnose, workers_needed
from wds_tools.loading.pipeline.statistics import PeriodStats
from wds_tools.stages import CAUSES
from wds_tools.storage import FetchStatistics

SETTING = Setting(
    cores=16,
    is_remote=False,
    read_ahead_bytes=512_000_000,
    has_large_images=False,
    has_one_size=False,
    is_crop_ready=True,
    device="cuda:0",
)
FETCHED = FetchStatistics(fetched_bytes=1_000_000_000)


def report(stats, setting):
    return str(diagnose(stats, setting))


def stats_of(*, workers=4, step=69.0, waits=None, work=None, fetched=FETCHED):
    """Return statistics of 100 seconds, if the times add up to that."""
    waits = {**dict.fromkeys(CAUSES, 0.0), **(waits or {})}
    waited = sum(waits.values())
    return PeriodStats(
        epoch=0,
        batches=100,
        samples=25_600,
        seconds=waited + step,
        waited_seconds=waited,
        step_seconds=step,
        waits=waits,
        stage_seconds={**dict.fromkeys(stages.NAMES, 0.0), **(work or {})},
        workers=workers,
        ready_batches=0.5,
        parts_in_progress=4.0,
        bytes_read=2_000_000_000,
        fetched=fetched,
    )


def test_the_sentence_has_the_cause_the_share_of_the_time_and_the_missing_workers():
    stats = stats_of(waits={"decoding": 31.0}, work={"read": 10.0, "decode": 350.0, "resize": 40.0})
    # 400 s of work in the 69 s of the training steps: 5.8 workers, and a margin of a tenth
    assert workers_needed(stats) == 7
    assert report(stats, SETTING) == (
        "decoding: the loop waited 31 % of the time (decoding 31 %); 3 more workers would cover it"
    )
    assert report(replace(stats, workers=6), SETTING).endswith("; 1 more worker would cover it")
    assert report(replace(stats, workers=0), SETTING).endswith("; num_workers=7 instead of 0 would cover it")


def test_all_causes_with_a_share_of_at_least_one_percent_are_listed_by_size():
    stats = stats_of(waits={"storage": 4.0, "decoding": 20.0, "copy": 6.6, "start": 0.4})
    assert "31 % of the time (decoding 20 %, copy 7 %, storage 4 %)" in report(stats, SETTING)


def test_a_loop_that_waits_for_less_than_5_percent_of_the_time_does_not_wait():
    assert report(stats_of(step=98.0, waits={"decoding": 2.0}), SETTING) == (
        "the loop did not wait: the training step takes 98 % of the time"
    )


def test_the_cores_limit_the_number_of_workers():
    stats = stats_of(waits={"decoding": 31.0}, work={"decode": 400.0})
    few = replace(SETTING, cores=6)
    assert "; 2 more would help, but 6 cores for this rank do not cover it: use a smaller view=" in report(stats, few)
    assert "; all 6 cores for this rank are used: " in report(replace(stats, workers=6), few)
    assert "; 1 core is used: " in report(replace(stats, workers=1), replace(few, cores=1))
    assert "; num_workers=6 instead of 0 would help, but 6 cores" in report(replace(stats, workers=0), few)


def test_other_machines_are_named_if_they_pay():
    def remedy(cores, milliseconds, step=69.0, **changes):
        """Return the end of the sentence for a transform that takes some milliseconds, and crops of 224 pixels."""
        waits, work = {"transform": 31.0}, {"transform": 25.6 * milliseconds}
        stats = stats_of(workers=cores, step=step, waits=waits, work=work)
        return report(stats, replace(SETTING, cores=cores, sample_bytes=150_528, **changes)).partition("rank are ")[2]

    other = "used: use a cheaper transform=, or do its work on the device in batch_transform="
    assert remedy(2, 6.0) == f"{other}, or decode on other machines with num_workers=RayWorkers(3)"
    # 4 cores at 7 ms: half of them receive 28,571 images/s, the line carries 20,760, which are 146 workers
    assert remedy(4, 7.0, step=0.0) == f"{other}, or decode on other machines with num_workers=RayWorkers(146)"
    # 32 cores at 1.1 ms decode 29,000 images/s here
    limited = f"{other}; decoding on other machines would not pay, because "
    assert remedy(32, 1.1, step=0.0) == f"{limited}the network would limit it"
    assert remedy(2, 0.3, step=0.0) == f"{limited}the cores that receive would limit it"
    stats = stats_of(workers=2, waits={"transform": 31.0}, work={"transform": 256.0})
    there = replace(SETTING, cores=1, is_elsewhere=True)
    assert report(stats, there).endswith("; 3 more workers would cover it")
    ended = replace(stats, step_seconds=0.0)
    assert report(ended, there).endswith("; more workers would help")
    there = replace(there, sample_bytes=150_528)
    assert report(ended, there).endswith("; more workers would help, up to 72 in all")
    sent = report(stats_of(waits={"hand_over": 31.0}), there)
    assert sent.endswith(
        "; 38.5 MB/s arrived from other machines: use a faster network, a smaller view= or fewer fields="
    )


def test_a_loop_without_a_training_step_cannot_be_covered_by_workers():
    stats = stats_of(step=0.0, waits={"decoding": 100.0}, work={"decode": 400.0})
    assert workers_needed(stats) is None
    assert "12 more would help, but 16 cores for this rank do not cover it" in report(stats, SETTING)


def test_workers_that_are_fast_enough_on_average_need_more_batches_in_progress():
    stats = stats_of(waits={"transform": 31.0}, work={"transform": 100.0})
    assert report(stats, SETTING).endswith("a larger prefetch_factor= evens out slow batches")


@pytest.mark.parametrize(
    ("large", "ready", "remedy"),
    [
        (True, True, "pack them with images='resize'"),
        (True, False, "pack them with images='resize', or with images='crop-ready' to keep their pixels"),
        (False, True, "use a smaller view="),
        (False, False, "pack the images with images='crop-ready'"),
    ],
)
def test_the_remedy_for_decoding_depends_on_how_the_images_were_packed(large, ready, remedy):
    stats = stats_of(waits={"decoding": 31.0}, work={"decode": 400.0})
    setting = replace(SETTING, cores=4, has_large_images=large, is_crop_ready=ready)
    assert report(stats, setting).endswith(remedy)


def test_other_causes_have_their_own_remedies():
    def remedy(cause, setting=SETTING, **options):
        return report(stats_of(waits={cause: 31.0}, **options), setting)

    assert "it read 20 MB/s: use a faster disk" in remedy("storage")
    remote = remedy("storage", replace(SETTING, is_remote=True))
    assert "it fetched 10 MB/s: raise read_ahead_bytes= (now 512 MB)" in remote
    outage = remedy("storage", replace(SETTING, is_remote=True), fetched=FetchStatistics(blocks=9, cached_blocks=5))
    assert "it fetched 0 B/s: raise read_ahead_bytes=" in outage
    cached = remedy("storage", replace(SETTING, is_remote=True), fetched=FetchStatistics(blocks=9, cached_blocks=9))
    assert "it read 20 MB/s from the cache, which has all that was needed: put the cache on a faster disk" in cached
    assert "fetched" not in cached
    assert remedy("copy").startswith("copy: ")
    assert "copies to cuda:0 are too slow" in remedy("copy")
    for cause in ("copy", "hand_over"):
        assert "a view= that gives all images one size" in remedy(cause)
        assert "view=" not in remedy(cause, replace(SETTING, has_one_size=True))
    assert remedy("start").startswith("start of the workers: ")
    assert "use fewer fields=" in remedy("hand_over")
    assert "batch_transform= runs in the training process and takes 20 %: move its work to transform=" in remedy(
        "hand_over", work={"batch_transform": 20.0}
    )
    assert "use a cheaper transform=" in remedy("transform", replace(SETTING, cores=4), work={"transform": 900.0})
