"""`make_loader`: the one call that a training loop needs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wds_tools.arguments import LOADER_HINTS, checked
from wds_tools.assemble import Assembler, Transform
from wds_tools.bridge import RankSampler, Samples, StepSampler
from wds_tools.choose import Subset, Weights
from wds_tools.device import CudaCopier, find_device, move
from wds_tools.epochs import Epochs
from wds_tools.errors import WorkerError
from wds_tools.feeding import LENT_SLOTS, Feeding, NumWorkers
from wds_tools.handover import BatchTransform, Handover
from wds_tools.job import Inline, Job, as_tensors, joined, tasks_of
from wds_tools.mixture import Mixture
from wds_tools.opened import Opened, Request, open_dataset
from wds_tools.planner import EpochPlan, Step, Tail
from wds_tools.pool import STALL_SECONDS, WorkerPool
from wds_tools.proof import EpochProof
from wds_tools.ranks import Group
from wds_tools.ring import Ring
from wds_tools.views import View
from wds_tools.where import Where
from wds_tools.witness import Witness


@dataclass(frozen=True, slots=True)
class _Sent:
    """A batch in the making."""

    tickets: list[int]  # of its parts
    step: Step
    slot: int | None


class Loader:
    """Batches of a dataset, made by worker processes; see `make_loader`, which builds it.

    Each ``iter(loader)`` is the next epoch, which begins with its first batch; a loader has one iterator at a time. It
    is not a ``DataLoader``, so Accelerate's ``prepare`` leaves it alone.

    Attributes:
        batch_size: Samples per batch of this rank.
        device: Where the tensors of a batch are.
        dataset: Its samples: ``len(loader.dataset)`` is their number over all ranks, ``loader.dataset[0]`` the first.
        sampler: The samples of this rank, in order: a ``DistributedSampler``, whose ``set_epoch`` sets the loader's.
        batch_sampler: The same, batch by batch.
        collate_fn: Makes a batch of samples: a ``DataLoader`` of these four makes the batches of the loader.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        batch_size: int,
        tail: Tail,
        feeding: Feeding,
        device: torch.device,
        batch_transform: BatchTransform | None,
        context: str | None,
        stall_seconds: float,
    ) -> None:
        self.batch_size = batch_size
        self.device = device
        self._opened = opened
        self._feeding = feeding
        self._tail: Tail = tail
        self._epochs = Epochs(opened, batch_size=batch_size, tail=tail)
        self._handover = Handover(
            opened.recipe.fields, is_bare=opened.is_bare, tail=tail, batch_transform=batch_transform
        )
        self._context = context
        self._stall_seconds = stall_seconds
        self._sent: deque[_Sent] = deque()  # batches in the making
        self._pool: WorkerPool | Inline | None = None
        self._ring: Ring | None = None
        self._copier: CudaCopier | None = None
        self._witness = Witness(opened.ranks, batch_size=batch_size, tail=tail)
        # What other libraries read from a DataLoader. Attributes, because Ray Train copies __dict__.
        self.dataset = Samples(opened, has_valid=tail == "mask")
        self.sampler = RankSampler(self._epochs, self.dataset, device)
        self.batch_sampler = StepSampler(self.sampler, batch_size)
        self.collate_fn = self._handover.collate

    def __repr__(self) -> str:
        return (
            f"Loader({self._opened.shards.name!r}, samples={self.samples}, batch_size={self.batch_size}, "
            f"steps={len(self)}, num_workers={self.num_workers}, device={str(self.device)!r}, "
            f"view={self._opened.recipe.view!r})"
        )

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return len(self._epochs)

    @property
    def num_workers(self) -> int:
        """Workers that make batches now; with ``num_workers="auto"`` it grows until the loop does not wait."""
        return self._feeding.workers

    @property
    def prefetch_factor(self) -> int | None:
        """Batches in the making per worker; None without workers, as for torch's DataLoader."""
        return self._feeding.prefetch_factor if self.num_workers else None

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks; with ``tail="drop"`` the last ones may be left out."""
        return self._epochs.samples

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number."""
        return self._opened.shards.manifest.classes

    @property
    def class_factors(self) -> dict[str, float]:
        """How often a sample of each class comes in an epoch, on average: 1.0 without ``class_weights=``."""
        selection = self._opened.order.selection
        if selection is None or selection.balance is None:
            return dict.fromkeys(self.classes, 1.0)
        names = dict(enumerate(self.classes))
        return {names.get(n, str(n)): factor for n, factor in enumerate(selection.balance.factors.tolist())}

    @property
    def epoch(self) -> int:
        """Epoch of the last batch, or the one that comes next."""
        return self._epochs.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands: all batches that the loop has received count, prefetched ones do not."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Go on where a state was taken; the number of workers, ranks and the batch size may have changed.

        A dataset that has only grown since then is recognised: the epoch ends as it would have, and the new samples
        come with the next one.

        Args:
            state: What `state_dict` returned.
            force: Take over epoch and position even if the dataset, selection or seed is another.

        Raises:
            ResumeError: The state belongs to another dataset, selection or seed; both values are named.
        """
        self._epochs.load_state_dict(state, force=force)

    def epoch_proof(self, *, timeout_seconds: float = 60.0) -> EpochProof:
        """Tell whether the last epoch delivered each sample once, over all ranks: ``print(loader.epoch_proof())``.

        The sums are always kept. Where torch.distributed runs, the rank that ends an epoch last also compares them by
        itself, and raises ProofError if they are wrong.

        Args:
            timeout_seconds: How long to wait for other ranks to finish the epoch.

        Raises:
            ProofError: A rank has not finished in time.
        """
        return self._witness.proof(timeout_seconds=timeout_seconds)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``; a position inside that epoch, as after a resume, is kept."""
        self._epochs.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        # A generator: the epoch begins when its first batch is asked for. An iterator from which nothing is taken, such
        # as one that Lightning makes when it resumes, leaves the loader as it was.
        yield from self._batches(self._epochs.begin())

    def close(self) -> None:
        """End the workers and free the slots; the next iteration starts new ones."""
        if self._copier:
            self._copier.close()
        if self._pool:
            self._pool.close()
        self._pool = self._ring = self._copier = None
        self._sent.clear()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self) -> None:
        """Start the workers and allocate the slots, once."""
        if self._pool:
            return
        recipe = self._opened.recipe
        layout = Assembler(recipe).layout()
        if layout:
            self._ring = Ring(slots=self._feeding.slots, rows=self.batch_size, layout=layout)
        job = Job(recipe, self._ring)
        if self.num_workers == 0:
            self._pool = Inline(job)
        else:
            context = multiprocessing.get_context(self._context)
            if self._context == "forkserver":  # torch is 290 MB that workers then share
                context.set_forkserver_preload(["__main__", "wds_tools.job"])
            self._pool = WorkerPool(
                job,
                num_workers=self._feeding.most,  # all of them: a fork later would copy a process in full training
                active=self.num_workers,
                context=context,
                stall_seconds=self._stall_seconds,
            )
        if self.device.type == "cuda":  # after the workers: what they inherit is then plain memory
            self._copier = CudaCopier(self.device, self._ring)

    def _batches(self, plan: EpochPlan) -> Iterator[Any]:
        """Yield the batches of an epoch; on CUDA, each while the next one is being copied."""
        self._open()
        self._witness.begin(plan)
        copied: tuple[Step, list[Any], Any] | None = None
        for step, values, slot in self._made(plan):
            self._epochs.check_running(plan)
            if self._copier is None:
                yield self._hand_over(plan, step, self._own(values, slot))
                continue
            moved, done = self._copier.start(self._in_place(values, slot), slot)
            if copied:
                yield self._hand_over(plan, copied[0], self._copier.finish(copied[1], copied[2]))
            copied = step, moved, done
        if copied and self._copier:
            yield self._hand_over(plan, copied[0], self._copier.finish(copied[1], copied[2]))
        self._epochs.end(plan)

    def _made(self, plan: EpochPlan) -> Iterator[tuple[Step, list[Any], int | None]]:
        """Yield (step, values, slot) in order, keeping the workers busy ahead of it."""
        pool = self._pool
        assert pool is not None
        self._drain()
        self._feeding.begin()
        steps, total = 0, len(plan)
        for number in range(total):
            with self._closed_on_worker_error():  # never around the yield, which ends anyhow, even at interpreter exit
                while steps < min(total, number + self._feeding.ahead):
                    self._send(pool, plan.step(steps), plan.cursor.epoch)
                    steps += 1
                sent, asked = self._sent[0], time.perf_counter()
                parts = [pool.result(ticket) for ticket in sent.tickets]
                if self._feeding.took(asked, time.perf_counter()) and isinstance(pool, WorkerPool):
                    pool.active = self.num_workers
            self._sent.popleft()
            values = [as_tensors(value) for value in joined(parts)]
            if self._tail == "mask":
                values.append(torch.from_numpy(sent.step.valid))
            yield sent.step, values, sent.slot

    def _send(self, pool: WorkerPool | Inline, step: Step, epoch: int) -> None:
        """Give a batch to the workers."""
        slot = self._take_slot()
        tasks = tasks_of(step, slot=slot, epoch=epoch, parts=self._feeding.parts)
        self._sent.append(_Sent([pool.submit(task) for task in tasks], step, slot))

    @contextlib.contextmanager
    def _closed_on_worker_error(self) -> Iterator[None]:
        try:
            yield
        except WorkerError:
            self.close()  # the next iteration starts new workers
            raise

    def _drain(self) -> None:
        """Take back the slots of batches that an earlier iteration left behind."""
        while self._sent:
            sent = self._sent.popleft()
            for ticket in sent.tickets:
                with contextlib.suppress(Exception):  # nobody waits for this batch any more, nor for its trouble
                    if isinstance(self._pool, WorkerPool):
                        self._pool.result(ticket)
            if self._ring and sent.slot is not None:
                self._ring.release(sent.slot)

    def _take_slot(self) -> int | None:
        if self._ring is None:
            return None
        if self._copier:
            self._copier.reclaim(at_least_one=not self._ring.free)
        return self._ring.take()

    def _in_place(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with the slot's images among them."""
        if self._ring is None or slot is None:
            return values
        return [self._ring.images(slot) if value is None else value for value in values]

    def _own(self, values: list[Any], slot: int | None) -> list[Any]:
        """Return the values with images that belong to the user.

        The slot is lent, without a copy; a user who keeps many batches gets copies.
        """
        if self._ring is None or slot is None:
            return values
        lent = self._ring.slots - self._ring.free - len(self._sent) - 1  # neither free, nor in the making, nor this
        if lent < LENT_SLOTS and self.device.type == "cpu":
            return [self._ring.lend(slot) if value is None else value for value in values]
        owned = [self._ring.images(slot).clone() if value is None else value for value in values]
        self._ring.release(slot)
        return owned

    def _hand_over(self, plan: EpochPlan, step: Step, values: list[Any]) -> Any:
        """Return the batch, and count it as consumed."""
        if self.device.type not in ("cpu", "cuda"):
            values = move(values, self.device)
        batch = self._handover.batch(values)
        self._epochs.received(plan, step.number)
        self._witness.saw(step)
        return batch


@checked(LOADER_HINTS)
def make_loader(
    dataset: str | os.PathLike[str] | Mixture,
    *,
    batch_size: int,
    view: View | None = None,
    shuffle: bool | int | float = False,
    seed: int = 0,
    num_workers: NumWorkers = None,
    device: str | int | torch.device | None = None,
    fields: str | Sequence[str] = ("image", "label"),
    transform: Transform | None = None,
    batch_transform: BatchTransform | None = None,
    tail: Tail = "drop",
    where: Where | None = None,
    subset: Subset | None = None,
    class_weights: Weights | None = None,
    prefetch_factor: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    group: Group | None = None,
    lanes: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    multiprocessing_context: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Loader:
    """Stream a packed dataset as batches.

    A batch is a named tuple of ``fields``: ``image`` uint8 [batch_size, 3, height, width] on ``device`` (a list of
    tensors [3, height, width] where sizes differ, as with ``view=None``), ``label`` int64 [batch_size]; of other
    fields, numbers come as a tensor [batch_size] and everything else as a list.

    Args:
        dataset: Folder or URL with a manifest, the manifest, a brace pattern of indexed shards, or a `Mixture`.
        batch_size: Samples per batch of this rank.
        view: What part of the picture, at what size: `RandomResizedCrop`, `CenterCrop`, `Resize`; None keeps the
            whole picture.
        shuffle: True, False, a window in samples, which other loaders call the shuffle buffer, or a quality such as
            0.95: 1 is a full shuffle.
        seed: Of the order, of crops, flips and transforms.
        num_workers: Processes that decode; 0 decodes here. By default one per core, shared among local ranks.
            ``"auto"`` begins with one and gives work to more while the loop is found waiting for batches, up to one
            per core; ``loader.num_workers`` tells how many, and the batches are the same with any number.
        device: Where image and label tensors go; None is memory.
        fields: ``image``, ``label``, ``__key__``, or any stored field, such as ``json`` or ``mask.png``. Stored
            pictures come as [channels, height, width], uint16 where they have 16 bits a channel, else uint8. One name
            that is not in a list, ``fields="image"``, gives its values alone, without a tuple around them.
        transform: Your function on a uint8 tensor [3, height, width] of one sample, run in the worker; or an
            Albumentations transform. Its random numbers are seeded by the sample's place in the epoch.
        batch_transform: Your function on the whole image tensor, run on the device: normalise there.
        tail: The samples that do not fill a batch on every rank: ``drop`` them, ``pad`` with others, or ``mask``:
            pad, and mark the padding in a last field ``valid``, bool [batch_size] (for evaluation). A batch is then a
            named tuple even if ``fields`` is one name.
        where: Only samples for which this holds, by the columns of the index: text such as
            ``"width >= 256 and label in ('cat', 'dog')"``, or a pyarrow expression. Nothing is read to leave it out.
        subset: A fraction of them, drawn by ``seed``, or sample ids, such as those of `train_test_split`.
        class_weights: How often the classes come, as weights of ``torch.utils.data.WeightedRandomSampler``:
            ``"balanced"``, a mapping by class, or one weight per class; samples are repeated and left out in turn.
        prefetch_factor: Batches in the making per worker.
        rank: This process's data-parallel rank. By default it is that of torch.distributed, or of torchrun's
            environment, looked up whenever an iteration starts: the process group may be created after the loader.
        world_size: Number of ranks.
        group: Process group or DeviceMesh whose members share the data, such as ``mesh["dp"]``: ranks that are
            tensor-parallel to each other then get the same batches.
        lanes: Independent streams of blocks, so that each machine reads its own; by default one per machine.
        cache_dir: Where blocks of remote shards are kept; ``WDS_TOOLS_CACHE_DIR`` or a cache folder by default.
        cache_bytes: About how much may be kept there, such as "20GB".
        multiprocessing_context: ``fork``, ``forkserver`` or ``spawn``; by default fork on Linux, else spawn.
        stall_seconds: How long a worker may be silent before it is reported with its stack.

    Raises:
        NotADatasetError: There is no dataset.
        MissingFieldError: It lacks a field; the message says which there are.
        OptionError: An option that cannot be.
        DeviceError: The device is not there.

    >>> loader = make_loader("shards/photos", batch_size=256, shuffle=True, device="cuda",
    ...                      view=RandomResizedCrop(224, flip=True))  # doctest: +SKIP
    >>> for images, labels in loader: ...  # doctest: +SKIP
    """
    feeding = Feeding.of(num_workers, batch_size=batch_size, prefetch_factor=prefetch_factor)
    found_device = find_device(device)
    request = Request(
        batch_size=batch_size,
        view=view,
        shuffle=shuffle,
        seed=seed,
        fields=fields,
        transform=transform,
        where=where,
        subset=subset,
        class_weights=class_weights,
        rank=rank,
        world_size=world_size,
        group=group,
        lanes=lanes,
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
    )
    return Loader(
        open_dataset(dataset, request),
        batch_size=batch_size,
        tail=tail,
        feeding=feeding,
        device=found_device,
        batch_transform=batch_transform,
        context=multiprocessing_context or ("fork" if sys.platform == "linux" else "spawn"),
        stall_seconds=stall_seconds,
    )
