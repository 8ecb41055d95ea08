"""`Text`: strings, or the results of a function of each string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from wds_tools.errors import OptionError
from wds_tools.loading.fields.base import Column, check_field, check_function, check_pad
from wds_tools.loading.fields.padding import Pad
from wds_tools.loading.fields.paths import AtPath
from wds_tools.loading.part import Part


@dataclass(frozen=True)
class Text(AtPath):
    """Text: a list of strings, or the results of a function of each string.

    Attributes:
        field: Stored field: text, or JSON with ``path``.
        path: Names that lead to the text in JSON, see `Boxes`.
        encode: Function of one string, such as a tokenizer, called in the worker. Arrays and tensors of equal shape are
            stacked. Random number generators are seeded for each sample.
        pad: Value of the padding, or a `Pad`, so that a batch is one tensor [batch, length]. It requires ``encode``. If
            that returns a dictionary, as tokenizers of transformers do, each of its entries is padded, and
            ``attention_mask`` and ``token_type_ids`` with 0.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "txt"
    _: KW_ONLY
    path: str = ""
    encode: Callable[[str], Any] | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'txt'")
        self.check_path()
        check_function(self, "encode")
        check_pad(self)
        if self.pad is not None and self.encode is None:
            raise OptionError("wds_tools.Text(pad=...) requires encode=, a function that returns numbers")

    def load(self, part: Part, column: Column) -> list[Any]:
        """Return the texts, or the results of the user's function of each text.

        Raises:
            SampleError: A value is not text.
        """
        texts = []
        for i, value in enumerate(self.values(part)):
            try:
                text = value.decode() if isinstance(value, bytes) else value
            except UnicodeDecodeError as error:
                found = f"bytes that are not UTF-8 ({error})"
                raise self.invalid(part, i, found, "text: read it with Field") from error
            if not isinstance(text, str):
                raise self.invalid(part, i, f"{type(value).__name__}", "text: use path=, such as 'captions.0'")
            texts.append(text)
        return texts if self.encode is None else self.results(part, column, "encode", self.encode, texts)
