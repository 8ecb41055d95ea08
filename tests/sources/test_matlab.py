"""Files of MATLAB 7.3 in `tests/foreign/matlab`.

hdf5storage 0.2.2 wrote them, by ``savemat(name, {...}, format="7.3", store_python_metadata=False, oned_as="row",
compress=True)``, and scipy 1.17.1 wrote ``v5.mat``, by ``scipy.io.savemat``. ``expected.npz`` has the images
[N, H, W, C]
and the class numbers.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from array_cases import CLASSES, N, packed, parts, refusal

from wds_tools.errors import LabelError
from wds_tools.sources.detect import open_source

FOLDER = Path(__file__).parents[1] / "foreign" / "matlab"
EXPECTED = np.load(FOLDER / "expected.npz")
IMAGES, LABELS = EXPECTED["images"], EXPECTED["labels"]


def reasons(name: str, **columns: str) -> dict[str, str]:
    return {part.name: part.reason for part in parts(FOLDER / name, kind="hdf5", **columns)}


def test_arrays_with_the_images_on_the_last_axis_are_read_in_matlabs_order(tmp_path: Path) -> None:
    found = packed(FOLDER / "hwcn.mat", tmp_path, kind="hdf5")
    found.check(IMAGES, LABELS + 1)
    assert [fact["id"] for fact in found.facts] == list(range(N))
    assert [fact["sharp"] for fact in found.facts] == (LABELS == 1).tolist()
    for row, sample in enumerate(found.samples):
        assert np.load(io.BytesIO(sample["boxes.npy"])).tolist() == [4 * row, 4 * row + 1, 4 * row + 2, 4 * row + 3]
    assert reasons("hwcn.mat")["title"] == "is a single text, not one for each image"
    assert reasons("hwcn.mat")["empty"] == "is empty"


def test_arrays_with_the_images_on_the_first_axis_are_read(tmp_path: Path) -> None:
    found = packed(FOLDER / "nhwc.mat", tmp_path, kind="hdf5")
    found.check(IMAGES, LABELS)
    assert [pixels.tolist() for pixels in found.pixels("mask.png")] == IMAGES[..., 0].tolist()


def test_cells_with_images_and_text_are_read(tmp_path: Path) -> None:
    found = packed(FOLDER / "cells.mat", tmp_path, kind="hdf5", label="species")
    found.check([image[: 8 + row] for row, image in enumerate(IMAGES)], LABELS)
    assert found.classes == CLASSES


def test_numbers_from_1_with_class_names_are_an_error_and_those_from_0_are_read(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="only 3 class names, numbered from 0, and labels begin with 1"):
        open_source(FOLDER / "names_from_one.mat", kind="hdf5").scan()
    found = packed(FOLDER / "names.mat", tmp_path, kind="hdf5")
    found.check(IMAGES, LABELS)
    assert found.classes == CLASSES


def test_structs_are_groups(tmp_path: Path) -> None:
    assert "2 arrays that could be the image: 'test/images" in refusal(FOLDER / "struct.mat", kind="hdf5")
    packed(FOLDER / "struct.mat", tmp_path, kind="hdf5", image="test/images").check(255 - IMAGES, LABELS[::-1])


def test_grey_images_are_read_if_other_values_show_how_many_there_are(tmp_path: Path) -> None:
    packed(FOLDER / "grey.mat", tmp_path, kind="hdf5").check(IMAGES[..., 0], LABELS)
    assert "'images' cannot be used: it is of size 12x14x6, and it is not clear" in refusal(
        FOLDER / "grey_unclear.mat", kind="hdf5"
    )


def test_pixels_of_another_class_are_refused() -> None:
    assert "'images' is float32; allowed are uint8 pixels" in refusal(FOLDER / "single.mat", kind="hdf5")


def test_rows_of_characters_are_text(tmp_path: Path) -> None:
    found = packed(FOLDER / "chars.mat", tmp_path, kind="hdf5")
    found.check(IMAGES, LABELS)
    assert [fact["city"] for fact in found.facts] == ["Rome", "Ulm", "Rome", "Ulm", "Rome", "Oslo"]


def test_complex_numbers_and_mixed_cells_are_left_out_with_a_reason() -> None:
    found = reasons("complex.mat")
    assert "complex" in found["spectrum"]
    assert "cell array of char, double" in found["mixed"]
    assert found["#refs#"] == ""


def test_older_versions_are_refused_with_the_way_out() -> None:
    for name in ("v5", "v5_compressed", "v5_struct"):
        message = refusal(FOLDER / f"{name}.mat", kind="hdf5")
        assert "is a MAT-file of version 5, which is not read" in message
        assert "scipy.io.loadmat" in message
    assert "v4.mat cannot be read as HDF5" in refusal(FOLDER / "v4.mat", kind="hdf5")
