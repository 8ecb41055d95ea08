"""Key points of mirrored images: a left eye that is mirrored looks like a right eye, and has its index."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import wds_tools as wt
from wds_tools.errors import OptionError, SampleError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
POINTS = {RED: (20, 30), GREEN: (50, 45), BLUE: (80, 25)}  # left eye, nose and right eye, in an image of 100x60
COLORS = list(POINTS)
MIRRORED = [2, 1, 0]  # what Ultralytics calls flip_idx: keypoints[:, flip_idx] after the mirroring


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images of a dataset in Ultralytics' format for poses, without flip_idx."""
    return write_faces(tmp_path_factory.mktemp("faces"), {})


def write_faces(folder: Path, entries: dict) -> Path:
    pixels = np.full((60, 100, 3), 120, np.uint8)
    for color, (x, y) in POINTS.items():
        pixels[y - 5 : y + 6, x - 5 : x + 6] = color
    points = [f"{x / 100} {y / 60} {2 - number}" for number, (x, y) in enumerate(POINTS.values())]
    for path in ("src/images/all", "src/labels/all"):
        (folder / path).mkdir(parents=True)
    for name in "abcd":
        Image.fromarray(pixels).save(folder / f"src/images/all/{name}.png")
        (folder / f"src/labels/all/{name}.txt").write_text(f"0 .5 .5 .98 .98 {' '.join(points)}\n")
    settings = {"names": ["face"], "kpt_shape": [3, 3], "train": "images/all", **entries}
    (folder / "src/data.yaml").write_text(yaml.safe_dump(settings))
    wt.pack(folder / "src", folder / "packed", kind="yolo", images="keep", progress=False)
    return folder / "packed"


def loader_of(dataset: Path, view, **options):  # type: ignore[no-untyped-def]
    fields = {
        "image": wt.Image(view=view),
        "points": wt.Keypoints("json", path="objects.keypoints", like="image", **options),
    }
    return wt.make_loader(dataset, batch_size=4, num_workers=0, fields=fields, shuffle=False)


def batch_of(*args, **options):  # type: ignore[no-untyped-def]
    with loader_of(*args, **options) as loader:
        return next(iter(loader))


def colors_at(image: torch.Tensor, points: torch.Tensor) -> list[int | None]:
    """Return which color an image has at each point; None for points outside."""
    found: list[int | None] = []
    for x, y, _ in points.tolist():
        inside = 1 <= x < image.shape[2] - 1 and 1 <= y < image.shape[1] - 1
        pixel = image[:, round(y), round(x)].float() if inside else torch.zeros(3)
        found.append(int(pixel.argmax()) if inside and pixel.max() > 180 and pixel.min() < 80 else None)
    return found


TURNED = {"degrees": 40, "shear": 5, "scale": (0.9, 1.1), "translate": 0.05}
VIEWS = [
    (wt.Letterbox(90, flip=1.0), True),
    (wt.Letterbox(90, flip_vertical=1.0), True),
    (wt.Letterbox(90, flip=1.0, flip_vertical=1.0), False),
    (wt.LargeScaleJitter(90, (0.8, 0.9), flip=1.0), True),
    (wt.ZoomOut(90, (1, 1.3), p=1, flip=1.0), True),
    (wt.RandomResizedCrop(90, scale=(0.9, 1), flip=1.0), True),
    (wt.RandomAffine(90, **TURNED, flip=1.0), True),
    (wt.RandomAffine(90, **TURNED, flip=0, flip_vertical=1.0), True),
    (wt.RandomAffine(90, **TURNED, flip=1.0, flip_vertical=1.0), False),
    (wt.RandomAffine(90, **TURNED, flip=0), False),
    (wt.Mosaic(180, scale=(0.9, 1), translate=0.05, flip=1.0), True),
    (wt.Mosaic(180, **TURNED, flip=1.0), True),
    (wt.CopyPaste(wt.Letterbox(90, flip=1.0), polygons=None, p=1), True),
    (wt.Blend(wt.RandomAffine(90, scale=(1, 1), translate=0, degrees=5, flip=1.0), p=0.5), True),
    (wt.Schedule({0: wt.MultiScale([wt.Letterbox(90, flip=1.0)])}), True),
]


@pytest.mark.parametrize(("view", "is_mirrored"), VIEWS, ids=lambda value: repr(value)[:60])
def test_points_of_mirrored_images_change_places(faces: Path, view, is_mirrored: bool) -> None:  # type: ignore[no-untyped-def]
    batch = batch_of(faces, view, flip_index=MIRRORED)
    order = MIRRORED if is_mirrored else [0, 1, 2]
    seen = 0
    for image, points in zip(batch.image, batch.points, strict=True):
        for one in points:
            assert one[:, 2].tolist() == [2 - color for color in order]  # the visibility moves with its point
            found = colors_at(image, one)
            assert all(color in (None, expected) for color, expected in zip(found, order, strict=True))
            seen += 3 - found.count(None)
    assert seen >= 8


def test_each_image_of_a_batch_is_mirrored_or_not(faces: Path) -> None:
    batch = batch_of(faces, wt.Letterbox(90, flip=0.5), flip_index=MIRRORED)
    for image, (points,) in zip(batch.image, batch.points, strict=True):
        red, blue = (image[channel].float().argmax().item() % 90 for channel in (0, 2))
        assert colors_at(image, points) == ([0, 1, 2] if red < blue else MIRRORED)
        assert points[0, 0] < points[2, 0]  # the first one is always on the left: the face looks at the camera
    assert len({points[0, 2].item() for (points,) in batch.points}) == 2


def test_pairs_are_those_of_flip_idx_in_data_yaml(tmp_path: Path) -> None:
    batch = batch_of(write_faces(tmp_path, {"flip_idx": MIRRORED}), wt.Letterbox(90, flip=1.0))
    assert colors_at(batch.image[0], batch.points[0][0]) == MIRRORED


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (["left_eye", "nose", "right_eye"], MIRRORED),
        (["Right Eye", "nose", "Left Eye"], MIRRORED),
        (["left", "other", "right"], MIRRORED),
        (["a", "b", "c"], None),
        (["left_eye", "nose", "right_ear"], None),
        (["left_eye", "right_eye", "left_eye"], None),
    ],
)
def test_pairs_are_those_of_the_names_of_coco(faces: Path, tmp_path: Path, names: list, index: list | None) -> None:
    wt.export(faces, "coco", dst=tmp_path / "coco", progress=False)
    (path,) = tmp_path.glob("coco/annotations/*.json")
    written = json.loads(path.read_text())
    written["categories"][0]["keypoints"] = names
    path.write_text(json.dumps(written))
    wt.pack(tmp_path / "coco", tmp_path / "packed", images="keep", progress=False)
    if index is None:
        with pytest.warns(UserWarning, match=r"key points of field 'points' keep their indices.*flip_index="):
            batch = batch_of(tmp_path / "packed", wt.Letterbox(90, flip=1.0))
    else:
        batch = batch_of(tmp_path / "packed", wt.Letterbox(90, flip=1.0))
    assert colors_at(batch.image[0], batch.points[0][0]) == (index or [0, 1, 2])


MIRRORING = [
    wt.RandomResizedCrop(64, flip=True),
    wt.RandomAffine(64),
    wt.CopyPaste(wt.Letterbox(64, flip_vertical=0.1), polygons=None),
    wt.Schedule({0: wt.Letterbox(64), 3: wt.MultiScale([wt.Letterbox(64), wt.Letterbox(32, flip=True)])}),
]


@pytest.mark.parametrize("view", MIRRORING, ids=lambda view: repr(view)[:40])
def test_unknown_pairs_are_a_warning_at_the_call_if_a_view_mirrors(faces: Path, view) -> None:  # type: ignore[no-untyped-def]
    message = r"mirrors images, and the key points of field 'points' keep their indices.*flip_index=\[0, 2, 1\]"
    with pytest.warns(UserWarning, match=message) as found:
        loader_of(faces, view).close()
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader_of(faces, view, flip_index=range(3)).close()  # there are no pairs
        loader_of(faces, wt.Letterbox(64)).close()


def test_datasets_that_contradict_each_other_have_no_pairs(faces: Path, tmp_path: Path) -> None:
    first = write_faces(tmp_path / "first", {"flip_idx": MIRRORED})
    second = write_faces(tmp_path / "second", {"flip_idx": [0, 2, 1]})
    view = wt.Letterbox(90, flip=1.0)
    with pytest.warns(UserWarning, match="flip_index="):
        loader_of(wt.Mixture([first, second], weights=[1, 1]), view).close()  # type: ignore[arg-type]
    batch = batch_of(wt.Mixture([first, faces], weights=[1, 1]), view)  # type: ignore[arg-type]
    assert [colors_at(image, one) for image, (one,) in zip(batch.image, batch.points, strict=True)] == [MIRRORED] * 4


def test_a_streaming_dataset_warns_too(faces: Path) -> None:
    fields = {"image": wt.Image(view=wt.Mosaic(64)), "points": wt.Keypoints(path="objects.keypoints", like="image")}
    with pytest.warns(UserWarning, match="flip_index="):
        wt.StreamingDataset(faces, batch_size=4, fields=fields)


@pytest.mark.parametrize("index", [[0, 1, 3], [1, 2, 0], [0.0, 1.0], [], "012", 3, [-1, 0]])
def test_an_invalid_flip_index_is_refused(index) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match=r"flip_index=.*allowed is for each point the index"):
        wt.Keypoints(flip_index=index)


def test_another_number_of_points_is_an_error_of_its_sample(faces: Path) -> None:
    with pytest.raises(SampleError, match=r"shard .* has 3 points; allowed are 2, as in flip_index=\[1, 0\]"):
        batch_of(faces, wt.Letterbox(90, flip=1.0), flip_index=[1, 0])
