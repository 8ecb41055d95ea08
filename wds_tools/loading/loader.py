"""`make_loader`: the one call that a training loop needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from wds_tools.errors import LoaderError
from wds_tools.images.views import View
from wds_tools.loading import advice
from wds_tools.loading.arguments import LOADER_HINTS, checked
from wds_tools.loading.assemble import Transform
from wds_tools.loading.autoscale import Feeding, NumWorkers
from wds_tools.loading.bad_samples import ErrorLog, ErrorPolicy, OnError, ReplacedSample
from wds_tools.loading.bridge import RankSampler, Samples, StepSampler
from wds_tools.loading.cuda import find_device
from wds_tools.loading.delivery_check import Witness
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.handover import BatchTransform, Handover
from wds_tools.loading.pipeline import Made, Pipeline, PipelineOptions
from wds_tools.loading.ranks import Group, RankOptions
from wds_tools.loading.request import Opened, Request, open_dataset
from wds_tools.loading.workers import STALL_SECONDS
from wds_tools.options import CacheOptions
from wds_tools.order.mixture import Mixture
from wds_tools.order.planner import EpochPlan, Tail
from wds_tools.order.tally import EpochProof
from wds_tools.order.where import Where
from wds_tools.reading.select import Subset, Weights


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
        tail: Tail,
        feeding: Feeding,
        options: PipelineOptions,
        batch_transform: BatchTransform | None,
        errors: ErrorPolicy,
    ) -> None:
        self.batch_size = options.batch_size
        self.device = options.device
        self._opened = opened
        self._feeding = feeding
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
        self._closings = 0  # another thread may close the loader at any time, while it starts workers too
        self._witness = Witness(opened.ranks, batch_size=options.batch_size, tail=tail)
        # What other libraries read from a DataLoader. Attributes, because Ray Train copies __dict__.
        self.dataset = Samples(opened, errors=errors, has_valid=tail == "mask")
        self.sampler = RankSampler(self._epochs, self.dataset, options.device)
        self.batch_sampler = StepSampler(self.sampler, options.batch_size)
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

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``; a position inside that epoch, as after a resume, is kept."""
        self._epochs.set_epoch(epoch)

    @property
    def errors(self) -> list[ReplacedSample]:
        """Unreadable samples of the current or last epoch that were replaced (``on_error="replace"``)."""
        return list(self._errors.samples)

    def __iter__(self) -> Iterator[Any]:
        # A generator: the epoch begins when its first batch is asked for. An iterator from which nothing is taken, such
        # as one that Lightning makes when it resumes, leaves the loader as it was.
        self._check_process()
        self._epochs.stop()
        closings = self._closings
        pipeline = self._ready()
        if self._closings != closings:
            self._end(pipeline)
            raise LoaderError("the loader was closed while its workers were started: take a new iterator from it")
        plan = self._epochs.begin()
        self._witness.begin(plan)
        self._errors.begin(len(plan) * plan.batch_size)
        batches = pipeline.batches(plan)
        while True:
            self._check_process()
            self._epochs.check_running(plan)
            made = next(batches, None)
            if made is None:
                break
            yield self._hand_over(plan, made)
        self._epochs.end(plan)

    def close(self) -> None:
        """End the workers and free the slots; the next iteration starts new ones. Any thread may call this."""
        self._closings += 1
        self._epochs.stop("the loader was closed")
        self._end(self._pipeline)

    def _end(self, pipeline: Pipeline | None) -> None:
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
                "make another one with make_loader(), and give it the state_dict() of this one"
            )
        return self.__dict__

    def _check_process(self) -> None:
        if self._pipeline and self._pipeline.pid != os.getpid():
            raise LoaderError(
                f"the workers of this loader belong to process {self._pipeline.pid}, and this is a fork of it: "
                "make a loader in each process, or fork before the first batch is taken"
            )

    def _ready(self) -> Pipeline:
        """Return the running pipeline, or a new one if there is none or it has failed."""
        pipeline = self._pipeline
        if pipeline and not pipeline.is_ready():
            pipeline.close()
            pipeline = None
        if pipeline is None:
            self._pipeline = pipeline = Pipeline(self._opened.recipe, self._feeding, self._options, self._errors)
        return pipeline

    def _hand_over(self, plan: EpochPlan, made: Made) -> Any:
        """Return the batch, and count it as consumed."""
        batch = self._handover.batch(made.values, (plan.cursor.epoch, int(made.step.positions[0])))
        self._epochs.received(plan, made.step.number)
        self._witness.saw(made.step, made.replaced)
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
    multiprocessing_context: str | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Loader:
    """Stream a packed dataset as batches.

    A batch is a named tuple of ``fields``: ``image`` uint8 [batch_size, 3, height, width] on ``device``, ``label``
    int64 [batch_size], numbers as a tensor [batch_size], text and the rest as a list. Tensors, such as images and
    masks, are stacked if all of a batch have one shape and dtype; otherwise they come as a list. Where sizes differ, as
    with ``view=None`` or ``Resize(128)``, a field can be a tensor in one batch and a list in the next.

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
            Albumentations transform. Its random numbers are seeded by the sample's place in the epoch. If it returns
            a tuple, list or dictionary of tensors, such as two crops, ``image`` is one of batches.
        batch_transform: Your function of the image tensor, run on the device: normalise there. A function that
            requires two or more arguments, and ``v2.CutMix`` and ``v2.MixUp`` of torchvision, get the whole batch: all
            values in the order of ``fields``, and return as many, or a dictionary, such as the Trainer of Hugging Face
            takes. It runs in this process. ``random``, NumPy's and torch's CPU generator are seeded for each batch by
            its place in the epoch, and put back afterwards; numbers drawn on another device come from the generator of
            that device.
        tail: The samples that do not fill a batch on every rank: ``drop`` them, ``pad`` with others, or ``mask``:
            pad, and mark the padding in a last field ``valid``, bool [batch_size] (for evaluation). A batch is then a
            named tuple even if ``fields`` is one name.
        on_error: What happens to an unreadable sample: ``"raise"`` its error, or ``"replace"``
            it with another sample of the epoch, log a warning, and list it in ``loader.errors``.
            The substitute depends on the seed and the position alone. Errors in your own functions are always raised.
        max_errors: How many samples may be replaced in an epoch on each rank, as a number (int) or as a fraction of
            the rank's samples (float); one more is an error.
        where: Only samples for which this holds, by the columns of the index: text such as
            ``"width >= 256 and label in ('cat', 'dog')"``, or a pyarrow expression. Nothing is read to leave it out.
        subset: A fraction of them, drawn by ``seed``, or sample ids, such as those of `train_test_split`; an id that is
            named several times comes that often.
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

    Warns:
        UserWarning: Images will come as a list because of their sizes, or there are far more workers than cores.

    Example::

        loader = make_loader("shards/photos", batch_size=256, shuffle=True, device="cuda",
                             view=RandomResizedCrop(224, flip=True))
        for images, labels in loader: ...
    """
    feeding = Feeding.of(num_workers, batch_size=batch_size, prefetch_factor=prefetch_factor)
    options = PipelineOptions(
        batch_size=batch_size,
        device=find_device(device),
        start_method=multiprocessing_context or ("fork" if sys.platform == "linux" else "spawn"),
        stall_seconds=stall_seconds,
    )
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
        cache=CacheOptions.of(cache_dir, cache_bytes),
        errors=ErrorPolicy(on_error=on_error, max_errors=max_errors),
    )
    opened = open_dataset(dataset, request)
    loader = Loader(
        opened,
        tail=tail,
        feeding=feeding,
        options=options,
        batch_transform=batch_transform,
        errors=request.errors,
    )
    advice.about_workers(num_workers)
    advice.about_sizes(opened, request)
    return loader
