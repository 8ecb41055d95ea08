"""What the page of a sample draws over its image: boxes, outlines, key points, masks; and files that attack it."""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import preloaded
import pytest
from pictures import encode
from PIL import Image
from servers import in_thread, request
from waiting import wait_for

from wds_tools.format.field_classes import ClassList
from wds_tools.format.image_header import probe
from wds_tools.format.manifest import Manifest, to_json
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.format.sample import Sample
from wds_tools.inspection import palette
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


def write(folder: Path, values: list[dict[str, bytes]], lists: dict[str, ClassList]) -> Path:
    """Write samples with an image and further fields, without the checks of the packer."""
    folder.mkdir(parents=True)
    image = encode(Image.new("RGB", (WIDTH, HEIGHT), (9, 99, 9)), "PNG", pnginfo=None)
    with ShardFile(folder / "s-000000.tar") as shard:
        for number, value in enumerate(values):
            shard.write(Sample(f"{number:03}", {"png": image, **value}), image=probe(image))
    assert shard.entry
    fields = {"png": len(values), **Counter(name for value in values for name in value)}
    (folder / "manifest.json").write_text(to_json(Manifest((shard.entry,), fields, (), field_classes=lists)))
    return folder


TEXTS = [
    {"txt": SCRIPT.encode() + b" a dog"},
    {"json": json_of({"captions": [SCRIPT + " a cat", "not this one"]})},
    {"json": json_of({"caption": 5, "hidden": "hidden words"})},
    {"caption.txt": b"\xff\xfe" * 200},
    {"json": b"[" * 60_000},
    {"txt": b"too long" * 100_000},
]


def write_without_images(folder: Path) -> None:
    """Write samples with texts and arrays only."""
    folder.mkdir()
    array = npy(np.zeros(5))
    samples = [{"txt": SCRIPT.encode()}, {"json": b'{"who": 1}'}, {"npy": array, "cls": b"1"}, {"bin": SCRIPT.encode()}]
    with ShardFile(folder / "s-000000.tar") as shard:
        for number, fields in enumerate(samples):
            shard.write(Sample(f"{number:03}", fields))
    assert shard.entry
    (folder / "manifest.json").write_text(to_json(Manifest((shard.entry,), {"txt": 1, "json": 1, "npy": 1}, ())))


VALUES = {
    "objects": json_of({"width": WIDTH, "height": HEIGHT, "objects": OBJECTS}),
    "hostile": json_of({"width": 10**30, "height": "x", "objects": HOSTILE}),
    "many": json_of({"objects": [{"box": [1, 2, 3, 4], "category": i} for i in range(40_000)]}),
    "empty": b'{"objects": [' + b"{}," * 600_000 + b"{}]}",
    "no list": json_of({"objects": {"box": [1, 2, 3, 4]}}),
    "no object": json_of([{"objects": OBJECTS}]),
    "other size": json_of({"width": 600, "height": 400, "objects": OBJECTS[:1]}),
    "no json": b"{" + SCRIPT.encode(),
    "nested": b"[" * 500_000,
    "digits": b'{"objects": [{"box": [' + b"9" * 100_000 + b", 0, 1, 1]}]}",
    "long": b'{"objects": [' + b" " * (9 << 20) + b"]}",
}
NUMBERS = {name: number for number, name in enumerate(VALUES)}


def stored(pixels: Any, mode: str | None = None) -> bytes:
    return encode(Image.fromarray(np.asarray(pixels), mode), "PNG", pnginfo=None)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


CLASSES = np.zeros((HEIGHT, WIDTH), np.uint8)
CLASSES[:10, :30], CLASSES[30:] = 1, 2
DEEP = np.full((HEIGHT, WIDTH), 40_000, np.uint16)
COLOURS = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
COLOURS[5:, :, 1] = 77
MASKS = {
    "numbers": {"mask.png": stored(CLASSES)},
    "two": {"mask.png": stored(CLASSES), "instance.png": stored(DEEP), "depth.png": stored(CLASSES)},
    "colours": {"panoptic.png": stored(COLOURS)},
    "array": {"mask.npy": npy(CLASSES.astype(np.int64))},
    "small": {"mask.png": stored(CLASSES[:20, :30])},
    "damaged": {"mask.png": stored(CLASSES)[:70]},
    "fractions": {"mask.npy": npy(CLASSES / 2)},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("overlays")
    lists = {CATEGORY_PATH: ClassList((SCRIPT, "car"), (), (PERSON, '{"keypoints": 5, "skeleton": {}}'))}
    write(root / "drawn", [{"json": value} for value in VALUES.values()], lists)
    write(root / "unlisted", [{"json": VALUES["objects"]}], {})
    write(root / "texts", TEXTS, {})
    both = {"json": VALUES["objects"], "mask.png": stored(CLASSES), "panoptic.png": stored(COLOURS)}
    strange = {"a'\"\nb.mask.png": stored(CLASSES), "class.mask.png": stored(CLASSES)}
    write(root / "both", [both, both], lists)
    write(root / "strange", [strange], {})
    write_without_images(root / "words")
    write(root / "masks", list(MASKS.values()), {"mask.png": ClassList(("back", SCRIPT, "tree"))})
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
    assert "40,000 objects" in text
    assert f"{40_000 - annotations.MAX_OBJECTS:,} objects not drawn" in text
    assert len(text) < 250_000


def test_of_very_many_objects_only_some_are_read(url: str) -> None:
    text = page(url, "empty")
    assert "600,001 objects" in text
    assert "50,000 objects without a box" in text
    assert "550,001 objects not drawn" in text


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


@pytest.mark.torture
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


def mask_page(url: str, name: str) -> str:
    """Return a page after its masks have been decoded."""
    path = f"/datasets/masks/samples/{list(MASKS).index(name)}"
    wait_for(lambda: not re.search(r'data-live="numbers-\d">', request(url, path).body.decode()))
    text = request(url, path).body.decode()
    assert SCRIPT not in text
    return text


def pixels_of(url: str, text: str, number: int) -> Any:
    """Return the pixels of a mask that lies over the image, as a browser gets them: red, green, blue, opacity."""
    svg = picture(text)
    assert svg is not None
    layer = next(one for one in attributes(svg, "image") if one.get("id") == f"mask-{number}")
    assert {name: layer[name] for name in ("width", "height", "preserveAspectRatio")} == {
        "width": "60",
        "height": "40",
        "preserveAspectRatio": "none",
    }
    assert 0 < float(layer["opacity"]) < 1  # what is seen without JavaScript
    reply = request(url, layer["href"])
    assert reply.headers["Content-Type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(reply.body)).convert("RGBA"))


def test_a_mask_lies_over_the_image_in_the_colours_of_its_numbers(url: str) -> None:
    text = mask_page(url, "numbers")
    pixels = pixels_of(url, text, 1)
    assert pixels.shape == (HEIGHT, WIDTH, 4)
    for number in (1, 2):
        assert (pixels[number == CLASSES] == (*palette.rgb_of(number), 255)).all()
        assert f'fill="{palette.hex_of(number)}"' in text
    assert not pixels[CLASSES == 0][:, 3].any()
    for legend in ("back 62.5 % (transparent)", "&lt;script&gt;alert(1)&lt;/script&gt; 12.5 %", "tree 25.0 %"):
        assert legend in text
    assert 'type="range"' in text


def test_several_masks_are_layers_of_which_the_first_is_shown_and_depth_is_no_mask(url: str) -> None:
    text = mask_page(url, "two")
    assert re.findall(r'id="show-(mask-\d)"( checked)?', text) == [("mask-1", " checked"), ("mask-2", "")]
    assert (pixels_of(url, text, 2) == (*palette.rgb_of(40_000), 255)).all()
    assert "depth.png" not in text.partition("<h2>Fields</h2>")[0]


def test_a_mask_in_colours_keeps_them_and_black_is_transparent(url: str) -> None:
    pixels = pixels_of(url, mask_page(url, "colours"), 1)
    assert (pixels[5:] == (0, 77, 0, 255)).all()
    assert not pixels[:5, :, 3].any()


def test_a_mask_may_be_an_array(url: str) -> None:
    pixels = pixels_of(url, mask_page(url, "array"), 1)
    assert (pixels[CLASSES == 2] == (*palette.rgb_of(2), 255)).all()


def test_a_mask_of_another_size_is_named(url: str) -> None:
    assert "mask.png has 30x20 pixels, and the image has 60x40." in mask_page(url, "small")


@pytest.mark.parametrize("name", ["damaged", "fractions"])
def test_a_mask_that_cannot_be_decoded_is_named_and_not_drawn(url: str, name: str) -> None:
    text = mask_page(url, name)
    svg = picture(text)
    assert svg is not None
    assert len(attributes(svg, "image")) == 1
    assert "cannot be decoded as a mask" in text


def grid(url: str, dataset: str) -> list[str]:
    """Return the samples of a grid after their texts have been read."""
    path = f"/datasets/{dataset}"
    wait_for(lambda: re.search(r'data-live="samples" data-final', request(url, path).body.decode()))
    text = request(url, path).body.decode()
    assert SCRIPT not in text
    found = re.search(r'<ul class="grid.*?</ul>', text, re.DOTALL)
    assert found
    return [html.unescape(one) for one in found[0].split("<li>")[1:]]


def test_the_grid_shows_captions_and_texts_below_the_images(url: str) -> None:
    samples = grid(url, "texts")
    shown = [re.findall(r'class="caption">(.*?)</span><small', one) for one in samples]
    assert shown[:3] == [[f"{SCRIPT} a dog"], [f"{SCRIPT} a cat"], []]
    assert len(shown[3][0]) < 2000
    assert shown[4:] == [[], []]
    assert all("<img" in one for one in samples)


def test_the_grid_of_samples_without_images_shows_their_text_or_the_names_of_their_fields(url: str) -> None:
    samples = grid(url, "words")
    shown = [re.findall(r'class="frame text">(.*?)</span><span class="key"', one) for one in samples]
    assert shown == [[SCRIPT], ['{"who": 1}'], ["npy, cls"], ["bin"]]
    assert not any("<img" in one for one in samples)
    assert "<aside" not in request(url, "/datasets/words").body.decode()  # there are no classes


def run_code(url: str, path: str, folder: Path) -> str:
    """Run what "Copy as Python" of a page says, and return the fields of its batch with their shapes."""
    wait_for(lambda: not re.search(r'data-live="numbers-\d">', request(url, path).body.decode()))
    text = request(url, path).body.decode()
    code = html.unescape(re.findall(r'<pre tabindex="0" id="code">(.*?)</pre>', text, re.DOTALL)[0])
    if "with wt.make_loader" not in code:
        code += "batch = next(iter(loader))\n"
    code += "print(*(f\"{name}{list(getattr(one, 'shape', ()))}\" for name, one in batch._asdict().items()))\n"
    (folder / "code.py").write_text(code)
    done = preloaded.run([folder / "code.py"])
    assert done.stderr == ""
    return str(done.stdout).strip()


@pytest.mark.parametrize(
    ("path", "shapes"),
    [
        (
            "both/samples/1",
            "image[1, 3, 40, 60] boxes[1, 2, 4] classes[1, 2] outlines[] mask[1, 40, 60] panoptic[1, 3, 40, 60]",
        ),
        ("both", "image[2, 3, 640, 960] boxes[2, 2, 4] classes[2, 2] mask[2, 640, 960] panoptic[2, 3, 640, 960]"),
        ("masks/samples/0", "image[1, 3, 40, 60] mask[1, 40, 60]"),
        ("masks/samples/4", "image[1, 3, 40, 60]"),  # the mask has another size
        ("masks", "image[7, 3, 224, 224]"),  # not all samples have the same mask
        ("strange", "image[1, 3, 224, 224] a___b_mask[1, 224, 224] class_mask[1, 224, 224]"),
    ],
)
@pytest.mark.torture_except(
    "both/samples/1-image[1, 3, 40, 60] boxes[1, 2, 4] classes[1, 2] outlines[] mask[1, 40, 60] panoptic[1, 3, 40, 60]",
    "masks/samples/4-image[1, 3, 40, 60]",
)
def test_the_code_of_a_page_loads_masks_and_objects_with_their_image(
    url: str, tmp_path: Path, path: str, shapes: str
) -> None:
    assert run_code(url, f"/datasets/{path}", tmp_path) == shapes
