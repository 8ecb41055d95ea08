"""Manifests of many shards: parsed once per machine, mapped by all processes, and never pickled."""

import json
import pickle
import shutil
from dataclasses import replace

import pytest

import wds_tools as wt
from wds_tools.errors import ManifestError, StoreError
from wds_tools.format.manifest import from_json, order_fingerprint, to_json
from wds_tools.reading.opening import join_sets, open_shards


@pytest.fixture
def mapped(monkeypatch):
    """Map manifests of any size."""
    monkeypatch.setattr("wds_tools.reading.manifests.LEAST_BYTES", 0)


def unparsable(*_, **__):
    raise AssertionError("the manifest is parsed")


@pytest.fixture
def rewritten(packed_copy):
    """Return the manifest of a dataset, of which some shards were rewritten in place."""
    path = packed_copy / "manifest.json"
    manifest = from_json(path.read_bytes())
    shards = [
        replace(entry, name=f"ü-{number}.tar", index=f"ü-{number}.parquet", xxh3=f"{number:032x}", before=entry)
        if number % 2
        else entry
        for number, entry in enumerate(manifest.shards)
    ]
    path.write_text(to_json(replace(manifest, shards=tuple(shards))))
    return path


def test_a_mapped_manifest_has_what_its_json_has(rewritten, mapped):
    expected = from_json(rewritten.read_bytes())
    for _ in range(2):
        found = open_shards(rewritten.parent).manifest
        assert type(found.shards) is not tuple
        assert found == expected
        assert found.checksum == expected.checksum
        assert list(found.shards) == list(expected.shards)
        assert [found.shards[-1], *found.shards[1:3]] == [expected.shards[-1], *expected.shards[1:3]]
        assert found.shard_samples.tolist() == [entry.samples for entry in expected.shards]
        totals = ("samples", "bytes", "order_bytes", "fingerprint")
        assert [getattr(found, name) for name in totals] == [getattr(expected, name) for name in totals]
        assert order_fingerprint(found.shards) == order_fingerprint(expected.shards) != found.fingerprint
        assert order_fingerprint(found.shards[:2]) == order_fingerprint(expected.shards[:2])
        with pytest.raises(IndexError):
            found.shards[len(expected.shards)]


def test_it_is_parsed_once_and_the_locations_are_made_of_it(packed, mapped, monkeypatch):
    expected = [location.entry for location in open_shards(packed).locations]
    monkeypatch.setattr("wds_tools.reading.manifests.parse", unparsable)
    found = open_shards(packed)
    assert [location.entry for location in found.locations] == expected
    assert found.locations[1].entry == expected[1]
    assert found.locations[1:] == [found.locations[number] for number in range(1, len(expected))]
    assert found.index(0).keys


def test_a_pickled_dataset_has_no_shards_and_is_mapped_again(packed, mapped, monkeypatch):
    shards = open_shards(packed)
    data = pickle.dumps(shards)
    assert shards.manifest.shards[0].xxh3.encode() not in data
    assert bytes.fromhex(shards.manifest.shards[0].xxh3) not in data
    monkeypatch.setattr("wds_tools.reading.manifests.parse", unparsable)
    again = pickle.loads(pickle.dumps(pickle.loads(data)))
    assert again.manifest == shards.manifest
    assert again.index(0).keys == shards.index(0).keys


def test_without_a_cache_the_shards_are_pickled(packed, mapped, monkeypatch):
    monkeypatch.setenv("WDS_TOOLS_CACHE_BYTES", "1")
    shards = open_shards(packed)
    data = pickle.dumps(shards)
    monkeypatch.setattr("wds_tools.reading.manifests.parse", unparsable)
    assert pickle.loads(data).manifest == shards.manifest


def test_a_process_reads_the_manifest_again_if_the_cache_was_cleared(packed_copy, mapped, tmp_path):
    shards = open_shards(packed_copy)
    data = pickle.dumps(shards)
    shutil.rmtree(tmp_path / "cache")
    assert pickle.loads(data).manifest == shards.manifest
    shutil.rmtree(tmp_path / "cache")
    path = packed_copy / "manifest.json"
    path.write_text(to_json(replace(from_json(path.read_bytes()), classes=("other",) * len(shards.manifest.classes))))
    with pytest.raises(StoreError, match=r"manifest.json was replaced by another version of the dataset"):
        pickle.loads(data)


def test_an_edited_manifest_is_refused_even_if_it_was_mapped_before(packed_copy, mapped):
    open_shards(packed_copy)
    path = packed_copy / "manifest.json"
    path.write_text(path.read_text().replace('"samples": 400', '"samples": 401'))
    with pytest.raises(ManifestError, match=r"has the checksum .*, but its last line states"):
        open_shards(packed_copy)


def test_a_manifest_of_the_first_version_is_parsed(packed_copy, mapped):
    path = packed_copy / "manifest.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**{key: value for key, value in raw.items() if key != "xxh3"}, "version": 1}))
    assert open_shards(packed_copy).manifest.samples == 400


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same(packed, monkeypatch, workers):
    def batches():
        context = {"multiprocessing_context": "forkserver"} if workers else {}
        with wt.make_loader(
            packed, batch_size=50, shuffle=True, fields=("__key__", "label"), num_workers=workers, **context
        ) as loader:
            return [(batch.key, batch.label.tolist()) for _ in range(2) for batch in loader], loader.state_dict()

    expected = batches()
    monkeypatch.setattr("wds_tools.reading.manifests.LEAST_BYTES", 0)
    assert batches() == expected


def test_images_that_are_rewritten_in_place_are_followed(few_photos, tmp_path, mapped):
    packed = tmp_path / "packed"
    wt.pack(few_photos, packed, shard_bytes="300kB", images="keep", workers=1)
    with wt.make_loader(packed, batch_size=10, fields=("__key__",), num_workers=0) as loader:
        first = [batch.key for batch in loader]
        wt.reshard(packed, in_place=True, images="crop-ready", workers=1, progress=False)
        assert [batch.key for batch in loader] == first
        assert open_shards(packed).manifest.source["images"] == "crop-ready"


def keys_and_state(dataset, *, workers=2, fields=("__key__", "label"), **options):
    options |= {"multiprocessing_context": "forkserver"} if workers else {}
    with wt.make_loader(dataset, batch_size=5, shuffle=True, fields=fields, num_workers=workers, **options) as loader:
        return [[column if isinstance(column, list) else column.tolist() for column in b] for b in loader], (
            loader.state_dict()
        )


@pytest.fixture(scope="module")
def two(few, tmp_path_factory):
    """Return two datasets, of which the second has other shards and images that were rewritten in place."""
    first, other = (tmp_path_factory.mktemp("two") / name for name in ("first", "other"))
    wt.reshard(few, first, shard_bytes="150kB", images="keep", workers=1, progress=False)
    wt.reshard(few, other, shard_bytes="60kB", images="keep", workers=1, progress=False)
    wt.reshard(other, in_place=True, images="crop-ready", workers=1, progress=False)
    return first, other


def mixtures(two):
    return wt.Mixture(list(two), weights=[2, 1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_mixture_is_the_same_and_has_no_entries(two, monkeypatch, workers):
    expected = keys_and_state(mixtures(two), workers=0)
    shards = join_sets([open_shards(folder) for folder in two])
    entries = list(shards.locations), shards.manifest
    monkeypatch.setattr("wds_tools.reading.manifests.LEAST_BYTES", 0)
    assert keys_and_state(mixtures(two), workers=workers) == expected
    shards = join_sets([open_shards(folder) for folder in two])
    assert shards.manifest == entries[1]
    for name in ("samples", "bytes", "order_bytes", "fingerprint"):
        assert getattr(shards.manifest, name) == getattr(entries[1], name)
    assert order_fingerprint(shards.manifest.shards) == order_fingerprint(entries[1].shards)
    assert [one.entry for one in shards.locations] == [one.entry for one in entries[0]]
    assert [one.store.folder for one in shards.locations] == [one.store.folder for one in entries[0]]
    assert shards.manifest.shards[1].xxh3.encode() not in pickle.dumps(shards)


def test_a_mixture_of_a_mapped_and_a_small_manifest_is_the_same(two, monkeypatch):
    expected = keys_and_state(mixtures(two), workers=0)
    sizes = sorted((folder / "manifest.json").stat().st_size for folder in two)
    assert sizes[0] < sizes[1]
    monkeypatch.setattr("wds_tools.reading.manifests.LEAST_BYTES", sizes[1])
    assert keys_and_state(mixtures(two)) == expected


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_added_fields_of_a_mapped_manifest_are_read(few_copy, tmp_path, monkeypatch, is_rewritten):
    keys = [
        key for shard in range(len(open_shards(few_copy).locations)) for key in open_shards(few_copy).index(shard).keys
    ]
    for name in ("one.txt", "two.txt"):
        values = [{"key": key, name: f"{name} of {key}"} for key in keys]
        table = tmp_path / f"{name}.jsonl"
        table.write_text("".join(json.dumps(value) + "\n" for value in values))
        wt.add_fields(few_copy, table, workers=1, progress=False)
    if is_rewritten:
        wt.reshard(few_copy, in_place=True, images="crop-ready", workers=1, progress=False)
    options = [{"fields": ("__key__", "one.txt", "two.txt")}, {"fields": ("__key__", "two.txt")}, {}]
    expected = [keys_and_state(few_copy, workers=0, **one) for one in options]
    joined = keys_and_state(wt.Mixture([few_copy, few_copy], weights=[1, 2]), workers=0, **options[0])
    monkeypatch.setattr("wds_tools.reading.manifests.LEAST_BYTES", 0)
    assert [keys_and_state(few_copy, **one) for one in options] == expected
    shards = open_shards(few_copy)
    assert shards.has_added
    assert shards.added_entries[0].xxh3.encode() not in pickle.dumps(shards)
    assert keys_and_state(wt.Mixture([few_copy, few_copy], weights=[1, 2]), **options[0]) == joined


def test_a_pattern_of_all_shards_is_mapped_and_of_some_is_the_same(two, monkeypatch):
    names = [[str(path) for path in sorted(folder.glob("*.tar"))] for folder in two]
    lists = [names[0], names[0][1:3], [*names[0], *names[1]], names[0][::-1], [names[0][0], names[1][0], names[0][1]]]
    expected = [keys_and_state(shards, workers=0) for shards in lists]
    monkeypatch.setattr("wds_tools.reading.manifests.LEAST_BYTES", 0)
    assert [keys_and_state(shards, workers=0) for shards in lists] == expected
    shards = open_shards(lists[2])
    assert shards.manifest.shards[1].xxh3.encode() not in pickle.dumps(shards)
