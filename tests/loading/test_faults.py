"""Failures of a loader are reported within a bounded time, and the next iteration works again."""

import contextlib
import copy
import itertools
import multiprocessing
import os
import pickle
import re
import runpy
import signal
import threading
import time
from collections import Counter
from itertools import islice

import numpy as np
import preloaded
import pytest
import torch
import webdataset
from pictures import encode
from PIL import Image
from worker_processes import worker_processes

import wds_tools as wt
from wds_tools.errors import LoaderError, OptionError, SampleError, TransformError, WorkerError
from wds_tools.loading import loader as loader_module
from wds_tools.loading.pipeline.pipeline import Pipeline

VIEW = wt.RandomResizedCrop(32, flip=True)
MAX_SECONDS = 250  # for operations of a few seconds on a busy machine; below the stall limit of 300 seconds


class UnpicklableError(Exception):
    """An exception whose unpickling fails: it stores one argument, but its __init__ requires two."""

    def __init__(self, what, why):
        super().__init__(f"{what} because of {why}")


def raises(kind, *args):
    """Return a transform that raises."""

    def transform(image):
        raise kind(*args)

    return transform


@pytest.fixture
def make(few, no_leftovers):
    """Return a function that creates loaders, which are closed at the end of the test."""
    made = []

    def make(dataset=few, **options):
        options = {"batch_size": 4, "num_workers": 1, "view": VIEW, "stall_seconds": 300.0, **options}
        made.append(wt.make_loader(dataset, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def run(script, *args, expect=0):
    """Run a program; return its standard output and standard error."""
    done = preloaded.run(["-c", script, *args])
    assert done.returncode == expect, done.stderr
    return done.stdout, done.stderr


# The iteration after a loop that was left early.


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.torture_except("1")
def test_a_worker_that_dies_after_a_break_is_replaced(make, number):
    loader = make(num_workers=2)
    start = time.monotonic()
    for _ in range(2):
        next(iter(loader))
        process = worker_processes()[number]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert len(list(loader)) == 10
    assert time.monotonic() - start < MAX_SECONDS


def test_a_worker_that_hangs_after_a_break_is_replaced_long_before_the_stall_limit(make, tmp_path, monkeypatch):
    monkeypatch.setattr("wds_tools.loading.pipeline.pipeline._DRAIN_SECONDS", 0.5)
    flag, calls = tmp_path / "hang", []
    flag.touch()

    def hangs(image):
        calls.append(1)
        if len(calls) > 6 and flag.exists():  # in the second batch of a worker, which is made ahead
            (tmp_path / "hangs").touch()
            time.sleep(1000)
        return image

    loader = make(transform=hangs)
    next(iter(loader))
    start = time.monotonic()
    while not (tmp_path / "hangs").exists():
        assert time.monotonic() - start < MAX_SECONDS
        time.sleep(0.01)
    flag.unlink()
    start = time.monotonic()
    assert len(list(loader)) == 10
    assert time.monotonic() - start < MAX_SECONDS


def test_an_exception_that_cannot_be_pickled_is_reported_with_its_text_in_each_epoch(make):
    loader = make(transform=raises(UnpicklableError, "no image", "no reason"))
    for _ in range(3):
        with pytest.raises(WorkerError, match=r"(?s)UnpicklableError: no image because of no reason"):
            next(iter(loader))


def test_the_iteration_after_an_exception_in_a_transform_is_complete(make, tmp_path):
    flag = tmp_path / "fail"

    def fails_if_flagged(image):
        if flag.exists():
            raise KeyError("now")
        return image

    loader = make(transform=fails_if_flagged)
    for _ in range(2):
        flag.touch()
        with pytest.raises(KeyError):
            list(loader)
        flag.unlink()
        assert len(list(loader)) == 10


# A transform that never returns.


def test_a_transform_that_hangs_on_the_first_sample_is_reported_with_its_stack(make):
    def hangs_here(image):
        time.sleep(1000)

    loader = make(transform=hangs_here, stall_seconds=1.0)
    with pytest.raises(WorkerError, match=r"sent nothing for 1 s[\s\S]*in hangs_here"):
        next(iter(loader))


# Exceptions that end processes and iterations.


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "kind", [BaseException, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration]
)
@pytest.mark.torture_except(
    "BaseException-2",
    "KeyboardInterrupt-0",
    "KeyboardInterrupt-2",
    "SystemExit-2",
    "GeneratorExit-0",
    "StopIteration-2",
    "StopAsyncIteration-0",
)
def test_an_exception_that_would_end_a_process_raises_transform_error_with_its_cause(make, kind, num_workers):
    if (kind, num_workers) == (KeyboardInterrupt, 0):  # in the main process it may be the user's Ctrl-C
        with pytest.raises(KeyboardInterrupt):
            next(iter(make(transform=raises(kind, "mine"), num_workers=0)))
        return
    with pytest.raises(TransformError, match=rf"key .*transform= raised {kind.__name__}\('mine'\)") as caught:
        list(make(transform=raises(kind, "mine"), num_workers=num_workers))
    assert isinstance(caught.value.__cause__, kind)
    if num_workers:
        assert "in transform" in str(caught.value.__notes__)


def test_an_exception_from_a_worker_keeps_its_cause(make):
    def fail(image):
        try:
            {}["the cause"]
        except KeyError as error:
            raise ValueError("the effect") from error

    with pytest.raises(ValueError, match="the effect") as caught:
        next(iter(make(transform=fail)))
    assert isinstance(caught.value.__cause__, KeyError)


# Wrong use of a loader.


@pytest.mark.parametrize("num_workers", [0, 2])
def test_next_after_close_raises_loader_error_and_a_new_iterator_works(make, num_workers):
    loader = make(num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(LoaderError, match="the loader was closed: create a new one"):
        next(batches)
    assert len(list(loader)) == 10


def test_close_from_another_thread_interrupts_waiting_for_a_batch(make, tmp_path):
    def slow(image):
        (tmp_path / "waits").touch()
        time.sleep(1000)

    def close():
        while not (tmp_path / "waits").exists():
            time.sleep(0.01)
        loader.close()

    for _ in range(2):
        (tmp_path / "waits").unlink(missing_ok=True)
        loader = make(transform=slow)
        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(LoaderError, match="closed"):
            next(iter(loader))
        closer.join()


def test_close_from_another_thread_while_workers_start_takes_effect(make, monkeypatch, no_leftovers):
    def start(*arguments):
        pipeline = Pipeline(*arguments)
        closer = threading.Thread(target=loader.close)  # before the loader has the pipeline
        closer.start()
        closer.join()
        return pipeline

    loader = make()
    monkeypatch.setattr(loader_module, "Pipeline", start)
    with pytest.raises(LoaderError, match="closed while its workers were started: create a new iterator"):
        next(iter(loader))
    monkeypatch.undo()
    assert len(list(loader)) == 10


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.torture_except("3-2")
def test_close_from_another_thread_between_two_batches_is_a_loader_error(make, monkeypatch, workers, step):
    class Closed(Pipeline):
        def batches(self, plan, following):
            batches = super().batches(plan, following)
            for number in range(len(plan)):
                if number == step:  # the loader has checked that it is not closed
                    closer = threading.Thread(target=loader.close)
                    closer.start()
                    closer.join()
                yield next(batches)

    loader = make(num_workers=workers)
    monkeypatch.setattr(loader_module, "Pipeline", Closed)
    batches = iter(loader)
    assert len(list(itertools.islice(batches, step))) == step
    with pytest.raises(LoaderError, match="the loader was closed"):
        next(batches)
    monkeypatch.undo()
    assert len(list(loader)) == 10


def test_close_from_another_thread_at_any_moment_raises_at_most_a_loader_error(make):
    loader = make(batch_size=2)
    for wait in (0.0, 0.05, 0.2):
        timer = threading.Timer(float(wait), loader.close)
        timer.start()
        with contextlib.suppress(LoaderError):
            for _ in loader:
                pass
        timer.join()
    assert len(list(loader)) == 20


def call_in_fork(function):
    """Call a function in a fork of this process; return the type and text of its exception, or "" and its result."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()

    def work():
        try:
            sender.send(("", str(function())))
        except BaseException as error:
            sender.send((type(error).__name__, str(error)))

    process = context.Process(target=work)
    process.start()
    assert receiver.poll(MAX_SECONDS), "the fork hangs"
    result = receiver.recv()
    process.join()
    return result


def test_in_a_fork_a_started_loader_is_refused_and_a_new_one_works(make):
    fresh, started = make(), make()
    batches = iter(started)
    next(batches)
    for function in (lambda: next(batches), lambda: next(iter(started))):
        kind, text = call_in_fork(function)
        assert kind == "LoaderError"
        assert f"belong to process {os.getpid()}" in text
    assert call_in_fork(lambda: len(list(fresh))) == ("", "10")
    assert len(list(batches)) == 9  # the loader of this process still works


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.torture_except("dumps")
def test_only_a_loader_that_has_not_started_can_be_copied_or_pickled(make, duplicate):
    loader = make()
    other = duplicate(loader)
    other = pickle.loads(other) if isinstance(other, bytes) else other
    with other:
        assert [batch.label.tolist() for batch in other] == [batch.label.tolist() for batch in make()]
    next(iter(loader))
    with pytest.raises(LoaderError, match=r"cannot be copied or pickled.*state_dict"):
        duplicate(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_used_in_its_own_transform_raises_loader_error(make, num_workers):
    def nested(image):
        next(iter(loader))

    loader = make(transform=nested, num_workers=num_workers)
    with pytest.raises(LoaderError, match=r"itself a worker|inside its own transform"):
        next(iter(loader))


def test_another_loader_in_a_transform_requires_num_workers_0(make, few):
    def nested(image, num_workers):
        with wt.make_loader(few, batch_size=1, view=VIEW, num_workers=num_workers) as other:
            return next(iter(other)).image[0]

    with pytest.raises(LoaderError, match="num_workers=0"):
        next(iter(make(transform=lambda image: nested(image, 1))))
    assert next(iter(make(batch_size=2, transform=lambda image: nested(image, 0)))).image.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_lambda_that_cannot_be_pickled_for_a_worker_raises_option_error(make, context):
    loader = make(transform=lambda image: image, multiprocessing_context=context)
    for _ in range(2):
        with pytest.raises(OptionError, match=r"cannot be pickled .*lambda.*top level of a module"):
            next(iter(loader))


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.torture)])
def test_the_error_of_a_script_without_main_guard_shows_the_guard(few, tmp_path, context):
    script = tmp_path / "train.py"
    script.write_text(
        "import wds_tools as wt\n"
        f"loader = wt.make_loader({str(few)!r}, batch_size=8, fields='label', num_workers=1,"
        f" multiprocessing_context={context!r})\n"
        "for batch in loader: pass\n"
    )
    with pytest.raises(WorkerError, match=r'if __name__ == "__main__":'):
        runpy.run_path(str(script), run_name="__main__")


def test_control_characters_in_keys_are_escaped_in_errors_and_logs(make, tmp_path, caplog):
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "evil\x1b[2J\u202ename", "jpg": b"\xff\xd8\xff\xe0 no more"})
    wt.index_shards([str(tmp_path / "a.tar")])
    loader = make(tmp_path, batch_size=1, fields="image")
    with pytest.raises(wt.DecodeError, match=r"key evil\\x1b\[2J\\u202ename"):
        list(loader)
    assert "evil\\x1b" in caplog.text
    assert "\x1b" not in caplog.text


# Unreadable samples.


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return a dataset of 60 images. Numbers 7, 20 and 41 cannot be decoded."""
    folder = tmp_path_factory.mktemp("damaged")
    with webdataset.TarWriter(str(folder / "a.tar")) as writer:
        for number in range(60):
            data = encode(Image.fromarray(np.full((40, 40, 3), 4 * number, np.uint8)), "JPEG", quality=95)
            if number in (7, 20, 41):
                data = data[: len(data) - 40] + b"\xff\xd9"
            writer.write({"__key__": f"k{number:02}", "jpg": data, "cls": str(number)})
    wt.index_shards([str(folder / "a.tar")])
    return folder


REPLACE = {"on_error": "replace", "max_errors": 3, "shuffle": True, "batch_size": 6, "fields": ("image", "__key__")}
BAD = {"k07", "k20", "k41"}


def epoch_of(loader):
    return [(batch.key, batch.image.clone()) for batch in loader]


def test_an_undecodable_image_raises_an_error_by_default(make, damaged):
    with pytest.raises(wt.DecodeError):
        list(make(damaged, shuffle=True))


def test_unreadable_samples_are_replaced_logged_and_listed(make, damaged, caplog):
    loader = make(damaged, **REPLACE)
    for epoch in range(2):
        batches = epoch_of(loader)
        keys = [key for keys, _ in batches for key in keys]
        assert len(batches) == 10
        assert len(keys) == 60
        assert set(keys) == {f"k{number:02}" for number in range(60)} - BAD
        assert {bad.key for bad in loader.errors} == BAD
        assert {bad.epoch for bad in loader.errors} == {epoch}
        assert all("DecodeError" in bad.reason for bad in loader.errors)
        proof = loader.epoch_proof()
        assert str(proof) == f"epoch {epoch}: 57 samples, each once; 3 unreadable and replaced"
        assert proof.ok
        assert proof.delivered + proof.replaced == proof.expected
    assert sum("sample replaced" in record.message for record in caplog.records) == 6


def test_substitutes_do_not_depend_on_workers_batches_or_resuming(make, damaged):
    def flat(batches):
        return [key for keys, _ in batches for key in keys], torch.cat([images for _, images in batches])

    keys, images = flat(epoch_of(make(damaged, **REPLACE)))
    for options in ({"num_workers": 0}, {"num_workers": 2, "batch_size": 4, "transform": torch.clone}):
        other_keys, other_images = flat(epoch_of(make(damaged, **{**REPLACE, **options})))
        assert other_keys == keys
        assert torch.equal(other_images, images)
    first = make(damaged, **{**REPLACE, "num_workers": 0})
    head = [(batch.key, batch.image.clone()) for batch in islice(first, 4)]
    second = make(damaged, **REPLACE)
    second.load_state_dict(first.state_dict())
    assert flat(head + epoch_of(second))[0] == keys


def test_replacing_works_for_full_images_and_several_ranks(make, damaged):
    whole = [key for batch in make(damaged, **{**REPLACE, "view": None}) for key in batch.key]
    assert len(whole) == 60
    parts = [
        list(make(damaged, **{**REPLACE, "batch_size": 3, "rank": rank, "world_size": 2, "num_workers": 1}))
        for rank in range(2)
    ]
    for step in range(10):
        both = Counter(key for part in parts for key in part[step].key)
        assert both == Counter(whole[6 * step : 6 * step + 6])


@pytest.mark.parametrize(("max_errors", "allowed"), [(2, 2), (0, 0), (0.04, 3), (0.01, 1)])
@pytest.mark.torture_except("2-2", "0.04-3")
def test_more_replaced_samples_than_max_errors_raise_sample_error(make, damaged, max_errors, allowed):
    loader = make(damaged, **{**REPLACE, "max_errors": max_errors})
    if allowed == 3:
        assert len(list(loader)) == 10
        return
    with pytest.raises(SampleError, match=rf"{allowed + 1} unreadable samples.*allows {allowed}") as caught:
        list(loader)
    assert caught.value.key in BAD
    assert isinstance(caught.value.__cause__, wt.DecodeError)


def test_errors_in_the_users_own_code_are_never_replaced(make, damaged):
    for error in (ValueError("mine"), wt.DecodeError("mine", key="k01")):

        def fail(image, error=error):
            raise error

        with pytest.raises((ValueError, TransformError), match="mine"):
            list(make(damaged, **{**REPLACE, "max_errors": 60, "transform": fail}))


def test_samples_with_a_wrong_checksum_are_replaced(make, few_copy):
    shard = next(few_copy.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[1024 + 600] ^= 1  # in the first image
    shard.write_bytes(data)
    loader = make(few_copy, **REPLACE)
    list(loader)
    assert [re.match("ChecksumError", bad.reason) is not None for bad in loader.errors] == [True]


def test_an_invalid_error_policy_is_refused(make):
    for options in ({"on_error": "skip"}, {"max_errors": -1}, {"max_errors": 1.5}, {"max_errors": "few"}):
        with pytest.raises(OptionError, match=r"on_error=|max_errors="):
            make(**options)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_streaming_dataset_uses_the_same_substitutes(make, damaged, num_workers):
    from torch.utils.data import DataLoader

    expected = [(batch.key, batch.image.clone()) for batch in make(damaged, **REPLACE)]
    options = {name: value for name, value in REPLACE.items() if name != "max_errors"}
    dataset = wt.StreamingDataset(damaged, view=VIEW, **options, max_errors=3)
    batches = list(DataLoader(dataset, batch_size=6, num_workers=num_workers))
    assert [list(batch.key) for batch in batches] == [key for key, _ in expected]
    assert all(torch.equal(batch.image, image) for batch, (_, image) in zip(batches, expected, strict=True))
    with pytest.raises(SampleError, match="max_errors=0 allows 0"):
        list(wt.StreamingDataset(damaged, view=VIEW, **options, max_errors=0))
    with pytest.raises(OptionError, match="decode=False"):
        wt.StreamingDataset(damaged, decode=False, on_error="replace")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_dataloader_of_the_attributes_of_a_loader_uses_the_same_substitutes(make, damaged, num_workers):
    """skip_first_batches of Accelerate creates such a DataLoader."""
    from torch.utils.data import DataLoader

    expected = [(batch.key, batch.image.clone()) for batch in make(damaged, **REPLACE)]
    loader = make(damaged, **REPLACE)
    parts = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn, "num_workers": num_workers}
    batches = list(DataLoader(loader.dataset, **parts))
    assert [batch.key for batch in batches] == [key for key, _ in expected]
    assert all(torch.equal(batch.image, image) for batch, (_, image) in zip(batches, expected, strict=True))
