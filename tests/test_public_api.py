"""The public names of the package must not change by accident."""

import inspect

import pytest

import wds_tools
from wds_tools import errors

NAMES = [
    "HSV",
    "Array",
    "Blend",
    "Boxes",
    "Buckets",
    "CenterCrop",
    "ChecksumError",
    "ClassList",
    "ColorJitter",
    "CopyPaste",
    "CutMix",
    "DecodeError",
    "DestinationError",
    "DeviceError",
    "Field",
    "Frames",
    "Image",
    "Key",
    "Keypoints",
    "Label",
    "LabelError",
    "LargeScaleJitter",
    "Letterbox",
    "Loader",
    "LoaderError",
    "LoaderStats",
    "Manifest",
    "ManifestError",
    "Mask",
    "MissingFieldError",
    "MissingFileError",
    "MissingSourceError",
    "MixUp",
    "Mixture",
    "Mosaic",
    "MultiHot",
    "MultiScale",
    "Normalize",
    "NotADatasetError",
    "ObjectMasks",
    "OptionError",
    "Pad",
    "PeriodStats",
    "PhotometricDistort",
    "Polygons",
    "ProofError",
    "RandAugment",
    "RandomAffine",
    "RandomHorizontalFlip",
    "RandomIoUCrop",
    "RandomResizedCrop",
    "RayWorkers",
    "Resize",
    "ResumeError",
    "SampleError",
    "Schedule",
    "ShardError",
    "ShardWriter",
    "SourceError",
    "StoreError",
    "StreamingDataset",
    "Text",
    "TransformError",
    "TruncatedShardError",
    "WdsToolsError",
    "WebDataset",
    "WorkerError",
    "ZoomOut",
    "__version__",
    "add_fields",
    "append",
    "describe",
    "export",
    "index_folders",
    "index_shards",
    "make_loader",
    "merge",
    "pack",
    "pack_splits",
    "remove_fields",
    "reseal",
    "reshard",
    "train_test_split",
    "unpack",
    "verify",
]


def test_all_lists_exactly_these_names():
    assert wds_tools.__all__ == NAMES == sorted(NAMES, key=lambda name: (not name.isupper(), name))  # as ruff sorts
    assert dir(wds_tools) == sorted(NAMES)


def test_every_error_is_public():
    found = {n for n, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert found <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_every_public_name_exists_and_has_a_docstring(name):
    assert inspect.getdoc(getattr(wds_tools, name))


@pytest.mark.parametrize(
    "name",
    [
        "StreamingDataset",
        "add_fields",
        "describe",
        "export",
        "index_folders",
        "index_shards",
        "make_loader",
        "merge",
        "pack",
        "pack_splits",
        "remove_fields",
        "reseal",
        "reshard",
        "train_test_split",
        "unpack",
        "verify",
    ],
)
def test_options_are_keyword_only_and_no_function_accepts_arbitrary_ones(name):
    parameters = list(inspect.signature(getattr(wds_tools, name)).parameters.values())
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    positional = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= 2


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        wds_tools.nonsense  # noqa: B018


REQUIRED = {"make_loader": {"batch_size": 1}, "pack_splits": {"split": "folders"}}


@pytest.mark.parametrize("name", ["make_loader", "StreamingDataset", "pack", "pack_splits", "append"])
def test_an_error_about_arguments_names_the_function_that_was_called(name):
    call = getattr(wds_tools, name)
    with pytest.raises(TypeError, match=rf"^{name}\(\) .*'nonsense'"):
        call("a", *(["b"] if "pack" in name or name == "append" else []), nonsense=1, **REQUIRED.get(name, {}))
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing a required "):
        call()
