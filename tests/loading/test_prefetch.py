"""The next epoch is begun while the last batches of an epoch are used: it changes when batches are made, not which."""

import multiprocessing

import pytest
import torch
from bad_server import BadServer
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import DecodeError

VIEW = wt.RandomResizedCrop(32, flip=True)
OPTIONS = {
    "batch_size": 4,
    "view": VIEW,
    "shuffle": True,
    "fields": ("image", "label", "__key__"),
    "num_workers": 2,
    "multiprocessing_context": "fork",
}
STEPS = 10  # of an epoch of 40 samples


class Count:
    """A transform that counts its calls in all workers."""

    def __init__(self):
        self.calls = multiprocessing.Value("q", 0)

    def __call__(self, image):
        with self.calls.get_lock():
            self.calls.value += 1
        return image


@pytest.fixture(scope="module")
def expected(few):
    """Return the batches of four epochs, read by a loader for each epoch."""
    epochs = []
    for epoch in range(4):
        with wt.make_loader(few, **{**OPTIONS, "num_workers": 0}) as loader:
            loader.set_epoch(epoch)
            epochs.append([(images.clone(), labels, keys) for images, labels, keys in loader])
    return epochs


def assert_equal(batches, expected):
    batches = list(batches)
    assert [keys for _, _, keys in batches] == [keys for _, _, keys in expected]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(batches, expected, strict=True))


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.torture_except("True")
def test_the_first_batches_of_the_next_epoch_are_made_while_the_last_one_is_used(few, is_remote):
    count = Count()
    server = BadServer({f"/{path.name}": path.read_bytes() for path in few.iterdir()})
    with server.running(), wt.make_loader(server.url if is_remote else few, **OPTIONS, transform=count) as loader:
        for number, _ in enumerate(loader, 1):
            if number == STEPS:
                wait_for(lambda: count.calls.value >= (STEPS + 1) * 4)
        assert loader.state_dict()["epoch"] == 1
        assert loader.state_dict()["position"] == 0


def test_without_workers_no_epoch_is_begun_early(few):
    count = Count()
    with wt.make_loader(few, **{**OPTIONS, "num_workers": 0}, transform=count) as loader:
        list(loader)
        assert count.calls.value <= STEPS * 4 + 1


@pytest.mark.parametrize("options", [{}, {"prefetch_factor": 20}, {"num_workers": 1, "prefetch_factor": 1}])
@pytest.mark.torture_except("options2")
def test_consecutive_epochs_are_the_same(few, expected, options):
    with wt.make_loader(few, **{**OPTIONS, **options}) as loader:
        for epoch in range(4):
            assert_equal(loader, expected[epoch])


def test_another_epoch_is_read_after_set_epoch(few, expected):
    with wt.make_loader(few, **OPTIONS) as loader:
        for epoch in (0, 2, 2, 3, 1):
            loader.set_epoch(epoch)
            assert_equal(loader, expected[epoch])


def test_set_epoch_with_the_next_epoch_keeps_its_prefetched_batches(few, expected):
    count = Count()
    with wt.make_loader(few, **OPTIONS, transform=count) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert_equal(loader, expected[epoch])
        in_progress = 5 * 4  # two for each worker, and one that waits to be taken
        assert count.calls.value <= 3 * STEPS * 4 + in_progress + 1  # one sample more finds the shape of images


@pytest.mark.parametrize("steps", [1, 5, STEPS - 1, STEPS])
@pytest.mark.torture_except("1", "10")
def test_after_a_break_the_next_epoch_is_right(few, expected, steps):
    with wt.make_loader(few, **OPTIONS) as loader:
        assert_equal((batch for batch, _ in zip(loader, range(steps), strict=False)), expected[0][:steps])
        assert_equal(loader, expected[1])


def test_a_loaded_state_continues_in_the_middle_of_an_epoch(few, expected):
    with wt.make_loader(few, **OPTIONS) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        assert sum(1 for _ in batches) == STEPS - 3
        loader.load_state_dict(state)
        assert_equal(loader, expected[0][3:])
        assert_equal(loader, expected[1])


@pytest.mark.torture
def test_a_loader_that_is_closed_between_epochs_continues_with_the_next_one(few, expected, no_leftovers):
    with wt.make_loader(few, **OPTIONS) as loader:
        for epoch in range(2):
            assert_equal(loader, expected[epoch])
            loader.close()


class FailsInEpochOne:
    """A transform that fails for the first image after the first epoch."""

    def __init__(self):
        self.count = Count()

    def __call__(self, image):
        self.count(image)
        if self.count.calls.value > STEPS * 4 + 1:
            raise ValueError("too many images")
        return image


def test_an_error_of_the_next_epoch_is_raised_in_the_next_epoch(few):
    with wt.make_loader(few, **{**OPTIONS, "num_workers": 1}, transform=FailsInEpochOne()) as loader:
        assert sum(1 for _ in loader) == STEPS
        with pytest.raises(ValueError, match="too many images"):
            list(loader)


@pytest.fixture
def damaged(six_photos, tmp_path):
    """Return a dataset of 6 samples, of which one cannot be decoded."""
    path = sorted(six_photos.glob("*/*"))[2]
    shards = tmp_path / "damaged"
    wt.pack(six_photos, shards, workers=1, images="keep")
    data = path.read_bytes()
    (tar,) = shards.glob("*.tar")
    content = tar.read_bytes()
    at = content.index(data[:64]) + len(data) // 2
    tar.write_bytes(content[:at] + b"\xff\x00" * 8 + content[at + 16 :])
    return shards


def test_replaced_samples_are_listed_in_the_epoch_that_delivered_them(damaged):
    options = {"batch_size": 3, "view": VIEW, "num_workers": 1, "prefetch_factor": 4, "on_error": "replace"}
    with wt.make_loader(damaged, **options, max_errors=1) as loader:
        for epoch in range(3):
            assert sum(1 for _ in loader) == 2
            assert [one.epoch for one in loader.errors] == [epoch]
    with wt.make_loader(damaged, **{**options, "on_error": "raise"}) as loader:
        for _ in range(2):
            with pytest.raises((DecodeError, wt.errors.ChecksumError)):
                list(loader)
