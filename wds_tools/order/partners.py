"""Partners: further samples that the image of a sample shows, such as the other tiles of a mosaic. No I/O.

They are chosen among the samples shortly before it in the order, of the same lane, and of the same dataset if each
batch has samples of one dataset. So their blocks have been read already, and a machine reads only the blocks of its own
lanes. The choice depends on the seed, the epoch, the position, and the changes up to it, and not on the number of ranks
or workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wds_tools.order.epoch import EpochOrder
from wds_tools.order.identity import Identity
from wds_tools.order.keyed_random import key_of, uniform

_REACH = 1024  # samples of a lane: enough that partners seldom repeat, and few enough to be in memory still


def reach_of(identity: Identity) -> int:
    """Return the maximum distance between the rows of a sample and its partners: no more than the shuffle window."""
    reach = _REACH * identity.lanes
    return min(reach, int(np.max(identity.window))) if identity.shuffles else reach


def partners_of(order: EpochOrder, positions: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the ids of the partners of samples: int64 [n, count].

    A partner is one of the `reach_of` samples before the sample; at the start of the epoch, one of the first ones, in
    the order as it was when the sample was delivered: later bans and weights change no past step. It is not banned,
    and is the sample itself only if there is no other one.
    """
    orders = [order.as_of(position) for position in positions.tolist()]
    partners = np.empty((len(positions), count), np.int64)
    for epoch_order in dict.fromkeys(orders) if count else ():
        chosen = np.array([of_row is epoch_order for of_row in orders])
        partners[chosen] = _partners_in(epoch_order, positions[chosen], count)
    return partners


def _partners_in(order: EpochOrder, positions: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the ids of the partners of samples that were delivered in one order; see `partners_of`."""
    rows, reach = positions % order.samples, reach_of(order.identity)
    is_early = rows < reach
    first, stop = np.where(is_early, 0, rows - reach), np.where(is_early, min(reach, order.samples), rows)
    base = int(first.min())
    ids, lanes = order.slice(base, max(int(stop.max()), int(rows.max()) + 1))
    own = rows - base
    if order.run.pattern is not None:  # the samples of each dataset have partners of that dataset
        lanes = lanes + order.identity.lanes * np.searchsorted(order.run.first_ids, ids, side="right")
    # Rows of one lane follow each other in `by_lane`, so the candidates of a sample are a range of it.
    by_lane = np.argsort(lanes, kind="stable")
    by_lane = by_lane[~np.isin(ids[by_lane], order.left_out)]
    keys, lane_starts = lanes[by_lane].astype(np.int64) * len(ids) + by_lane, lanes[own].astype(np.int64) * len(ids)
    low, high, self_at = (np.searchsorted(keys, lane_starts + row) for row in (first - base, stop - base, own))
    has_self = (low <= self_at) & (self_at < high)
    choices = (high - low - has_self)[:, None]
    u = uniform(key_of("partners", order.identity.seed, order.epoch), positions, count)
    chosen = low[:, None] + np.floor(u * choices).astype(np.int64)
    chosen += has_self[:, None] & (chosen >= self_at[:, None])
    others = np.append(by_lane, 0)[np.minimum(chosen, len(by_lane))]
    return np.asarray(ids[np.where(choices > 0, others, own[:, None])], np.int64)
