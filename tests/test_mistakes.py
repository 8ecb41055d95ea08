"""Obvious mistakes of new users: each is an error in one line with a remedy, on the command line and in Python."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import NotADatasetError, OptionError, ResumeError, SampleError, ShardError, SourceError


@pytest.fixture(scope="module")
def packed(packed_few):
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.fixture
def fails(capsys, monkeypatch, tmp_path):
    """Return a function that runs a command in an empty folder and returns its exit code and its one-line error."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return end.value.code, err

    return run


def loader(dataset, **options):
    return wt.make_loader(dataset, **{"batch_size": 4, "view": wt.Resize((8, 8)), "num_workers": 0, **options})


# --- packing ---


def test_a_single_image_as_source_is_an_error_that_asks_for_its_folder(fails, photos):
    image = next(photos.glob("cat/*.jpg"))
    code, error = fails("pack", image, "out")
    assert code == 1
    assert f"{image} is a single image: name the folder that contains it" in error


def test_a_file_as_cache_folder_is_an_error(fails, photos):
    image = next(photos.glob("cat/*.jpg"))
    code, error = fails("cache", "list", "--cache-dir", image)
    assert code == 2
    assert f"{image} is not a folder" in error


@pytest.mark.parametrize("command", ["info", "verify", "pack"])
def test_a_url_with_one_slash_is_an_error_with_the_right_url(fails, photos, command):
    words = [photos, "s3:/bucket/train"] if command == "pack" else ["s3:/bucket/train"]
    code, error = fails(command, *words)
    assert code == 2
    assert "s3:/bucket/train looks like a URL that lost a slash: write s3://bucket/train" in error


def test_a_loader_names_the_url_of_a_path_that_lost_a_slash():
    with pytest.raises(NotADatasetError, match=r"lost a slash: write s3://bucket/train, in Python as text"):
        loader(Path("s3://bucket/train"))
    with pytest.raises(SourceError, match=r"lost a slash: write s3://bucket/train"):
        wt.pack(Path("s3://bucket/train"), "out")


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("~/photos", "begins with ~, which only shells replace: write the full path"),
        ("C:\\Users\\me\\photos", "in the Windows Subsystem for Linux, write /mnt/c/Users/me/photos"),
    ],
)
def test_a_path_with_a_tilde_or_of_windows_is_an_error_and_makes_no_folder(
    fails, packed, photos, tmp_path, path, remedy
):
    for words in (
        *(
            ["info", path],
            ["pack", path, "out"],
            ["append", path, packed, "--images", "keep"],
            ["add-fields", packed, "--from", path],
        ),
        *([command, packed, path] for command in ("reshard", "unpack")),
        *(["pack", photos, path], ["merge", packed, "-o", path], ["copy", "http://localhost:1/photos", path]),
    ):
        code, error = fails(*words)
        assert (code, remedy in error) == (2, True), f"{words}: {error}"
    with pytest.raises(NotADatasetError, match=remedy):
        loader(path)
    with pytest.raises(OptionError, match=remedy):
        wt.ShardWriter(f"{path}/train-%06d.tar")
    assert not list(tmp_path.iterdir())


def test_a_destination_inside_its_source_is_a_wrong_argument_of_every_command(fails, photos, packed):
    for words in (
        ["pack", photos, photos / "out"],
        ["reshard", packed, packed],
        ["unpack", packed, packed],
        ["merge", packed, "-o", packed],
    ):
        assert fails(*words)[0] == 2, words
    assert not (photos / "out").exists()


def test_a_missing_source_of_fields_is_a_wrong_argument_as_that_of_pack(fails, packed_copy):
    for words in (["pack", "nowhere.csv", "out"], ["add-fields", packed_copy, "--from", "nowhere.csv"]):
        code, error = fails(*words)
        assert (code, "nowhere.csv cannot be read: no such file or folder; check the path" in error) == (2, True)


def test_an_output_file_in_a_missing_folder_is_an_error_before_anything_is_read(fails, few):
    for words in (
        ["sample", few, "--out", "nowhere/a.png"],
        ["plan", few, "--batch-size", 4, "--plot", "nowhere/a.svg"],
        ["tune", few, "--json", "nowhere/a.json"],
        ["bench", few, "--json", "nowhere/a.json"],
    ):
        code, error = fails(*words)
        assert (code, re.search(r"cannot write nowhere/a\.\w+: no folder nowhere", error) is not None) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "2"}, r"workers='2'; allowed are whole numbers"),
        ({"workers": 1.5}, r"workers=1.5; allowed are whole numbers"),
        ({"seed": "1"}, r"seed='1' is out of range"),
        ({"columns": "image"}, r"columns='image'; allowed are dictionaries"),
    ],
)
def test_an_option_of_pack_of_the_wrong_type_is_an_option_error(six_photos, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        wt.pack(six_photos, tmp_path / "out", **options)


def test_none_as_destination_is_an_error_and_not_a_folder_named_none(six_photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"dst=None; allowed are paths of folders, and URLs"):
        wt.pack(six_photos, None)
    assert not (tmp_path / "None").exists()


def test_splits_as_a_list_are_an_option_error(six_photos, tmp_path):
    with pytest.raises(OptionError, match=r"split=\[0.9, 0.1\]; allowed are names with shares"):
        wt.pack_splits(six_photos, tmp_path / "out", split=[0.9, 0.1])


def test_a_sample_that_is_not_a_dictionary_is_an_error_of_shard_writer(tmp_path):
    with wt.ShardWriter(tmp_path / "a-%06d.tar") as writer:
        with pytest.raises(SampleError, match="a sample is a tuple; expected a dictionary with __key__"):
            writer.write(("0", b"x"))
        writer.write({"__key__": "0", "txt": "x"})


# --- datasets ---


def test_a_label_that_no_sample_has_is_an_error_and_the_manifest_stays(fails, packed_copy):
    before = (packed_copy / "manifest.json").read_bytes()
    for label in ("json:nope", "nope"):
        code, error = fails("index", f"{packed_copy}/*.tar", "--label", label)
        assert code == 1
        assert f"no sample has the label '{label}'; the fields are jpg, cls, json" in error
        assert "choose another label" in error
    assert (packed_copy / "manifest.json").read_bytes() == before
    with pytest.raises(ShardError, match="no sample has the label"):
        wt.index_shards(f"{packed_copy}/*.tar", label="json:nope")


def test_shards_are_not_packed_with_a_label_that_no_sample_has(fails, packed, tmp_path):
    for command in ("pack", "reshard"):
        code, error = fails(command, packed, "out", "--label", "json:nope")
        assert code == 1
        assert "no sample has the label 'json:nope': choose another label, such as --label cls" in error
        assert "samples have '" in error
        code, error = fails(command, packed, "out", "--label", "png")
        assert code == 2
        assert "label='png' (--label) is a field of images" in error
    assert not (tmp_path / "out").exists()


def test_fields_are_added_from_the_shards_of_a_dataset_and_not_from_its_indexes(few, tmp_path):
    dataset, texts = Path(shutil.copytree(few, tmp_path / "few")), tmp_path / "texts"
    keys = [sample.key for sample in wt.StreamingDataset(dataset, fields=("__key__", "label"))]
    with wt.ShardWriter(texts / "t-%06d.tar") as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": f"text of {key}"})
    assert (texts / "t-000000.parquet").exists()
    assert wt.add_fields(dataset, texts).fields == {"txt": len(keys)}


def test_a_path_in_place_of_a_list_of_datasets_is_an_option_error(packed, tmp_path):
    with pytest.raises(OptionError, match="is one path; allowed are lists of datasets"):
        wt.merge(str(packed), tmp_path / "out")


def test_one_variable_given_twice_to_merge_is_an_error(packed, tmp_path):
    name = str(packed)
    with pytest.raises(OptionError, match="are the same dataset"):
        wt.merge([name, name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_reseal_of_a_file_is_an_error_with_a_remedy(fails, photos):
    code, error = fails("reseal", next(photos.glob("cat/*.jpg")))
    assert code == 2
    assert "is a file; name the folder of a dataset, or its manifest" in error


def test_copy_of_a_local_dataset_is_an_error_with_a_remedy(fails, packed):
    code, error = fails("copy", packed, "out")
    assert code == 2
    assert "copy a local dataset with `cp -r`" in error


@pytest.mark.parametrize("content", [b"hello", b"", b"\xff\xd8\xff\xe0 a JPEG", b"(lp0\n."])
def test_a_file_without_a_state_is_a_short_error_of_plan(fails, packed, tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    code, error = fails("plan", packed, "--state", "file", "--step", 1)
    assert code == 2
    assert "write json.dumps(loader.state_dict()) to a file" in error or "has no state of a loader" in error
    assert "weights_only" not in error


def test_a_python_for_a_benchmark_without_peers_is_an_error(fails, packed):
    code, error = fails("bench", packed, "--against", "", "--python", "dali=/usr/bin/python3")
    assert code == 2
    assert "'dali' is not one of the peers of this run; these are none" in error


# --- the service ---


def test_options_of_upstreams_without_an_upstream_are_an_error(fails, packed):
    for option, value in (("--cache-bytes", "1GB"), ("--storage-option", "anon=true")):
        code, error = fails("serve", packed, option, value)
        assert code == 2
        assert f"{option} requires --upstream URL" in error


def test_a_url_as_root_or_a_folder_as_upstream_is_an_error_with_the_remedy(fails, packed):
    code, error = fails("serve", "s3://bucket/photos")
    assert code == 2
    assert "looks like a URL: serve it with --upstream URL" in error
    code, error = fails("serve", "--upstream", packed)
    assert code == 2
    assert f"--upstream {packed} is not a URL" in error


def test_a_token_file_in_a_missing_folder_is_an_error_that_names_both(fails):
    code, error = fails("token", "create", "--token-file", "nowhere/tokens.json")
    assert code == 2
    assert "cannot write nowhere/tokens.json: no folder nowhere" in error


def test_pack_refuses_an_invalid_server_for_its_reports_before_it_writes(fails, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_TOOLS_REPORT_TO", "node1:8080")
    code, error = fails("pack", photos, tmp_path / "out")
    assert code == 2
    assert not list(tmp_path.glob("out/*.tar"))
    assert "is not the URL of a server, such as http://node1:8080" in error


# --- loading ---


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
def test_a_function_that_returns_nothing_is_an_error(packed, name):
    with (
        loader(packed, **{name: lambda _: None}) as batches,
        pytest.raises(OptionError, match=f"{name}= returned None: return the"),
    ):
        next(iter(batches))


def test_a_step_without_parentheses_is_an_error(packed):
    with pytest.raises(OptionError, match=r"has the step <class .*RandomHorizontalFlip.*allowed are steps such as"):
        loader(packed, batch_transform=[wt.RandomHorizontalFlip])


@pytest.mark.parametrize(
    ("mean", "std", "options"),
    [
        (0.5, 0.5, {}),
        ("a", "b", {}),
        ([float("nan")], [0.5], {}),
        ([0.5], [0.5], {"dtype": "float32"}),
        ([0.5], [0.5], {"dtype": torch.uint8}),
    ],
)
def test_invalid_constants_of_normalize_are_an_option_error(mean, std, options):
    with pytest.raises(OptionError, match=r"^Normalize\((mean|dtype)=.*such as"):
        wt.Normalize(mean, std, **options)


def test_constants_of_normalize_in_the_scale_0_to_255_are_an_option_error():
    step = wt.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4])
    with pytest.raises(OptionError, match=r"the scale 0 to 1: divide mean and standard deviation by 255$"):
        step(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    assert step(torch.full((1, 3, 2, 2), 200.0)).shape == (1, 3, 2, 2)


@pytest.mark.parametrize("constants", [([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]), ([0.5] * 3, [255.0] * 3)])
def test_make_loader_refuses_constants_in_the_scale_0_to_255_for_uint8_images(packed, constants):
    step = wt.Normalize(*constants)
    for steps in (step, [wt.RandomHorizontalFlip(), step]):
        with pytest.raises(OptionError, match=r"the scale 0 to 1: divide mean and standard deviation by 255$"):
            loader(packed, batch_transform=steps)
    for options in (
        {"batch_transform": [torch.Tensor.float, step]},
        {"batch_transform": step, "transform": torch.Tensor.float},
        {"batch_transform": step, "sample_transform": lambda sample: {**sample, "image": sample["image"].float()}},
    ):
        with loader(packed, view=wt.CenterCrop(8), **options) as batches:
            assert next(iter(batches)).image.dtype == torch.float32


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("transform", "error"),
    [
        (transforms.ToTensor(), TypeError),
        (transforms.Compose([transforms.RandomHorizontalFlip(), transforms.PILToTensor()]), TypeError),
        (ImageOps.grayscale, AttributeError),
        (lambda image: image.convert("L"), AttributeError),
    ],
    ids=["ToTensor", "PILToTensor", "ImageOps", "method"],
)
def test_a_transform_for_pil_images_is_an_error_that_says_what_it_gets(packed, transform, error, num_workers):
    with (
        loader(packed, view=wt.CenterCrop(8), transform=transform, num_workers=num_workers) as batches,
        pytest.raises(error) as caught,
    ):
        next(iter(batches))
    notes = "\n".join(caught.value.__notes__)
    assert "transform= gets a uint8 tensor [3, 8, 8]; if this one needs a PIL image" in notes
    assert "torchvision.transforms.v2, without ToTensor() and PILToTensor()" in notes


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "transform",
    [
        transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()]),
        lambda sample: {**sample, "image": transforms.functional.to_tensor(sample["image"])},
        lambda sample: {**sample, "image": sample["image"].convert("L")},
    ],
    ids=["image transform", "entry", "method"],
)
def test_a_sample_transform_for_pil_images_is_an_error_that_says_what_it_gets(packed, transform, num_workers):
    with (
        loader(packed, view=wt.CenterCrop(8), sample_transform=transform, num_workers=num_workers) as batches,
        pytest.raises((TypeError, AttributeError)) as caught,
    ):
        next(iter(batches))
    notes = "\n".join(caught.value.__notes__)
    assert "sample_transform= gets a dictionary with 'image': uint8 tensor [3, 8, 8], 'label': int" in notes
    assert "if this one needs a PIL image, use torchvision.transforms.v2" in notes


@pytest.mark.parametrize("options", [{"test_size": "0.2"}, {"test_size": None}, {"test_size": True}, {"seed": "x"}])
def test_invalid_options_of_train_test_split_are_quoted(packed, options):
    ((name, value),) = options.items()
    with pytest.raises(OptionError, match=f"^{name}={value!r}; allowed are "):
        wt.train_test_split(packed, **options)


def test_a_step_that_is_text_is_quoted(packed):
    with loader(packed) as batches, pytest.raises(OptionError, match=r"step='1', epoch=None"):
        batches.explain("1")


def test_a_state_in_a_file_is_still_found(few, tmp_path, capsys):
    with loader(few) as batches:
        next(iter(batches))
        torch.save({"loader": batches.state_dict()}, tmp_path / "state.pt")
        (tmp_path / "state.json").write_text(json.dumps(batches.state_dict()))
    for name in ("state.pt", "state.json"):
        with pytest.raises(SystemExit) as end:
            main(["plan", str(few), "--state", str(tmp_path / name), "--step", "0"])
        assert end.value.code == 0
        assert "step 0" in capsys.readouterr().out


def test_items_that_a_loader_or_a_dataset_does_not_have_are_errors_with_the_remedy(packed):
    with loader(packed) as batches:
        for one in (batches, wt.StreamingDataset(packed)):
            with pytest.raises(TypeError, match=r"is not an iterator: next\(iter\(\.\.\.\)\) returns the first item"):
                next(one)
            with pytest.raises(TypeError, match=r"has no items by number: next\(iter\(\.\.\.\)\) returns"):
                one[0]


def test_a_loader_in_a_dataloader_is_an_error_that_names_the_dataset_for_it(packed):
    with loader(packed) as batches:
        for batch_size in (4, None):
            with pytest.raises(TypeError, match=r"torch's DataLoader takes a wds_tools\.StreamingDataset instead$"):
                next(iter(DataLoader(batches, batch_size=batch_size)))


@pytest.mark.parametrize("fields", [("image", "label"), ("image",)])
def test_an_error_of_batch_transform_says_what_it_gets(packed, fields):
    def for_one_image(images):
        return images.permute(1, 2, 0)

    options = {"view": wt.CenterCrop(8), "fields": fields}
    for function, error in ((transforms.ToTensor(), TypeError), (for_one_image, RuntimeError)):
        with loader(packed, batch_transform=function, **options) as batches, pytest.raises(error) as caught:
            next(iter(batches))
        (note,) = (note for note in caught.value.__notes__ if "batch_transform=" in note)
        assert "batch_transform= gets the whole batch: uint8 tensor [4, 3, 8, 8]" in note
        assert ("torchvision.transforms.v2" in note) == (error is TypeError)


def test_a_comparison_with_one_equals_sign_is_an_error_that_names_the_other(packed):
    with pytest.raises(OptionError, match=r"cannot be parsed \(invalid syntax.*\): compare with ==; allowed are"):
        loader(packed, where="width = 3")
    with pytest.raises(OptionError, match=r"cannot be parsed \([^<]*\): allowed are"):
        loader(packed, where="width >=")


def test_a_dictionary_that_is_not_a_state_is_an_error_that_names_what_it_lacks(packed):
    with loader(packed) as batches, pytest.raises(ResumeError, match=r"not a loader state \(it has no entry '\w+'\)"):
        batches.load_state_dict({"weight": 1})


def test_a_misspelt_name_of_the_package_is_an_error_with_the_right_one():
    with pytest.raises(AttributeError, match=r"no attribute 'make_laoder'; did you mean 'make_loader'\?$"):
        wt.make_laoder  # noqa: B018
    with pytest.raises(AttributeError, match=r"wds_tools\.webdataset has the names of webdataset$"):
        wt.tarfile_samples  # noqa: B018
