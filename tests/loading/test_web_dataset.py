"""`WebDataset`: programs for webdataset run on it, each sample is delivered once per epoch, and a state resumes."""

import itertools
import warnings
from collections import Counter

import preloaded
import pytest
import torch
import webdataset as wds
from torch.utils.data import DataLoader

import wds_tools as wt
import wds_tools.webdataset as ours
from wds_tools.errors import ChecksumError, NotADatasetError, OptionError, ResumeError

KEYS = 40


def keys_of(samples):
    return [sample["__key__"] for sample in samples]


def pattern_of(folder):
    last = max(folder.glob("*.tar")).stem.rpartition("-")[2]
    return f"{folder}/shard-{{000000..{last}}}.tar"


def test_samples_are_those_of_webdataset(few):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = {sample["__key__"]: sample for sample in wds.WebDataset(pattern_of(few), shardshuffle=False)}
    ours = list(wt.WebDataset(pattern_of(few), shardshuffle=False))
    assert keys_of(ours) == list(theirs)
    for sample in ours:
        expected = {name: value for name, value in theirs[sample["__key__"]].items() if not name.startswith("__")}
        assert {name: bytes(value) for name, value in sample.items() if not name.startswith("__")} == expected


PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader
from {module} import WebDataset

def to_tensor(image):
    return torch.frombuffer(bytearray(image.resize((8, 8)).tobytes()), dtype=torch.uint8)

dataset = (
    WebDataset(sys.argv[1], shardshuffle=100)
    .shuffle(1000)
    .decode("pil")
    .to_tuple("jpg", "cls")
    .map_tuple(to_tensor, lambda label: label)
    .batched(8)
)
seen = []
for images, labels in DataLoader(dataset, batch_size=None, num_workers=2):
    seen += list(zip(images.sum(1).tolist(), torch.as_tensor(labels).tolist()))
print(sorted(seen))
"""


def test_a_program_for_webdataset_runs_after_one_import_is_changed(few):
    outputs = []
    for module in ("webdataset", "wds_tools"):
        done = preloaded.run(["-c", PROGRAM.format(module=module), pattern_of(few)])
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[1].count("(") == KEYS


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.torture_except("2")
def test_each_sample_is_delivered_once_per_epoch_by_any_number_of_workers(packed, workers):
    dataset = wt.WebDataset(packed, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    first, second = keys_of(loader), keys_of(loader)
    assert sorted(first) == sorted(second)
    assert len(set(first)) == len(first) == 400
    assert first != second


@pytest.mark.parametrize("world", [2, 3, 7])
def test_ranks_get_equally_many_samples_and_miss_less_than_one_each(packed, world):
    parts = [keys_of(wt.WebDataset(packed, shuffle=True, rank=rank, world_size=world)) for rank in range(world)]
    assert {len(part) for part in parts} == {400 // world}
    assert max(Counter(itertools.chain(*parts)).values()) == 1


def test_the_order_is_that_of_the_seed_and_the_epoch(few):
    def keys(epoch, **options):
        dataset = wt.WebDataset(few, shuffle=True, **options)
        dataset.set_epoch(epoch)
        return keys_of(dataset)

    assert keys(0) == keys(0) != keys(1)
    assert keys(0, seed=5) != keys(0)


def test_shuffle_right_after_the_source_shuffles_the_source_and_after_other_stages_it_is_a_buffer(few):
    stored = keys_of(wt.WebDataset(few, shardshuffle=False))
    shuffled = wt.WebDataset(few, shardshuffle=False).shuffle(KEYS)
    assert len(shuffled.pipeline) == 1
    assert sorted(keys_of(shuffled)) == sorted(stored) != keys_of(shuffled)
    assert len(wt.WebDataset(few, shardshuffle=10).shuffle(KEYS).pipeline) == 1
    buffered = wt.WebDataset(few, shardshuffle=False).map(lambda sample: sample).shuffle(KEYS)
    assert len(buffered.pipeline) == 3
    assert sorted(keys_of(buffered)) == sorted(stored) != keys_of(buffered)


@pytest.mark.parametrize("options", [{"resampled": True}, {"repeat": True}, {"mode": "resampled"}])
def test_a_resampled_dataset_continues_with_the_next_epoch(few, options):
    dataset = wt.WebDataset(few, shuffle=True, **options).with_epoch(3 * KEYS)
    keys = keys_of(dataset)
    assert set(Counter(keys).values()) == {3}
    assert len({tuple(keys[start : start + KEYS]) for start in range(0, 3 * KEYS, KEYS)}) == 3


@pytest.mark.parametrize("stopped", [0, 1, 63, 64, 65, 399])
@pytest.mark.parametrize("options", [{}, {"resampled": True}])
@pytest.mark.torture_except("options0-0", "options0-65", "options1-399")
def test_a_state_continues_at_the_next_sample(packed, stopped, options):
    count = 450 if options else 400
    whole = keys_of(itertools.islice(wt.WebDataset(packed, shuffle=True, **options), count))
    dataset = wt.WebDataset(packed, shuffle=True, **options)
    samples = iter(dataset)
    first = keys_of(itertools.islice(samples, stopped)) if stopped else []
    state = dataset.state_dict()
    later = wt.WebDataset(packed, shuffle=True, **options)
    later.load_state_dict(state)
    assert first + keys_of(itertools.islice(later, count - stopped)) == whole
    if not options:
        assert keys_of(later) != whole  # the next epoch
        assert sorted(keys_of(later)) == sorted(whole)


def test_a_state_with_batches_continues_at_the_next_batch(few):
    def batches(dataset):
        return [list(keys) for (keys,) in dataset.to_tuple("__key__").batched(8)]

    whole = batches(wt.WebDataset(few, shuffle=True))
    dataset = wt.WebDataset(few, shuffle=True)
    running = iter(dataset.to_tuple("__key__").batched(8))
    for _ in range(2):
        next(running)
    later = wt.WebDataset(few, shuffle=True)
    later.load_state_dict(dataset.state_dict())
    assert batches(later) == whole[2:]


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stopped", [0, 7])
@pytest.mark.torture_except("7-2")
def test_a_stateful_dataloader_continues_the_second_epoch(few, workers, stopped):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        dataset = wt.WebDataset(few, shuffle=True).to_tuple("__key__")
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    running = loader()
    list(running)
    second = iter(running)
    list(itertools.islice(second, stopped))
    state = running.state_dict()
    later = loader()
    later.load_state_dict(state)
    assert list(later) == list(second)
    assert list(later) == list(running)


def test_a_state_of_another_number_of_workers_is_refused(few):
    dataset = wt.WebDataset(few)
    dataset.load_state_dict({"epoch": 0, "samples": 3, "worker": 0, "num_workers": 2})
    with pytest.raises(ResumeError, match="saved with num_workers=2, now num_workers=1"):
        next(iter(dataset))


def test_an_object_that_is_not_a_state_is_refused(few):
    with wt.make_loader(few, batch_size=4, fields="__key__") as loader:
        state = loader.state_dict()
    with pytest.raises(ResumeError, match="not a state of a WebDataset"):
        wt.WebDataset(few).load_state_dict(state)


@pytest.fixture
def damaged(packed_copy):
    shard = packed_copy / "shard-000002.tar"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)
    return packed_copy


def test_an_unreadable_sample_is_an_error_or_left_out_by_the_handler(damaged):
    with pytest.raises(ChecksumError, match=r"shard-000002\.tar"):
        list(wt.WebDataset(damaged))
    seen = []

    def handler(error):
        seen.append(error)
        return True

    assert len(list(wt.WebDataset(damaged, handler=handler))) == 399
    assert [type(error) for error in seen] == [ChecksumError]


@pytest.mark.parametrize("resampled", [False, True])
def test_a_handler_that_returns_false_ends_the_iteration_at_the_unreadable_sample(packed, damaged, resampled):
    keys = [sample["__key__"] for sample in wt.WebDataset(packed)]
    (missing,) = {*keys} - {sample["__key__"] for sample in wt.WebDataset(damaged, handler=lambda _: True)}
    ended = wt.WebDataset(damaged, handler=lambda _: False, resampled=resampled)
    assert [sample["__key__"] for sample in ended] == keys[: keys.index(missing)]


def test_a_handler_that_returns_false_ends_a_pipeline_of_shards(damaged):
    shards = [str(damaged / f"shard-{number:06d}.tar") for number in (1, 2, 3)]
    samples = ours.tarfile_to_samples(handler=lambda _: False)
    pipeline = wds.DataPipeline(wds.SimpleShardList(shards), samples)
    urls = {sample["__url__"] for sample in pipeline}
    assert urls == set(shards[:2])


def test_fields_are_selected_and_renamed(few):
    sample = next(iter(wt.WebDataset(few, select_files=lambda name: name.endswith(".cls"))))
    assert set(sample) == {"__key__", "__url__", "cls"}
    sample = next(iter(wt.WebDataset(few, rename_files=lambda name: name.replace(".cls", ".label"))))
    assert "label" in sample
    assert "cls" not in sample


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "odd"}, "mode='odd' is not supported"),
        ({"url_to_name": str}, "url_to_name= is not supported: use cache_dir="),
        ({"urls": {"datasets": []}}, "combine several datasets with wds_tools.merge"),
        ({"urls": "datasets.yaml"}, "urls= must be a folder"),
        ({"urls": "pipe:cat a.tar"}, "is a command: pass the URL itself"),
    ],
)
def test_an_option_without_a_meaning_is_refused_with_the_alternative(few, options, text):
    with pytest.raises(OptionError, match=text):
        wt.WebDataset(**{"urls": str(few), **options})


def test_shards_without_an_index_are_refused_with_the_command(few, tmp_path):
    (tmp_path / "a-000000.tar").write_bytes((few / "shard-000000.tar").read_bytes())
    with pytest.raises(NotADatasetError, match="wds-tools index"):
        wt.WebDataset(str(tmp_path / "a-{000000..000000}.tar"))


def test_without_a_node_splitter_each_rank_reads_everything(few, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(list(wt.WebDataset(few))) == len(list(wt.WebDataset(few, nodesplitter=wds.split_by_node))) == KEYS // 2
    assert len(list(wt.WebDataset(few, nodesplitter=None))) == KEYS


@pytest.mark.parametrize("rank", [0, 1])
def test_a_splitter_for_workers_gets_the_shards_of_its_rank(few, rank):
    shards = sorted(map(str, few.glob("*.tar")))
    seen = []

    def all_of_them(src):
        seen.extend(shard["url"] for shard in src)
        return [{"url": url} for url in seen]

    dataset = wt.WebDataset(shards, workersplitter=all_of_them, rank=rank, world_size=2)
    assert {sample["__url__"] for sample in dataset} == set(seen) == set(shards[rank::2])


ITERATION_THAT_DOES_NOT_END = """
import sys
import wds_tools as wt
samples = iter(wt.WebDataset(sys.argv[1], resampled=True))
print(next(samples)["__key__"])
"""


def test_an_iteration_that_python_ends_at_its_exit_prints_nothing(few):
    done = preloaded.run(["-c", ITERATION_THAT_DOES_NOT_END, str(few)])
    assert done.stdout
    assert done.stderr == ""


def test_options_of_the_source_select_samples(few):
    labels = {int(sample["cls"]) for sample in wt.WebDataset(few, where="label == 3")}
    assert labels == {3}
    batch = next(iter(wt.WebDataset(few).decode("torchrgb").to_tuple("jpg", "cls")))
    assert torch.is_tensor(batch[0])
