"""Masks and boxes of images that are resized while they are packed, in shards that webdataset wrote."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
from PIL import Image, ImageOps

import wds_tools as wt
from wds_tools.errors import OptionError, SourceError
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples

HEIGHT, WIDTH = 24, 40
NUMBERS = np.random.default_rng(0).integers(0, 5, (HEIGHT, WIDTH))
OBJECT = {
    "box": [4, 6, 20, 12.5], "category": 3, "polygons": [[4, 6, 20, 6, 20, 12]], "keypoints": [[10, 4, 2]],
    "area": 104, "crowd": False, "name": "left one",
}  # fmt: skip


def image(array: Any, kind: str = "PNG", mode: str | None = None) -> bytes:
    out = io.BytesIO()
    picture = array if isinstance(array, Image.Image) else Image.fromarray(array)
    picture.save(out, kind)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def shard(folder: Path, **fields: Any) -> Path:
    photo = image(np.full((HEIGHT, WIDTH, 3), 90, np.uint8), "JPEG")
    with webdataset.TarWriter(str(folder / "a.tar")) as writer:
        writer.write(
            {"__key__": "0", "jpg": photo, **{name.replace("_", "."): value for name, value in fields.items()}}
        )
    return folder / "a.tar"


def resized(src: Path, resize: Any = (12, 10), **options: Any) -> dict[str, bytes]:
    wt.reshard(src, src.parent / "d", images=options.pop("images", "resize"), resize=resize, workers=1)
    (sample,) = stored_samples(open_shards(src.parent / "d"), 0)
    return {name: bytes(data) for name, data in sample.fields.items()}


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def expected_mask(array: np.ndarray) -> np.ndarray:
    """Return a mask as torch resizes it."""
    mask = torch.from_numpy(array.astype(np.float64))[None, None]
    return torch.nn.functional.interpolate(mask, (12, 10), mode="nearest-exact")[0, 0].numpy()


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
@pytest.mark.parametrize("images", ["resize", "raw"])
def test_a_mask_is_resized_without_new_values(tmp_path: Path, mode: str, images: str) -> None:
    mask = Image.fromarray(NUMBERS.astype(np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    found = resized(shard(tmp_path, mask_png=image(mask)), images=images)
    assert np.array_equal(pixels(found["mask.png"]), expected_mask(NUMBERS))
    assert Image.open(io.BytesIO(found["mask.png"])).mode == mode
    spec = {"image": wt.Image(view=wt.Resize((6, 5))), "mask": wt.Mask("mask.png", like="image")}
    with wt.make_loader(tmp_path / "d", batch_size=1, fields=spec, num_workers=0) as loader:
        assert next(iter(loader)).mask.shape == (1, 6, 5)


def test_arrays_and_coloured_masks_of_the_size_of_the_image_are_resized(tmp_path: Path) -> None:
    depth = NUMBERS.astype(np.float32) / 3
    colours = np.stack([NUMBERS] * 3, -1).astype(np.uint8)
    found = resized(shard(tmp_path, depth_npy=depth, panoptic_png=image(colours)))
    assert np.array_equal(np.load(io.BytesIO(found["depth.npy"])), expected_mask(depth).astype(np.float32))
    assert np.array_equal(pixels(found["panoptic.png"])[..., 0], expected_mask(NUMBERS))


def test_arrays_of_the_size_of_the_image_in_an_npz_file_are_resized(tmp_path: Path) -> None:
    arrays = {"left": NUMBERS, "instances": np.stack([NUMBERS, NUMBERS + 1]), "speed": np.arange(3.0)}
    fields = resized(shard(tmp_path, masks_npz=npz(**arrays)))
    with np.load(io.BytesIO(fields["masks.npz"])) as found:
        assert np.array_equal(found["left"], expected_mask(NUMBERS))
        assert np.array_equal(found["instances"][1], expected_mask(NUMBERS + 1))
        assert np.array_equal(found["speed"], np.arange(3.0))


def test_fields_that_may_hold_positions_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    normals = np.ones((*NUMBERS.shape, 3), np.float32)
    fields = {
        "txt": b"Car 0.00 0 -1.57 1.0 2.0 30.0 22.0",
        "pts_txt": b"10 12\n30 20",
        "caption_txt": b"2 cats on a sofa",
    }
    resized(
        shard(tmp_path, normals_npy=normals, state_pth=b"\x80\x02", points_npz=npz(a=np.full((4, 2), 7.5)), **fields)
    )
    assert "the values of 'points.npz', 'pts.txt', 'state.pth', 'txt' are not changed" in caplog.text


def test_objects_move_with_the_image(tmp_path: Path) -> None:
    facts = json.loads(resized(shard(tmp_path, json={"objects": [OBJECT], "width": WIDTH, "height": HEIGHT}))["json"])
    assert facts["objects"] == [
        {
            "box": [1, 3, 5, 6.25], "category": 3, "polygons": [[1, 3, 5, 3, 5, 6]], "keypoints": [[2.5, 2, 2]],
            "area": 13, "crowd": False, "name": "left one",
        }
    ]  # fmt: skip
    assert (facts["width"], facts["height"]) == (10, 12)


def test_a_mask_in_run_lengths_is_resized(tmp_path: Path) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.int64)
    mask[:12, 8:20] = 1
    flat = mask.T.reshape(-1)
    runs = np.diff(np.flatnonzero(np.concatenate([[1], np.diff(flat), [1]]))).tolist()
    rle = {"size": [HEIGHT, WIDTH], "counts": runs}
    facts = json.loads(resized(shard(tmp_path, json={"objects": [{"box": [8, 0, 20, 12], "rle": rle}]}))["json"])
    found = facts["objects"][0]["rle"]
    counts = found["counts"]
    restored = np.repeat(np.arange(len(counts)) % 2, counts).reshape(found["size"][::-1]).T
    assert np.array_equal(restored, expected_mask(mask))


def test_what_is_not_in_the_image_stays_as_it_is(tmp_path: Path) -> None:
    right = image(np.full((HEIGHT, WIDTH, 3), 70, np.uint8))
    facts = {"points": 7, "objects": [], "author": {"x": 1}, "bbox": "", "left": 1, "roi": "7", "x": "a", "y": "b"}
    found = resized(shard(tmp_path, right_png=right, embedding_npy=np.arange(4.0), json=facts, txt="a box"))
    assert found["right.png"] == right
    assert np.array_equal(np.load(io.BytesIO(found["embedding.npy"])), np.arange(4.0))
    assert facts.items() <= json.loads(found["json"]).items()


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"json": {"objects": {"bbox": [[1, 2, 3, 4]], "category": [0]}}}, "'objects' of the field 'json'"),
        ({"json": {"objects": [{"bbox": [1, 2, 3, 4]}]}}, "'objects' of the field 'json'"),
        ({"json": {"objects": [{"box": [1, 2, 3, 4], "hbox": [1, 2, 3, 4]}]}}, "'objects' of the field 'json'"),
        ({"json": {"objects": [{"box": [1, 2, 3, 4], "foot_kpts": [1, 2, 2]}]}}, "'objects' of the field 'json'"),
        ({"json": {"annotation": {"xmin": 3}}}, "the field 'json'"),
        ({"boxes_json": [[1, 2, 3, 4]]}, "field 'boxes.json'"),
        ({"det_json": [{"bbox": [1, 2, 3, 4]}]}, "field 'det.json'"),
        ({"boxes_npy": np.ones((2, 4))}, "field 'boxes.npy'"),
        ({"bbox_txt": "1 2 9 10"}, "field 'bbox.txt'"),
        ({"keypoints": b"1 2 9 10"}, "field 'keypoints'"),
        ({"xml": b"<annotation><bndbox><xmin>3</xmin></bndbox></annotation>"}, "field 'xml'"),
        ({"xml": b'<image id="0"><box label="car" xtl="3.0" ytl="2.0"/></image>'}, "field 'xml'"),
        ({"gt_npz": npz(boxes=np.ones((2, 4)))}, "array 'boxes' of field 'gt.npz'"),
        ({"json": {"x": 3, "y": 4}}, "the field 'json'"),
        ({"json": {"face": {"left": 3, "top": 2, "w": 4, "h": 4}}}, "the field 'json'"),
        ({"json": {"regions": [{"shape_attributes": {"x": 1, "y": 2, "width": 3, "height": 4}}]}}, "the field 'json'"),
        ({"json": {"regions": [{"all_points_x": [1, 2], "all_points_y": [3, 4]}]}}, "the field 'json'"),
        ({"json": {"region": '{"cx": 3, "cy": 4, "r": 1}'}}, "the field 'json'"),
        ({"json": {"bbox": "1,2,9,10"}}, "the field 'json'"),
        ({"json": {"rle_mask": "1 3 9 3"}}, "the field 'json'"),
        ({"json": {"shape": '{"size": [24, 40], "counts": "abc"}'}}, "the field 'json'"),
    ],
)
def test_positions_that_are_not_understood_refuse_the_run(tmp_path: Path, fields: dict[str, Any], where: str) -> None:
    src = shard(tmp_path, **fields)
    with pytest.raises(OptionError, match=rf"{where} has positions in the image .*pack without --resize"):
        resized(src)
    assert not (tmp_path / "d").exists()
    assert resized(src, images="keep", resize=None)  # they stay right


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"xmin": 1, "ymin": 2, "xmax": 9, "ymax": 10}, "xmax"),
        ({"bbox": "[1, 2, 9, 10]"}, "bbox"),
        ({"roi": "1 2 9 10"}, "roi"),
        ({"x_1": 1, "y_1": 2, "width": 9, "height": 10}, "x_1"),
        ({"Roi.X1": 1, "Roi.Y1": 2, "Roi.X2": 9, "Roi.Y2": 10}, "Roi.X1"),
        ({"lefteye_x": 5, "lefteye_y": 6}, "lefteye_x"),
    ],
)
def test_positions_in_a_csv_file_refuse_the_run(tmp_path: Path, columns: dict[str, Any], named: str) -> None:
    src = tmp_path / "s"
    src.mkdir()
    (src / "0.png").write_bytes(image(np.zeros((HEIGHT, WIDTH, 3), np.uint8)))
    pandas.DataFrame({"file": ["0.png"], "label": ["cat"], **columns}).to_csv(src / "a.csv", index=False)
    with pytest.raises(OptionError, match=rf"has positions in the image \('{named}'\)"):
        wt.pack(src, tmp_path / "d", images="resize", resize=(12, 10), workers=1)


@pytest.mark.parametrize(
    "one", [{"box": ["a", 1, 2, 3]}, {"box": [1, 2, 3]}, {"box": [0, 0, 1, 1], "rle": {"size": [1, 1]}}]
)
def test_objects_of_another_form_refuse_the_run(tmp_path: Path, one: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="has positions in another form"):
        resized(shard(tmp_path, json={"objects": [one]}))


def test_nothing_is_refused_if_the_image_keeps_its_size(tmp_path: Path) -> None:
    found = resized(shard(tmp_path, boxes_json=[[1, 2, 3, 4]]), resize=100)
    assert json.loads(found["boxes.json"]) == [[1, 2, 3, 4]]


@pytest.mark.parametrize(("kind", "stored"), [("jpg", "png"), ("gif", "png"), ("webp", "png"), ("tif", "tif")])
def test_masks_of_other_types_than_png_are_resized_too(tmp_path: Path, kind: str, stored: str) -> None:
    mask = image(NUMBERS.astype(np.uint8) * 60, {"jpg": "JPEG", "tif": "TIFF"}.get(kind, kind))
    before = np.asarray(Image.open(io.BytesIO(mask)))
    found = resized(shard(tmp_path, **{f"mask_{kind}": mask}))
    assert f"mask.{kind}" not in found or kind == stored
    after = pixels(found[f"mask.{stored}"])
    assert after.shape[:2] == (12, 10)
    if before.ndim == 2:
        assert np.array_equal(after, expected_mask(before))


def test_a_mask_gets_the_same_type_if_its_image_keeps_its_size(tmp_path: Path) -> None:
    found = resized(shard(tmp_path, mask_jpg=image(NUMBERS.astype(np.uint8), "JPEG")), resize=100)
    assert pixels(found["mask.png"]).shape == (HEIGHT, WIDTH)
    assert "mask.jpg" not in found


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"row": 3, "col": 4}, "'col', 'row'"),
        ({"geometry": "POLYGON ((1 1, 9 2, 3 3, 1 1))"}, "'geometry'"),
        ({"gaze": "1.5,2.0"}, "'gaze'"),
        ({"PredictionString": "n01 1 1 20 22"}, "'PredictionString'"),
        ({"area": 900}, "'area'"),
        ({"age": 31, "year": 1999, "caption": "2 cats and 3 dogs on a sofa"}, None),
        ({"mean": "[0.1, 0.2]"}, None),
        ({"object/class/label": "[2, 1]", "image/object/difficult": "[3, 4]"}, "'image/object/difficult'"),
        ({"age": 31, "rating": 5, "lat": 4.5, "lon": 9.5, "date_captured": "2013-11-14 17:02:52"}, None),
        ({"xmin": 0.1, "ymin": 0.2, "xmax": 0.5, "ymax": 1, "bbox": "[0.1, 0.2, 0.5, 1]"}, None),
    ],
)
def test_values_that_could_be_positions_are_named_in_a_warning(
    tmp_path: Path, columns: dict[str, Any], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    src = tmp_path / "s"
    src.mkdir()
    (src / "0.png").write_bytes(image(np.zeros((HEIGHT, WIDTH, 3), np.uint8)))
    pandas.DataFrame({"file": ["0.png"], "label": ["cat"], **columns}).to_csv(src / "a.csv", index=False)
    wt.pack(src, tmp_path / "d", images="resize", resize=(12, 10), workers=1)
    warned = [text for text in caplog.messages if "are not changed when images are resized" in text]
    assert [f": the values of {named} are not changed" in text for text in warned] == [True] * (named is not None)


def test_attributes_of_objects_that_could_be_positions_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attributes = {"head": [2, 3], "attributes": {"occluded": True}, "colour": "red", "score": [0.5, 0.2]}
    resized(shard(tmp_path, json={"objects": [{"box": [1, 2, 3, 4], "keypoints": [[1, 2, 2]], **attributes}]}))
    assert [": the values of 'head' are not changed" in text for text in caplog.messages if "resized" in text] == [True]


def test_arrays_with_the_sides_of_the_image_at_their_end_are_resized(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    masks = np.stack([NUMBERS, NUMBERS + 1])
    flow = np.full((*NUMBERS.shape, 2), -0.5, np.float32)
    found = resized(shard(tmp_path, instances_npy=masks, joints_npy=np.full((5, 3), 7.5), flow_npy=flow))
    expected = [expected_mask(mask) for mask in masks]
    assert np.array_equal(np.load(io.BytesIO(found["instances.npy"])), expected)
    assert "'flow.npy', 'joints.npy' are not changed when images are resized" in caplog.text


def turned_shard(folder: Path, orientation: int, photo: np.ndarray, mask: np.ndarray) -> Path:
    """Write a shard with a JPEG that has an EXIF orientation, and a mask that has none."""
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(photo).save(out, "JPEG", quality=100, subsampling=0, exif=exif)
    with webdataset.TarWriter(str(folder / "a.tar")) as writer:
        writer.write({"__key__": "0", "jpg": out.getvalue(), "mask.png": image(mask)})
    return folder / "a.tar"


SQUARES = np.kron(np.array([[0, 200, 100], [50, 250, 150]], np.uint8), np.ones((16, 16), np.uint8))  # [32, 48]


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("images", ["resize", "raw", "keep"])
def test_a_mask_of_the_stored_pixels_is_turned_with_its_image(tmp_path: Path, orientation: int, images: str) -> None:
    src = turned_shard(tmp_path, orientation, np.stack([SQUARES] * 3, 2), SQUARES)
    found = resized(src, (48, 32) if images == "resize" else None, images=images)
    if images == "raw":
        photo = np.load(io.BytesIO(found["npy"]))
    else:  # an image of this size is stored with its orientation
        photo = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(found["jpg"]))))
    mask = pixels(found["mask.png"])
    assert mask.shape == (48, 32)
    assert np.abs(photo[..., 0].astype(int) - mask).mean() < 8


@pytest.mark.parametrize(
    ("orientation", "side"), [(3, slice(0, 48)), (6, slice(0, 32))], ids=["half a turn", "a square image"]
)
def test_a_mask_is_not_resized_if_its_size_does_not_show_how_it_is_turned(
    tmp_path: Path, orientation: int, side: slice, caplog: pytest.LogCaptureFixture
) -> None:
    part = SQUARES[:, side]
    src = turned_shard(tmp_path, orientation, np.stack([part] * 3, 2), part)
    with pytest.raises(SourceError, match=rf"EXIF orientation {orientation}, and 'mask\.png' may have been drawn"):
        wt.pack(src, tmp_path / "d", resize=16, kind="webdataset", workers=1)
    report = wt.pack(src, tmp_path / "kept", kind="webdataset", workers=1)
    assert report.packed == 1
    [sample] = stored_samples(open_shards(tmp_path / "kept"), 0)
    fields = {name: [bytes(sample.fields[stored])] for name, stored in (("image", "jpg"), ("annotation", "mask.png"))}
    pq.write_table(pa.table(fields), tmp_path / "t.parquet")  # a mask by its pixels
    with pytest.raises(SourceError, match=r"'annotation\.png' may have been drawn"):
        wt.pack(tmp_path / "t.parquet", tmp_path / "d", resize=16, workers=1)
    assert "1 sample with a mask, and an EXIF orientation that loaders apply to the image" in caplog.text


def test_a_mask_of_the_turned_image_is_resized_and_not_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src = turned_shard(tmp_path, 6, np.stack([SQUARES] * 3, 2), np.rot90(SQUARES, -1))
    assert pixels(resized(src, (24, 16))["mask.png"]).shape == (24, 16)
    wt.pack(src, tmp_path / "kept", kind="webdataset", workers=1)
    assert "EXIF" not in caplog.text


def test_a_mask_of_another_size_than_its_image_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    src = shard(tmp_path, mask_png=image(NUMBERS[::2, ::2].astype(np.uint8)))
    assert pixels(resized(src)["mask.png"]).shape == (12, 20)
    assert "1 sample with a mask 'mask.png' of another size than the image, which is not resized" in caplog.text
