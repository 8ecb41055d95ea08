"""Images with 16 bits per channel keep all bits or are an error with a remedy; they never lose bits silently."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encode
from PIL import Image
from sixteen_bits import deep_png
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.errors import DecodeError, SourceError
from wds_tools.format.image_header import probe
from wds_tools.images.decode import decode_stored
from wds_tools.packing.transcode import ImageOptions, transcode

RNG = np.random.default_rng(0)
MODES = {1: "I;16", 2: "LA;16", 3: "RGB;16", 4: "RGBA;16"}


def noise(channels: int, height: int = 37, width: int = 23) -> np.ndarray:
    return RNG.integers(0, 65_536, (height, width, channels)).astype(np.uint16)


def depth_image(number: int = 0) -> np.ndarray:
    """Return uint16 [48, 64] in which every pixel has another value."""
    return (np.arange(48 * 64).reshape(48, 64) * 21 + number).astype(np.uint16)


def jpeg() -> bytes:
    return encode(Image.new("RGB", (64, 48), (10, 200, 30)), "JPEG")


@pytest.fixture(scope="module")
def with_depth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of eight samples with a depth image, a normal map in colour and a mask."""
    folder = tmp_path_factory.mktemp("deep") / "data"
    with wt.ShardWriter(folder / "shard-%06d.tar", encoder=True) as writer:
        for number in range(8):
            writer.write(
                {
                    "__key__": f"{number:04}",
                    "jpg": jpeg(),
                    "depth.png": depth_image(number),
                    "normal.png": deep_png(np.stack([depth_image(number + c) for c in range(3)], axis=2)),
                    "mask.png": (np.arange(48 * 64).reshape(48, 64) % 7).astype(np.uint8),
                    "cls": number % 2,
                }
            )
    return folder


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("size", [(37, 23), (1, 1), (2, 9)])
def test_every_kind_of_sixteen_bit_png_is_decoded_with_all_bits(channels, interlaced, size) -> None:
    pixels = noise(channels, *size)
    data = deep_png(pixels, interlaced=interlaced)
    decoded = decode_stored(memoryview(data))
    assert decoded.dtype == np.uint16
    assert (decoded == pixels).all()
    assert probe(data).mode == MODES[channels]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_delivers_stored_images_with_all_their_bits(with_depth: Path, num_workers: int) -> None:
    fields = ("depth.png", "normal.png", "mask.png", "__key__")
    with wt.make_loader(with_depth, batch_size=4, fields=fields, num_workers=num_workers) as loader:
        for depths, normals, masks, keys in loader:
            for depth, normal, mask, key in zip(depths, normals, masks, keys, strict=True):
                expected = torch.from_numpy(depth_image(int(key)))
                assert (depth.dtype, tuple(depth.shape)) == (torch.uint16, (1, 48, 64))
                assert torch.equal(depth[0], expected)
                assert (normal.dtype, tuple(normal.shape)) == (torch.uint16, (3, 48, 64))
                assert torch.equal(normal[2], torch.from_numpy(depth_image(int(key) + 2)))
                assert (mask.dtype, tuple(mask.shape)) == (torch.uint8, (1, 48, 64))
                assert mask.max() == 6


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader_of_torch_stacks_sixteen_bit_images(with_depth: Path, num_workers: int) -> None:
    dataset = wt.StreamingDataset(with_depth, batch_size=4, fields=("depth.png", "label"))
    for depth, _ in DataLoader(dataset, batch_size=4, num_workers=num_workers):
        assert (depth.dtype, tuple(depth.shape)) == (torch.uint16, (4, 1, 48, 64))
        assert len(np.unique(depth.numpy())) > 3000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_sixteen_bit_images_are_copied_to_a_device(with_depth: Path) -> None:
    with wt.make_loader(with_depth, batch_size=4, fields=("depth.png", "__key__"), device="cuda") as loader:
        depths, keys = next(iter(loader))
        assert torch.equal(depths[1].cpu()[0], torch.from_numpy(depth_image(int(keys[1]))))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sixteen_bit_image_as_field_image_is_an_error_with_the_sample_and_a_remedy(
    channels: int, tmp_path: Path
) -> None:
    with wt.ShardWriter(tmp_path / "shard-%06d.tar") as writer:
        writer.write({"__key__": "deep", "png": deep_png(noise(channels)), "cls": b"1"})
    for view in (None, wt.Resize((8, 8))):
        loader = wt.make_loader(tmp_path, batch_size=1, view=view, num_workers=0)
        with loader, pytest.raises(DecodeError, match=r"key deep: image has 16 bits .* fields=\('png', 'label'\)"):
            next(iter(loader))
    with wt.make_loader(tmp_path, batch_size=1, fields=("png", "label"), num_workers=0) as loader:
        assert next(iter(loader)).png[0].dtype == torch.uint16


def source_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "colour.png").write_bytes(deep_png(noise(3)))
    (folder / "grey.png").write_bytes(deep_png(noise(1)))
    (folder / "photo.jpg").write_bytes(jpeg())
    return folder


@pytest.mark.parametrize("policy", [{"images": "resize", "resize": 8}, {"images": "raw"}])
def test_a_policy_that_writes_eight_bits_skips_sixteen_bit_images_with_a_reason(policy, tmp_path: Path) -> None:
    folder = source_folder(tmp_path)
    report = wt.pack(folder, tmp_path / "out", workers=1, **policy)
    assert (report.packed, [skip.path for skip in report.skipped]) == (1, ["colour.png", "grey.png"])
    lines = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert all("16 bits" in line["reason"] and "images='keep'" in line["reason"] for line in lines)
    with pytest.raises(SourceError, match="16 bits"):
        wt.pack(folder, tmp_path / "strict", workers=1, strict=True, **policy)


def test_the_policy_keep_packs_sixteen_bit_images_unchanged_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = source_folder(tmp_path)
    with caplog.at_level(logging.WARNING, "wds_tools"):
        report = wt.pack(folder, tmp_path / "out", workers=1, images="keep")
    assert report.packed == 3
    assert "packed 2 images with 16 bits per channel unchanged" in caplog.text
    wt.unpack(tmp_path / "out", tmp_path / "back", progress=False)
    kept = {path.read_bytes() for path in (tmp_path / "back").rglob("*.png")}
    assert kept == {path.read_bytes() for path in folder.glob("*.png")}


def test_the_policy_crop_ready_leaves_sixteen_bit_images_unchanged() -> None:
    data = deep_png(noise(3))
    assert transcode(data, ImageOptions(images="crop-ready")).data == data


def write_folder(folder: Path, *, shallow: int, deep: int) -> Path:
    """Write PNGs of two classes that Pillow encodes, and grey ones with 16 bits."""
    for number in range(shallow + deep):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(depth_image() if number >= shallow else np.zeros((48, 64, 3), np.uint8)).save(path)
    return folder


def test_one_image_of_sixteen_bits_among_others_of_eight_is_skipped_with_the_reason(tmp_path: Path) -> None:
    report = wt.pack(write_folder(tmp_path / "in", shallow=15, deep=1), tmp_path / "out", workers=1)
    assert [skip.path for skip in report.skipped] == ["b/15.png"]
    assert "has 16 bits per channel, where most images have 8: convert it to 8 bits" in report.skipped[0].reason
    with wt.make_loader(tmp_path / "out", batch_size=15, view=wt.Resize((8, 8)), num_workers=0) as loader:
        assert next(iter(loader)).image.shape == (15, 3, 8, 8)
    write_folder(tmp_path / "more", shallow=0, deep=3)
    Image.new("RGB", (64, 48)).save(tmp_path / "more" / "a" / "3.png")
    more = wt.append(tmp_path / "more", tmp_path / "out", workers=1)
    assert more.packed == 1
    assert {skip.path for skip in more.skipped} == {"a/0.png", "b/1.png", "a/2.png"}


def test_a_split_that_has_only_images_of_sixteen_bits_is_packed_like_the_other_splits(tmp_path: Path) -> None:
    write_folder(tmp_path / "in" / "train", shallow=12, deep=1)
    write_folder(tmp_path / "in" / "val", shallow=1, deep=2)
    reports = wt.pack_splits(tmp_path / "in", tmp_path / "out", split="folders", workers=1)
    assert {name: (report.packed, len(report.skipped)) for name, report in reports.items()} == {
        "train": (12, 1),
        "val": (1, 2),
    }


def test_a_folder_of_images_with_sixteen_bits_is_packed_and_appended_to_with_all_bits(tmp_path: Path) -> None:
    assert wt.pack(write_folder(tmp_path / "in", shallow=1, deep=3), tmp_path / "out", workers=1).packed == 4
    (tmp_path / "more" / "a").mkdir(parents=True)
    Image.fromarray(depth_image(7)).save(tmp_path / "more" / "a" / "x.png")
    assert wt.append(tmp_path / "more", tmp_path / "out", workers=1).packed == 1


@pytest.mark.parametrize("mode", ["I", "F", "I;16B"])
def test_pil_images_with_more_than_eight_bits_in_unsupported_modes_are_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"mode '{mode}'.*convert it to 'I;16'"):
        wt.pack([(Image.new(mode, (8, 8)), 0)], tmp_path / "out")


def test_a_pil_image_of_sixteen_bits_is_packed_with_all_bits(tmp_path: Path) -> None:
    wt.pack([(Image.fromarray(depth_image()), 0)], tmp_path / "out", images="keep")
    with wt.make_loader(tmp_path / "out", batch_size=1, fields=("png",), num_workers=0) as loader:
        assert torch.equal(next(iter(loader)).png[0][0], torch.from_numpy(depth_image()))


def test_sixteen_bit_arrays_beside_the_images_keep_all_bits(tmp_path: Path) -> None:
    images = np.zeros((4, 48, 64, 3), np.uint8)
    depth = np.stack([depth_image(number) for number in range(4)])
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(4), depth=depth)
    wt.pack(tmp_path / "data.npz", tmp_path / "out", images="keep", workers=1)
    with wt.make_loader(tmp_path / "out", batch_size=4, fields=("label", "depth.npy"), num_workers=0) as loader:
        batch = next(iter(loader))
    for label, one in zip(batch.label.tolist(), batch[1], strict=True):
        assert (np.asarray(one) == depth[label]).all()
