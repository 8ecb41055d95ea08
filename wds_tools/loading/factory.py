"""`make_loader`: a `Loader` made from its options."""

from __future__ import annotations

import sys

from wds_tools.errors import OptionError
from wds_tools.loading import advice
from wds_tools.loading.arguments import LOADER_HINTS, checked
from wds_tools.loading.load_options import LoaderOptions
from wds_tools.loading.loader import Loader
from wds_tools.loading.pipeline.autoscale import Autoscaler
from wds_tools.loading.pipeline.cuda import check_device
from wds_tools.loading.pipeline.pools import PipelineOptions
from wds_tools.loading.request import open_dataset
from wds_tools.loading.workers.ray_workers import RayWorkers
from wds_tools.options import RemoteOptions, report_url
from wds_tools.signatures import takes
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.terminal import shows_progress


@checked(LOADER_HINTS)
@takes(LoaderOptions)
def make_loader(options: LoaderOptions) -> Loader:  # noqa: D417 - callers pass the fields of the options
    """Load a packed dataset as batches.

    A batch is a named tuple with one value per name in ``fields``. All tensors are on ``device``.

    * ``image``: uint8 tensor [batch_size, 3, height, width], RGB, values 0 to 255.
    * ``label``: int64 tensor [batch_size].
    * Other numeric fields: tensor [batch_size].
    * Other images, masks and arrays: tensor [batch_size, ...] if all samples of the batch have the same shape and
      dtype, otherwise a list of tensors.
    * Everything else (``__key__``, text, JSON, bytes): list of length ``batch_size``.

    If ``fields`` is a mapping, `Image`, `Mask` and the other specifications document their values. Fields with ``pad=``
    are followed by masks, see `Pad`.

    Field names become attributes: ``__key__`` is ``batch.key``, ``mask.png`` is ``batch.mask_png``.

    With `Buckets`, all images of a batch have one of several sizes, chosen by aspect ratio.

    If the view does not give all images one size (``view=None``, ``Resize(128)``), ``image`` can be a tensor in one
    batch and a list of tensors in the next.

    The samples, their order and their crops depend on ``seed`` and the epoch, not on the number of workers.

    Args:
        dataset: Folder or URL of a packed dataset, its ``manifest.json``, a brace pattern of indexed shards, a list
            of such shards, or a `Mixture` of several datasets.
        batch_size: Samples per batch on this rank.
        pack_to: Folder or URL of a packed dataset. ``dataset`` is then a source of `pack`, such as a folder of images
            or a Hugging Face `Dataset`. If the packed dataset is missing or incomplete, a process at low priority packs
            it, or continues, and the first epoch reads the shards as they are finished, in stored order, which the
            packer has shuffled. Later epochs have the same order as with any other loader of the packed dataset. See
            docs/packing.md.
        pack: Options of `pack` as a dictionary, such as ``{"images": "crop-ready", "shard_bytes": "256MB"}``. By
            default images are kept as they are (``"keep"``), and shards have at most 256 MB. With
            ``{"then": "crop-ready"}`` they become crop-ready later, in place, at low priority during the next epochs.
        view: Region of the image to use, and its output size: `RandomResizedCrop`, `CenterCrop`, `Resize`, or any
            other view that `Image` accepts. None (the default) keeps the full image.
        shuffle: Order of the samples. False (the default) is the stored order. True shuffles with a window chosen for
            the dataset. An int is the size of the window in samples (other loaders call it the shuffle buffer). A float
            above 0 and below 1 is the quality of the shuffle; values near 1 are close to a full shuffle.
        seed: Seed of the order, crops, flips and transforms; 0 to 2**63 - 1.
        num_workers: Worker processes that read and decode. 0 decodes in this process. None (the default) starts one
            worker per core, at most 16; the cores are shared among the ranks of this machine. ``"auto"`` begins with
            one worker and adds workers while the training loop waits for batches, up to the default number, which is
            at most 16. An int may be larger. ``loader.num_workers`` is the current number. `RayWorkers` are workers on
            the machines of a Ray cluster, for a machine with few cores or a slow ``transform``.
        device: Device of the tensors: a name such as ``"cuda:1"``, a CUDA device index, or a torch.device. None (the
            default) is CPU memory. ``"cuda"`` without index is the device of ``torch.cuda.set_device``; if that was not
            called and several devices are visible, it is the one whose index is in ``LOCAL_RANK``. The copy to CUDA is
            asynchronous, from pinned memory. CUDA is not initialized before the workers have started.
        device_prefetch: For CUDA, maximum number of batches that are copied before the training loop requests them
            (default 2). Each takes the memory of a batch on the device. Other devices do not use this option.
        fields: Fields of a batch: ``image``, ``label``, ``__key__``, or any stored field such as ``json`` or
            ``mask.png``. A stored image field is decoded to [channels, height, width], uint16 if it has 16 bits per
            channel, otherwise uint8. With a single name that is not in a list (``fields="image"``), a batch is the
            value itself instead of a named tuple.
            Or a mapping from names in the batch to specifications: `Image`, `Frames`, `Mask`, `Array`, `Boxes`,
            `Keypoints`, `Polygons`, `ObjectMasks`, `Text`, `Label`, `MultiHot`, `Key`, `Field`, or a name as above.
            ``view`` and ``transform`` are then arguments of `Image`.
        transform: Function of one image, a uint8 tensor [3, height, width], called in the worker; or an Albumentations
            transform. Random number generators are seeded from the position of the sample in the epoch. If the function
            returns a tuple, list or dictionary of tensors, such as two crops, ``image`` is a tuple, list or dictionary
            of batches.
        sample_transform: Function of all fields of one sample, called in the worker. It gets a dictionary from the
            names in ``fields`` to values, and returns one with the same names. Images, masks, boxes and key points are
            ``tv_tensors``, so transforms of ``torchvision.transforms.v2`` move them together. Or a transform of
            Albumentations. Random number generators are seeded as for ``transform``.
        collate_fn: Function of the list of samples of a batch that returns the batch, called in this process with
            tensors in CPU memory. A sample is a named tuple with one value per field; with ``tail="mask"``, also
            ``valid``. Tensors in sequences, mappings and dataclasses of the result are moved to ``device``, and so are
            objects with a method ``to(device)``; arrays are not. The CPU generators are seeded as for
            ``batch_transform``, which then gets the result as its only argument. By default, values are stacked as
            described above.
        batch_transform: Function of a batch, called in this process with tensors on ``device``, for example to
            normalize. A function with one required argument gets the images and returns their replacement. A
            function with two or more required arguments, and ``v2.CutMix`` and ``v2.MixUp`` of torchvision, get the
            values of all fields in the order of ``fields``. They return as many values, or a dictionary, which then
            becomes the batch. For each batch, the CPU generators of ``random``, NumPy and torch are seeded from its
            position in the epoch and restored afterwards. Random numbers drawn on another device come from the
            generator of that device. Or one of `Normalize`, `RandomHorizontalFlip`, `ColorJitter`, `RandAugment`,
            `MixUp` and `CutMix` of this package, or a list of these and of functions of the images. The random numbers
            of these steps belong to the samples, so they do not depend on the number of ranks. Only the partners of
            `MixUp` and `CutMix` do: a rank mixes the samples of its own batch.
        tail: What to do with the last samples of an epoch if they do not fill a batch on every rank. ``"drop"`` (the
            default) skips them. ``"pad"`` fills the batch with other samples. ``"mask"`` does the same, and adds the
            field ``valid``, bool [batch_size], which is False for padding (for evaluation). With ``"mask"`` a batch is
            always a named tuple.
        on_error: Handling of unreadable samples. ``"raise"`` (the default) raises the error. ``"replace"`` takes
            another sample of the epoch, logs a warning, and adds an entry to ``loader.errors``. The substitute depends
            only on the seed and the position. Errors of your own functions are always raised.
        max_errors: Maximum number of samples that may be replaced per epoch on each rank: a number (int), or a fraction
            of the samples of the rank (float, default 0.01). One more raises SampleError.
        where: Use only samples that meet this condition on the columns of the index: text such as
            ``"width >= 256 and label in ('cat', 'dog')"``, or a pyarrow expression. Other samples are not read.
        subset: Use only some of the samples: a fraction (float), drawn at random with ``seed``, or sample ids, such as
            `train_test_split` returns. An id that is listed n times is used n times per epoch. In a `Mixture`, ids
            are counted through all datasets, in their order.
        class_weights: How often the classes are drawn, with the meaning of
            ``torch.utils.data.WeightedRandomSampler``: ``"balanced"``, a mapping from class to weight, or one weight
            per class. Samples of frequent classes are left out in turn, and samples of rare classes are repeated. Or a
            `Schedule` of these; samples are then drawn as by `Loader.reweight`.
        ban: Samples that are left out from the next step on: keys (str), sample ids (int), or a text file with one key
            or sample id per line. A new run never uses them, and a resumed run does not use them after its state. The
            state records them, so a resumed run needs the option only for further samples.
        save_ban_to: Folder next to the checkpoints, for files with the ids of ``ban=``. A state then has the path and
            the hash of a file instead of all ids. Resuming from it needs the file, and raises ResumeError if the file
            is missing or has changed.
        prefetch_factor: Tasks in progress per worker (default 2). A task is a batch, or a part of at least 64 samples
            of a batch of 128 or more. At the end of an epoch the workers continue with the next one. Its batches are
            dropped if another epoch or position is read next.
        rank: Data-parallel rank of this process; requires ``world_size``. By default the rank comes from
            torch.distributed, or from the environment that torchrun sets. It is determined at the start of each
            iteration, so the process group may be created after the loader.
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
        retry_seconds: For how many seconds a failed request is repeated. Default: ``WDS_TOOLS_RETRY_SECONDS``, or 300.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are never saved.
        multiprocessing_context: Start method of the workers: ``"fork"``, ``"forkserver"`` or ``"spawn"``. Default:
            ``"fork"`` on Linux, ``"spawn"`` on other systems.
        stall_seconds: If a worker sends nothing for this many seconds while the loader waits for its result, it is
            stopped and WorkerError is raised with its stack (default 300).
        progress: Show a line on stderr, on rank 0, with the position in the epoch, images/s, and what the loop waits
            for. None shows it only on a terminal, and not in CI jobs.
        report_to: Origin of a server, such as ``"http://node1:8080"``: a background thread sends it the statistics
            every 2 seconds, and the page of `wds-tools serve` shows them. If the server does not answer, one warning
            is logged and the training continues. Default: ``WDS_TOOLS_REPORT_TO``, or no reports.

    Returns:
        The loader. ``iter(loader)`` is one epoch; ``len(loader)`` is the number of batches.

    Raises:
        NotADatasetError: There is no packed dataset at ``dataset``.
        MissingFieldError: The dataset lacks a field. The message lists the fields that it has.
        OptionError: An invalid option.
        DeviceError: The device is not available.
        TypeError: An unknown argument. The message names the argument to use instead.

    Warns:
        UserWarning: Images will come as a list because their sizes differ, there are many more workers than cores, the
            field ``cls`` of a merged dataset has class numbers that differ from ``label``, or a view mirrors key points
            whose pairs are not known.

    Example::

        loader = make_loader("shards/photos", batch_size=256, shuffle=True, device="cuda",
                             view=RandomResizedCrop(224, flip=True))
        for images, labels in loader: ...
    """
    autoscaler = Autoscaler.from_options(
        options.num_workers, batch_size=options.batch_size, prefetch_factor=options.prefetch_factor
    )
    if options.pack is not None and options.pack_to is None:
        raise OptionError("pack= has the options for packing into pack_to=, which is missing")
    packing = None
    elsewhere = options.num_workers if isinstance(options.num_workers, RayWorkers) else None
    if elsewhere:
        from wds_tools.packing.ray_cluster import load_ray  # noqa: PLC0415 - other loaders do not need it

        load_ray(f"num_workers={elsewhere}")
    if options.pack_to is not None:
        if elsewhere:
            raise OptionError("pack_to= packs on this machine: pack first, then use num_workers=RayWorkers(...)")
        from wds_tools.loading.packing import Packing  # noqa: PLC0415 - loads the packer, which other loaders do not need

        packing = Packing(options)
    opened = open_dataset(options) if packing is None else packing.open()
    loader = Loader(
        opened,
        tail=options.tail,
        autoscaler=autoscaler,
        options=PipelineOptions(
            batch_size=options.batch_size,
            device=check_device(options.device),
            device_prefetch=options.device_prefetch,
            start_method=options.multiprocessing_context or ("fork" if sys.platform == "linux" else "spawn"),
            stall_seconds=options.stall_seconds + (_longest_request(options.remote) if opened.shards.is_remote else 0),
            read_ahead_bytes=opened.read_ahead_bytes,
            elsewhere=elsewhere,
        ),
        save_ban_to=options.save_ban_to,
        batch_transform=options.batch_transform,
        collate_fn=options.collate_fn,
        errors=options.errors,
        progress=shows_progress(options.progress),
        report_to=options.report_to or report_url(),
        packing=packing,
    )
    advice.warn_of_many_workers(options.num_workers)
    advice.warn_of_image_lists(opened, options)
    advice.warn_of_merged_labels(opened)
    advice.warn_of_mirrored_points(opened)
    return loader


def _longest_request(remote: RemoteOptions) -> float:
    """Return the seconds after which a request without progress has failed, with an error that names the cause.

    Its last attempt may begin when the time is over, after the last one of a request that it waited for.
    """
    policy = RetryPolicy(remote.retry_seconds)
    return policy.seconds + 2 * policy.attempt_seconds
