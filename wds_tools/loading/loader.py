"""`Loader`: batches of a packed dataset for a training loop."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wds_tools import stages
from wds_tools.errors import LoaderError, run_after
from wds_tools.format.field_classes import ClassList
from wds_tools.loading.arguments import OnlyIterable, checked
from wds_tools.loading.bridge import RankBatchSampler, RankSampler, SampleDataset
from wds_tools.loading.delivery_check import DeliveryCheck
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.explanation import StepExplanation
from wds_tools.loading.monitor import Ceiling, Monitor
from wds_tools.loading.pipeline.autoscale import Autoscaler
from wds_tools.loading.pipeline.cuda import device_of_process
from wds_tools.loading.pipeline.pipeline import FinishedBatch, Pipeline
from wds_tools.loading.pipeline.pools import PipelineOptions
from wds_tools.loading.pipeline.statistics import LoaderStats, Meter
from wds_tools.loading.ranks import Agreement
from wds_tools.loading.request import OpenedDataset
from wds_tools.loading.samples.bad_samples import ErrorLog, ErrorPolicy, ReplacedSample
from wds_tools.loading.samples.batch_steps import only_normalize
from wds_tools.loading.samples.handover import BatchTransform, Handover, Handovers
from wds_tools.order.planner import EpochPlan, Tail
from wds_tools.order.tally import EpochProof
from wds_tools.reading.weights import SampleWeights
from wds_tools.storage import FetchStatistics

if TYPE_CHECKING:
    from wds_tools.loading.packing import Packing, PackingProgress


class Loader(OnlyIterable):
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
    * LoaderError: the loader was closed during the iteration, or is used in a forked process.

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

    _for_data_loader = "; torch's DataLoader takes a wds_tools.StreamingDataset instead"

    def __init__(
        self,
        opened: OpenedDataset,
        *,
        tail: Tail,
        autoscaler: Autoscaler,
        options: PipelineOptions,
        batch_transform: BatchTransform | None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        errors: ErrorPolicy,
        progress: bool = False,
        report_to: str | None = None,
        packing: Packing | None = None,
        save_ban_to: str | os.PathLike[str] | None = None,
    ) -> None:
        self.batch_size = options.batch_size
        self._opened = opened
        self._autoscaler = autoscaler
        self._options = options
        self._error_policy = errors
        self._errors = ErrorLog(errors)
        self._packing = packing
        self._epochs = Epochs(
            opened, batch_size=options.batch_size, tail=tail, packing=packing, save_ban_to=save_ban_to
        )
        handovers = Handovers(
            [
                Handover(
                    columns,
                    is_bare=opened.is_bare,
                    tail=tail,
                    batch_transform=batch_transform,
                    collate_fn=collate_fn,
                    has_sample_transform=opened.recipe.sample_transform is not None,
                    seed=opened.recipe.seed,
                )
                for columns in opened.recipe.columns_by_dataset
            ]
        )
        self._recipe, self._handovers = opened.recipe, handovers
        normalize = only_normalize(batch_transform) if options.device.type == "cpu" else None
        if normalize and (recipe := opened.recipe.converting(normalize)):
            self._recipe, self._handovers = recipe, handovers.without_transform()
        self._pipeline: Pipeline | None = None
        self._close_count = 0  # to notice that another thread closed the loader while workers were started
        self._agreement = Agreement(opened.ranks)
        self._delivery_check = DeliveryCheck(opened.ranks, batch_size=options.batch_size, tail=tail)
        self._monitor = Monitor(
            opened,
            autoscaler,
            options.device,
            errors=self._errors,
            progress=progress,
            report_to=report_to,
            is_elsewhere=options.elsewhere is not None,
        )
        self._meter = self._monitor.meter
        # Other libraries read these from a DataLoader. They are attributes because Ray Train copies __dict__.
        self.dataset = SampleDataset(opened, errors=errors, has_valid=tail == "mask")
        self.sampler = RankSampler(self._epochs, self.dataset, options.device)
        self.batch_sampler = RankBatchSampler(self.sampler, options.batch_size)
        self.collate_fn = handovers.collate

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
        """Tasks in progress per worker, see `make_loader`; None without workers, as in torch's DataLoader."""
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
    def field_classes(self) -> dict[str, ClassList]:
        """Class lists of numbers other than the label, by their field path, such as ``"labels.json"``."""
        return dict(self._opened.shards.manifest.field_classes)

    @property
    def class_factors(self) -> dict[str, float]:
        """Average number of times per epoch that a sample of each class is drawn by ``class_weights=``.

        It is 1.0 without ``class_weights=``, and for a `Schedule`. `reweight` does not change it: the weights of a step
        are in `StepExplanation.weights`.
        """
        balance = self._opened.order.balance
        if balance is None:
            return dict.fromkeys(self.classes, 1.0)
        names = dict(enumerate(self.classes))
        return {names.get(n, str(n)): factor for n, factor in enumerate(balance.factors.tolist())}

    @property
    def epoch(self) -> int:
        """Epoch of the last batch, or the next epoch if that batch ended its epoch; zero-based."""
        return self._epochs.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, as plain values for JSON or a checkpoint.

        It counts the batches that the training loop has received, without prefetched batches. The state is the same on
        all ranks that have received the same number of batches.

        Raises:
            ResumeError: A torch ``DataLoader`` reads this epoch through ``sampler``, so the position is unknown.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Continue from a saved state with the next sample.

        The number of workers and ranks and the batch size may differ from the saved run. If shards were only
        appended to the dataset since then, the epoch of the state ends without the new samples, and the next epoch
        includes them.

        Args:
            state: Return value of `state_dict`.
            force: Use the epoch and position of the state even if the dataset, selection or seed differs.

        Raises:
            ResumeError: The state belongs to another dataset, selection or seed. The message contains both values.
        """
        self._epochs.load_state_dict(state, force=force)

    def explain(self, step: int, *, epoch: int | None = None, rank: int | None = None) -> StepExplanation:
        """Return what a step of the run saw or will see: samples, keys and crops.

        The state is enough, for past and future steps, and on every rank. Only indexes of the dataset
        are read, and one frame of each sample for the crops of `Frames`. See docs/explain.md.

        Args:
            step: Zero-based step, counted from the start of the run over all epochs and resumed runs. With
                ``epoch``, counted from the start of that epoch.
            epoch: Zero-based epoch.
            rank: Rank whose samples are returned; None (the default) returns the samples of all ranks.

        Raises:
            OptionError: There is no such step or rank.
        """
        return StepExplanation(self._epochs.find_step(step, epoch), self._opened.recipe, rank=rank)

    @checked()
    def reweight(
        self,
        *,
        classes: Mapping[Any, float] | None = None,
        sources: Sequence[float] | None = None,
        samples: SampleWeights | None = None,
        where: Mapping[str, float] | None = None,
        save_to: str | os.PathLike[str] | None = None,
        at: int | None = None,
    ) -> None:
        """Draw samples by weights from the next step on, or from step ``at``. See docs/weights.md.

        A call replaces the weights of the previous call. The factors of a sample are multiplied; the default factor
        is 1. Batches that were prefetched with other weights are discarded. Without any weights, the current epoch
        continues with equal weights, and the next epoch is an epoch without weights. An epoch keeps its length. The
        state of the loader records the weights.

        With several ranks, each rank must make the same call after the same step.

        Args:
            classes: Factor of each class, by name or number.
            sources: Share of each dataset of a `Mixture`, instead of its weights.
            samples: One factor per sample, float [samples]; factors by key or sample id; or a Parquet file with the
                columns ``weight``, and ``key`` or ``id``.
            where: Factors of the samples that meet a condition, such as ``{"width < 200": 0.5}``.
            save_to: File for the weights of ``samples=``, next to the checkpoint, for example ``weights-500.npy``.
                A state records only its path and hash, so without it no state can be saved while these weights apply.
            at: Step, counted from the start of the run over all epochs and resumed runs. Its position is stored: it is
                another step if the batch size, the number of ranks or the epoch is changed before it.

        Raises:
            OptionError: A value is invalid, or the training loop has already received the step. The weights do not
                change then.
        """
        given = self._epochs.weights.entries(classes, sources, samples, where, save_to)
        cursor = self._epochs.reweight(given, at)
        self._agreement.add(cursor, given, self._epochs.steps)

    def epoch_proof(self, *, timeout_seconds: float = 60.0) -> EpochProof:
        """Check whether the last finished epoch delivered each sample once over all ranks.

        ``print(loader.epoch_proof())`` prints the result as text; ``.ok`` is True, False, or None if it is not known.
        With torch.distributed, the loader also does this check by itself: the last rank to finish an epoch raises
        ProofError if samples are missing or repeated.

        If the epoch has weights, ``.segments`` states for each part between two changes how often each class
        and each dataset of a `Mixture` was promised and delivered. This computes all samples of the epoch.

        Args:
            timeout_seconds: How long to wait for other ranks to finish the epoch, in seconds.

        Raises:
            ProofError: No batch has been delivered yet, a rank did not finish in time, or this process had another rank
                when the epoch was read.
        """
        proof = self._delivery_check.proof(timeout_seconds=timeout_seconds)
        if not self._epochs.has_weights:
            return proof
        return replace(proof, segments=self._delivery_check.segments(self._epochs.weights.labels, self.classes))

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start epoch ``epoch`` (zero-based).

        If a loaded state is inside that epoch, the iteration continues from the position of the state.
        """
        self._epochs.set_epoch(epoch)

    @property
    def fetch_statistics(self) -> FetchStatistics:
        """Requests, bytes, cache hits and waiting time of a remote dataset; zeros for a local one.

        They are for all processes of this machine that read this dataset at the same time.
        """
        return self._opened.shards.statistics

    def stats(self) -> LoaderStats:
        """Return how long the loop waited, and for what: in the current or last epoch, and since the last call.

        The figures are for this rank. They may be read from any thread.

        Example::

            for step, (images, labels) in enumerate(loader):
                train_step(images, labels)
                if step % 100 == 99:
                    tracker.log(loader.stats().since_last_call.to_dict(), step)
        """
        return self._monitor.stats()

    def report(self) -> str:
        """Return in one sentence what the loop waits for in the current or last epoch, and what would help.

        Example: ``"decoding: the loop waited 31 % of the time (decoding 31 %); 4 more workers would cover it"``.
        """
        return self._monitor.report()

    @checked()
    def log_stats(self, path: str | os.PathLike[str], *, seconds: float = 60.0) -> None:
        """Append the statistics to a file from now on, as JSON lines: every ``seconds``, and at the end of each epoch.

        A line has ``time`` (seconds since 1970), ``rank``, ``kind``, which is ``"period"`` (since the last such line)
        or ``"epoch"``, and the figures of `PeriodStats`. If writing fails later, a warning is logged, and no more lines
        are written.

        Args:
            path: The file. Several ranks may write to the same one.
            seconds: Time between two lines, in seconds.

        Raises:
            OSError: The file cannot be written.
        """
        self._monitor.add_file(Path(path), seconds)

    @checked()
    def ceiling(self, *, steps: int = 100) -> Ceiling:
        """Return an iterable that repeats one batch, to measure what the training step alone can do.

        This process loads the first batch of the epoch when the iteration begins. The position in the epoch, the
        workers and the statistics do not change. Three steps come before the measurement. The training
        step must not change the batch in place, because the next step gets it again. ::

            ceiling = loader.ceiling(steps=200)
            for images, labels in ceiling:
                train_step(images, labels)
            print(ceiling)  # the training step alone: 1,730 images/s

        Args:
            steps: Number of steps to measure.

        Returns:
            The iterable. Its ``images_per_second`` is set when the loop has ended; on CUDA, after the device has
            finished all steps.
        """
        return Ceiling(self._first_batch, steps, batch_size=self.batch_size, device=self.device)

    @property
    def packing(self) -> PackingProgress | None:
        """Progress of the packer that is writing the dataset (``pack_to=``); None if there is none."""
        return self._packing.progress if self._packing else None

    @property
    def errors(self) -> list[ReplacedSample]:
        """Unreadable samples that were replaced in the current or last epoch (``on_error="replace"``).

        In the epoch in which the dataset is packed (``pack_to=``), also inputs that could not be packed.
        """
        return list(self._errors.samples)

    def __iter__(self) -> Iterator[Any]:
        return _Batches(self._batches())

    def _batches(self) -> Generator[Any, None, None]:
        # A generator, so that an iterator that is never advanced does not change the loader. Lightning creates such an
        # iterator when it resumes.
        self._check_process()
        self._epochs.stop()
        close_count = self._close_count
        self._meter.begin(self._epochs.next_epoch)
        with self._meter, stages.START:
            pipeline = self._usable_pipeline(self._epochs.following())
        if self._close_count != close_count:
            self._close_pipeline(pipeline)
            raise LoaderError(
                "the loader was closed while its workers were started: create a new iterator with iter(loader)"
            )
        is_reweighted = self._epochs.is_reweighted
        plan = self._epochs.begin()
        self._delivery_check.begin(plan)
        self._errors.begin(len(plan) * plan.batch_size)
        iteration = _Iteration()  # deleted with this generator; `finally` would fail when the interpreter exits
        end_outputs = weakref.finalize(iteration, self._monitor.begin(plan))
        if is_reweighted:
            self._monitor.change()
        batches = pipeline.batches(plan, self._epochs.following)
        while True:
            if (changed := self._epochs.changed(plan)) is not None:
                plan = changed
                self._delivery_check.change(plan)
                self._monitor.change()
                pipeline = self._usable_pipeline(plan)
                batches = pipeline.batches(plan, self._epochs.following)
            if (received := self._next(plan, batches)) is None:
                break
            ready, samples = [received[0]], received[1]
            del received
            self._monitor.received(samples)
            yield ready.pop()  # popped, so that this frame does not keep the batch
        end_outputs()
        self._epochs.end(plan)
        if self._packing:
            self._packing.finish()

    def close(self) -> None:
        """Stop the workers and free the shared memory. The next iteration starts new workers. Thread-safe."""
        self._close_count += 1
        self._epochs.stop("the loader was closed")
        self._close_pipeline(self._pipeline)
        self._monitor.close()
        if self._packing:
            self._packing.close()

    def _close_pipeline(self, pipeline: Pipeline | None) -> None:
        self._pipeline = self._meter.pool = None
        if pipeline and pipeline.pid == os.getpid():
            pipeline.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run_after(error, self.close)

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
            self._pipeline = pipeline = self._new_pipeline(self._autoscaler, self._errors, self._meter)
        return pipeline

    def _new_pipeline(self, autoscaler: Autoscaler, errors: ErrorLog, meter: Meter) -> Pipeline:
        collate = self._handovers.collated if self._handovers.collates else None
        return Pipeline(self._recipe, autoscaler, self._options, errors, meter, collate, self._packing)

    def _next(self, plan: EpochPlan, batches: Iterator[FinishedBatch | None]) -> tuple[Any, int] | None:
        """Return the next batch and its number of samples, and count it as received by the loop; None at the end."""
        self._check_process()
        self._epochs.check_running(plan)
        self._agreement.check(self._epochs.steps)
        if self._packing:
            self._packing.check()
        with self._meter:
            finished = next(batches, None)
            if finished is None:
                return None
            batch = self._hand_over(plan, finished)
        self._epochs.mark_received(plan, finished.step.number)
        self._errors.add_gaps(plan.order.gaps(finished.step.positions), plan.cursor.epoch)
        self._delivery_check.add(finished.step, finished.replaced)
        return batch, len(finished.step.ids)

    def _hand_over(self, plan: EpochPlan, finished: FinishedBatch) -> Any:
        return self._handovers.batch(finished.values, plan.cursor.epoch, finished.step)

    def _first_batch(self) -> Any:
        """Load the first batch of the current epoch in this process; another iteration may be running."""
        autoscaler = Autoscaler.from_options(0, batch_size=self.batch_size, prefetch_factor=1)
        errors = ErrorLog(self._error_policy)
        meter = Meter(autoscaler, self._opened.shards)
        pipeline = self._new_pipeline(autoscaler, errors, meter)
        try:
            plan = self._epochs.first_batch()
            errors.begin(len(plan) * plan.batch_size)
            first = next(pipeline.batches(plan, lambda: None))
            assert first is not None
            return self._hand_over(plan, first)
        finally:
            pipeline.close()


class _Batches(Iterator[Any]):
    """The batches of an epoch. Threads that request one at the same time get them one after another."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._generator = batches
        self._lock = threading.RLock()

    def __next__(self) -> Any:
        with self._lock:
            return next(self._generator)

    def close(self) -> None:
        """End the epoch here, as for a generator."""
        with self._lock:
            self._generator.close()


class _Iteration:
    """An object whose deletion `weakref.finalize` notices."""
