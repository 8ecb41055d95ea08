"""A folder as a source: inputs, skipped files and their reasons, and files that change before they are read."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest
from foreign_tables import png
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sources_conformance import stored

from wds_tools.errors import LabelError, SourceError
from wds_tools.packing.packer import pack
from wds_tools.sources import local_tree
from wds_tools.sources.base import SourceChangedError, SourceOptions, SourceStoreError
from wds_tools.sources.detect import open_source
from wds_tools.sources.inputs import Input
from wds_tools.sources.tree import TreeSource


def write_files(root: Path, *names: str, data: bytes = b"image") -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def paths(root: Path, classes: tuple[str, ...] | None = None) -> list[str]:
    return [entry.path for entry in TreeSource(root, SourceOptions(classes=classes)).scan().inputs]


def skipped(root: Path) -> dict[str, str]:
    return dict(TreeSource(root).scan().skipped)


def test_files_with_image_extensions_in_upper_or_lower_case_are_inputs(tmp_path: Path) -> None:
    write_files(tmp_path, "a.jpg", "b.JPEG", "c.Png", "d.webp", "e.bmp", "f", "g.jpg.txt", "h.gif", "i.TIFF", "j.avif")
    assert paths(tmp_path) == ["a.jpg", "b.JPEG", "c.Png", "d.webp", "e.bmp", "h.gif", "i.TIFF", "j.avif"]


def test_class_folders_are_numbered_by_sorted_name(tmp_path: Path) -> None:
    write_files(tmp_path, "dog/1.jpg", "cat/2.jpg", "Zebra/3.jpg")
    listing = TreeSource(tmp_path).scan()
    assert listing.classes == ("Zebra", "cat", "dog")
    assert listing.inputs == [Input("Zebra/3.jpg", 5, 0), Input("cat/2.jpg", 5, 1), Input("dog/1.jpg", 5, 2)]


def test_numbers_and_order_of_classes_are_those_of_torchvision(tmp_path: Path) -> None:
    import torchvision.datasets

    write_files(tmp_path, "10/a.jpg", "9/a.jpg", "b é/x/y.png", "B/z.JPG", "b/z.jpeg", "B/sub/a.webp", "b!/c.jpg")
    theirs = torchvision.datasets.ImageFolder(tmp_path)
    listing = TreeSource(tmp_path).scan()
    assert list(listing.classes) == theirs.classes
    assert {(str(tmp_path / entry.path), entry.label) for entry in listing.inputs} == set(theirs.samples)


def test_the_class_of_a_file_at_any_depth_is_its_first_folder(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/a/b/c/1.jpg", "dog/2.jpg")
    assert TreeSource(tmp_path).scan().inputs[0] == Input("cat/a/b/c/1.jpg", 5, 0)


def test_a_folder_without_images_is_not_a_class(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/1.jpg", "notes/readme.txt")
    (tmp_path / "empty").mkdir()
    assert TreeSource(tmp_path).scan().classes == ("cat",)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    listing = TreeSource(write_files(tmp_path, "b.jpg", "a.jpg")).scan()
    assert listing.inputs == [Input("a.jpg", 5, None), Input("b.jpg", 5, None)]
    assert listing.classes == ()


def test_folders_of_other_files_do_not_make_a_flat_folder_labelled(tmp_path: Path) -> None:
    listing = TreeSource(write_files(tmp_path, "a.jpg", "docs/readme.txt")).scan()
    assert [entry.label for entry in listing.inputs] == [None]


def test_an_image_beside_class_folders_is_skipped(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"cat/{number}.jpg" for number in range(9)), "stray.jpg")
    assert skipped(tmp_path) == {"stray.jpg": "is outside the class folders"}
    write_files(tmp_path, "another.jpg")
    with pytest.raises(SourceError, match=r"class folders, and 2 images outside of them, such as 'another.jpg': move"):
        TreeSource(tmp_path).scan()
    assert len(TreeSource(tmp_path, layout="folder").scan().inputs) == 9


def test_every_file_is_an_input_or_skipped_or_hidden(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/1.jpg", "cat/readme.md", "cat/.hidden.jpg", ".git/2.jpg", "other/data.csv")
    write_files(tmp_path, "cat/empty.png", data=b"")
    (tmp_path / "cat" / "gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    assert paths(tmp_path) == ["cat/1.jpg"]
    reasons = skipped(tmp_path)
    assert sorted(reasons) == [
        "cat/empty.png",
        "cat/gone.jpg",
        "cat/pipe.jpg",
        "cat/readme.md",
        "other/data.csv",
    ]
    assert reasons["cat/empty.png"] == "is empty"
    assert reasons["cat/gone.jpg"] == "is a broken link"
    assert reasons["cat/pipe.jpg"] == "is not a regular file"
    assert "does not have the extension of an image" in reasons["cat/readme.md"]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path / "store", "1.jpg", "2.jpg")
    root = tmp_path / "root"
    (root / "cat").mkdir(parents=True)
    (root / "cat" / "one.jpg").symlink_to(tmp_path / "store" / "1.jpg")
    (root / "dog").symlink_to(tmp_path / "store")
    assert paths(root) == ["cat/one.jpg", "dog/1.jpg", "dog/2.jpg"]


def test_a_loop_of_links_ends_and_is_reported(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/1.jpg")
    (tmp_path / "cat" / "again").symlink_to(tmp_path)
    (tmp_path / "cat" / "self.jpg").symlink_to("self.jpg")
    assert paths(tmp_path) == ["cat/1.jpg"]
    assert skipped(tmp_path)["cat/again"] == "is a link to a folder that contains it"
    assert "cat/self.jpg" in skipped(tmp_path)


def test_inputs_are_sorted_by_the_bytes_of_their_path(tmp_path: Path) -> None:
    write_files(tmp_path, "a/z.jpg", "a-b/1.jpg", "a/B.jpg", "a.b/1.jpg", "a/é.jpg", "a/~.jpg")
    expected = sorted(paths(tmp_path), key=os.fsencode)
    assert paths(tmp_path) == expected
    assert expected[0] == "a-b/1.jpg"


@pytest.mark.parametrize(
    "name", ["a b.jpg", "two\nlines.jpg", "dots.in.name.jpg", "日本.jpg", "quote'\".jpg", "\\.jpg", "*.jpg"]
)
def test_odd_names_are_listed_and_read(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, f"cat/{name}", data=name.encode())
    source = TreeSource(tmp_path)
    (entry,) = source.scan().inputs
    assert entry.path == f"cat/{name}"
    assert source.read(entry).image == name.encode()


def test_a_name_that_is_not_utf8_is_listed_and_read(tmp_path: Path) -> None:
    write_files(tmp_path, os.fsdecode(b"caf\xe9/\xff.jpg"), data=b"x")
    source = TreeSource(tmp_path)
    listing = source.scan()
    assert listing.inputs == [Input("caf\udce9/\udcff.jpg", 1, 0)]
    assert listing.classes == ("caf\udce9",)
    assert source.read(listing.inputs[0]).image == b"x"


def test_names_that_differ_only_in_case_are_separate_inputs(tmp_path: Path) -> None:
    write_files(tmp_path, "Cat/a.jpg", "cat/a.jpg", "cat/A.jpg")
    assert paths(tmp_path) == ["Cat/a.jpg", "cat/A.jpg", "cat/a.jpg"]


def test_given_classes_set_the_numbers(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/1.jpg", "dog/2.jpg")
    listing = TreeSource(tmp_path, SourceOptions(classes=("fish", "dog", "cat"))).scan()
    assert listing.classes == ("fish", "dog", "cat")
    assert [entry.label for entry in listing.inputs] == [2, 1]


def test_a_class_folder_that_classes_lacks_is_an_error_that_names_it_and_the_classes(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/1.jpg", "dog/2.jpg")
    with pytest.raises(LabelError, match=r"'dog'.*'cat', 'fish'"):
        TreeSource(tmp_path, SourceOptions(classes=("cat", "fish"))).scan()


def test_given_classes_with_a_flat_folder_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="has no labels, but class names were given"):
        pack(write_files(tmp_path / "src", "a.jpg"), tmp_path / "dst", classes=["cat"])


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none cannot be read: No such file"):
        TreeSource(tmp_path / "none").scan()


def test_a_folder_without_permission_is_an_error_of_one_line() -> None:
    def detect_as_another_user(folder: Path) -> None:
        if os.getuid() == 0:  # root has access all the same
            os.setuid(65_534)
        with pytest.raises(SourceError, match=r"src cannot be read: Permission denied$"):
            open_source(folder)
        os._exit(7)

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "src").mkdir(mode=0)
        process = multiprocessing.get_context("fork").Process(
            target=detect_as_another_user, args=(Path(folder) / "src",)
        )
        process.start()
        process.join()
    assert process.exitcode == 7


def test_a_path_of_a_file_is_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, "a.jpg")
    with pytest.raises(SourceError, match="is not a folder"):
        TreeSource(tmp_path / "a.jpg").scan()


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is empty; expected class folders"):
        TreeSource(tmp_path).scan()


def test_a_folder_without_images_is_an_error_that_counts_the_other_files(tmp_path: Path) -> None:
    write_files(tmp_path, "a.txt", "b.csv")
    with pytest.raises(SourceError, match=r"no image .* 2 other files \('a.txt' does not have the extension of an im"):
        TreeSource(tmp_path).scan()


@pytest.mark.parametrize("name", ["missing", "empty", "without images"])
def test_errors_are_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    write_files(tmp_path / "without images", "a\n.txt")
    with pytest.raises(SourceError) as caught:
        TreeSource(tmp_path / name).scan()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("now", "reason"), [(b"12", "2 of the 5"), (b"123456", "more than the 5"), (b"", "0 of")])
def test_a_file_whose_size_changed_is_an_error(tmp_path: Path, now: bytes, reason: str) -> None:
    source = TreeSource(write_files(tmp_path, "a.jpg"))
    (entry,) = source.scan().inputs
    write_files(tmp_path, "a.jpg", data=now)
    with pytest.raises(SourceChangedError, match=reason):
        source.read(entry)


def test_a_file_that_was_deleted_is_an_error(tmp_path: Path) -> None:
    source = TreeSource(write_files(tmp_path, "a.jpg"))
    (entry,) = source.scan().inputs
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(SourceStoreError, match=r"a\.jpg cannot be read: No such file"):
        source.read(entry)


@pytest.mark.timeout(100)
def test_a_file_that_became_a_pipe_does_not_block(tmp_path: Path) -> None:
    source = TreeSource(write_files(tmp_path, "a.jpg"))
    (entry,) = source.scan().inputs
    (tmp_path / "a.jpg").unlink()
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(SourceChangedError, match="changed"):
        source.read(entry)


def test_a_pickled_source_does_not_contain_its_listing(tmp_path: Path) -> None:
    source = TreeSource(write_files(tmp_path, *(f"{number:05d}.jpg" for number in range(1000))))
    source.scan()
    assert len(pickle.dumps(source)) < 1000


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text("ab.é /~", min_size=1, max_size=6).filter(lambda name: not name.startswith(".") and "/" not in name),
        st.integers(0, 3),
        min_size=1,
        max_size=6,
    )
)
def test_each_visible_file_is_either_an_input_or_skipped(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, int]
) -> None:
    root = tmp_path_factory.mktemp("any")
    images = {f"c/{name}.png": size for name, size in files.items() if size} | {"c/always.jpg": 5}
    others = {f"{name}.txt" for name, size in files.items() if not size}
    for path, size in images.items():
        write_files(root, path, data=bytes(size))
    write_files(root, *others)
    listing = TreeSource(root).scan()
    assert listing.inputs == [Input(path, images[path], 0) for path in sorted(images, key=os.fsencode)]
    assert [skip.path for skip in listing.skipped] == sorted(others, key=os.fsencode)


@pytest.mark.parametrize("folder", ["", "cat/", "train/cat/"])
def test_images_with_one_name_and_two_extensions_are_refused_with_the_choices(folder: str, tmp_path: Path) -> None:
    """Such as an image and its mask; labels would be those of the image for both."""
    write_files(tmp_path, *(f"{folder}{number}.{kind}" for number in range(3) for kind in ("jpg", "png")))
    with pytest.raises(SourceError, match=r"0.jpg' and '.*0.png': put masks into .* masks/1.png, .*, or pass --from"):
        TreeSource(tmp_path).scan()
    given = TreeSource(tmp_path, layout="folder")
    assert len(given.splits().get("train", given).scan().inputs) == 6


def test_folders_without_images_and_names_that_differ_only_in_case_are_noted(tmp_path: Path) -> None:
    write_files(tmp_path, "Cat/1.jpg", "cat/2.jpg", "notes/readme.txt")
    (tmp_path / "empty").mkdir()
    listing = TreeSource(tmp_path).scan()
    assert listing.classes == ("Cat", "cat")
    assert listing.account.notes == [
        "2 folders without an image: not a class, such as 'empty'",
        "the classes 'Cat' and 'cat' differ only in upper and lower case, or look the same",
    ]
    write_files(tmp_path / "other", "a/1.jpg", "a/1.JPG")
    assert TreeSource(tmp_path / "other").scan().account.notes == [
        "all images have the class 'a': pack the folder of this name if it is not one",
        "names of images differ only in case, such as 'a/1.JPG', 'a/1.jpg': each is a sample",
    ]


def test_further_files_that_cannot_be_loaded_are_kept_and_counted(tmp_path: Path) -> None:
    src = tmp_path / "src"
    for number in range(3):
        write_files(src, f"{number}.png", data=png(number))
        write_files(src, f"{number}.json", data=b'{"bad"' if number else b"[1, 2]")
        write_files(src, f"{number}.cls", data=b'"cat"\n' if number else b"dog")
        write_files(src, f"{number}.txt", data="café".encode("cp1252" if number else "utf-8"))
        write_files(src, f"{number}.npy", data=b"notnpy")
    report = pack(src, tmp_path / "dst", workers=1, images="keep", shuffle=False)
    samples = list(stored(tmp_path / "dst"))
    assert [json.loads(one["json"]) for one in samples] == [
        {"path": "0.png", "class": "dog", "json": [1, 2]},
        {"path": "1.png", "class": "cat", "json": '{"bad"'},
        {"path": "2.png", "class": "cat", "json": '{"bad"'},
    ]
    assert samples[1]["txt"] == b"caf\xe9"
    assert samples[1]["npy"] == b"notnpy"
    assert report.manifest.account.notes == [
        "2 samples with a .json file that is not valid JSON: its text is the entry 'json'",
        "3 samples with a field npy that is not of this type: kept as it is",
        "2 samples with a field txt that is not UTF-8: kept as it is",
    ]


@pytest.mark.parametrize("is_slow", [False, True])
def test_only_a_folder_that_takes_its_time_is_listed_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    for number in range(12):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "1.jpg").write_bytes(b"image")
    threads = set()
    listed, now = os.scandir, time.thread_time

    def scandir(path: bytes) -> object:
        threads.add(threading.get_ident())
        if is_slow:
            time.sleep(0.06)
        return listed(path)

    monkeypatch.setattr(local_tree.os, "scandir", scandir)
    if not is_slow:  # a busy machine looks like slow storage
        monkeypatch.setattr(local_tree.time, "monotonic", now)
    assert len(local_tree.FolderTree(tmp_path).list()) == 12
    assert (len(threads) > 1) == is_slow


def test_threads_list_only_a_few_folders_before_the_others_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
    listed, ahead, scandir = [], [], os.scandir
    monkeypatch.setattr(local_tree.os, "scandir", lambda path: listed.append(path) or scandir(path))
    monkeypatch.setattr(local_tree, "_LONG_WAIT_SECONDS", -1e9)  # threads from the start
    monkeypatch.setattr(local_tree.time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(local_tree, "_MOST_PENDING", 4)

    def is_used() -> bool:
        time.sleep(0.01)
        ahead.append(len(listed) - len(ahead))
        return False

    local_tree.FolderTree(tmp_path).listed_again(is_used)
    assert len(listed) == 31
    assert max(ahead) <= 5


@pytest.mark.parametrize("label", ["number", "name", "caption"])
def test_texts_that_may_be_labels_are_noted(label: str, tmp_path: Path) -> None:
    texts = {"number": ["1", "0", "1\n"], "name": ["cat", "dog", "cat"], "caption": ["a cat", "a cat", "1"]}[label]
    write_files(tmp_path / "src", *(f"{number}.png" for number in range(3)), data=png(0))
    for number, text in enumerate(texts):
        write_files(tmp_path / "src", f"{number}.txt", data=text.encode())
    notes = pack(tmp_path / "src", tmp_path / "first", workers=1).manifest.account.notes
    if label == "caption":
        assert notes == []
        return
    assert notes == [
        "packed without labels; --label txt could be the label: pack the dataset once more, with this option"
    ]
    report = pack(tmp_path / "first", tmp_path / "second", workers=1, columns={"label": "txt"})
    assert report.manifest.classes == (("cat", "dog") if label == "name" else ())
    assert not report.skipped


def test_other_extensions_of_jpeg_are_packed_as_jpg_with_the_class_numbers_of_torchvision(tmp_path: Path) -> None:
    import torchvision.datasets

    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "JPEG")
    for number, name in enumerate(["b/1.jpg", "b/2.jfif", "a/3.JPE", "a/4.pjpeg", "a/5.jpg", "c/6.pjp", "c/7.jpg"]):
        write_files(tmp_path / "src", name, data=data.getvalue() + bytes([number]))
    report = pack(tmp_path / "src", tmp_path / "dst", workers=1, images="keep")
    assert (report.packed, report.manifest.fields["jpg"]) == (7, 7)
    assert report.manifest.classes == tuple(torchvision.datasets.ImageFolder(tmp_path / "src").classes)


@pytest.mark.parametrize(
    ("one", "other"), [("3.json", "3.jpg.json"), ("3.TXT", "3.txt"), ("3.cls", "3.jpg.cls"), ("3.jpg.npy", "3.npy")]
)
def test_two_files_for_one_field_of_an_image_are_both_named(tmp_path: Path, one: str, other: str) -> None:
    write_files(tmp_path, "1.jpg", "2.jpg", "3.jpg", one, other)
    with pytest.raises(SourceError, match="both would be the field") as error:
        open_source(tmp_path).scan()
    assert all(repr(name) in str(error.value) for name in (one, other, "3.jpg"))


def test_a_file_about_a_copy_of_an_image_is_not_a_field_of_the_image(tmp_path: Path) -> None:
    write_files(tmp_path, "3.jpg", "3(1).jpg", "3.meta-data.json", "3.jpg.supplemental-metadata.json")  # Google Takeout
    fields = ["meta-data.json", "supplemental-metadata.json"]
    for name in ("3.jpg(1).json", "3.jpg.supplemental-metadata(1).json"):
        write_files(tmp_path, name, data=b'{"title": "3.jpg"}')
        with pytest.raises(SourceError, match=rf"{re.escape(name)} is about images .* --from folder"):
            open_source(tmp_path).scan()
        listing = open_source(tmp_path, kind="folder").scan()
        assert [sorted(field for field, _ in entry.parts) for entry in listing.inputs] == [[], fields]
        assert [skip.path for skip in listing.skipped] == [name]
        (tmp_path / name).unlink()


def test_a_class_folder_whose_name_is_not_utf_8_is_noted(tmp_path: Path) -> None:
    write_files(tmp_path, "dog/1.jpg", os.fsdecode(b"K\xe4se/1.jpg"))  # latin-1, as old archives are unpacked
    notes = open_source(tmp_path).scan().account.notes
    assert "folders with names that are not UTF-8 are classes, such as 'K\\udce4se': rename them" in notes


def test_a_single_object_is_not_a_table(tmp_path: Path) -> None:
    write_files(tmp_path, "cat/1.jpg", "dog/2.jpg", "owl/3.jpg")
    write_files(tmp_path, "album.json", data=b'{"title": "Trip", "cover": "1.jpg", "last": "3.jpg"}')
    listing = open_source(tmp_path).scan()
    assert listing.classes == ("cat", "dog", "owl")
    [note] = listing.account.notes
    assert note.startswith("'album.json' is about images such as '1.jpg'")


def test_the_path_in_a_json_file_does_not_replace_the_path_of_its_image(tmp_path: Path) -> None:
    src = tmp_path / "src"
    for number, entries in enumerate([{"path": "/data/a.png"}, {"path": "a/1.png", "w": 3}, {"w": 4}]):
        write_files(src, f"a/{number}.png", data=png(number))
        write_files(src, f"a/{number}.json", data=json.dumps(entries).encode())
    pack(src, tmp_path / "dst", workers=1, images="keep", shuffle=False)
    assert [json.loads(one["json"]) for one in stored(tmp_path / "dst")] == [
        {"path": "a/0.png", "class": "a", "path_": "/data/a.png"},
        {"path": "a/1.png", "class": "a", "w": 3},
        {"path": "a/2.png", "class": "a", "w": 4},
    ]


def test_json_that_is_nested_too_deeply_is_skipped(tmp_path: Path) -> None:
    write_files(tmp_path, "1.jpg", "2.jpg")
    write_files(tmp_path, "a.json", data=b"[" * 5000)
    write_files(tmp_path, "b.json", data=b'{"a":' * 5000)
    assert [*skipped(tmp_path)] == ["a.json", "b.json"]


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n"


def test_a_pointer_of_git_lfs_is_refused_as_such(tmp_path: Path) -> None:
    write_files(tmp_path / "src", "images/1.jpg", "images/2.jpg", data=LFS)
    preview = pack(tmp_path / "src", tmp_path / "dst", dry_run=True).preview
    assert preview is not None
    assert preview.samples[1].problem == "is a pointer of Git LFS: get the file itself with `git lfs pull`"
    write_files(tmp_path / "src", "data.json", data=LFS)
    with pytest.raises(SourceError, match=r"data\.json is a pointer of Git LFS.*git lfs pull"):
        open_source(tmp_path / "src").scan()


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.tar", "a.zip", "a.h5", "a.npz", "a.csv", "a.tfrecord"])
@pytest.mark.parametrize(("data", "what"), [(LFS, "a pointer of Git LFS"), (b"<!DOCTYPE html>\n<html>", "a web page")])
def test_something_else_in_place_of_a_file_is_named(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    write_files(tmp_path, name, data=data)
    with pytest.raises(SourceError, match=rf"{name} is {what}"):
        open_source(tmp_path / name).scan()


def test_archives_with_the_name_of_another_kind_are_named(tmp_path: Path) -> None:
    src = write_files(tmp_path / "src", "cat/1.jpg")
    for kind, ending, named in (("zip", ".tar", ".zip"), ("zip", ".tar.gz", ".zip"), ("tar", ".zip", ".tar")):
        path = Path(shutil.make_archive(str(tmp_path / "a"), kind, src)).rename(tmp_path / f"b{ending}")
        with pytest.raises(SourceError, match=rf"is a \w+ archive: rename it to a name that ends in {named}"):
            open_source(path).scan()
