"""The contact sheet shows the images that the loader delivers."""

import numpy as np
import pytest
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, NotADatasetError, OptionError
from wds_tools.inspection.contact_sheet import contact_sheet


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
