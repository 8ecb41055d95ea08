"""Programs for webdataset run when one line is changed to ``import wds_tools.webdataset as wds``.

Each program is reduced from a kind of program that is found in public code, and runs with both modules on shards that
webdataset itself wrote.
"""

import io
import itertools
import json
import os
import random
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, default_collate

import wds_tools as wt
import wds_tools.webdataset
from wds_tools.errors import NotADatasetError, OptionError

SAMPLES, PER_SHARD = 12, 3
KEYS = [f"{number:03d}" for number in range(SAMPLES)]
PAIRS = {(key, number % 5) for number, key in enumerate(KEYS)}
EVERY_EPOCH, DRAWN = "every epoch", "drawn"


def write(folder, keys=KEYS):
    """Write shards with webdataset."""
    folder.mkdir()
    shards = [keys[start : start + PER_SHARD] for start in range(0, len(keys), PER_SHARD)]
    for number, names in enumerate(shards):
        with webdataset.TarWriter(f"{folder}/train-{number:04d}.tar") as writer:
            for key in names:
                image = Image.new("RGB", (6, 4), (int(key), 0, 255))
                writer.write(
                    {
                        "__key__": key,
                        "png": image,
                        "cls": int(key) % 5,
                        "json": {"key": key, "width": 6, "text": f"tile {key}"},
                        "txt": f"caption {key}",
                        "embedding.npy": np.full(4, int(key), np.float32),
                    }
                )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of shards that webdataset wrote, indexed once."""
    folder = write(tmp_path_factory.mktemp("programs") / "all")
    wt.index_shards(f"{folder}/*.tar")
    return folder


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """Return two folders with one half of the samples each."""
    root = tmp_path_factory.mktemp("slides")
    for name, keys in {"slide_a": KEYS[:6], "slide_b": KEYS[6:]}.items():
        write(root / name, keys)
    wt.index_folders([f"{root}/*/*.tar"])
    return root


def listed(folder):
    return sorted(str(path) for path in folder.glob("*.tar"))


def pair_of(sample):
    return sample["__key__"], int(sample["cls"])


# --- the programs: each returns (key, class) of the samples that it got ---


def fmri(wds, folder):
    """A list of shards with its own identity splitter, resampled, and an epoch of a given length."""

    def my_split_by_node(urls):
        return urls

    dataset = (
        wds.WebDataset(listed(folder), resampled=True, nodesplitter=my_split_by_node)
        .shuffle(500, initial=500, rng=random.Random(42))
        .decode("torch")
        .rename(image="jpg;png", vector="embedding.npy", label="cls", key="__key__")
        .to_tuple("key", "image", "vector", "label")
        .batched(4, partial=False)
        .with_epoch(5)
    )
    found = []
    for keys, images, vectors, labels in DataLoader(dataset, batch_size=None, num_workers=1):
        assert images.shape == (4, 3, 4, 6)
        assert vectors[:, 0].tolist() == [int(key) for key in keys]
        found += zip(keys, labels.tolist(), strict=True)
    assert len(found) == 20
    return found


def panoptic(wds, folder):
    """A subclass of WebDataset that adds its stages in __init__."""

    class Panoptic(wds.WebDataset):
        def __init__(self, root):
            super().__init__(listed(root), shardshuffle=False, handler=wds.warn_and_continue)
            self.names = ["a", "b", "c", "d", "e"]

        def pixels(self):
            return self.decode("pil", handler=wds.warn_and_continue).map(self.convert)

        def convert(self, sample):
            return {**sample, "red": np.asarray(sample["png"])[0, 0, 0], "name": self.names[sample["cls"]]}

    samples = list(Panoptic(folder).pixels())
    assert [sample["red"] for sample in samples] == list(range(SAMPLES))
    return [(sample["__key__"], "abcde".index(sample["name"])) for sample in samples]


def imagenet(wds, folder):
    """The loader of webdataset's own examples: batches from the workers are mixed again by a WebLoader."""
    dataset = wds.WebDataset(
        f"{folder}/train-{{0000..0003}}.tar",
        shardshuffle=100,
        nodesplitter=wds.split_by_node,
        workersplitter=wds.split_by_worker,
    )
    dataset = dataset.shuffle(1000).decode("pil").to_tuple("jpg;png;jpeg", "json", "cls")
    dataset = dataset.map_tuple(np.asarray, lambda meta: int(meta["key"]), int).batched(2)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    loader = loader.unbatched().shuffle(100).batched(3)
    batches = list(loader)
    assert all(images.shape[1:] == (4, 6, 3) for images, _, _ in batches)
    return [(f"{key:03d}", int(label)) for _, keys, labels in batches for key, label in zip(keys, labels, strict=True)]


def language_model(wds, folder):
    """A DataPipeline from a list of shards, with a shuffle of shards that every node repeats."""
    pipeline = [
        wds.SimpleShardList(listed(folder)),
        wds.detshuffle(bufsize=100, initial=50, seed=3),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(handler=wds.reraise_exception),
        wds.shuffle(bufsize=10, initial=5),
        wds.map(lambda sample: {**sample, "tokens": sample["txt"].decode().split()}),
        wds.to_tuple("__key__", "tokens", "cls", handler=wds.reraise_exception),
        wds.batched(4, collation_fn=list, partial=True),
    ]
    loader = wds.WebLoader(wds.DataPipeline(*pipeline), batch_size=None, num_workers=2, persistent_workers=True)
    samples = [sample for batch in loader for sample in batch]
    assert all(tokens == ["caption", key] for key, tokens, _ in samples)
    return [(key, int(label)) for key, _, label in samples]


def retrieval(wds, folder):
    """Filter and transform samples of a list, with handlers of the submodule."""

    def has_caption(sample):
        return "txt" in sample and "png" in sample

    def prepare(sample):
        image = Image.open(io.BytesIO(sample["png"]))
        meta = json.loads(sample["json"])
        return {"image": np.asarray(image), "text": sample["txt"].decode(), "key": meta["key"], "label": sample["cls"]}

    dataset = wds.WebDataset(
        listed(folder), cache_dir=None, cache_size=10**10, handler=wds.handlers.warn_and_continue, shardshuffle=False
    )
    dataset = dataset.select(has_caption).map(prepare, handler=wds.handlers.warn_and_continue)
    loader = DataLoader(dataset, batch_size=5, num_workers=0, collate_fn=list)
    return [(sample["key"], int(sample["label"])) for batch in loader for sample in batch]


def text_to_image(wds, folder):
    """Read a list with the splitters of webdataset named, and repeat it without an end."""
    dataset = wds.WebDataset(
        listed(folder),
        resampled=True,
        shardshuffle=False,
        nodesplitter=wds.split_by_node,
        workersplitter=wds.split_by_worker,
        handler=wds.ignore_and_continue,
        seed=1,
    )
    dataset = dataset.decode("torchrgb", handler=wds.ignore_and_continue).to_tuple("png", "json", "cls")
    loader = wds.WebLoader(dataset, batch_size=4, num_workers=2, collate_fn=list)
    batches = itertools.islice(iter(loader), 7)
    return [(meta["key"], label) for batch in batches for _, meta, label in batch]


def tiles(wds, slides):
    """Several folders of tiles, one for each slide."""
    shards = sorted(str(path) for path in slides.glob("*/*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("png", "json", "__key__", "cls")
    return [(key, label) for image, meta, key, label in dataset if image.width == meta["width"]]


def genomics(wds, folder):
    """A subset of the shards, with arrays, and a length for the progress bar."""
    dataset = wds.WebDataset(listed(folder)[1:3], shardshuffle=False).decode().map_dict(cls=int)
    dataset = dataset.with_length(6, silent=True)
    samples = list(dataset)
    assert len(dataset) == len(samples)
    assert all(sample["embedding.npy"].tolist() == [int(sample["__key__"])] * 4 for sample in samples)
    return [pair_of(sample) for sample in samples]


def side_program(wds, folder):
    """Each worker reads everything and takes its share itself."""
    dataset = wds.WebDataset(listed(folder), workersplitter=None, empty_check=False, shardshuffle=False)

    def own_share(samples):
        info = torch.utils.data.get_worker_info()
        return itertools.islice(samples, info.id, None, info.num_workers)

    return [pair_of(sample) for sample in DataLoader(dataset.compose(own_share), batch_size=None, num_workers=2)]


def shard_manager(wds, folder):
    """An object that hands out shards; the dataset gets a generator."""

    class Manager:
        def __init__(self, shards):
            self.known = dict.fromkeys(shards)

        def urls(self):
            yield from self.known

    dataset = wds.WebDataset(Manager(listed(folder)).urls(), shardshuffle=False).map(pair_of)
    return list(dataset)


def speech(wds, folder):
    """Shards are divided by the program itself, so webdataset divides nothing among the nodes."""
    rank, world = 1, 2
    shards = listed(folder)
    own = shards[rank * len(shards) // world : (rank + 1) * len(shards) // world]
    dataset = wds.WebDataset(own, shardshuffle=False, nodesplitter=None)
    dataset = dataset.rename(audio="wav;png", key="__key__", label="cls").to_tuple("audio", "key", "label")
    return [(key, int(label)) for _, key, label in dataset]


def contrastive_training(wds, folder):
    """A list of shards of its own class, which draws shards; samples are assembled by functions of a submodule."""

    class DrawnShards(IterableDataset):
        def __init__(self, urls):
            self.urls = urls

        def __iter__(self):
            rng = random.Random(5)
            while True:
                yield {"url": rng.choice(self.urls)}

    def without_raising(src, handler=wds.warn_and_continue):
        streams = wds.tariterators.url_opener(src, handler=handler)
        files = wds.tariterators.tar_file_expander(streams, handler=handler)
        return wds.tariterators.group_by_keys(files, handler=handler)

    dataset = wds.DataPipeline(
        DrawnShards(listed(folder)),
        without_raising,
        wds.select(lambda sample: "txt" in sample),
        wds.decode("pilrgb", handler=wds.warn_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="txt", key="__key__", label="cls"),
        wds.map_dict(image=np.asarray, text=str.upper),
        wds.to_tuple("image", "text", "key", "label"),
        wds.batched(4, partial=False),
    ).with_epoch(3)
    loader = wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=1)
    loader.num_batches = 3
    return [pair for _, _, keys, labels in loader for pair in zip(keys, labels.tolist(), strict=True)]


def contrastive_drawn(wds, folder):
    """The same with ResampledShards and the stage of webdataset for samples."""
    dataset = wds.DataPipeline(
        wds.ResampledShards(listed(folder), deterministic=True),
        wds.tarfile_to_samples(handler=wds.warn_and_continue),
        wds.shuffle(20, initial=10),
        wds.decode("pilrgb", handler=wds.warn_and_continue),
        wds.to_tuple("__key__", "cls"),
        wds.batched(4, collation_fn=list, partial=False),
    ).with_epoch(3)
    return [pair for batch in dataset for pair in batch]


def contrastive_validation(wds, folder):
    """The validation part: each sample once, in the order of the shards."""
    pipeline = [wds.SimpleShardList(f"{folder}/train-{{0000..0003}}.tar")]
    pipeline += [wds.split_by_worker, wds.tarfile_to_samples(handler=wds.warn_and_continue), wds.decode("pilrgb")]
    pipeline += [wds.to_tuple("__key__", "cls"), wds.batched(4, collation_fn=default_collate, partial=True)]
    batches = wds.WebLoader(wds.DataPipeline(*pipeline), batch_size=None, num_workers=2)
    return [pair for keys, labels in batches for pair in zip(keys, labels.tolist(), strict=True)]


def embeddings(wds, folder):
    """A subclass of DataPipeline with tarfile_samples as a function and a selection of files."""

    class Embeddings(wds.DataPipeline):
        def __init__(self, urls):
            read = partial(wds.tarfile_samples, select_files=lambda name: name.endswith((".npy", ".cls")))
            super().__init__(wds.SimpleShardList(urls), wds.split_by_node, wds.split_by_worker, read, wds.decode())

    samples = list(Embeddings(listed(folder)))
    assert {name for sample in samples for name in sample if name[0] != "_"} == {"embedding.npy", "cls"}
    return [pair_of(sample) for sample in samples]


def mix(wds, slides):
    """Two datasets in random proportions."""
    parts = [wds.WebDataset(listed(slides / name), shardshuffle=False) for name in ("slide_a", "slide_b")]
    return [pair_of(sample) for sample in wds.RandomMix(parts, probs=[0.5, 0.5], longest=True)]


def round_robin(wds, slides):
    """Two datasets in turns, inside of another pipeline."""
    parts = [wds.WebDataset(listed(slides / name), shardshuffle=False) for name in ("slide_a", "slide_b")]
    return list(wds.DataPipeline(wds.RoundRobin(parts), wds.map(pair_of)))


def non_empty(wds, folder):
    """A check of webdataset in the place of the splitter."""
    dataset = wds.WebDataset(listed(folder), nodesplitter=wds.non_empty, shardshuffle=False)
    return [pair_of(sample) for sample in dataset]


def identity(wds, folder):
    """A function of webdataset's utils, and a stage that is appended in place."""
    dataset = wds.WebDataset(f"{folder}/train-{{0000..0003}}.tar", shardshuffle=False).map(wds.utils.identity)
    dataset.append(wds.map(pair_of))
    return list(dataset)


def file_urls(wds, folder):
    """Shards as file: URLs in both spellings."""
    shards = listed(folder)
    urls = [f"file://{name}" for name in shards[:2]] + [f"file:{name}" for name in shards[2:]]
    return [pair_of(sample) for sample in wds.WebDataset(urls, shardshuffle=False)]


def two_patterns(wds, folder):
    """Two patterns in one string."""
    urls = f"{folder}/train-{{0000..0001}}.tar::{folder}/train-{{0002..0003}}.tar"
    return [pair_of(sample) for sample in wds.WebDataset(urls, shardshuffle=False)]


def ranks_of_its_own(wds, folder):
    """A splitter that looks up the rank itself, under a launcher, with workers."""

    def by_rank(src, group=None):
        for number, shard in enumerate(src):
            if number % int(os.environ["WORLD_SIZE"]) == int(os.environ["RANK"]):
                yield shard

    dataset = wds.WebDataset(listed(folder), nodesplitter=by_rank, shardshuffle=False)
    return [pair_of(sample) for sample in DataLoader(dataset, batch_size=None, num_workers=2)]


def workers_of_its_own(wds, folder):
    """Splitters for ranks and workers, both of the program."""

    def by_worker(src):
        info = torch.utils.data.get_worker_info()
        return [shard for number, shard in enumerate(src) if number % info.num_workers == info.id]

    dataset = wds.WebDataset(listed(folder), nodesplitter=lambda src: src, workersplitter=by_worker, shardshuffle=False)
    return [pair_of(sample) for sample in DataLoader(dataset, batch_size=None, num_workers=2)]


def image_handler(wds, folder):
    """A handler of images as an object, in a with statement."""
    with wds.WebDataset(listed(folder), shardshuffle=False) as dataset:
        decoded = dataset.decode(wds.imagehandler("torchrgb"))
        return [pair_of(sample) for sample in decoded if sample["png"].shape == (3, 4, 6)]


def repeated(wds, folder):
    """A dataset that is repeated and cut, as for a fixed number of steps."""
    dataset = wds.WebDataset(listed(folder), shardshuffle=False).to_tuple("__key__", "cls").map_tuple(str, int)
    steps = list(dataset.repeat(2).slice(2 * SAMPLES))
    assert len(steps) == 2 * SAMPLES
    return steps[:SAMPLES]


def lightning_module(wds, folder):
    """A data module with one loader for training and one for validation."""

    class Data:
        def loader(self, urls, *, train):
            dataset = wds.WebDataset(urls, shardshuffle=10 if train else False, detshuffle=train, verbose=False)
            if train:
                dataset = dataset.shuffle(100)
            dataset = dataset.decode("pil").to_tuple("__key__", "png", "cls").batched(2, collation_fn=None)
            return wds.WebLoader(dataset, batch_size=None, num_workers=1, shuffle=False)

    data, shards = Data(), listed(folder)
    batches = [*data.loader(shards[:3], train=True), *data.loader(shards[3:], train=False)]
    return [(key, label) for batch in batches for key, _, label in batch]


def write_and_read(wds, folder, tmp_path):
    """Shards are written, and read by the same program."""
    pattern = f"{tmp_path}/new-%06d.tar"
    with wds.ShardWriter(pattern, maxcount=5, maxsize=1e6, verbose=0) as writer:
        for key, label in sorted(PAIRS):
            writer.write({"__key__": key, "cls": label, "txt": "new"})
    return [pair_of(sample) for sample in wds.WebDataset(listed(tmp_path), shardshuffle=False)]


ON_FOLDER = [
    (fmri, DRAWN),
    (panoptic, EVERY_EPOCH),
    (imagenet, EVERY_EPOCH),
    (language_model, EVERY_EPOCH),
    (retrieval, EVERY_EPOCH),
    (text_to_image, DRAWN),
    (genomics, EVERY_EPOCH),
    (side_program, EVERY_EPOCH),
    (shard_manager, EVERY_EPOCH),
    (speech, EVERY_EPOCH),
    (contrastive_training, DRAWN),
    (contrastive_drawn, DRAWN),
    (contrastive_validation, EVERY_EPOCH),
    (embeddings, EVERY_EPOCH),
    (non_empty, EVERY_EPOCH),
    (identity, EVERY_EPOCH),
    (file_urls, EVERY_EPOCH),
    (two_patterns, EVERY_EPOCH),
    (ranks_of_its_own, EVERY_EPOCH),
    (workers_of_its_own, EVERY_EPOCH),
    (image_handler, EVERY_EPOCH),
    (repeated, EVERY_EPOCH),
    (lightning_module, EVERY_EPOCH),
]
ON_SLIDES = [(tiles, EVERY_EPOCH), (mix, EVERY_EPOCH), (round_robin, EVERY_EPOCH)]


def run_both(program, *arguments):
    """Return what a program gets with webdataset and with ours, and the warnings of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = program(webdataset, *arguments)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ours = program(wds_tools.webdataset, *arguments)
    return theirs, ours, [str(one.message) for one in found if issubclass(one.category, UserWarning)]


def check(program, delivery, *arguments):
    theirs, ours, messages = run_both(program, *arguments)
    assert len(ours) == len(theirs) > 0
    assert set(ours) <= PAIRS
    assert set(theirs) <= PAIRS
    if delivery == EVERY_EPOCH:
        assert sorted(ours) == sorted(theirs)
    assert all("no effect here" in message for message in messages)


@pytest.fixture
def second_rank(request, monkeypatch):
    if request.node.callspec.params["program"] is ranks_of_its_own:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.usefixtures("second_rank")
@pytest.mark.parametrize(("program", "delivery"), ON_FOLDER)
@pytest.mark.torture_except(
    "imagenet-every epoch", "contrastive_drawn-drawn", "speech-every epoch", "embeddings-every epoch"
)
def test_a_program_gets_the_same_samples(folder, program, delivery):
    check(program, delivery, folder)


@pytest.mark.parametrize(("program", "delivery"), ON_SLIDES)
def test_a_program_gets_the_same_samples_of_several_folders(slides, program, delivery):
    check(program, delivery, slides)


def test_a_program_reads_what_it_wrote(folder, tmp_path):
    (tmp_path / "theirs").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = write_and_read(webdataset, folder, tmp_path / "theirs")
    assert theirs == write_and_read(wds_tools.webdataset, folder, tmp_path / "ours") == sorted(PAIRS)


# --- what is behind it ---


def test_the_module_has_every_name_of_webdataset():
    names = {name for name in dir(webdataset) if not name.startswith("_")}
    assert names <= set(dir(wds_tools.webdataset))
    assert all(getattr(wds_tools.webdataset, name) is not None for name in names)
    assert wds_tools.webdataset.WebDataset is wt.WebDataset
    with pytest.raises(AttributeError, match=r"neither wds_tools.webdataset nor webdataset has 'WebLoadr'"):
        wds_tools.webdataset.WebLoadr  # noqa: B018


def test_a_pipeline_of_shards_verifies_what_it_reads(folder, tmp_path):
    copy = write(tmp_path / "copy")
    wt.index_shards(f"{copy}/*.tar")
    shard = copy / "train-0001.tar"
    content = bytearray(shard.read_bytes())
    content[content.index(b"caption 004")] ^= 255
    shard.write_bytes(content)
    wds = wds_tools.webdataset
    shards = wds.SimpleShardList(listed(copy))
    with pytest.raises(wt.ChecksumError, match=r"train-0001\.tar"):
        list(wds.DataPipeline(shards, wds.tarfile_to_samples()))
    seen = []
    samples = list(wds.DataPipeline(shards, wds.tarfile_to_samples(handler=lambda error: not seen.append(error))))
    assert len(samples) == SAMPLES - 1
    assert [type(error) for error in seen] == [wt.ChecksumError]
    shard.unlink()
    samples = list(wds.DataPipeline(shards, wds.tarfile_to_samples(handler=wds.ignore_and_continue)))
    assert len(samples) == SAMPLES - PER_SHARD


@pytest.mark.parametrize("urls", ["pipe:cat {0}", ["pipe:cat {0}", "pipe:cat {1}"]])
def test_a_command_is_refused_with_the_remedy(folder, urls):
    wds, shards = wds_tools.webdataset, listed(folder)
    urls = urls.format(*shards) if isinstance(urls, str) else [url.format(*shards) for url in urls]
    with pytest.raises(OptionError, match="is a command: pass the URL itself"):
        wds.WebDataset(urls)
    with pytest.raises(OptionError, match="is a command: pass the URL itself"):
        list(wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples()))


def test_shards_of_a_list_without_an_index_are_refused_with_the_command(tmp_path):
    shards = listed(write(tmp_path / "new"))
    wds = wds_tools.webdataset
    with pytest.raises(NotADatasetError, match="index it once with `wds-tools index"):
        wds.WebDataset(shards)
    with pytest.raises(NotADatasetError, match="index it once with `wds-tools index"):
        list(wds.DataPipeline(wds.SimpleShardList(shards), wds.tarfile_to_samples()))
    assert wds.WebDataset.__module__.startswith("wds_tools")


@pytest.mark.parametrize(
    ("urls", "error", "text"),
    [
        ([], NotADatasetError, "the list of shards is empty"),
        (
            ["shards/cats", "shards/dogs"],
            OptionError,
            r"shards/cats is in a list of shards, but is neither a \.tar file",
        ),
    ],
)
def test_a_list_of_something_else_is_refused(urls, error, text):
    with pytest.raises(error, match=text):
        wt.WebDataset(urls)
    with pytest.raises(error, match=text):
        wt.make_loader(urls, batch_size=1)


def test_a_loader_takes_a_list_of_shards(folder):
    shards = listed(folder)
    with wt.make_loader([shards[3], shards[0]], batch_size=3, fields="__key__", num_workers=0) as loader:
        assert [list(keys) for keys in loader] == [KEYS[9:], KEYS[:3]]
    dataset = wt.StreamingDataset(sorted(folder.glob("*.tar"))[1:3], fields="__key__")
    assert list(dataset) == KEYS[3:9]


def test_a_shard_that_is_listed_twice_is_read_twice(folder):
    shards = listed(folder)
    for options in ({}, {"nodesplitter": lambda src: src}):
        keys = [sample["__key__"] for sample in wt.WebDataset([shards[0], shards[1], shards[0]], **options)]
        assert sorted(keys) == sorted(KEYS[:6] + KEYS[:3])


def test_options_without_an_effect_are_reported_once(folder):
    with pytest.warns(UserWarning, match="no effect here: detshuffle=True .*, verbose=True") as found:
        wt.WebDataset(listed(folder), detshuffle=True, verbose=True)
    assert len(found) == 1
    assert found[0].filename == __file__


def test_a_splitter_that_returns_other_shards_is_refused(folder):
    dataset = wt.WebDataset(listed(folder), nodesplitter=lambda _: [{"url": "other.tar"}])
    with pytest.raises(OptionError, match=r"returned the shard 'other\.tar', which is not in urls="):
        list(dataset)
    dataset = wt.WebDataset(listed(folder), nodesplitter=lambda src: itertools.cycle(list(src)))
    with pytest.raises(OptionError, match="returned more than 1,000,000 shards"):
        list(dataset)


def test_class_weights_and_splitters_of_shards_exclude_each_other(folder):
    weighted = wt.WebDataset(listed(folder), class_weights="balanced", nodesplitter=lambda src: src)
    with pytest.raises(OptionError, match="class_weights= requires that samples are divided"):
        list(weighted)


def test_a_selection_applies_within_the_shards_of_a_splitter(folder):
    dataset = wt.WebDataset(listed(folder), where="label == 1", nodesplitter=lambda src: itertools.islice(src, 0, 2))
    assert [sample["__key__"] for sample in dataset] == ["001"]
    nothing = wt.WebDataset(listed(folder), where="label == 1", nodesplitter=lambda src: itertools.islice(src, 1, 2))
    with pytest.raises(OptionError, match="leaves this worker no sample"):
        list(nothing)


# --- few samples, many workers ---


def test_few_samples_are_dealt_to_all_workers(folder):
    dataset = wt.WebDataset(folder, resampled=True, shardshuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, timeout=30)
    keys = [sample["__key__"] for sample in itertools.islice(loader, 2 * SAMPLES)]
    assert sorted(keys) == sorted(2 * KEYS)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_worker_that_can_never_get_a_sample_raises_an_error(folder):
    dataset = wt.WebDataset(folder, resampled=True, where="id < 1")
    with pytest.raises(OptionError, match="worker 1 would never yield a sample, because 2 workers divide 1"):
        list(itertools.islice(DataLoader(dataset, batch_size=None, num_workers=2, timeout=30), 9))
    allowed = wt.WebDataset(folder, where="id < 1", empty_check=False)
    assert len(list(DataLoader(allowed, batch_size=None, num_workers=2))) == 1


def test_a_resampled_dataset_of_which_nothing_is_readable_raises_an_error(tmp_path):
    copy = write(tmp_path / "copy")
    wt.index_shards(f"{copy}/*.tar")
    for shard in copy.glob("*.tar"):
        content = np.fromfile(shard, np.uint8)
        (content ^ 255).tofile(shard)
    dataset = wt.WebDataset(copy, resampled=True, handler=lambda _: True)
    with pytest.raises(OptionError, match="left out all samples of worker 0"):
        next(iter(dataset))
