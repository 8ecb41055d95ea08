"""The samples of a part of a batch: image files, regions, and decoded fields, each loaded once for all columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import DecodeError, MissingFieldError, OptionError
from wds_tools.format.codecs import CODECS, decode_field
from wds_tools.format.image_header import MAX_PIXELS, ImageInfo, probe, probe_array
from wds_tools.format.index import NO_LABEL
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.decode import decode_stored
from wds_tools.images.schedule import AnyView, view_at
from wds_tools.images.views import Regions, View, chosen_by, tiles_of
from wds_tools.order.keyed_random import key_of, uniform
from wds_tools.reading.rows import Rows

Value = TypeVar("Value")


class HasObjects(Protocol):
    """A specification of boxes or outlines."""

    def in_images(self, part: Part, field: str) -> list[Any]:
        """Return the objects of each sample of a part, in pixels of a stored image field.

        Returns:
            For each sample float64 [k, 4], left, top, right and bottom of boxes; or k lists of outlines [points, 2].
        """


@dataclass(frozen=True, slots=True)
class Geometry:
    """The image whose views determine the regions of a column.

    Attributes:
        source: Name of the column of that image.
        field: Stored field of that image.
        views: Its views, or schedules of views; several if the image has several crops.
        is_list: Whether the value of a sample is a list with one element per view.
        key: What their random numbers depend on in addition to seed, epoch, position and index of the view. It is empty
            for the first view of a call, so that this view chooses the same regions as ``view=`` of `make_loader`.
        chosen_by: The boxes or outlines by which views choose their regions, by name.
    """

    source: str
    field: str
    views: tuple[AnyView, ...]
    is_list: bool = False
    key: tuple[str, ...] = ()
    chosen_by: tuple[tuple[str, HasObjects], ...] = ()

    def views_at(self, epoch: int, bucket: int | None = None) -> tuple[View, ...]:
        """Return the views of an epoch, for a batch of one bucket if there are buckets."""
        return tuple(view_at(view, epoch, bucket) for view in self.views)

    def tiles_at(self, epoch: int) -> int:
        """Return how many samples an image shows in an epoch."""
        return max(tiles_of(view) for view in self.views_at(epoch))

    def key_of_view(self, view: int) -> tuple[int | str, ...]:
        """Return what the random numbers of a view depend on."""
        return (*self.key, view) if view else self.key


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files of n samples, and what their headers state.

    Attributes:
        data: The encoded files.
        kinds: ``jpg``, ``jpeg``, ``png``, ``webp`` or ``npy``.
        modes: Pillow modes.
        orientations: EXIF orientations, 1 to 8.
        sizes: int64 [n, 2], width and height after the orientation is applied, as the index or the header records
            them; 0 if the header could not be read when the shard was indexed.
    """

    data: list[memoryview]
    kinds: list[str]
    modes: list[str]
    orientations: list[int]
    sizes: NDArray[np.int64]

    @classmethod
    def of_headers(cls, data: list[memoryview], headers: Sequence[ImageInfo]) -> ImageFiles:
        """Return files whose headers were read."""
        return cls(
            data,
            [info.kind for info in headers],
            [info.mode for info in headers],
            [info.orientation for info in headers],
            np.array([(info.width, info.height) for info in headers], np.int64).reshape(-1, 2),
        )

    def size(self, i: int) -> tuple[int, int]:
        """Return width and height of file ``i``."""
        width, height = self.sizes[i].tolist()
        return width, height


class Part:
    """Samples that are loaded together."""

    def __init__(
        self,
        rows: Rows,
        unchanged: Collection[str],
        *,
        seed: int,
        epoch: int,
        positions: NDArray[np.int64],
        partners: NDArray[np.int64] | None = None,
    ) -> None:
        self.rows = rows
        self.partners = partners
        self.seed = seed
        self.epoch = epoch
        self.positions = positions
        self._data: dict[str, list[memoryview]] = {}
        self._values: dict[str, list[Any]] = {}
        self._infos: dict[str, list[ImageInfo]] = {}
        self._regions: dict[str, list[Regions]] = {}
        self._sources: dict[int, Part] = {}
        self._once: dict[str, Any] = {}
        self._unchanged = unchanged

    def sources(self, geometry: Geometry | None) -> Part:
        """Return the samples that the images of this part show: those of one image follow each other."""
        tiles = geometry.tiles_at(self.epoch) if geometry else 1
        if tiles == 1:
            return self
        if tiles not in self._sources:
            assert self.partners is not None, "required by views with tiles"
            ids = np.concatenate([self.rows.ids[:, None], self.partners[:, : tiles - 1]], axis=1)
            self._sources[tiles] = Part(
                self.rows.others(ids.ravel()),
                self._unchanged,
                seed=self.seed,
                epoch=self.epoch,
                positions=np.repeat(self.positions, tiles),
            )
        return self._sources[tiles]

    def __len__(self) -> int:
        return len(self.rows)

    def once(self, name: str, find: Callable[[], Value]) -> Value:
        """Return the result of a function; it is called only the first time for each name."""
        if name not in self._once:
            self._once[name] = find()
        value: Value = self._once[name]
        return value

    @contextmanager
    def naming(self, i: int, field: str = "image") -> Iterator[None]:
        """Add the shard and key of sample ``i``, and the field if it is not ``image``, to a DecodeError."""
        try:
            yield
        except DecodeError as error:
            which = "" if field == "image" else f"field {field!r}: "
            raise self.located(DecodeError(f"{which}{error}"), i) from error

    def located(self, error: DecodeError, i: int) -> DecodeError:
        """Return the error with the shard and key of sample ``i``."""
        shard, key = self.rows.shard_and_key(i)
        return DecodeError(str(error), shard=shard, key=key)

    def data(self, field: str) -> list[memoryview]:
        """Return the verified bytes of a stored field of each sample."""
        if field not in self._data:
            self._data[field] = self.rows.field(field)
        return self._data[field]

    def values(self, field: str) -> list[Any]:
        """Return a stored field of each sample, decoded by its extension."""
        if field not in self._values:
            data, suffix = self.data(field), field.rpartition(".")[2]
            with stages.DECODE:
                if suffix in IMAGE_FIELDS and suffix not in CODECS:
                    self._values[field] = [self._stored_image(i, field, encoded) for i, encoded in enumerate(data)]
                else:
                    self._values[field] = [self._decoded(i, field, encoded) for i, encoded in enumerate(data)]
        return self._values[field]

    def labels(self) -> NDArray[np.int64]:
        """Return the class numbers of the samples: int64 [n]."""
        labels = self.rows.gather("label")
        missing = np.flatnonzero(labels == NO_LABEL)
        if len(missing):
            shard, key = self.rows.shard_and_key(int(missing[0]))
            raise MissingFieldError(
                "the sample has no label: load only samples with where='label >= 0', or leave 'label' out of fields=",
                shard=shard,
                key=key,
            )
        return labels

    def image_files(self, field: str) -> ImageFiles:
        """Return the files of an image field."""
        if self._is_image_of_sample(field):
            rows = self.rows
            sizes = np.stack([rows.gather("width"), rows.gather("height")], axis=1)
            return ImageFiles(rows.images(), rows.kinds(), rows.modes(), rows.gather("orientation").tolist(), sizes)
        return ImageFiles.of_headers(self.data(field), self._probed(field))

    def image_sizes(self, field: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return width and height of an image field, after the EXIF orientation is applied: two int64 [n]."""
        if self._is_image_of_sample(field):  # its size is in the index
            width, height = self.rows.gather("width"), self.rows.gather("height")
            unknown = np.flatnonzero((width < 1) | (height < 1))
            if len(unknown):
                self.rows.images()  # raises MissingFieldError if a sample has no image
                error = DecodeError("the image header could not be read when the shard was indexed")
                raise self.located(error, int(unknown[0]))
            return width, height
        sizes = np.array([(info.width, info.height) for info in self._probed(field)], np.int64).reshape(-1, 2)
        return sizes[:, 0], sizes[:, 1]

    def regions(self, geometry: Geometry) -> list[Regions]:
        """Return the regions of the samples that each view chooses; of all `sources` if an image shows several."""
        if geometry.source not in self._regions:
            sources = self.sources(geometry)
            sizes = sources.image_sizes(geometry.field)
            self._regions[geometry.source] = [
                sources.choose_regions(view, geometry.key_of_view(index), *sizes, geometry)
                for index, view in enumerate(geometry.views_at(self.epoch))
            ]
        return self._regions[geometry.source]

    def check_sizes(self, field: str, width: NDArray[np.int64], height: NDArray[np.int64], geometry: Geometry) -> None:
        """Check that a field has the size of the image whose region it shares."""
        image_width, image_height = self.image_sizes(geometry.field)
        different = np.flatnonzero((width != image_width) | (height != image_height))
        if len(different):
            i = int(different[0])
            reason = (
                f"field {field!r} is {width[i]}x{height[i]}, but field {geometry.field!r} is "
                f"{image_width[i]}x{image_height[i]}: fields with like= need the size of the image"
            )
            raise self.located(DecodeError(reason), i)

    def _is_image_of_sample(self, field: str) -> bool:
        if field in self._unchanged and field == "npy":  # the index has the sizes of RGB images only
            return False
        return field == "image" or (field in IMAGE_FIELDS and set(self.rows.kinds()) == {field})

    def _probed(self, field: str) -> list[ImageInfo]:
        """Return what the headers of an image field state."""
        if field not in self._infos:
            infos = []
            for i, data in enumerate(self.data(field)):
                with stages.DECODE, self.naming(i, field):
                    infos.append((probe_array if field in self._unchanged else probe)(data))
            self._infos[field] = infos
        return self._infos[field]

    def choose_regions(
        self,
        view: View,
        purpose: tuple[int | str, ...],
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        geometry: Geometry,
    ) -> Regions:
        """Return the regions that a view chooses in images of these sizes."""
        least_h, least_w = view.least
        small = np.flatnonzero((height < least_h) | (width < least_w))
        if len(small):
            shard, key = self.rows.shard_and_key(int(small[0]))
            raise OptionError(
                f"{view} is larger than an image of {width[small[0]]}x{height[small[0]]}: "
                "use a smaller view, or resize first (CenterCrop(size, resize=...))",
                shard=shard,
                key=key,
            )
        positions = self.positions[:: tiles_of(view)]
        u = uniform(key_of("view", self.seed, self.epoch, *purpose), positions, view.draws)
        objects: list[Any] = []
        if by := chosen_by(view):
            objects = [dict(geometry.chosen_by)[by[1]].in_images(self, geometry.field)]
        regions = view.regions(width, height, u, *objects)
        huge = np.flatnonzero(regions.size.prod(axis=1) > MAX_PIXELS)
        if len(huge):
            new_height, new_width = regions.size[huge[0]].tolist()
            reason = (
                f"{view} would resize an image of {width[huge[0]]}x{height[huge[0]]} to {new_width}x{new_height}; "
                f"allowed are {MAX_PIXELS:,} pixels: exclude such images (where='width <= 100 * height and "
                "height <= 100 * width'), or use CenterCrop(size, resize=...) or Resize((height, width))"
            )
            raise self.located(DecodeError(reason), int(huge[0]))
        return regions

    def _stored_image(self, i: int, field: str, data: memoryview) -> NDArray[Any]:
        """Decode an image with its stored channels and bit depth: uint8 or uint16 [channels, height, width]."""
        with self.naming(i, field):
            return decode_stored(data).transpose(2, 0, 1).copy()  # torch warns about Pillow's read-only pixels

    def _decoded(self, i: int, field: str, data: memoryview) -> Any:
        return decode_field(field, bytes(data), where=lambda: self.rows.shard_and_key(i))
