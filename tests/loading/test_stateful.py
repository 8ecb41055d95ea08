"""StreamingDataset in torchdata's StatefulDataLoader: a resumed epoch continues with the same batches."""

import pickle
import shutil

import pytest
from plain_values import plain

import wds_tools as wt
from wds_tools.errors import ResumeError

pytestmark = [
    pytest.mark.frameworks,
    # torchdata calls a deprecated function of torch, and compares the workers with the cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker"),
]

VIEW = wt.RandomResizedCrop(16, flip=True)
FIELDS = {
    "image": wt.Image(view=VIEW),
    "crops": wt.Image("right.jpg", view=[VIEW, wt.Resize((8, 8))]),
    "mask": wt.Mask("mask.png", like="image"),
    "boxes": wt.Boxes(path="objects.bbox", like="image", pad=-1),
    "classes": wt.Field("json", path="objects.category", like="boxes", pad=-1),
    "text": wt.Text(encode=len),
    "label": wt.Label(),
    "key": wt.Key(),
}


def make(scenes, *, workers=0, context=None, persistent=False, batch_size=4, **options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    options = {"fields": FIELDS, "shuffle": True, "batch_size": batch_size, **options}
    dataset = wt.StreamingDataset(scenes, **options)
    return StatefulDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=dataset.collate_fn,
        multiprocessing_context=context,
        persistent_workers=persistent,
    )


def rest_of_epoch(loader):
    return [plain(batch) for batch in loader]


@pytest.fixture(scope="module")
def expected(scenes):
    """Return the batches of three epochs."""
    with wt.make_loader(scenes, batch_size=4, num_workers=0, fields=FIELDS, shuffle=True) as loader:
        return [rest_of_epoch(loader) for _ in range(3)]


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 2, "persistent": True},
        {"workers": 1, "context": "forkserver"},
    ],
    ids=repr,
)
@pytest.mark.torture_except("{'workers': 2, 'persistent': True}")
def test_an_epoch_that_is_left_is_continued_with_the_next_batch(scenes, expected, options):
    at = {0: (1,), 1: (0, 4), 2: (7, 9)} if options == {"workers": 0} else {1: (7,)}
    for epoch, steps in at.items():
        for step in steps:
            loader = make(scenes, **options)
            loader.dataset.set_epoch(epoch)
            iterator = iter(loader)
            first = [plain(next(iterator)) for _ in range(step)]
            assert first == expected[epoch][:step]
            state = pickle.loads(pickle.dumps(loader.state_dict()))
            del iterator
            resumed = make(scenes, **options)
            resumed.load_state_dict(state)
            assert rest_of_epoch(resumed) == expected[epoch][step:]
            if epoch < 2:
                assert rest_of_epoch(resumed) == expected[epoch + 1]  # and the next epoch follows


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("0")
def test_a_state_from_the_end_of_an_epoch_starts_the_next_one(scenes, expected, workers):
    loader = make(scenes, workers=workers)
    assert rest_of_epoch(loader) == expected[0]
    resumed = make(scenes, workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert rest_of_epoch(resumed) == expected[1]
    assert rest_of_epoch(resumed) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("0")
def test_a_state_from_before_the_first_batch_and_of_a_resumed_epoch_are_exact(scenes, expected, workers):
    loader = make(scenes, workers=workers)
    state = loader.state_dict()
    assert rest_of_epoch(loader) == expected[0]
    resumed = make(scenes, workers=workers)
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    assert [plain(next(iterator)) for _ in range(3)] == expected[0][:3]
    again = make(scenes, workers=workers)
    again.load_state_dict(resumed.state_dict())
    iterator = iter(again)
    assert [plain(next(iterator)) for _ in range(2)] == expected[0][3:5]
    last = make(scenes, workers=workers)
    last.load_state_dict(again.state_dict())
    assert rest_of_epoch(last) == expected[0][5:]


@pytest.mark.torture
def test_single_samples_and_another_batch_size_of_the_dataloader_are_continued(scenes):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader_of():
        dataset = wt.StreamingDataset(scenes, batch_size=5, fields=("__key__",), shuffle=True)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=2)

    keys = [sample.key for sample in loader_of()]
    for step in (1, 7, 12):
        loader = loader_of()
        iterator = iter(loader)
        assert [next(iterator).key for _ in range(step)] == keys[:step]
        resumed = loader_of()
        resumed.load_state_dict(loader.state_dict())
        assert [sample.key for sample in resumed] == keys[step:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture
def test_an_unreadable_sample_is_replaced_by_the_same_one_after_a_resume(scenes, tmp_path, workers):
    shutil.copytree(scenes, tmp_path / "copy")
    path = tmp_path / "copy" / "scenes-000000.tar"
    data = bytearray(path.read_bytes())
    data[data.index(b"0003.mask.png") + 700] ^= 1
    path.write_bytes(data)
    options = {"workers": workers, "on_error": "replace", "max_errors": 3}
    complete = rest_of_epoch(make(tmp_path / "copy", **options))
    assert all("0003" not in batch[list(FIELDS).index("key")] for batch in complete)
    for step in (2, 6):
        loader = make(tmp_path / "copy", **options)
        iterator = iter(loader)
        assert [plain(next(iterator)) for _ in range(step)] == complete[:step]
        resumed = make(tmp_path / "copy", **options)
        resumed.load_state_dict(loader.state_dict())
        assert rest_of_epoch(resumed) == complete[step:]


def test_ranks_are_continued_each_by_itself(scenes):
    ranks = {"world_size": 2, "fields": ("__key__",)}
    for rank in range(2):
        complete = rest_of_epoch(make(scenes, rank=rank, **ranks))
        loader = make(scenes, rank=rank, **ranks)
        iterator = iter(loader)
        next(iterator)
        resumed = make(scenes, rank=rank, **ranks)
        resumed.load_state_dict(loader.state_dict())
        assert rest_of_epoch(resumed) == complete[1:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 2}, "batch_size=4, this dataset has 2"),
        ({"rank": 0, "world_size": 2}, "world_size=1, this dataset has 2"),
        ({"where": "label < 4"}, "selection"),
    ],
)
def test_a_state_of_other_options_is_refused(scenes, change, words):
    state = make(scenes).dataset.state_dict()
    with pytest.raises(ResumeError, match=words):
        make(scenes, **change).dataset.load_state_dict(state)


def test_a_state_of_a_loader_or_of_another_number_of_workers_is_refused(scenes):
    dataset = make(scenes).dataset
    with wt.make_loader(scenes, batch_size=4, num_workers=0, fields="label") as loader:
        for state in (loader.state_dict(), {}, {**dataset.state_dict(), "samples": "x"}):
            with pytest.raises(ResumeError, match=r"not a (state of a StreamingDataset|loader state)|checksum of"):
                dataset.load_state_dict(state)
    unsealed = {name: value for name, value in dataset.state_dict().items() if name != "xxh3"}
    with pytest.raises(ResumeError, match="num_workers=2, this dataset has 1: use the same options"):
        dataset.load_state_dict({**unsealed, "num_workers": 2})
