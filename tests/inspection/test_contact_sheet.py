"""The contact sheet shows the images that the loader delivers."""

import json

import numpy as np
import pytest
from PIL import Image

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import DestinationError, NotADatasetError, OptionError
from wds_tools.inspection import palette
from wds_tools.inspection.contact_sheet import contact_sheet
from wds_tools.reading.select import Choice


@pytest.mark.parametrize("view", ["train", "eval"])
def test_the_tiles_are_the_loaders_images_in_order(packed, tmp_path, view):
    assert contact_sheet(packed, tmp_path / "grid.png", view=view, size=64, count=9, seed=3) == 9
    with Image.open(tmp_path / "grid.png") as grid:
        sheet = np.asarray(grid)
    expected = {"train": wt.RandomResizedCrop(64, flip=True), "eval": wt.CenterCrop(64, resize=73)}[view]
    with wt.make_loader(packed, batch_size=9, view=expected, shuffle=True, seed=3, num_workers=0) as loader:
        images, _ = next(iter(loader))
    for number, image in enumerate(images):
        x, y = 4 + number % 3 * 68, 4 + number // 3 * 82
        assert (sheet[y : y + 64, x : x + 64] == image.permute(1, 2, 0).numpy()).all()


def test_a_sheet_of_all_samples_is_a_square_grid(packed, tmp_path):
    assert contact_sheet(packed, tmp_path / "grid.jpg", view="whole", size=48, count=1000) == 400
    with Image.open(tmp_path / "grid.jpg") as grid:
        assert grid.size == (20 * 52 + 4, 20 * 66 + 4)


def test_a_dataset_without_labels_can_be_shown(photos, tmp_path):
    wt.pack(photos / "cat", tmp_path / "cats", workers=1)
    assert contact_sheet(tmp_path / "cats", tmp_path / "grid.png", count=4) == 4


def test_invalid_arguments_are_errors_and_no_file_is_written(packed, tmp_path):
    for options in ({"view": "nonsense"}, {"count": 0}, {"size": 0}):
        with pytest.raises(OptionError, match="allowed"):
            contact_sheet(packed, tmp_path / "grid.png", **options)
    with pytest.raises(NotADatasetError):
        contact_sheet(tmp_path / "none", tmp_path / "grid.png")
    with pytest.raises(OptionError, match=r"grid\.nonsense: unknown file extension"):
        contact_sheet(packed, tmp_path / "grid.nonsense")
    with pytest.raises(DestinationError, match=r"cannot write .*none/grid\.png: No such file or directory$"):
        contact_sheet(packed, tmp_path / "none" / "grid.png")
    assert not list(tmp_path.glob("grid*"))


def write_annotated(folder, without_points=()):
    """Write grey images with a box, an outline and key points each; the classes are a and b."""
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    people = {"keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
    categories = [{"id": 1, "name": "a"}, {"id": 2, "name": "b", **people}]
    found = {"images": [], "annotations": [], "categories": categories}
    for number in range(4):
        Image.new("RGB", (128, 128), (128, 128, 128)).save(folder / "images" / f"{number}.png")
        found["images"].append({"id": number, "file_name": f"{number}.png", "width": 128, "height": 128})
        one = {"id": number + 1, "image_id": number, "category_id": 2, "bbox": [40, 50, 60, 40], "area": 2400}
        one |= {"iscrowd": 0, "segmentation": [[10, 100, 30, 100, 20, 120]]}
        points = {"keypoints": [20, 20, 2, 0, 0, 0], "num_keypoints": 1}
        found["annotations"].append(one | ({} if number in without_points else points))
    (folder / "annotations" / "person_keypoints.json").write_text(json.dumps(found))
    wt.pack(folder, folder.parent / "packed", workers=1, progress=False)
    return folder.parent / "packed"


def tile_of(path, number=0):
    with Image.open(path) as sheet:
        x, y = 4 + number % 2 * 132, 4 + number // 2 * 146
        return np.asarray(sheet)[y : y + 128, x : x + 128].astype(int)


def test_boxes_outlines_and_key_points_are_drawn_in_the_colours_of_the_page(tmp_path):
    dataset = write_annotated(tmp_path / "coco")
    assert contact_sheet(dataset, tmp_path / "grid.png", view="whole", count=4) == 4
    colour = np.array(palette.rgb_of(1))
    for number in range(4):
        tile = tile_of(tmp_path / "grid.png", number)
        assert (tile[60:80, 40] == colour).all(axis=1).sum() > 15  # left edge of the box
        assert (tile[89, 60:95] == colour).all()  # its lower edge
        assert (tile[20, 20] == colour).all()  # a key point
        assert (tile[110, 20] != 128).any()  # the area of the outline
        assert (tile[5:15, 60:100] == 128).all()
        assert (tile[0:4, 0:4] == 128).all()  # a key point that is not labelled


def test_key_points_are_drawn_on_the_images_that_have_them(tmp_path, caplog):
    dataset = write_annotated(tmp_path / "coco", without_points=(1,))
    assert contact_sheet(dataset, tmp_path / "grid.png", view="whole", count=4) == 4
    colour = np.array(palette.rgb_of(1))
    drawn = [tile_of(tmp_path / "grid.png", number)[20, 20].tolist() for number in range(4)]
    assert drawn.count(colour.tolist()) == 3
    assert drawn.count([128, 128, 128]) == 1
    assert "key points not drawn on 1 of 4 images: " in caplog.text


def test_masks_are_drawn_and_a_mask_that_does_not_fit_is_named(tmp_path, caplog):
    with wt.ShardWriter(str(tmp_path / "masks" / "s-%06d.tar")) as writer:
        for number in range(4):
            mask = np.zeros((128, 128), np.uint8)
            mask[:64] = 3
            small = np.zeros((64, 64), np.uint8)
            image = Image.new("RGB", (128, 128), (100, 100, 100))
            fields = {"mask.png": Image.fromarray(mask), "instance.png": Image.fromarray(small)}
            writer.write({"__key__": f"{number}", "png": image, **fields})
    assert contact_sheet(tmp_path / "masks", tmp_path / "grid.png", view="whole", count=4) == 4
    tile = tile_of(tmp_path / "grid.png")
    expected = np.array([100 + (one - 100) * 128 / 255 for one in palette.rgb_of(3)])
    assert np.abs(tile[30, 30] - expected).max() <= 2
    assert (tile[100, 30] == 100).all()
    assert "the mask instance.png not drawn on 4 of 4 images: " in caplog.text
    assert "64x64" in caplog.text


def test_a_step_of_a_run_is_shown_from_its_state(packed, tmp_path, capsys):
    view = wt.RandomResizedCrop(64, flip=True)
    with wt.make_loader(packed, batch_size=9, view=view, shuffle=True, seed=3, num_workers=0) as loader:
        images = [batch.image for _, batch in zip(range(3), loader, strict=False)][1]
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["sample", str(packed), "--out", str(tmp_path / "grid.png"), "--size", "64", *words])
        return ended.value.code, capsys.readouterr()

    code, printed = run("--state", str(tmp_path / "state.json"), "--step", "1")
    assert (code, printed.out) == (0, f"wrote 9 of 9 samples of step 1 to {tmp_path / 'grid.png'}\n")
    with Image.open(tmp_path / "grid.png") as grid:
        sheet = np.asarray(grid)
    for number, image in enumerate(images):
        x, y = 4 + number % 3 * 68, 4 + number // 3 * 82
        assert (sheet[y : y + 64, x : x + 64] == image.permute(1, 2, 0).numpy()).all()
    for words, message in (
        (("--state", "x", "--step", "1", "--view", "eval"), "--view is recorded in the state"),
        (("--step", "1"), "--step requires --state FILE"),
        (("--state", "x"), "--state FILE requires --step N"),
    ):
        code, printed = run(*words)
        assert code == 2
        assert message in printed.err


def test_a_step_of_a_run_is_shown_with_its_annotations(tmp_path, capsys):
    dataset = write_annotated(tmp_path / "coco")
    view = wt.Letterbox(64)
    with wt.make_loader(dataset, batch_size=4, view=view, fields=("image",), num_workers=0) as loader:
        next(iter(loader))
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    words = ["--state", str(tmp_path / "state.json"), "--step", "0", "--size", "128"]
    with pytest.raises(SystemExit) as ended:
        main(["sample", str(dataset), "--out", str(tmp_path / "grid.png"), *words])
    assert ended.value.code == 0, capsys.readouterr()
    tile = tile_of(tmp_path / "grid.png")[32:96, 32:96]  # tiles are not enlarged
    colour = np.array(palette.rgb_of(1))
    assert (tile[44, 30:47] == colour).all()  # the lower edge of the box at half the size
    assert (tile[10, 10] == colour).all()


def test_a_condition_selects_the_samples_of_the_sheet(packed, tmp_path):
    assert contact_sheet(packed, tmp_path / "grid.png", count=9, choice=Choice(where="id < 5")) == 5
