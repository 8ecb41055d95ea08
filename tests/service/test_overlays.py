"""What the page of a sample draws over its image: boxes, outlines, key points; and JSON that attacks it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pictures import encode
from PIL import Image
from servers import in_thread, request

from wds_tools.format.field_classes import ClassList
from wds_tools.format.image_header import probe
from wds_tools.format.manifest import Manifest, to_json
from wds_tools.format.objects import PLACE
from wds_tools.format.sample import Sample
from wds_tools.packing.shard_file import ShardFile
from wds_tools.service.pages import annotations
from wds_tools.service.pages.helpers import HelperPool

SCRIPT = "<script>alert(1)</script>"
WIDTH, HEIGHT = 60, 40
PERSON = json.dumps({"keypoints": [SCRIPT, "eye"], "skeleton": [[1, 2], [1, 99], [0, 1], "x", [1, 10**30]]})
OBJECTS: list[Any] = [
    {
        "box": [10, 5, 30, 25.5],
        "category": 0,
        "polygons": [[10, 5, 30, 5, 20, 25.5]],
        "keypoints": [[12, 7, 2], [14, 9, 1], [0, 0, 0]],
    },
    {"box": [40, 0, 60, 40], "category": 1, "rle": {"size": [40, 60], "counts": [2400]}},
]
HOSTILE: list[Any] = [
    {"box": [float("nan"), 0, 1, 1], "category": 0},
    {"box": [float("inf"), 0, 1, 1], "category": 0},
    {"box": ['"/><script>', 0, 1, 1], "category": SCRIPT},
    {"box": [30, 30, 10, 10]},
    {"box": {"a": SCRIPT}, "polygons": {"b": 1}, "keypoints": "c"},
    {"polygons": [["0", "1"], [None], [1, 2, 3], 5], "keypoints": [[SCRIPT, 2, 2], [True, False, True], [1]]},
    {"box": [10**400, 0, 1, 1]},
    None,
    [[[[]]]],
    SCRIPT,
    {"box": [-1e14, -1e14, 1e14, 1e14], "category": 10**30},
    {"box": [1, 2, 3, 4], "category": 7},
]


def json_of(value: Any) -> bytes:
    return json.dumps(value).encode()


def write(folder: Path, values: list[bytes], lists: dict[str, ClassList]) -> Path:
    """Write samples with an image and a JSON, without the checks of the packer."""
    folder.mkdir(parents=True)
    image = encode(Image.new("RGB", (WIDTH, HEIGHT), (9, 99, 9)), "PNG", pnginfo=None)
    with ShardFile(folder / "s-000000.tar") as shard:
        for number, value in enumerate(values):
            shard.write(Sample(f"{number:03}", {"png": image, "json": value}), image=probe(image))
    assert shard.entry
    fields = {"png": len(values), "json": len(values)}
    (folder / "manifest.json").write_text(to_json(Manifest((shard.entry,), fields, (), field_classes=lists)))
    return folder


VALUES = {
    "objects": json_of({"width": WIDTH, "height": HEIGHT, "objects": OBJECTS}),
    "hostile": json_of({"width": 10**30, "height": "x", "objects": HOSTILE}),
    "many": json_of({"objects": [{"box": [1, 2, 3, 4], "category": i} for i in range(100_000)]}),
    "no list": json_of({"objects": {"box": [1, 2, 3, 4]}}),
    "no object": json_of([{"objects": OBJECTS}]),
    "other size": json_of({"width": 600, "height": 400, "objects": OBJECTS[:1]}),
    "no json": b"{" + SCRIPT.encode(),
    "nested": b"[" * 500_000,
    "digits": b'{"objects": [{"box": [' + b"9" * 100_000 + b", 0, 1, 1]}]}",
    "long": b'{"objects": [' + b" " * (9 << 20) + b"]}",
}
NUMBERS = {name: number for number, name in enumerate(VALUES)}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("overlays")
    lists = {PLACE: ClassList((SCRIPT, "car"), (), (PERSON, '{"keypoints": 5, "skeleton": {}}'))}
    write(root / "drawn", list(VALUES.values()), lists)
    write(root / "unlisted", [VALUES["objects"]], {})
    with in_thread(root) as running:
        yield running


def page(url: str, name: str, dataset: str = "drawn") -> str:
    reply = request(url, f"/datasets/{dataset}/samples/{NUMBERS[name]}")
    assert reply.status == 200, reply.body[:500]
    text = reply.body.decode()
    assert SCRIPT not in text
    assert " style=" not in text
    return text


def picture(text: str) -> ElementTree.Element | None:
    found = re.search(r'<svg class="picture".*?</svg>', text, re.DOTALL)
    return ElementTree.fromstring(found[0]) if found else None


def attributes(svg: ElementTree.Element, tag: str) -> list[dict[str, str]]:
    return [element.attrib for element in svg.iter(tag)]


def test_boxes_outlines_and_key_points_are_drawn_at_their_pixels_with_class_names(url: str) -> None:
    text = page(url, "objects")
    svg = picture(text)
    assert svg is not None
    assert svg.attrib["viewBox"] == "0 0 60 40"
    assert attributes(svg, "image")[0] == {
        "href": "/thumbnails/drawn/0?size=1024",
        "width": "60",
        "height": "40",
        "preserveAspectRatio": "none",
    }
    boxes = [[one[name] for name in ("x", "y", "width", "height")] for one in attributes(svg, "rect")]
    assert boxes == [["10", "5", "20", "20.5"], ["40", "0", "20", "40"]]
    assert [one["points"] for one in attributes(svg, "polygon")] == ["10 5 30 5 20 25.5"]
    assert [(one["cx"], one["cy"]) for one in attributes(svg, "circle")] == [("12", "7"), ("14", "9")]
    assert attributes(svg, "line") == [{"x1": "12", "y1": "7", "x2": "14", "y2": "9"}]
    assert [element.text for element in svg.iter("text")] == [SCRIPT, "car"]
    assert [element.text for element in svg.iter("title")] == [SCRIPT, "eye"]
    assert "1 mask in run lengths not drawn" in text
    assert "The JSON states" not in text


def test_without_a_class_list_the_order_of_the_numbers_is_not_known_and_nothing_is_drawn(url: str) -> None:
    text = page(url, "objects", "unlisted")
    assert picture(text) is None
    assert '<img class="picture"' in text


def test_of_hostile_objects_those_with_finite_numbers_are_drawn_near_the_image(url: str) -> None:
    text = page(url, "hostile")
    svg = picture(text)
    assert svg is not None
    boxes = [[float(one[name]) for name in ("x", "y", "width", "height")] for one in attributes(svg, "rect")]
    assert boxes == [[-60, -40, 180, 120], [1, 2, 2, 2]]
    assert not attributes(svg, "polygon") + attributes(svg, "circle")
    assert f"{len(HOSTILE) - 2} objects without a box" in text
    assert "nan" not in text.partition("</svg>")[0].lower()


def test_of_many_objects_some_are_drawn_and_the_others_counted(url: str) -> None:
    text = page(url, "many")
    svg = picture(text)
    assert svg is not None
    assert len(attributes(svg, "rect")) == annotations.MAX_OBJECTS
    assert "100,000 objects" in text
    assert f"{100_000 - annotations.MAX_OBJECTS:,} objects not drawn" in text
    assert len(text) < 250_000


@pytest.mark.parametrize("name", ["no list", "no object"])
def test_json_of_another_form_has_no_objects(url: str, name: str) -> None:
    svg = picture(page(url, name))
    assert svg is None or not attributes(svg, "rect")


@pytest.mark.parametrize("name", ["no json", "nested", "digits", "long"])
def test_json_that_cannot_be_read_is_named_and_the_image_is_shown(url: str, name: str) -> None:
    text = page(url, name)
    assert "The objects cannot be drawn: " in text
    assert '<img class="picture"' in text


def test_a_stated_size_other_than_that_of_the_image_is_named(url: str) -> None:
    assert "The JSON states a size of 600x400 pixels, and the image has 60x40." in page(url, "other size")


def test_outlines_and_key_points_are_limited_in_the_helper() -> None:
    circle = [1.5] * 3000
    item = {"box": [0, 0, 9, 9], "polygons": [circle] * 200, "keypoints": [[1, 2]] * 10_000}

    async def main() -> dict[str, Any]:
        pool = HelperPool("thumbnail", 1, 1 << 30, 60.0)
        question = {"question": "objects", "width": WIDTH, "height": HEIGHT}
        answer, _ = await pool.ask(question, json_of({"objects": [item] * 3}))
        await pool.close()
        return answer

    answer = asyncio.run(main())
    assert (answer["count"], len(answer["objects"]), answer["left_out"]) == (3, 1, 2)
    assert len(json_of(answer)) < 3_000_000
