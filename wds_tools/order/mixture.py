"""Several datasets in fixed proportions, merged into one canonical sequence. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.order.epoch import PlainOrder
from wds_tools.order.identity import Identity
from wds_tools.order.sequence import Order
from wds_tools.order.shares import Part, Pattern
from wds_tools.order.tally import Tally
from wds_tools.order.weights import SourcePosition

_SEGMENT_SAMPLES = 1 << 20
Stop = Literal["first_exhausted", "all_exhausted"]


class MixtureOrder(PlainOrder):
    """The canonical sequences of a mixture, one per epoch.

    Args:
        parts: Orders of the datasets.
        shares: Share of each dataset as a whole number, see `whole_shares`.
        stop: End of an epoch, see `Mixture`.
        epoch_length: Samples of an epoch, instead of ``stop``. All epochs together are then one endless sequence.
        unit: Consecutive rows that are of one dataset.
        step: Samples of a step, of which an epoch has a whole number; given together with ``unit``.
        is_of_rank: Whether the rows of a unit go to one rank, and not to all.

    Raises:
        OptionError: The mixture has no samples, or ``epoch_length`` ends within a step.
    """

    varies = True

    def __init__(
        self,
        parts: Sequence[Order],
        shares: Sequence[int],
        stop: Stop,
        epoch_length: int | None = None,
        unit: int | None = None,
        step: int | None = None,
        *,
        is_of_rank: bool = False,
    ) -> None:
        self._parts = tuple(parts)
        self.stop: Stop = stop
        self.epoch_length = epoch_length
        rule = stop if epoch_length is None else f"every {epoch_length}"
        self.identity = Identity(
            fingerprint=_fingerprint(parts, shares, rule if unit is None else f"{rule} single"),
            seed=parts[0].seed,
            shards=sum(part.identity.shards for part in parts),
            stored=sum(part.identity.stored for part in parts),
            selection=None,
            once=epoch_length is None and stop == "first_exhausted" and all(part.identity.once for part in parts),
            lanes=parts[0].lanes,
            window=[part.window for part in parts],
            block=[part.block for part in parts],
            group=unit or 1,
            group_is_of_rank=unit is None or is_of_rank,
            epoch_step=step,
        )
        self._unit = unit
        self._first_id = np.concatenate([[0], np.cumsum([part.identity.stored for part in parts])]).astype(np.int64)
        self._pattern = Pattern(shares, unit or 1)
        drawn = [(index, part.samples) for index, part in enumerate(parts) if shares[index]]
        if epoch_length is not None:
            self.samples = epoch_length if all(part.samples for part in parts) else 0
        elif stop == "first_exhausted":
            self.samples = min(self._pattern.position_of(index, samples) for index, samples in drawn)
        else:
            self.samples = max(self._pattern.position_of(index, samples - 1) + 1 for index, samples in drawn)
        if not self.samples:
            raise OptionError("the mixture has no samples; use datasets that are not empty")
        if step is not None:
            self.samples = self._whole_steps(step)
        if not self.samples:
            sizes = ", ".join(f"{samples:,}" for _, samples in drawn)
            raise OptionError(
                f"the Mixture of datasets with {sizes} samples has no step of {step:,} samples with batches='single' "
                "before one of them is exhausted: use smaller batches, stop='all_exhausted', or epoch_length="
            )
        self.balance = parts[0].balance if len(parts) == 1 else None
        self.segment_starts = np.append(np.arange(0, self.samples, _SEGMENT_SAMPLES), self.samples)

    def _whole_steps(self, step: int) -> int:
        """Return the samples of an epoch in whole steps."""
        if self.epoch_length is not None and self.epoch_length % step:
            raise OptionError(
                f"epoch_length={self.epoch_length:,} of a Mixture with batches='single'; allowed are multiples of "
                f"{step:,}, the samples of a step"
            )
        if self.stop == "all_exhausted":
            return -(-self.samples // step) * step
        return self.samples // step * step

    def like(
        self,
        *,
        window: Sequence[int],
        block: Sequence[int],
        lanes: int,
        group: int | None = None,
        epoch_step: int | None = None,
    ) -> MixtureOrder:
        """Return the order of the same mixture with other windows, blocks and number of lanes."""
        parts = [
            part.like(window=part_window, block=part_block, lanes=lanes)
            for part, part_window, part_block in zip(self.parts, window, block, strict=True)
        ]
        unit = self._unit and (group or self._unit)
        step, is_of_rank = epoch_step or self.identity.epoch_step, self.identity.group_is_of_rank
        return MixtureOrder(parts, self.shares, self.stop, self.epoch_length, unit, step, is_of_rank=is_of_rank)

    def bucket_of(self, ids: NDArray[np.int64]) -> int | None:
        """Return the dataset of samples that all are of one dataset; None if batches are mixed."""
        if self._unit is None:
            return None
        return int(np.searchsorted(self._first_id, ids[0], side="right")) - 1

    def slice(self, epoch: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Return the ids and lanes at positions ``start`` to ``stop``: int64 and int16 [stop - start].

        Ids count through all datasets in the order of the mixture.
        """
        if self.epoch_length is not None:  # positions of the endless sequence
            start, stop = (epoch * self.epoch_length + position for position in (start, stop))
        return self._pattern.merged(start, stop, self.identity.lanes, partial(self._slice_part, epoch))

    @property
    def parts(self) -> tuple[Order, ...]:
        """The orders of the datasets."""
        return self._parts

    @property
    def pattern(self) -> Pattern | None:
        """Which dataset has each row, if each batch has samples of one dataset; None if batches are mixed."""
        return self._pattern if self._unit else None

    @property
    def scans(self) -> tuple[Order, ...]:
        """The orders of the datasets that weights go through: without repetitions by ``class_weights=``."""
        return tuple(part.scans[0] for part in self.parts)

    def source_positions(self, epoch: int, position: int) -> tuple[SourcePosition, ...]:
        """Return where the `scans` of each dataset have its next sample at a position of an epoch, and its lag."""
        start = position + epoch * (self.epoch_length or 0)
        positions: list[SourcePosition] = []
        for dataset, part in enumerate(self.parts):
            passes, row = divmod(self._pattern.count_before(dataset, start), part.samples)
            ((turn, first, _),) = part.source_positions(self._first_pass(dataset, epoch) + passes, row)
            positions.append((turn, first, self._pattern.lag(dataset, start)))
        return tuple(positions)

    @property
    def shares(self) -> tuple[int, ...]:
        """Share of each dataset as a whole number."""
        return self._pattern.shares

    @property
    def first_ids(self) -> Sequence[int]:
        """Id of the first sample of each dataset, and the number of all samples."""
        return self._first_id.tolist()  # type: ignore[no-any-return]

    def find(self, epoch: int, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where some samples occur in an epoch, which is computed for it; see `PlainOrder.find`."""
        ids_found, segments = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index, (start, stop) in enumerate(itertools.pairwise(self.segment_starts.tolist())):
            in_segment = self.ids(epoch, start, stop)
            ids_found.append(in_segment[np.isin(in_segment, ids)])
            segments.append(np.full(len(ids_found[-1]), index))
        return np.concatenate(ids_found), np.concatenate(segments)

    def tally(self, epoch: int) -> Tally | None:  # noqa: ARG002 - the method has the signature of PlainOrder.tally
        """Return None: the samples of an epoch are known only after its order is computed."""
        return None

    def _slice_part(self, epoch: int, dataset: int, start: int, stop: int) -> Part:
        """Return ids and lanes of samples ``start`` to ``stop`` that one dataset contributes to an epoch.

        They may extend over several passes through that dataset. With ``epoch_length`` they count through all epochs.
        """
        part, first_pass = self.parts[dataset], self._first_pass(dataset, epoch)
        ids, lanes = [np.empty(0, np.int64)], [np.empty(0, np.int16)]
        while start < stop:
            pass_number, first = divmod(start, part.samples)
            last = min(part.samples, first + stop - start)
            part_ids, part_lanes = part.slice(first_pass + pass_number, first, last)
            ids.append(part_ids + self._first_id[dataset])
            lanes.append(part_lanes)
            start += last - first
        return np.concatenate(ids), np.concatenate(lanes)

    def _first_pass(self, dataset: int, epoch: int) -> int:
        """Return the first pass through one dataset in an epoch."""
        if self.epoch_length is not None:
            return 0
        return epoch * -(-self._pattern.count_before(dataset, self.samples) // self.parts[dataset].samples)


def _fingerprint(parts: Sequence[Order], shares: Sequence[int], stop: str) -> str:
    digest = xxhash.xxh3_128(stop.encode())
    for part, share in zip(parts, shares, strict=True):
        digest.update(f"{part.fingerprint} {part.selection.digest if part.selection else ''} {share}\n".encode())
    return digest.hexdigest()
