"""The tab "At a glance" and the class list: histograms whose bars are conditions, search and sorting of classes."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import in_thread, request
from waiting import wait_for

from wds_tools.format.index import FieldColumns, Index, index_name, shard_entry, to_bytes
from wds_tools.format.manifest import Manifest, to_json
from wds_tools.service.pages.glance import bars_of, is_column
from wds_tools.service.pages.summary import EDGES, Summary, summary_of

CLASSES = 4000
PER_SHARD = 2000
SHARDS = 3
SCRIPT = "<script>alert(1)</script>"


def index_of(shard: int) -> Index:
    """Return an index of which only the columns matter: wide images, one in ten without an image."""
    rng = np.random.default_rng(shard)
    n = PER_SHARD
    width = np.where(np.arange(n) % 10 == 0, 0, rng.integers(200, 700, n))
    width[1:6] = 9000  # far from the others
    width[7] = 30
    height = np.where(width > 0, rng.integers(300, 400, n), 0)
    sizes = rng.lognormal(10, 0.6, n).astype(np.int64)
    odd = np.where(np.arange(n) % 4 == 0, 7, 0)
    ends = np.cumsum(sizes + odd + 2048)
    columns = {
        "jpg": FieldColumns(ends - sizes, sizes, np.arange(n, dtype=np.uint64)),
        "my-text.txt": FieldColumns(np.where(odd, ends - sizes - 1024, -1), odd, np.arange(n, dtype=np.uint64)),
    }
    label = (CLASSES * rng.beta(1, 3, n)).astype(np.int64)
    zeros = np.zeros(n, np.int8)
    return Index(
        *(f"s-{shard:06d}.tar", int(ends[-1]) + 1024, "0" * 32),
        [f"k{shard}-{number}" for number in range(n)],
        *(columns, label, width.astype(np.int32), height.astype(np.int32), ["RGB"] * n),
        *(zeros + np.int8(1), zeros.astype(np.int32), zeros, zeros),
    )


def names() -> tuple[str, ...]:
    kinds = ("Dog", "cat", "owl", SCRIPT)
    return tuple(f"{kinds[number % 4]} {(number * 7) % CLASSES:04d}" for number in range(CLASSES))


@pytest.fixture(scope="module")
def indexes() -> list[Index]:
    return [index_of(shard) for shard in range(SHARDS)]


@pytest.fixture(scope="module")
def url(indexes: list[Index], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a dataset without images: its shards are holes, as long as its indexes say."""
    folder = tmp_path_factory.mktemp("glance") / "many"
    folder.mkdir()
    entries = []
    for index in indexes:
        data = to_bytes(index)
        with (folder / index.shard).open("wb") as file:
            file.truncate(index.shard_bytes)
        (folder / index_name(index.shard)).write_bytes(data)
        shape = {"samples": len(index), "shard_bytes": index.shard_bytes, "shard_xxh3": index.shard_xxh3}
        entries.append(shard_entry(index.shard, data, **shape))
    fields = {"jpg": SHARDS * PER_SHARD, "my-text.txt": SHARDS * PER_SHARD // 4}
    (folder / "manifest.json").write_text(to_json(Manifest(tuple(entries), fields, names())))
    with in_thread(folder) as address:
        wait_for(lambda: "counted so far" not in page(address, "/datasets/many?tab=glance"), poll_seconds=0.2)
        yield address


def page(url: str, path: str) -> str:
    reply = request(url, path)
    assert reply.status == 200
    return reply.body.decode()


def links(text: str) -> dict[str, dict[str, str]]:
    """Return the bars of each histogram: what they say, and where they lead."""
    found = {}
    for title, chart in re.findall(r'<figure class="histogram">\s*<h2>(.*?)</h2>(.*?)</figure>', text, re.DOTALL):
        bars = re.findall(r'<a href="([^"]+)" aria-label="([^"]+)">', chart)
        found[html.unescape(title)] = {html.unescape(name): html.unescape(link) for link, name in bars}
    return found


def number_in(text: str) -> int:
    return int(text.replace(",", ""))


def classes_of(text: str) -> list[str]:
    return [html.unescape(name) for name in re.findall(r'<span class="label">(.*?)</span>', text)]


def test_each_bar_is_a_condition_that_finds_as_many_samples_as_it_says(url: str) -> None:
    charts = links(page(url, "/datasets/many?tab=glance"))
    assert list(charts) == [
        "Width",
        "Height",
        "Aspect ratio",
        "Bytes of jpg",
        "Bytes of my-text.txt",
        "Samples per class",
    ]
    for title in ("Width", "Aspect ratio", "Bytes of jpg"):
        total = 0
        for number, (name, link) in enumerate(charts[title].items()):
            count = number_in(re.findall(r": ([\d,]+) sample", name)[0])
            total += count
            if number % 4 == 0:
                text = page(url, f"{link}&page=999")  # which searches all shards
                assert re.findall(r"<b>([\d,]+)</b> sample", text) == [f"{count:,}"], (name, link)
        assert total == SHARDS * PER_SHARD * (1 if "Bytes" in title else 0.9), title


def test_values_far_away_share_a_bar_and_what_a_condition_cannot_name_has_no_link(url: str) -> None:
    charts = links(page(url, "/datasets/many?tab=glance"))
    assert "700 and more pixels: 15 samples" in charts["Width"]
    assert charts["Width"]["0 to 50 pixels: 3 samples"].endswith("where=width+%3E+0+and+width+%3C+50")
    assert charts["Bytes of my-text.txt"] == {}
    assert (is_column("my-text.txt.size"), is_column("seg.mask.png.size"), is_column("id\n.x")) == (False, True, False)


def test_the_bars_of_the_classes_are_conditions_or_places_in_the_class_list(url: str, indexes: list[Index]) -> None:
    counts = Counter(np.concatenate([index.label for index in indexes]).tolist())
    bars = links(page(url, "/datasets/many?tab=glance"))["Samples per class"]
    kinds = set()
    for name, link in bars.items():
        low, high, count = map(number_in, re.findall(r"^([\d,]+) to ([\d,]+) samples: ([\d,]+) class", name)[0])
        wanted = [number for number in range(CLASSES) if low <= counts[number] < high]
        assert len(wanted) == count
        kinds.add("where=" in link)
        text = page(url, link.replace("where=", "page=999&where="))
        if "where=" in link:
            assert f"<b>{sum(counts[number] for number in wanted):,}</b> sample" in text
        else:
            shown = re.findall(r'class="number">([\d,]+)</span>', text)
            assert any(low <= number_in(one) < high for one in shown)
    assert kinds == {True, False}


def test_one_bar_is_narrow_and_named_by_its_range(url: str) -> None:
    text = page(url, "/datasets/many?tab=glance")
    chart = text[text.index("<h2>Bytes of my-text.txt</h2>") :]
    chart = chart[: chart.index("</figure>")]
    assert re.findall(r'class="area" x="(\S+)" y="0" width="(\S+)"', chart) == [("0.00", "50.00")]
    assert "<figcaption><span>7 B to 8 B</span>" in chart


def test_the_fields_have_their_samples_and_sizes(url: str, indexes: list[Index]) -> None:
    rows = re.findall(
        r'<tr><th scope="row">(.*?)</th><td class="number">(.*?)</td>', page(url, "/datasets/many?tab=glance")
    )
    assert rows == [("jpg", "6,000"), ("my-text.txt", "1,500")]
    summary = Summary()
    for index in indexes:
        summary.add(summary_of(index))
    sizes = np.concatenate([index.fields["jpg"].size for index in indexes])
    one = summary.fields["jpg"]
    assert (one.samples, one.bytes, one.shortest, one.longest) == (6000, sizes.sum(), sizes.min(), sizes.max())


def test_classes_are_found_by_name_or_number_and_sorted(url: str, indexes: list[Index]) -> None:
    counts = Counter(np.concatenate([index.label for index in indexes]).tolist())
    dogs = [number for number, name in enumerate(names()) if name.startswith("Dog")]
    by_size = sorted(dogs, key=lambda number: (-counts[number], number))
    assert classes_of(page(url, "/datasets/many?find=dOG")) == [names()[number] for number in by_size[:24]]
    by_name = sorted(names()[number] for number in dogs)
    assert classes_of(page(url, "/datasets/many?find=dog&sort=name&classes=2")) == by_name[24:48]
    assert names()[1234] in classes_of(page(url, "/datasets/many?find=1234"))
    nothing = page(url, "/datasets/many?find=nothing")
    assert classes_of(nothing) == []
    assert "0 found" in nothing
    assert classes_of(page(url, "/datasets/many?classes=9999")) != []


def test_the_forms_and_links_keep_the_state(url: str) -> None:
    text = page(url, "/datasets/many?find=dog&sort=name&class=4&where=width%20%3E%20300&classes=2")
    forms = [
        dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        for form in re.findall(r"<form.*?</form>", text, re.DOTALL)
    ]
    where, find = (next(form for form in forms if next(iter(form)) == name) for name in ("where", "find"))
    assert where == {"where": "width &gt; 300", "class": "4", "classes": "2", "find": "dog", "sort": "name"}
    assert find == {"find": "dog", "class": "4", "where": "width &gt; 300", "sort": "name"}


def test_what_is_searched_for_and_class_names_are_escaped(url: str) -> None:
    for path in (f"find={SCRIPT}", "find=script", f"sort={SCRIPT}", f"tab=glance&find={SCRIPT}"):
        assert SCRIPT not in page(url, f"/datasets/many?{path.replace('<', '%3C').replace('>', '%3E')}")
    assert len(classes_of(page(url, "/datasets/many?find=SCRIPT"))) == 24


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50), st.booleans())
def test_bars_count_each_value_once_within_its_range(values: list[int], small: bool) -> None:
    values = [value % 1000 for value in values] if small else values
    bins = Counter(int(np.searchsorted(EDGES, value, side="right")) - 1 for value in values)
    bars = bars_of(bins, whole=True)
    assert len(bars) <= 40
    for bar in bars:
        low, high = bar.low or 0, np.inf if bar.high is None else bar.high
        if bar.low is None:
            assert bar is bars[0]
        assert bar.count == sum(low <= value < high for value in values)
    assert sum(bar.count for bar in bars) == len(values)
