"""The tab "Batches": the images that a loader gets, to the bit; the crops of a sample; hostile views and datasets."""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import struct
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from PIL import Image
from servers import copy_of, in_thread, request
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import OptionError
from wds_tools.format.image_header import probe
from wds_tools.format.manifest import Manifest, to_json
from wds_tools.format.sample import Sample
from wds_tools.images.schedule import any_view_to_dict
from wds_tools.packing.shard_file import ShardFile
from wds_tools.service.pages.described_view import MAX_DESCRIPTION, VIEWS, view_of
from wds_tools.service.pages.helpers import HelperPool

SCRIPT = "<script>alert(1)</script>"
DAMAGED = {"images damaged": "*.tar", "indexes damaged": "*.parquet"}
DESCRIBED = (
    wt.MultiScale([wt.Letterbox(48), wt.Letterbox(64)]),
    wt.Schedule({0: wt.RandomResizedCrop(40), 1: wt.CenterCrop(24, resize=30)}),
    wt.Blend(wt.Letterbox(32), p=1.0),
    wt.RandomAffine(48, degrees=10.0, flip=True),
    wt.Resize(40),
)


def bomb() -> bytes:
    """Return a PNG of a few kilobytes whose header states 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10**6), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def write_objects(folder: Path, photos: Path) -> None:
    """Write eight photographs with a COCO file of two boxes each."""
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    found: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    for number, path in enumerate(sorted(photos.glob("*/000.jpg"))[:8]):
        with Image.open(path) as opened:
            width, height = opened.size
            opened.convert("RGB").save(folder / "images" / f"{number}.jpg", quality=95)
        found["images"].append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
        for box in ([5, 5, width // 3, height // 2], [width // 2, height // 2, width // 4, height // 4]):
            one = {"id": len(found["annotations"]) + 1, "image_id": number, "category_id": 1, "bbox": box}
            found["annotations"].append({**one, "area": box[2] * box[3], "iscrowd": 0})
    (folder / "annotations" / "instances.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def root(few: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of datasets: photographs, annotated ones, PNGs, texts, and images that attack a decoder."""
    root = tmp_path_factory.mktemp("batches")
    copy_of(few, root / "few")
    for name, pattern in DAMAGED.items():
        for path in Path(shutil.copytree(few, root / name)).glob(pattern):
            data = bytearray(path.read_bytes())
            data[2000:3000] = bytes(1000)
            path.write_bytes(data)
    write_objects(root / "annotated", photos)
    wt.pack(root / "annotated", root / "objects", workers=1, progress=False)
    (root / "source" / "a").mkdir(parents=True)
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 255, (50, 70, 3), np.uint8)
        Image.fromarray(noise).save(root / "source" / "a" / f"{number}.png")
    wt.pack(root / "source", root / "pngs", workers=1, progress=False)
    bad = [b"\xff\xd8" + bytes(100), (root / "source" / "a" / "0.png").read_bytes()[:500], bomb()]
    bad.append((root / "source" / "a" / "0.png").read_bytes())
    for name, samples in (
        ("bad", [Sample(f"<b>{number}", {"png": data}) for number, data in enumerate(bad)]),
        ("texts", [Sample(str(number), {"txt": SCRIPT.encode()}) for number in range(3)]),
    ):
        (root / name).mkdir()
        with ShardFile(root / name / "s-000000.tar") as shard:
            for sample in samples:
                image = probe((root / "source" / "a" / "0.png").read_bytes()) if name == "bad" else None
                shard.write(sample, label=None, image=image)
        assert shard.entry
        fields = {"png" if name == "bad" else "txt": len(samples)}
        (root / name / "manifest.json").write_text(to_json(Manifest((shard.entry,), fields)))
    return root


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with in_thread(root) as address:
        yield address


def tab(url: str, dataset: str, **wanted: Any) -> str:
    """Return the tab once it has been computed."""
    path = f"/datasets/{quote(dataset)}?{urlencode({'tab': 'batches', **wanted})}"

    def page() -> str:
        reply = request(url, path)
        assert reply.status == 200
        return reply.body.decode()

    wait_for(lambda: "being computed" not in page(), poll_seconds=0.05)
    return page()


def image(url: str, dataset: str, number: int, **wanted: Any) -> np.ndarray[Any, Any]:
    reply = request(url, f"/batches/{dataset}/{number}?{urlencode(wanted)}")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "image/png")
    return np.asarray(Image.open(io.BytesIO(reply.body)))


def batch(root: Path, dataset: str, view: Any, *, epoch: int, step: int, size: int, seed: int) -> list[Any]:
    """Return the images of a step of a loader, uint8 [height, width, 3]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # images of different sizes
        loader = wt.make_loader(
            root / dataset, batch_size=size, view=view, fields=("image",), shuffle=True, seed=seed, num_workers=0
        )
    with loader:
        loader.set_epoch(epoch)
        images = [batch.image for _, batch in zip(range(step + 1), loader, strict=False)][-1]
    return [one.permute(1, 2, 0).numpy() for one in images]


@pytest.mark.parametrize("dataset", ["few", "pngs"])
@pytest.mark.parametrize("name", VIEWS)
def test_the_images_have_the_pixels_of_the_loader(url: str, root: Path, dataset: str, name: str) -> None:
    wanted = {"seed": 3, "epoch": 2, "step": 1, "batch": 3, "view": name, "size": 56}
    expected = batch(root, dataset, VIEWS[name](56), epoch=2, step=1, size=3, seed=3)
    assert "of 13 in epoch" in tab(url, "few", **wanted)
    for number, pixels in enumerate(expected):
        assert np.array_equal(image(url, dataset, number, **wanted), pixels)
    assert request(url, f"/batches/{dataset}/3?{urlencode(wanted)}").headers["Content-Type"] == "image/svg+xml"


@pytest.mark.parametrize("view", DESCRIBED, ids=lambda view: type(view).__name__)
def test_views_described_as_json_have_the_pixels_of_the_loader(url: str, root: Path, view: Any) -> None:
    text = json.dumps(any_view_to_dict(view))
    for epoch, number in ((0, 0), (1, 2)):
        expected = batch(root, "few", view, epoch=epoch, step=1, size=4, seed=0)[number]
        found = image(url, "few", number, epoch=epoch, step=1, batch=4, description=text)
        assert np.array_equal(found, expected)


def test_views_that_choose_by_objects_have_the_pixels_of_the_loader(url: str, root: Path) -> None:
    view = wt.RandomIoUCrop(48, boxes="boxes")
    fields = {"image": wt.Image(view=view), "boxes": wt.Boxes("json", path="objects.box", like="image")}
    with wt.make_loader(root / "objects", batch_size=4, fields=fields, shuffle=True, num_workers=0) as loader:
        expected = [one.permute(1, 2, 0).numpy() for one in next(iter(loader)).image]
    text = json.dumps(any_view_to_dict(view))
    for number, pixels in enumerate(expected):
        assert np.array_equal(image(url, "objects", number, batch=4, description=text), pixels)
    assert "no packed annotations" in tab(url, "few", description=text)


def test_the_tab_shows_the_samples_of_the_step_with_their_crops(url: str, root: Path) -> None:
    text = tab(url, "few", step=1, batch=4, epoch=1)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 0}
    with wt.make_loader(root / "few", view=VIEWS["RandomResizedCrop"](224), **options) as loader:
        samples = loader.explain(1, epoch=1).samples
        loader.set_epoch(1)
        labels = [loader.classes[label] for label in list(loader)[1].label.tolist()]
    assert re.findall(r'class="key">(.*?)</span>', text) == [one.key for one in samples]
    assert re.findall(r"[?;&]sample=(\d+)", text) == [str(one.id) for one in samples]
    for one, label in zip(samples, labels, strict=True):
        assert f"<small>{label}, {one.crops['image'][0]}</small>" in text
    assert 'rel="next"' in text
    assert 'rel="prev"' in text
    assert "Next rows" not in text


def code_in(text: str) -> str:
    (code,) = re.findall(r'<pre [^>]*id="code">(.*?)</pre>', text, re.DOTALL)
    return html.unescape(code)


USUAL = ["RandomResizedCrop", DESCRIBED[1], wt.RandomIoUCrop(48, boxes="my boxes")]
OTHERS = [view for view in (*VIEWS, *DESCRIBED) if view not in USUAL]


@pytest.mark.parametrize("view", [*USUAL, *(pytest.param(view, marks=pytest.mark.torture) for view in OTHERS)], ids=str)
def test_the_code_of_a_step_makes_its_loader_and_goes_to_it(url: str, root: Path, view: Any) -> None:
    wanted: dict[str, Any] = {"step": 1, "batch": 4, "epoch": 1, "seed": 3, "size": 32}
    wanted |= {"view": view} if isinstance(view, str) else {"description": json.dumps(any_view_to_dict(view))}
    dataset = "objects" if isinstance(view, wt.RandomIoUCrop) else "few"
    code = code_in(tab(url, dataset, **wanted))
    assert repr(f"{url}/data/{dataset}") in code
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # images of different sizes
        exec(code.replace(f"{url}/data/{dataset}", str(root / dataset)), names)
    names["loader"].close()
    assert len(names["batch"].image) == 4
    for number, pixels in enumerate(names["batch"].image):
        assert np.array_equal(image(url, dataset, number, **wanted), pixels.permute(1, 2, 0).numpy())


def test_the_code_of_the_first_step_reads_no_other_one(url: str, root: Path) -> None:
    code = code_in(tab(url, "pngs", batch=2, shuffle="no", view="Resize", size=20))
    assert "islice" not in code
    assert "shuffle=False, seed=0" in code
    assert 'id="code"' not in tab(url, "few", step=99)
    assert 'id="code"' not in tab(url, "few", sample=3)


def test_large_batches_are_shown_in_pages(url: str, root: Path) -> None:
    text = tab(url, "few", batch=40, row=24)
    assert "rows 24 to 39 of 40" in text
    assert len(re.findall('<img src="/batches/', text)) == 16
    expected = batch(root, "few", VIEWS["CenterCrop"](32), epoch=0, step=0, size=40, seed=0)
    assert np.array_equal(image(url, "few", 15, batch=40, row=24, view="CenterCrop", size=32), expected[39])


def test_the_crops_of_a_sample_are_those_of_eight_epochs(url: str, root: Path) -> None:
    text = tab(url, "few", sample=7, batch=3)
    with wt.make_loader(
        root / "few", batch_size=3, view=VIEWS["RandomResizedCrop"](224), shuffle=True, num_workers=0
    ) as loader:
        expected = []
        for epoch in range(8):
            steps = [loader.explain(step, epoch=epoch).samples for step in range(13)]
            found = [(step, one) for step, samples in enumerate(steps) for one in samples if one.id == 7]
            expected.append((found[0][0], str(found[0][1].crops["image"][0])) if found else None)
    rows = re.findall(r'</svg>(\d)</th><td class="number">(?:<a [^>]*>([\d,]+)</a>)?</td><td>(.*?)</td>', text)
    assert len(rows) == 8
    for (epoch, step, crop), one in zip(rows, expected, strict=True):
        assert (int(step), html.unescape(crop)) == one if one else "not in this epoch" in crop, epoch
    drawn = re.findall(r'<rect class="box" stroke="#\w+" x="([\d.]+)" y="([\d.]+)"', text)
    assert len(drawn) == sum(one is not None for one in expected)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"step": "13", "batch": 3}, "epoch 0 has the steps 0 to 12"),
        ({"step": "-1"}, "step='-1'; allowed are whole numbers from 0"),
        ({"seed": "9" * 30}, "seed="),
        ({"epoch": "1e3"}, "epoch='1e3'"),
        ({"epoch": "10000000000"}, "from 0 to 1,000,000,000"),
        ({"step": "9" * 15}, "epoch 0 has the step"),
        ({"size": "99999"}, "from 1 to 1,024"),
        ({"batch": "0"}, "batch='0'"),
        ({"batch": "41"}, "a batch of 41 samples, but the dataset has 40: enter a smaller batch size"),
        ({"row": "٣"}, "row="),
        ({"view": SCRIPT}, "allowed are RandomResizedCrop"),
        ({"shuffle": SCRIPT}, "shuffle="),
        ({"shuffle": "nan"}, "shuffle="),
        ({"shuffle": "-5"}, "shuffle="),
        ({"sample": "40"}, "the dataset has 40 samples"),
        ({"description": "{"}, "is not JSON"),
        ({"description": "[" * 1500}, "is not JSON"),
        ({"description": "[" * 20 + "]" * 20}, "nested more than"),
        ({"description": '{"kind": "Letterbox", "size": NaN}'}, "NaN is not a number"),
    ],
)
def test_invalid_options_are_named(url: str, wanted: dict[str, Any], message: str) -> None:
    text = tab(url, "few", **wanted)
    (shown,) = re.findall(r'role="alert"><p>(.*?)</p>', text)
    assert message in html.unescape(shown)
    assert SCRIPT not in text


NO_VIEWS = [
    "1",
    "null",
    "[]",
    '"Letterbox"',
    "{}",
    '{"kind": "Letterbox"}',
    '{"kind": "Letterbox", "size": 2000}',
    '{"kind": "Letterbox", "size": [1, 100000000000]}',
    '{"kind": "CenterCrop", "size": 100, "resize": 60000}',
    '{"kind": "Letterbox", "size": -5}',
    '{"kind": "Letterbox", "size": true}',
    '{"kind": "Letterbox", "size": "64"}',
    '{"kind": "Letterbox", "size": {"kind": "Resize", "size": 3}}',
    '{"kind": "Letterbox", "size": 64, "fill": 1e9}',
    '{"kind": "Letterbox", "size": 64, "nothing": 1}',
    '{"kind": "RandomResizedCrop", "size": 64, "scale": "ab"}',
    '{"kind": "RandomResizedCrop", "size": 64, "scale": [[1], [2]]}',
    '{"kind": "RandomResizedCrop", "size": 64, "ratio": [0, 0]}',
    '{"kind": "RandomAffine", "size": 64, "degrees": [1, 2, 3]}',
    '{"kind": "Mosaic", "size": 64, "tiles": 10000}',
    '{"kind": "Schedule", "views": {"x": {"kind": "Resize", "size": 8}}}',
    '{"kind": "Schedule", "views": []}',
    '{"kind": "MultiScale", "views": 5}',
    '{"kind": "MultiScale", "views": [{"kind": "MultiScale", "views": []}]}',
    '{"kind": "Buckets", "sizes": [[64, 64]], "crop": "random", "flip": 0}',
    '{"kind": ["Resize"], "size": 5}',
    '{"kind": "__class__", "size": 5}',
    '{"kind": "Blend", "view": {"kind": "os.system", "size": 5}}',
    '{"kind": "Blend", "view": {"kind": "Letterbox", "size": 5000}}',
    '{"kind": "Blend", "view": 5}',
    '{"kind": "RandomIoUCrop", "size": 64, "boxes": 5}',
    json.dumps({"kind": "Resize", "size": 8, "x": "y" * MAX_DESCRIPTION}),
    '{"kind": "Blend", "view": ' * 60 + '{"kind": "Resize", "size": 8}' + "}" * 60,
    "[" * 1900,
    '{"kind": "Resize", "size": ' + "9" * 1900 + "}",
    '{"kind": "\\ud800", "size": 8}',
]


def test_descriptions_that_are_not_views_are_refused() -> None:
    def is_refused(description: str) -> bool:
        try:
            view_of("", 0, description)
        except OptionError:
            return True
        return False

    assert [description for description in NO_VIEWS if not is_refused(description)] == []


def test_samples_that_cannot_be_decoded_are_named_and_the_others_shown(url: str) -> None:
    text = tab(url, "bad")
    assert text.count('class="caption wrong-text"') == 3
    assert "<b>0:" not in text
    assert "&lt;b&gt;0" in text
    types = [request(url, f"/batches/bad/{number}").headers["Content-Type"] for number in range(4)]
    shown = [number for number, one in enumerate(types) if one == "image/png"]
    assert len(shown) == 1
    assert image(url, "bad", shown[0]).shape == (224, 224, 3)


def test_a_dataset_without_images_is_refused_with_the_reason(url: str) -> None:
    text = tab(url, "texts")
    assert "the dataset has no &#39;image&#39;" in text
    assert SCRIPT not in text


def test_a_damaged_image_or_index_is_an_error_and_not_pixels(url: str) -> None:
    assert "has changed since it was packed" in tab(url, "images damaged", batch=40)
    assert "checksum" in tab(url, "indexes damaged", batch=40)


def test_a_service_without_torch_states_that_the_tab_needs_it(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with in_thread(few) as url:
        text = tab(url, "packed")
        assert "not computed: this tab needs torch where the service runs (No module named torch)" in text
        assert request(url, "/datasets/packed").status == 200


def test_a_helper_process_that_was_taken_over_gets_only_bytes_of_its_dataset(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    missing: list[list[Any]] = []

    async def ask(self: HelperPool, message: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self.kind != "batches":
            return await original(self, message, payload)
        sent.append(payload)
        return {"missing": missing}, b""

    original = HelperPool.ask
    monkeypatch.setattr(HelperPool, "ask", ask)
    allowed = (root / "texts" / "s-000000.tar").read_bytes()[:512]
    with in_thread(root) as url:
        for seed, missing in enumerate(
            (
                [["../few/manifest.json", 0, 10]],
                [["/etc/passwd", 0, 10]],
                [["s-000000.tar", -10, 10]],
                [["s-000000.tar", 0, 1 << 50]],
                [["s-000000.tar", 0, 512]] * 9,  # again and again
            )
        ):
            sent.clear()
            assert "not computed: " in tab(url, "texts", seed=seed)
            assert 0 < len(sent) <= 8
            assert set(sent) <= {b"", allowed * len(missing)}


def helpers_of_this_process(kind: str) -> set[int]:
    """Return the ids of the helper processes of a kind."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == os.getpid() and kind.encode() in words and b"wds_tools.service.pages.helper" in words:
            found.add(int(folder.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.torture
def test_the_helper_process_ends_when_it_is_not_used(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wds_tools.service.pages.batches._IDLE_SECONDS", 1.0)
    others = helpers_of_this_process("batches")
    with in_thread(few) as url:
        assert "of 2 in epoch" in tab(url, "packed", batch=20)
        wait_for(lambda: helpers_of_this_process("batches") <= others)
        assert "of 4 in epoch" in tab(url, "packed", batch=10)
