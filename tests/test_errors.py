"""The exception hierarchy: base classes, messages, and pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from wds_tools import errors
from wds_tools.errors import WdsToolsError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WdsToolsError)]
BUILT_INS = {
    "OptionError": ValueError,
    "LabelError": ValueError,
    "SourceError": OSError,
    "DestinationError": OSError,
    "NotADatasetError": FileNotFoundError,
    "ManifestError": ValueError,
    "ShardError": ValueError,
    "TruncatedShardError": ValueError,
    "ChecksumError": ValueError,
    "SampleError": ValueError,
    "DecodeError": ValueError,
    "MissingFieldError": LookupError,
    "MissingSourceError": OSError,
    "StoreError": OSError,
    "MissingFileError": FileNotFoundError,
    "ResumeError": ValueError,
    "ProofError": RuntimeError,
    "DeviceError": RuntimeError,
    "WorkerError": RuntimeError,
    "TransformError": RuntimeError,
    "LoaderError": RuntimeError,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_shard_key_and_offset_through_pickle_and_copy(kind: type[WdsToolsError]) -> None:
    error = kind("is broken: fix it", shard="s-0.tar", key="a/1", offset=0)
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is kind
        assert (again.shard, again.key, again.offset) == ("s-0.tar", "a/1", 0)
        assert str(again) == "shard s-0.tar, key a/1, byte 0: is broken: fix it"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_text_of_an_error_without_shard_key_and_offset_is_its_message(kind: type[WdsToolsError]) -> None:
    error = kind("is broken")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "is broken"
    assert (error.shard, error.key, error.offset) == (None, None, None)


@pytest.mark.parametrize(("name", "built_in"), BUILT_INS.items())
def test_an_error_is_caught_as_its_built_in_base_class(name: str, built_in: type[Exception]) -> None:
    with pytest.raises(built_in, match="message"):
        raise getattr(errors, name)("message")


def test_the_tree_in_the_docstring_matches_the_class_hierarchy() -> None:
    assert errors.__doc__ is not None
    drawn: list[str] = []
    depths: list[int] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"[ │├└─]*(\w+Error)\b", line)
        if match:
            drawn.append(match[1])
            depths.append(match.start(1))
    assert drawn == [kind.__name__ for kind in KINDS]
    assert set(drawn[1:]) == set(BUILT_INS)
    for name, depth in zip(drawn, depths, strict=True):
        ancestors = len([base for base in getattr(errors, name).__mro__ if base in KINDS])
        assert depth == 4 * ancestors
