"""The call of make_loader that a command prints runs, unchanged, on the dataset that the command has written."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import write_tar
from pictures import encode
from PIL import Image

from wds_tools.cli import main
from wds_tools.loading.loader import Loader
from wds_tools.packing.snippet import first_call
from wds_tools.reading.opening import open_shards

Batches = dict[str, Any]


@pytest.fixture
def make(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Batches]]:
    """Return a function that runs a command and then the code that it prints, and returns each loader's first batch."""
    loaders: list[Loader] = []

    def run(*words: str | Path) -> Batches:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert end.value.code == 0, err
        names: dict[str, Any] = {}
        exec(out[out.index("import wds_tools") :], names)
        found_loaders = {name: value for name, value in names.items() if isinstance(value, Loader)}
        loaders.extend(found_loaders.values())
        looks_at_it(out)
        return {name: next(iter(loader)) for name, loader in found_loaders.items()}

    def looks_at_it(out: str) -> None:
        """Run what is printed for the shell, too."""
        shown = out[out.index("next: ") : out.index("\n\nimport")].removeprefix("next: ").splitlines()
        for line in shown:
            program, *words = shlex.split(line)
            assert program == "wds-tools"
            with pytest.raises(SystemExit) as end:
                main(words)
            assert end.value.code == 0

    yield run
    for loader in loaders:
        loader.close()


def image_bytes(side: int = 40) -> bytes:
    return encode(Image.new("RGB", (side, side), (200, 100, 50)), "JPEG")


def test_the_call_for_six_images_runs(make: Callable[..., Batches], six_photos: Path, tmp_path: Path) -> None:
    images, labels = make("pack", six_photos, tmp_path / "out")["loader"]
    assert (images.shape, labels.shape) == ((4, 3, 224, 224), (4,))


@pytest.mark.torture
def test_the_call_for_one_image_runs(make: Callable[..., Batches], six_photos: Path, tmp_path: Path) -> None:
    for path in [*six_photos.glob("cat/*"), *list(six_photos.glob("fig/*"))[1:]]:
        path.unlink()
    images, labels = make("pack", six_photos, tmp_path / "out")["loader"]
    assert (images.shape, labels.tolist()) == ((1, 3, 224, 224), [0])


def test_the_call_for_images_without_labels_runs(
    make: Callable[..., Batches], six_photos: Path, tmp_path: Path
) -> None:
    images = make("pack", six_photos / "cat", tmp_path / "out")["loader"]
    assert images.shape == (2, 3, 224, 224)


def test_the_call_for_images_with_captions_runs(make: Callable[..., Batches], six_photos: Path, tmp_path: Path) -> None:
    rows = [f"{path.relative_to(tmp_path)},a photo of {path.parent.name}" for path in sorted(six_photos.glob("*/*"))]
    (tmp_path / "table.csv").write_text("\n".join(["path,caption", *rows]) + "\n")
    batch = make("pack", tmp_path / "table.csv", tmp_path / "out")["loader"]
    assert batch.shape == (4, 3, 224, 224)


@pytest.mark.torture
def test_the_call_for_images_with_sixteen_bits_runs(make: Callable[..., Batches], tmp_path: Path) -> None:
    for name in ("cat", "fig"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        Image.new("I;16", (40, 30), 40_000).save(tmp_path / "deep" / name / "a.png")
    batch = make("pack", tmp_path / "deep", tmp_path / "out")["loader"]
    assert (batch.png.shape, batch.png.dtype, batch.png.numpy().min()) == ((2, 1, 30, 40), torch.uint16, 40_000)
    assert sorted(batch.label.tolist()) == [0, 1]


@pytest.mark.torture
def test_the_call_for_images_with_eight_and_sixteen_bits_runs(make: Callable[..., Batches], tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    Image.new("I;16", (240, 230), 40_000).save(tmp_path / "mixed" / "deep.png")
    Image.new("RGB", (240, 230), "red").save(tmp_path / "mixed" / "red.png")
    batch = make("pack", tmp_path / "mixed", tmp_path / "out", "--images", "keep")["loader"]
    assert [image.dtype for image in batch.png].count(torch.uint16) == 1


def write_masks(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(4):
            if name == "images":
                Image.new("RGB", (40, 30), (number, 50, 60)).save(folder / name / f"{number}.jpg")
            else:
                Image.new("L", (40, 30), 3).save(folder / name / f"{number}.png")


def test_the_call_for_images_with_masks_loads_both(make: Callable[..., Batches], tmp_path: Path) -> None:
    write_masks(tmp_path / "photos", ("images", "masks", "instances"))
    batch = make("pack", tmp_path / "photos", tmp_path / "out")["loader"]
    assert batch._fields == ("image", "instance", "mask")
    assert batch.image.shape == (4, 3, 224, 224)
    assert batch.mask.shape[-2:] == (224, 224)
    assert batch.mask.unique().tolist() == [3]


def test_the_call_for_objects_and_masks_loads_both(make: Callable[..., Batches], tmp_path: Path) -> None:
    write_masks(tmp_path / "photos", ("images",))
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 40, "height": 30} for i in range(4)]
    objects = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 10, 12], "area": 120} for i in range(4)]
    found = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "photos" / "instances.json").write_text(json.dumps(found))
    batch = make("pack", tmp_path / "photos", tmp_path / "out")["loader"]
    assert batch._fields[:3] == ("image", "boxes", "classes")
    manifest = open_shards(str(tmp_path / "out")).manifest
    text = first_call("out", replace(manifest, fields={**manifest.fields, "mask.png": 4, "panoptic.png": 4}))
    assert "wds_tools.Boxes('json'" in text
    assert "'mask': wds_tools.Mask('mask.png', like='image')," in text
    assert "'panoptic': wds_tools.Array('panoptic.png', like='image', interpolation='nearest')," in text
    assert "mask.png" not in first_call("out", replace(manifest, fields={**manifest.fields, "mask.png": 3}))


def test_the_call_for_splits_loads_the_first_one(
    make: Callable[..., Batches], six_photos: Path, tmp_path: Path
) -> None:
    batches = make("pack", six_photos, tmp_path / "out", "--split", "train=0.5,val=0.5")
    assert list(batches) == ["loader"]
    assert batches["loader"].image.shape == (4, 3, 224, 224)


@pytest.mark.parametrize(
    "name", ["my shards", "it's", 'say "so"', "back\\slash", "ünïcode", "[x]", "{0..9}", "a.tar", "b.json"]
)
@pytest.mark.torture_except("{0..9}")
def test_the_call_for_a_folder_with_any_name_runs(
    make: Callable[..., Batches], six_photos: Path, tmp_path: Path, name: str
) -> None:
    images, _ = make("pack", six_photos, tmp_path / name)["loader"]
    assert images.shape == (4, 3, 224, 224)


def test_the_call_for_a_relative_path_runs(
    make: Callable[..., Batches], six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(make("pack", "six_photos", "out")["loader"].label) == 4
    shard = write_tar(tmp_path / "a-0.tar", [("1.jpg", image_bytes()), ("1.cls", b"0")])
    assert len(make("index", shard.name)["loader"].label) == 1


def test_the_call_for_a_url_runs(
    make: Callable[..., Batches], six_photos: Path, request: pytest.FixtureRequest
) -> None:
    images, _ = make("pack", six_photos, f"memory://{request.node.name}/folder")["loader"]
    assert images.shape == (4, 3, 224, 224)


@pytest.mark.torture
def test_the_call_for_an_appended_or_resharded_dataset_runs(
    make: Callable[..., Batches], six_photos: Path, tmp_path: Path
) -> None:
    make("pack", six_photos, tmp_path / "out")
    shutil.rmtree(six_photos / "fig")
    assert len(make("append", six_photos, tmp_path / "out", "--repeated", "append")["loader"].label) == 8
    assert len(make("reshard", tmp_path / "out", tmp_path / "new")["loader"].label) == 8


@pytest.mark.parametrize(
    ("members", "fields", "count"),
    [
        ({"a.txt": b"hello", "a.cls": b"1", "b.txt": b"world", "b.cls": b"0"}, ("txt", "label"), 2),
        ({"a.jpg": image_bytes(), "a.cls": b"1", "b.jpg": image_bytes(), "b.cls": b"0"}, ("image", "label"), 2),
        ({"a.jpg": image_bytes(), "a.cls": b"cat", "a.txt": b"a cat"}, ("image", "label"), 1),
        ({"a.jpg": image_bytes(), "a.cls": b"1", "b.txt": b"x", "b.cls": b"0"}, ("label",), 2),
        ({"a.jpg": b"not an image", "a.json": b"{}", "b.jpg": image_bytes(), "b.json": b"{}"}, ("json",), 2),
        ({"a.txt": b"x", "b.json": b"{}", "c.cls": b"dog"}, ("key",), 2),
    ],
)
@pytest.mark.torture_except("members0-fields0-2", "members5-fields5-2")
def test_the_call_for_shards_of_another_tool_runs(
    make: Callable[..., Batches], tmp_path: Path, members: dict[str, bytes], fields: tuple[str, ...], count: int
) -> None:
    shard = write_tar(tmp_path / "theirs" / "a-0.tar", members.items())
    batch = make("index", shard)["loader"]
    if len(fields) == 1:  # a single field is not in a tuple
        assert len(batch) == count
    else:
        assert batch._fields == fields
        assert all(len(value) == count for value in batch)


@pytest.mark.torture
def test_the_calls_for_several_manifests_in_a_folder_run(make: Callable[..., Batches], tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    for number, part in itertools.product(range(2), ("train", "val")):
        members = {f"{part}{number}.jpg": image_bytes(), f"{part}{number}.cls": b"1"}
        write_tar(folder / f"{part}-{number}.tar", members.items())
    for part in ("train", "val"):
        batch = make("index", f"{folder}/{part}-{{0..1}}.tar", "--manifest", f"{part}.json")["loader"]
        assert len(batch.label) == 2
