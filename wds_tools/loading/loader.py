"""`make_loader` and `Loader`: batches of a packed dataset for a training loop."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from wds_tools.errors import LoaderError
from wds_tools.images.views import View
from wds_tools.loading import advice
from wds_tools.loading.arguments import LOADER_HINTS, checked
from wds_tools.loading.assemble import Transform
from wds_tools.loading.autoscale import Autoscaler, NumWorkers
from wds_tools.loading.bad_samples import ErrorLog, ErrorPolicy, OnError, ReplacedSample
from wds_tools.loading.bridge import RankBatchSampler, RankSampler, SampleDataset
from wds_tools.loading.cuda import resolve_device
from wds_tools.loading.delivery_check import DeliveryCheck
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.handover import BatchTransform, Handover
from wds_tools.loading.pipeline import FinishedBatch, Pipeline, PipelineOptions
from wds_tools.loading.ranks import Group, RankOptions
from wds_tools.loading.request import OpenedDataset, Request, open_dataset
from wds_tools.loading.workers import STALL_SECONDS
from wds_tools.options import RemoteOptions
from wds_tools.order.mixture import Mixture
from wds_tools.order.planner import EpochPlan, Tail
from wds_tools.order.tally import EpochProof
from wds_tools.order.where import Where
from wds_tools.reading.select import Subset, Weights
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
        device: torch.device of the tensors of a batch.
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
        self.device = options.device
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
        pipeline = self._usable_pipeline()
        if self._close_count != close_count:
            self._close_pipeline(pipeline)
            raise LoaderError(
                "the loader was closed while its workers were started: create a new iterator with iter(loader)"
            )
        plan = self._epochs.begin()
        self._delivery_check.begin(plan)
        self._errors.begin(len(plan) * plan.batch_size)
        batches = pipeline.batches(plan)
        while True:
            self._check_process()
            self._epochs.check_running(plan)
            finished = next(batches, None)
            if finished is None:
                break
            yield self._hand_over(plan, finished)
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

    def _usable_pipeline(self) -> Pipeline:
        """Return the running pipeline, or a new one if there is none or it has failed."""
        pipeline = self._pipeline
        if pipeline and not pipeline.drain():
            pipeline.close()
            pipeline = None
        if pipeline is None:
            self._pipeline = pipeline = Pipeline(self._opened.recipe, self._autoscaler, self._options, self._errors)
        return pipeline

    def _hand_over(self, plan: EpochPlan, finished: FinishedBatch) -> Any:
        """Return the batch, and count it as received by the training loop."""
        start = plan.cursor.epoch, int(finished.step.positions[0])
        batch = self._handover.batch(finished.values, start)
        self._epochs.mark_received(plan, finished.step.number)
        self._delivery_check.add(finished.step, finished.replaced)
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
    on_error: OnError = "raise",
    max_errors: int | float = 0.01,
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
    read_ahead_bytes: int | str | None = None,
    retry_seconds: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
    multiprocessing_context: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Loader:
    """Load a packed dataset as batches.

    A batch is a named tuple with one value per name in ``fields``. All tensors are on ``device``.

    * ``image``: uint8 tensor [batch_size, 3, height, width], RGB, values 0 to 255.
    * ``label``: int64 tensor [batch_size].
    * Other numeric fields: tensor [batch_size].
    * Other images, masks and arrays: tensor [batch_size, ...] if all samples of the batch have the same shape and
      dtype, otherwise a list of tensors.
    * Everything else (``__key__``, text, JSON, bytes): list of length ``batch_size``.

    Field names become attributes: ``__key__`` is ``batch.key``, ``mask.png`` is ``batch.mask_png``.

    If the view does not give all images one size (``view=None``, ``Resize(128)``), ``image`` can be a tensor in one
    batch and a list of tensors in the next.

    The samples, their order and their crops depend on ``seed`` and the epoch, not on the number of workers.

    Args:
        dataset: Folder or URL of a packed dataset, its ``manifest.json``, a brace pattern of indexed shards, or a
            `Mixture` of several datasets.
        batch_size: Samples per batch on this rank.
        view: Region of the image to use, and its output size: `RandomResizedCrop`, `CenterCrop` or `Resize`. None (the
            default) keeps the full image.
        shuffle: Order of the samples. False (the default) is the stored order. True shuffles with a window chosen for
            the dataset. An int is the size of the window in samples (other loaders call it shuffle buffer). A float
            above 0 and below 1 is the quality of the shuffle; values near 1 are close to a full shuffle.
        seed: Seed of the order, crops, flips and transforms; 0 to 2**63 - 1.
        num_workers: Worker processes that read and decode. 0 decodes in this process. None (the default) starts one
            worker per core, at most 16; the cores are shared among the ranks of this machine. ``"auto"`` begins with
            one worker and adds workers while the training loop waits for batches, up to the default number, so also
            at most 16. An int may be larger. ``loader.num_workers`` is the current number.
        device: Device of the tensors: a name such as ``"cuda:1"``, a CUDA device index, or a torch.device. None (the
            default) is CPU memory. For CUDA the copy is asynchronous, from pinned memory.
        fields: Fields of a batch: ``image``, ``label``, ``__key__``, or any stored field such as ``json`` or
            ``mask.png``. A stored image field is decoded to [channels, height, width], uint16 if it has 16 bits per
            channel, otherwise uint8. With a single name that is not in a list (``fields="image"``), a batch is the
            value itself instead of a named tuple.
        transform: Function of one image, a uint8 tensor [3, height, width], called in the worker; or an Albumentations
            transform. Random number generators are seeded from the position of the sample in the epoch. If the function
            returns a tuple, list or dictionary of tensors, such as two crops, ``image`` is a tuple, list or dictionary
            of batches.
        batch_transform: Function of a batch, called in this process with tensors on ``device``, for example to
            normalize. A function with one required argument gets the images and returns their replacement. A
            function with two or more required arguments, and ``v2.CutMix`` and ``v2.MixUp`` of torchvision, get the
            values of all fields in the order of ``fields``. They return as many values, or a dictionary, which then
            becomes the batch. For each batch, the CPU generators of ``random``, NumPy and torch are seeded from its
            position in the epoch and restored afterwards. Random numbers drawn on another device come from the
            generator of that device.
        tail: The last samples of an epoch, if they do not fill a batch on every rank. ``"drop"`` (the default) skips
            them. ``"pad"`` fills up with other samples. ``"mask"`` also fills up, and adds the field ``valid``, bool
            [batch_size], which is False for padding (for evaluation). With ``"mask"`` a batch is always a named tuple.
        on_error: Handling of unreadable samples. ``"raise"`` (the default) raises the error. ``"replace"`` takes
            another sample of the epoch, logs a warning, and adds an entry to ``loader.errors``. The substitute depends
            only on the seed and the position. Errors of your own functions are always raised.
        max_errors: Most samples that may be replaced per epoch on each rank: a number (int), or a fraction of the
            samples of the rank (float, default 0.01). One more raises SampleError.
        where: Use only samples that fulfil this condition on the columns of the index: text such as
            ``"width >= 256 and label in ('cat', 'dog')"``, or a pyarrow expression. Other samples are not read.
        subset: Use only some of the samples: a fraction (float), drawn at random with ``seed``, or sample ids, such as
            those of `train_test_split`. An id that is listed n times is used n times per epoch.
        class_weights: How often the classes are drawn, with the meaning of
            ``torch.utils.data.WeightedRandomSampler``: ``"balanced"``, a mapping from class to weight, or one weight
            per class. Samples of frequent classes are left out in turn, those of rare classes repeated.
        prefetch_factor: Batches in progress per worker (default 2).
        rank: Data-parallel rank of this process; requires ``world_size``. By default the rank is that of
            torch.distributed, or of the environment that torchrun sets. It is looked up at the start of each iteration,
            so the process group may be created after the loader.
        world_size: Number of data-parallel ranks.
        group: Process group or DeviceMesh whose members share the data, such as ``mesh["dp"]``, instead of ``rank`` and
            ``world_size``. Ranks that are tensor-parallel to each other then get the same batches.
        lanes: Number of independent streams of blocks, so that each machine reads its own part; by default one per
            machine.
        cache_dir: Local folder for blocks of remote shards. Default: ``WDS_TOOLS_CACHE_DIR``, or ``wds_tools`` in the
            cache folder of the user.
        cache_bytes: Approximate limit for that folder, such as ``"20GB"`` or a number of bytes. Default:
            ``WDS_TOOLS_CACHE_BYTES``, or 20 GB.
        read_ahead_bytes: Bytes of remote shards to read before they are needed, such as ``"512MB"``. Default:
            ``WDS_TOOLS_READ_AHEAD_BYTES``, or chosen automatically.
        retry_seconds: How long a failed request is repeated. Default: ``WDS_TOOLS_RETRY_SECONDS``, or 300.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are never saved.
        multiprocessing_context: Start method of the workers: ``"fork"``, ``"forkserver"`` or ``"spawn"``. Default:
            ``"fork"`` on Linux, ``"spawn"`` on other systems.
        stall_seconds: If a worker sends nothing for this many seconds while the loader waits for its result, it is
            stopped and WorkerError is raised with its stack (default 300).

    Returns:
        The loader. ``iter(loader)`` is one epoch; ``len(loader)`` is the number of batches.

    Raises:
        NotADatasetError: There is no packed dataset at ``dataset``.
        MissingFieldError: The dataset lacks a field. The message lists the fields that it has.
        OptionError: An invalid option.
        DeviceError: The device is not available.
        TypeError: An unknown argument. The message names the argument to use instead.

    Warns:
        UserWarning: Images will come as a list because their sizes differ, or there are many more workers than cores.

    Example::

        loader = make_loader("shards/photos", batch_size=256, shuffle=True, device="cuda",
                             view=RandomResizedCrop(224, flip=True))
        for images, labels in loader: ...
    """
    autoscaler = Autoscaler.from_options(num_workers, batch_size=batch_size, prefetch_factor=prefetch_factor)
    errors = ErrorPolicy(on_error=on_error, max_errors=max_errors)
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
        lanes=lanes,
        ranks=RankOptions(rank, world_size, group),
        remote=RemoteOptions.of(
            cache_dir,
            cache_bytes,
            read_ahead_bytes=read_ahead_bytes,
            retry_seconds=retry_seconds,
            storage_options=storage_options,
        ),
        errors=errors,
    )
    opened = open_dataset(dataset, request)
    options = PipelineOptions(
        batch_size=batch_size,
        device=resolve_device(device),
        start_method=multiprocessing_context or ("fork" if sys.platform == "linux" else "spawn"),
        # A request is repeated for `retry_seconds`, and then fails with a message that names the cause.
        stall_seconds=stall_seconds + (request.remote.retry_seconds if opened.shards.is_remote else 0),
        read_ahead_bytes=opened.read_ahead_bytes,
    )
    loader = Loader(
        opened, tail=tail, autoscaler=autoscaler, options=options, batch_transform=batch_transform, errors=errors
    )
    advice.warn_of_many_workers(num_workers)
    advice.warn_of_image_lists(opened, request)
    return loader
