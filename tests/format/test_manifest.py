"""The manifest: round trip, fingerprint, contradictions, hostile names, damaged text, checksum."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import ManifestError
from wds_tools.format.manifest import ImageStats, Manifest, ShardEntry, fingerprint, from_json, seal, to_json

counts = st.integers(0, 2**53)
checksums = st.text("0123456789abcdef", min_size=32, max_size=32)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    return Manifest(
        shards=tuple(
            ShardEntry(
                name=f"ü {number}.tar",
                samples=(samples := draw(st.integers(0, 2**38))),
                bytes=512 * samples + draw(counts),
                xxh3=draw(checksums),
                index=f"ü {number}.parquet",
                index_bytes=draw(counts),
                index_xxh3=draw(checksums),
            )
            for number in range(draw(st.integers(0, 4)))
        ),
        fields=draw(st.dictionaries(names, counts, max_size=4)),
        classes=tuple(draw(st.lists(names, max_size=4))),
        shuffled=draw(st.booleans()),
        images=draw(st.none() | st.builds(ImageStats, counts, counts, counts, counts)),
        source=draw(st.none() | st.dictionaries(names, names | counts, max_size=3)),
    )


def entry(number: int = 0, **changes: Any) -> ShardEntry:
    values = {
        "name": f"shard-{number:06d}.tar", "samples": 10, "bytes": 10_240, "xxh3": f"{number:032x}",
        "index": f"shard-{number:06d}.parquet", "index_bytes": 100, "index_xxh3": "cd" * 16,
    }  # fmt: skip
    return ShardEntry(**(values | changes))


def small() -> Manifest:
    return Manifest(
        shards=(entry(0), entry(1)),
        fields={"jpg": 20, "cls": 20},
        classes=("cat", "dög"),
        shuffled=True,
        images=ImageStats(160, 500, 161, 501),
        source={"seed": 0},
    )


def edited(**changes: Any) -> str:
    """Return a manifest with changed values and a valid checksum."""
    return seal(json.loads(to_json(small())) | changes)


def edited_shard(**changes: Any) -> str:
    raw = json.loads(to_json(small()))
    raw["shards"][1] |= changes
    return seal(raw)


def version_1(**changes: Any) -> str:
    """Return a manifest of version 1 of the format: the same keys, without a checksum."""
    raw = json.loads(to_json(small()))
    del raw["xxh3"]
    return json.dumps(raw | {"version": 1} | changes, indent=2)


@given(manifests())
def test_a_manifest_is_the_same_after_a_round_trip(manifest: Manifest) -> None:
    assert from_json(to_json(manifest)) == manifest
    assert from_json(to_json(manifest).encode()) == manifest


def test_the_json_has_the_keys_of_the_specification() -> None:
    raw = json.loads(to_json(small()))
    assert raw["format"] == "wds_tools manifest"
    assert raw["version"] == 2
    assert (raw["samples"], raw["bytes"], raw["shuffled"]) == (20, 20_480, True)
    assert raw["classes"] == ["cat", "dög"]
    assert raw["images"] == {"min_width": 160, "max_width": 500, "min_height": 161, "max_height": 501}
    assert {**raw["shards"][0], "before": None} == dataclasses.asdict(entry(0))


def test_each_shard_has_a_line_of_its_own_and_non_ascii_text_is_not_escaped() -> None:
    lines = to_json(small()).splitlines()
    assert sum("shard-00000" in line for line in lines) == 2
    assert any("dög" in line for line in lines)


def test_a_class_name_that_is_not_utf8_survives_a_round_trip() -> None:
    manifest = dataclasses.replace(small(), classes=(b"caf\xe9".decode("utf-8", "surrogateescape"),))
    assert from_json(to_json(manifest).encode()) == manifest


# --- fingerprint ---


def test_the_fingerprint_is_the_one_that_the_format_specifies() -> None:
    lines = f"{0:032x} 10\n{1:032x} 10\n"
    assert small().fingerprint == xxhash.xxh3_128_hexdigest(lines.encode())


def test_names_classes_and_indexes_do_not_change_the_fingerprint() -> None:
    shards = (entry(0, name="a.tar", index="a.parquet", index_xxh3="ef" * 16, bytes=1), entry(1))
    other = dataclasses.replace(small(), shards=shards, classes=(), shuffled=False, source=None)
    assert other.fingerprint == small().fingerprint


@pytest.mark.parametrize(
    "shards",
    [
        (entry(0), entry(1, xxh3="f" * 32)),
        (entry(0), entry(1, samples=11)),
        (entry(1), entry(0)),
        (entry(0),),
        (entry(0), entry(1), entry(2)),
    ],
)
def test_content_and_order_change_the_fingerprint(shards: tuple[ShardEntry, ...]) -> None:
    assert fingerprint(shards) != small().fingerprint


# --- invalid manifests ---


@pytest.mark.parametrize(
    ("changes", "contradiction"),
    [
        ({"samples": 19}, "samples is 19"),
        ({"bytes": 1}, "bytes is 1"),
        ({"fingerprint": "00" * 16}, "fingerprint is '0000"),
    ],
)
def test_a_total_that_contradicts_the_shards_is_refused(changes: dict[str, Any], contradiction: str) -> None:
    with pytest.raises(ManifestError, match=f"m.json contradicts itself: {contradiction}.* but its shards give"):
        from_json(edited(**changes), name="m.json")


@pytest.mark.parametrize("changes", [{"samples": 11}, {"bytes": 10_241}, {"xxh3": "e" * 32}])
def test_a_shard_that_contradicts_the_totals_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match="contradicts itself"):
        from_json(edited_shard(**changes))


def not_refused(texts: dict[str, str], message: str) -> list[str]:
    """Return the names of the manifests that are read, or refused with another message."""
    found = []
    for name, text in texts.items():
        try:
            from_json(text)
        except ManifestError as error:
            if re.search(message, str(error)):
                continue
        found.append(name)
    return found


NO_FILE_NAMES = [
    "",
    ".",
    "..",
    "../a.tar",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0",
    "a\n.tar",
    "\ud800.tar",
    "x::file",
    5,
    None,
]


def test_a_name_that_is_not_a_file_name_is_refused() -> None:
    texts = {f"{key} {name!r}": edited_shard(**{key: name}) for key in ("name", "index") for name in NO_FILE_NAMES}
    assert not_refused(texts, "is not the name of a file next to the manifest") == []


def test_a_manifest_that_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(ManifestError, match="rename the file"):
        to_json(Manifest((entry(name="a\n.tar"),), {}))


@pytest.mark.parametrize(
    "changes",
    [{"name": "shard-000000.tar"}, {"index": "shard-000000.parquet"}, {"index": "shard-000001.tar"}],
)
def test_a_file_that_is_listed_twice_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match="is listed twice"):
        from_json(edited_shard(**changes))


INVALID_ENTRIES = [
        {"samples": -1}, {"samples": 1.5}, {"samples": "10"}, {"samples": True}, {"samples": None}, {"bytes": 2**63},
        {"bytes": float("inf")}, {"index_bytes": -1}, {"index_bytes": float("nan")}, {"xxh3": ""}, {"xxh3": "G" * 32},
        {"xxh3": "ab" * 16 + "\n"}, {"xxh3": "\ud800" * 32}, {"index_xxh3": 5}, {"more": 1},
    ]  # fmt: skip


def test_an_invalid_entry_of_a_shard_is_refused() -> None:
    texts = {str(changes): edited_shard(**changes) for changes in INVALID_ENTRIES}
    assert not_refused(texts, "breaks the format") == []


INVALID_VALUES = [
        {"shards": None}, {"shards": {}, "samples": 0}, {"shards": [5]}, {"shards": [{}]}, {"shards": [None]},
        {"fields": None}, {"fields": ["jpg"]}, {"fields": {"jpg": "1"}}, {"fields": {"jpg": -1}},
        {"fields": {"jpg": float("inf")}}, {"classes": None}, {"classes": "cat"}, {"classes": [1]}, {"shuffled": 1},
        {"shuffled": "yes"}, {"images": []}, {"images": {}}, {"images": 5}, {"source": []}, {"source": "x"},
        {"images": {"min_width": "1", "max_width": 1, "min_height": 1, "max_height": 1}},
    ]  # fmt: skip


def test_an_invalid_value_is_refused() -> None:
    texts = {str(changes): version_1(**changes) for changes in INVALID_VALUES}
    assert not_refused(texts, "breaks the format|contradicts itself") == []


@pytest.mark.parametrize("key", ["shards", "fields", "classes", "shuffled", "samples", "bytes", "fingerprint"])
def test_a_manifest_with_a_missing_key_is_refused(key: str) -> None:
    raw = json.loads(version_1())
    del raw[key]
    with pytest.raises(ManifestError, match=key):
        from_json(json.dumps(raw))


def test_an_unknown_key_is_ignored() -> None:
    assert from_json(edited(later=1)) == small()


@pytest.mark.parametrize("text", ["", "{", "PAR1", b"\xff\xfe\x00", "[" * 100_000, "9" * 10_000])
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ManifestError, match=r"m\.json is not JSON"):
        from_json(text, name="m.json")


@pytest.mark.parametrize("text", ["[]", "5", "null", "{}", '{"format": "other", "version": 1}'])
def test_json_that_is_not_a_manifest_is_refused_with_the_missing_key(text: str) -> None:
    with pytest.raises(ManifestError, match='lacks "format": "wds_tools manifest"'):
        from_json(text)


@pytest.mark.parametrize("version", [3, 0, "1", None, True, 1.0])
def test_another_version_is_refused_with_the_supported_versions(version: object) -> None:
    with pytest.raises(ManifestError, match=r"is of version .*; this release reads 1 and 2"):
        from_json(version_1(version=version))


# --- its own checksum ---


def test_the_checksum_is_the_one_that_the_format_specifies() -> None:
    data = to_json(small()).encode()
    body, digits, end = data[:-36], data[-36:-4], data[-4:]
    assert body.endswith(b'"xxh3": "')
    assert (xxhash.xxh3_128_hexdigest(body).encode(), end) == (digits, b'"\n}\n')
    assert from_json(data).checksum == digits.decode()


def test_a_manifest_of_version_1_is_read_and_has_no_checksum() -> None:
    assert from_json(version_1()) == small()
    assert from_json(version_1()).checksum is None


def test_the_error_for_a_changed_manifest_gives_the_remedies() -> None:
    text = to_json(small()).replace('"cat"', '"dog"')
    with pytest.raises(ManifestError, match=r"m\.json has the checksum .*copy it again.*`wds-tools reseal`"):
        from_json(text, name="m.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: text + " ",
        lambda text: " " + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace('"shuffled": true', '"shuffled":  true'),
        lambda text: text.replace('"version": 2', '"version": 1'),
        lambda text: text[:-44] + text[-44:].replace("xxh3", "xxh4"),
        lambda text: text.replace('"version": 2', '"version": 1').replace(',\n  "xxh3": "', ', \n  "xxh3": "'),
        lambda text: text[:-36] + text[-36:].upper(),
        lambda text: json.dumps(json.loads(text)),
        lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "xxh3"}),
        lambda text: json.dumps(json.loads(text) | {"version": 1}),
    ],
)
def test_any_change_of_a_manifest_with_a_checksum_is_refused(change: Callable[[str], str]) -> None:
    changed = change(to_json(small()))
    assert changed != to_json(small())
    with pytest.raises(ManifestError, match="wds-tools reseal"):
        from_json(changed)


def test_a_manifest_with_a_flipped_bit_or_truncated_at_any_byte_is_refused() -> None:
    intact = to_json(small()).encode()
    for position in range(len(intact)):
        for bit in range(8):
            with pytest.raises(ManifestError):
                from_json(intact[:position] + bytes([intact[position] ^ 1 << bit]) + intact[position + 1 :])
        with pytest.raises(ManifestError):
            from_json(intact[:position])


def test_a_damaged_manifest_of_version_1_is_a_manifest_error_or_has_the_same_shards() -> None:
    chance = random.Random(0)
    intact = version_1().encode()
    refused = 0
    for _ in range(5000):
        data = bytearray(intact)
        for _ in range(chance.choice([1, 1, 2, 8])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        try:
            manifest = from_json(bytes(data))
        except ManifestError:
            refused += 1
        else:
            assert manifest.fingerprint == small().fingerprint
            assert (manifest.samples, manifest.bytes) == (small().samples, small().bytes)
    assert refused > 2000
