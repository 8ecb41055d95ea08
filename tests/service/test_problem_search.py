"""The tab "Problems": what `wds-tools doctor` finds, with links that are conditions."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pictures import some_pictures, write_problems
from PIL import Image
from servers import in_thread, request
from waiting import wait_for

import wds_tools as wt
from wds_tools.format.index import FieldColumns, Index
from wds_tools.inspection.problem_columns import read_columns
from wds_tools.inspection.problems import find_problems
from wds_tools.reading.opening import open_shards
from wds_tools.service.pages.helpers import HelperPool
from wds_tools.service.pages.image_columns import columns_as_bytes, problems_of
from wds_tools.service.pages.views import MAX_WHERE, State, problem_view

HOSTILE = "<b onclick=alert(1)>"


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with problems of each kind."""
    folder = tmp_path_factory.mktemp("problems")
    write_problems(folder / "images", some_pictures(photos), single=HOSTILE)
    wt.pack(folder / "images", folder / "wrong", workers=1, progress=False)
    return folder / "wrong"


@pytest.fixture(scope="module")
def url(dataset: Path) -> Iterator[str]:
    with in_thread(dataset) as address:
        yield address


def page(url: str, path: str) -> str:
    reply = request(url, path)
    assert reply.status == 200
    return reply.body.decode()


def searched(url: str, path: str) -> str:
    """Return the tab after the search."""
    wait_for(lambda: "searching: " not in page(url, path), poll_seconds=0.1)
    return page(url, path)


def test_each_problem_has_a_link_to_its_samples(url: str, dataset: Path) -> None:
    text = searched(url, "/datasets/wrong?tab=problems")
    problems = find_problems(read_columns(open_shards(dataset)), classes=open_shards(dataset).manifest.classes)
    assert {"copies", "similar", "labels", "blank", "blurred", "narrow", "classes"} <= {one.name for one in problems}
    found = [html.unescape(one) for one in re.findall(r"</h2>\s*<p>(.*?)</p>", text)]
    assert found == [one.found for one in problems]
    links = [html.unescape(link) for link in re.findall(r'<a href="([^"]*where=[^"]*)">Show', text)]
    assert [parse_qs(urlsplit(link).query)["where"] for link in links] == [[one.where] for one in problems]
    for link, problem in zip(links, problems, strict=True):
        assert f"<b>{len(problem.samples)}</b> sample" in page(url, link)


def test_clusters_are_shown_as_pictures_and_so_are_other_samples(url: str, dataset: Path) -> None:
    text = searched(url, "/datasets/wrong?tab=problems")
    problems = {one.name: one for one in find_problems(read_columns(open_shards(dataset)))}
    copies = problems["copies"]
    first = re.findall(r'<ul class="cluster" aria-label="Cluster 1">(.*?)</ul>', text, re.DOTALL)[0]
    assert re.findall(r'src="/thumbnails/wrong/(\d+)"', first) == list(map(str, copies.clusters[0]))
    assert request(url, f"/thumbnails/wrong/{copies.clusters[0][0]}").headers["Content-Type"] == "image/jpeg"
    blank = text[text.index("Of one colour") :]
    shown = re.findall(r'src="/thumbnails/wrong/(\d+)"', blank[: blank.index("</ul>")])
    assert shown == list(map(str, problems["blank"].samples.tolist()))


def test_class_names_are_escaped(url: str) -> None:
    text = searched(url, "/datasets/wrong?tab=problems")
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text


def test_too_many_samples_are_linked_as_far_as_a_condition_has_them() -> None:
    problem = {"name": "copies", "where": "", "count": 5000, "first": list(range(10**6, 10**6 + 300)), "found": "x"}
    view = problem_view("some", problem, State("problems"))
    where = parse_qs(urlsplit(view["url"]).query)["where"][0]
    assert MAX_WHERE - 10 < len(where) <= MAX_WHERE
    assert where.count(",") == view["listed"] - 1
    few = problem_view("some", {**problem, "where": "id in (3, 4)"}, State())
    assert (few["listed"], parse_qs(urlsplit(few["url"]).query)["where"]) == (0, ["id in (3, 4)"])


@pytest.mark.torture
def test_images_without_signatures_are_counted_and_a_damaged_index_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images" / "a"
    images.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (60, 60), (number, 0, 0)).save(images / f"{number}.png")
    wt.pack(tmp_path / "images", tmp_path / "plain", workers=1, progress=False, images="keep")
    with in_thread(tmp_path / "plain") as url:
        assert "3 images without a signature are not compared" in searched(url, "/datasets/plain?tab=problems")
    monkeypatch.setenv("WDS_TOOLS_CACHE_DIR", str(tmp_path / "other"))  # without what was found before
    index = next((tmp_path / "plain").glob("*.parquet"))
    index.write_bytes(bytes(index.stat().st_size))
    with in_thread(tmp_path / "plain") as url:
        assert "not searched: " in searched(url, "/datasets/plain?tab=problems")


@pytest.mark.parametrize("briefly", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_results_outlive_the_service_until_the_dataset_changes(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, briefly: bool
) -> None:
    asked: list[str] = []
    ask = HelperPool.ask

    async def recorded(self: HelperPool, message: dict[str, Any], payload: bytes = b"") -> Any:
        asked.append(message.get("question", self.kind))
        return await ask(self, message, payload)

    monkeypatch.setattr(HelperPool, "ask", recorded)
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))

    def look(url: str, name: str = "copy") -> tuple[str, str]:
        wait_for(lambda: "counted so far" not in page(url, f"/datasets/{name}?tab=glance"), poll_seconds=0.1)
        return page(url, f"/datasets/{name}?tab=glance"), searched(url, f"/datasets/{name}?tab=problems")

    with in_thread(copy) as url:
        first = look(url)
    assert {"summary", "problems"} <= set(asked)
    asked.clear()
    wt.reshard(copy, tmp_path / "copy2", images="keep", workers=1, shuffle=True, progress=False)
    with in_thread(copy, tmp_path / "copy2") as url:
        assert look(url) == first
        assert not {"summary", "problems", "image_columns"} & set(asked)
        look(url, "copy2")
        assert {"summary", "problems"} <= set(asked)
    if not briefly:
        for block in (tmp_path / "cache").rglob("*"):
            if block.is_file() and block.stat().st_size > 40:
                block.write_bytes(block.read_bytes()[:-20] + bytes(20))  # damaged
        asked.clear()
        with in_thread(copy) as url:
            assert look(url) == first
        assert {"summary", "problems"} <= set(asked)


@pytest.mark.parametrize("hashes", [["zz", "<b>", "-1"], [1, 2, 3], ["0" * 16] * 3, [None] * 3])
def test_columns_that_are_not_hashes_do_no_harm(hashes: list[object]) -> None:
    n = len(hashes)
    columns = {name: np.ones(n, kind) for name, kind in (("width", np.int32), ("height", np.int32))}
    flat = {name: np.zeros(n, np.int32) for name in ("restart", "mcu_width", "mcu_height")}
    field = FieldColumns(np.arange(n) * 2048 + 512, np.ones(n, np.int64), np.arange(n, dtype=np.uint64))
    index = Index(
        *("s.tar", 2048 * n + 1024, "0" * 32, list("abc"), {"png": field}, np.zeros(n, np.int64)),
        **columns,
        mode=["L"] * n,
        orientation=np.ones(n, np.int8),
        **flat,
    )
    measures = {name: [float("nan"), float("inf"), -1.0] for name in ("brightness", "contrast", "sharpness")}
    message = {"samples": [n], "classes": ["x"]}
    answer, _ = problems_of(message, columns_as_bytes(index, pa.table({"phash": hashes, **measures})))
    assert answer["unsigned"] == (0 if hashes[0] == "0" * 16 else n)
    assert json.loads(json.dumps(answer)) == answer
