"""`Loader`: batches of a packed dataset for a training loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from wds_tools.errors import LoaderError
from wds_tools.loading.arguments import checked
from wds_tools.loading.autoscale import Autoscaler
from wds_tools.loading.bad_samples import ErrorLog, ErrorPolicy, ReplacedSample
from wds_tools.loading.bridge import RankBatchSampler, RankSampler, SampleDataset
from wds_tools.loading.cuda import device_of_process
from wds_tools.loading.delivery_check import DeliveryCheck
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.handover import BatchTransform, Handover
from wds_tools.loading.pipeline import FinishedBatch, Pipeline, PipelineOptions
from wds_tools.loading.request import OpenedDataset
from wds_tools.order.planner import EpochPlan, Tail
from wds_tools.order.tally import EpochProof
from wds_tools.storage import FetchStatistics


class Loader:
    """Iterable over the batches of a dataset. `make_loader` creates it and documents the batches.

    Each ``iter(loader)`` is the next epoch. The epoch starts when its first batch is requested. A loader has one active
    iterator; a new one ends the previous one. Workers start with the first batch and stay until `close`, or until the
    loader is deleted. A loader is also a context manager that closes itself.

    Iteration raises:

    * ShardError or SampleError (such as ChecksumError and DecodeError): damaged shards and unreadable samples.
    * StoreError: remote storage fails.
    * WorkerError: a worker dies, stalls or cannot start.
    * TransformError, or your own exception: ``transform=`` fails.
    * ProofError: the ranks together did not deliver each sample once.
    * LoaderError: the loader was closed meanwhile, or is used in a forked process.

    After an error, ``iter(loader)`` works again.

    A loader is not a torch ``DataLoader``, so ``prepare`` of Accelerate does not change it. The attributes ``dataset``,
    ``sampler``, ``batch_sampler`` and ``collate_fn`` exist for libraries that read them: a ``DataLoader`` created from
    these four makes the same batches.

    Attributes:
        batch_size: Samples per batch on this rank.
        dataset: Map-style dataset of the samples of an epoch over all ranks, in stored order.
        sampler: The samples of this rank in the order of the epoch, as a ``DistributedSampler``. Its ``set_epoch`` also
            sets the epoch of the loader.
        batch_sampler: The same samples in batches.
        collate_fn: Turns a list of samples into a batch.
    """

    def __init__(
        self,
        opened: OpenedDataset,
        *,
        tail: Tail,
        autoscaler: Autoscaler,
        options: PipelineOptions,
        batch_transform: BatchTransform | None,
        errors: ErrorPolicy,
    ) -> None:
        self.batch_size = options.batch_size
        self._opened = opened
        self._autoscaler = autoscaler
        self._options = options
        self._errors = ErrorLog(errors)
        self._epochs = Epochs(opened, batch_size=options.batch_size, tail=tail)
        self._handover = Handover(
            opened.recipe.fields,
            is_bare=opened.is_bare,
            tail=tail,
            batch_transform=batch_transform,
            seed=opened.recipe.seed,
        )
        self._pipeline: Pipeline | None = None
        self._close_count = 0  # to notice that another thread closed the loader while workers were started
        self._delivery_check = DeliveryCheck(opened.ranks, batch_size=options.batch_size, tail=tail)
        # Other libraries read these from a DataLoader. They are attributes because Ray Train copies __dict__.
        self.dataset = SampleDataset(opened, errors=errors, has_valid=tail == "mask")
        self.sampler = RankSampler(self._epochs, self.dataset, options.device)
        self.batch_sampler = RankBatchSampler(self.sampler, options.batch_size)
        self.collate_fn = self._handover.collate

    def __repr__(self) -> str:
        return (
            f"Loader({self._opened.shards.name!r}, samples={self.samples}, batch_size={self.batch_size}, "
            f"steps={len(self)}, num_workers={self.num_workers}, device={str(self.device)!r}, "
            f"view={self._opened.recipe.view!r})"
        )

    def __len__(self) -> int:
        """Return the number of batches of a full epoch, the same on every rank."""
        return len(self._epochs)

    @property
    def device(self) -> torch.device:
        """Device of the tensors of a batch. `make_loader` documents which one ``"cuda"`` without index is."""
        return device_of_process(self._pipeline.device if self._pipeline else self._options.device)

    @property
    def num_workers(self) -> int:
        """Current number of worker processes. With ``num_workers="auto"`` it grows while the training loop waits."""
        return self._autoscaler.workers

    @property
    def prefetch_factor(self) -> int | None:
        """Batches in progress per worker; None without workers, as in torch's DataLoader."""
        return self._autoscaler.prefetch_factor if self.num_workers else None

    @property
    def samples(self) -> int:
        """Samples per epoch over all ranks, including those that ``tail="drop"`` skips."""
        return self._epochs.samples

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the index of a name is its label."""
        return self._opened.shards.manifest.classes

    @property
    def class_factors(self) -> dict[str, float]:
        """Average number of times per epoch that a sample of each class is drawn; 1.0 without ``class_weights=``."""
        selection = self._opened.order.selection
        if selection is None or selection.balance is None:
            return dict.fromkeys(self.classes, 1.0)
        names = dict(enumerate(self.classes))
        return {names.get(n, str(n)): factor for n, factor in enumerate(selection.balance.factors.tolist())}

    @property
    def epoch(self) -> int:
        """Epoch of the last batch, or the next epoch if that batch ended its epoch; zero-based."""
        return self._epochs.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, as plain values for JSON or a checkpoint.

        It counts the batches that the training loop received, without prefetched ones. The state is the same on all
        ranks that received equally many batches.

        Raises:
            ResumeError: A torch ``DataLoader`` reads this epoch through ``sampler``, so the position is unknown.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Continue from a saved state with the next sample.

        The number of workers and ranks and the batch size may differ from those of the saved run. If shards were only
        appended to the dataset since then, the epoch of the state ends without the new samples, and the next epoch
        includes them.

        Args:
            state: Return value of `state_dict`.
            force: Use the epoch and position of the state even if the dataset, selection or seed differs.

        Raises:
            ResumeError: The state belongs to another dataset, selection or seed. The message contains both values.
        """
        self._epochs.load_state_dict(state, force=force)

    def epoch_proof(self, *, timeout_seconds: float = 60.0) -> EpochProof:
        """Check whether the last finished epoch delivered each sample once over all ranks.

        ``print(loader.epoch_proof())`` prints the result as text; ``.ok`` is True, False, or None if it is not known.
        With torch.distributed, the loader also does this check by itself: the last rank to finish an epoch raises
        ProofError if samples are missing or repeated.

        Args:
            timeout_seconds: How long to wait for other ranks to finish the epoch, in seconds.

        Raises:
            ProofError: No batch has been delivered yet, a rank did not finish in time, or this process had another rank
                when the epoch was read.
        """
        return self._delivery_check.proof(timeout_seconds=timeout_seconds)

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start epoch ``epoch`` (zero-based).

        If a loaded state is inside that epoch, the iteration continues from the position of the state.
        """
        self._epochs.set_epoch(epoch)

    @property
    def fetch_statistics(self) -> FetchStatistics:
        """Requests, bytes, cache hits and waiting time of a remote dataset; zeros for a local one.

        They are those of all processes of this machine that read this dataset at the same time.
        """
        return self._opened.shards.statistics

    @property
    def errors(self) -> list[ReplacedSample]:
        """Unreadable samples that were replaced in the current or last epoch (``on_error="replace"``)."""
        return list(self._errors.samples)

    def __iter__(self) -> Iterator[Any]:
        # A generator, so that an iterator that is never advanced does not change the loader. Lightning creates such an
        # iterator when it resumes.
        self._check_process()
        self._epochs.stop()
        close_count = self._close_count
        pipeline = self._usable_pipeline(self._epochs.following())
        if self._close_count != close_count:
            self._close_pipeline(pipeline)
            raise LoaderError(
                "the loader was closed while its workers were started: create a new iterator with iter(loader)"
            )
        plan = self._epochs.begin()
        self._delivery_check.begin(plan)
        self._errors.begin(len(plan) * plan.batch_size)
        batches = pipeline.batches(plan, self._epochs.following)
        while True:
            self._check_process()
            self._epochs.check_running(plan)
            ready = [next(batches, None)]
            if ready[0] is None:
                break
            yield self._hand_over(plan, ready.pop())  # popped, so that this frame does not keep the batch
        self._epochs.end(plan)

    def close(self) -> None:
        """Stop the workers and free the shared memory. The next iteration starts new workers. Thread-safe."""
        self._close_count += 1
        self._epochs.stop("the loader was closed")
        self._close_pipeline(self._pipeline)

    def _close_pipeline(self, pipeline: Pipeline | None) -> None:
        self._pipeline = None
        if pipeline and pipeline.pid == os.getpid():
            pipeline.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._pipeline:
            raise LoaderError(
                "a loader that has started cannot be copied or pickled, because its workers belong to this process: "
                "create another one with make_loader(), and load the state_dict() of this one"
            )
        return self.__dict__

    def _check_process(self) -> None:
        if self._pipeline and self._pipeline.pid != os.getpid():
            raise LoaderError(
                f"the workers of this loader belong to process {self._pipeline.pid}, and this is a fork of it: "
                "create a loader in each process, or fork before the first batch is requested"
            )

    def _usable_pipeline(self, plan: EpochPlan | None) -> Pipeline:
        """Return the running pipeline, ready for a plan, or a new one if there is none or it has failed."""
        pipeline = self._pipeline
        if pipeline and not pipeline.prepare(plan):
            self._close_pipeline(pipeline)
            pipeline = None
        if pipeline is None:
            self._pipeline = pipeline = Pipeline(self._opened.recipe, self._autoscaler, self._options, self._errors)
        return pipeline

    def _hand_over(self, plan: EpochPlan, finished: FinishedBatch | None) -> Any:
        """Return the batch, and count it as received by the training loop."""
        assert finished is not None
        start = plan.cursor.epoch, int(finished.step.positions[0])
        batch = self._handover.batch(finished.values, start)
        self._epochs.mark_received(plan, finished.step.number)
        self._delivery_check.add(finished.step, finished.replaced)
        return batch
