"""Commands that create and change datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from wds_tools.cli.common import (
    LOCAL_PATH,
    PATH_OR_URL,
    Run,
    amount,
    engine_option,
    example,
    indexes_of,
    label_option,
    label_separator_option,
    label_type_option,
    next_steps,
    parse_columns,
    source_options,
    storage_option,
    workers_option,
)
from wds_tools.errors import OptionError

if TYPE_CHECKING:
    from wds_tools.packing.packer import PackReport


_NEXT_TASKS = "next: when all tasks have ended, run the same command with --finish in place of the task options"
_NICE = 19  # the lowest priority, for work while a training runs
_IMAGES = click.Choice(["keep", "crop-ready", "resize", "raw"])

_classes = click.option(
    "--classes",
    type=LOCAL_PATH,
    metavar="FILE",
    help="File of class names: one per line in the order of class numbers, names with numbers, JSON or YAML. By "
    "default, names are sorted.",
)
_seed = click.option("--seed", default=0, show_default=True, help="Seed of the one-time shuffle.")
_strict = click.option(
    "--strict",
    is_flag=True,
    help="Pack nothing if a file cannot be packed, and list all such files; by default they are skipped.",
)
_resize = click.option(
    "--resize", metavar="SIZE", help="Shorter side in pixels, or WIDTHxHEIGHT; by default unchanged."
)
_quality = click.option("--quality", type=int, help="JPEG quality of resized images, 1 to 100.  [default: 90]")
_fresh = click.option("--fresh", is_flag=True, help="Delete what an earlier pack left in DST, and start over.")


def _machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that runs on several machines; `_machines_given` collects their values."""
    for option in (
        click.option("--num-cpus", type=int, default=1, show_default=True, help="CPUs of a Ray task."),
        engine_option,
        click.option("--finish", is_flag=True, help="Pack nothing; complete the dataset after all tasks have ended."),
        click.option("--task-count", type=int, help="Number of tasks that share DST, such as those of a Slurm array."),
        click.option("--task-index", type=int, help="Zero-based index of this task; requires --task-count."),
    ):
        command = option(command)
    return command


def _machines_given(options: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `_machine_options` out of those of a command; return them as arguments of `pack`."""
    index, count = options.pop("task_index"), options.pop("task_count")
    if (index is None) != (count is None):
        raise OptionError("--task-index and --task-count must be given together")
    given = {name: options.pop(name) for name in ("finish", "engine", "num_cpus")}
    return {**given, "task": None if index is None else (index, count)}


def _shard_bytes(default: str | None, help_text: str) -> Callable[[Any], Any]:
    return click.option("--shard-bytes", metavar="SIZE", default=default, show_default=True, help=help_text)


@click.command(
    epilog=example(
        "wds-tools pack photos/ shards/photos --shard-bytes 256MB",
        "wds-tools pack birds.csv shards/birds --column image=path --column label=species",
        "wds-tools pack photos/ s3://bucket/photos",
    )
)
@click.argument("src", type=PATH_OR_URL)
@click.argument("dst", type=PATH_OR_URL)
@_shard_bytes("1GB", "Maximum size of a shard, such as 256MB or 1GiB.")
@_seed
@workers_option
@source_options
@click.option(
    "--split",
    metavar="SPLITS",
    help="Write one dataset per split: train=0.9,val=0.1, or `folders` if SRC contains train/, val/.",
)
@click.option(
    "--keep-together",
    metavar="hash|COLUMN",
    help="With shares in --split: put similar images (hash), or images with the same value of a column, such as "
    "patient, into one split. Each image is read once more for that.",
)
@_classes
@_strict
@_fresh
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing: print what would be packed, what would not, and ten samples with their labels.",
)
@click.option(
    "--images", type=_IMAGES, help="How to store images; see above. By default crop-ready, or resize with --resize."
)
@_resize
@_quality
@click.option(
    "--verify-pixels",
    is_flag=True,
    help="Verify each crop-ready JPEG by decoding; keep the original if a pixel differs.",
)
@click.option(
    "--spool",
    type=LOCAL_PATH,
    metavar="DIR",
    help="Local folder for shards that wait for upload; by default in the cache directory.",
)
@click.option(
    "--first",
    type=int,
    metavar="N",
    help="Pack only the first N images, for a first look; the same command without --first packs the rest later.",
)
@click.option("--keep-order", is_flag=True, help="Keep the order of SRC; by default the samples are shuffled once.")
@_machine_options
@storage_option
@click.pass_obj
def pack(
    run: Run,
    /,
    src: str,
    dst: str,
    columns: tuple[str, ...],
    label: str | None,
    split: str | None,
    keep_together: str | None,
    dry_run: bool,
    first: int | None,
    keep_order: bool,
    **options: Any,  # by the names of the Python function, as in the other commands
) -> None:
    """Pack images into WebDataset shards.

    SRC is a folder with one subfolder per class, or a folder of images without labels (.jpg, .jpeg,
    .png, .webp, .tif, .tiff, .gif, .avif), or images with annotations (COCO, YOLO, VOC, masks) or with
    a table. SRC can also be a table of image paths (CSV, TSV, JSON Lines, JSON), a dataset in Parquet,
    Arrow, HDF5, MATLAB, LMDB, TFRecord, MDS, LitData, NumPy, PyTorch (.pt) or Zarr format, a tar or zip
    archive, or WebDataset shards; see docs/sources.md. A folder of images, archives and shards can be at
    a URL.

    DST becomes a dataset: shards, one index per shard, and manifest.json, which is written last.
    Run the same command again to continue an interrupted pack. The bytes written do not depend on
    the number of workers.

    DST can be a URL such as s3://bucket/train: each shard is uploaded when it is finished, and then
    deleted locally.

    \b
    --images keep        original bytes
    --images crop-ready  identical pixels; JPEGs get restart markers, so that a
                         crop can be decoded without the rest of the image
    --images resize      JPEGs of the size given by --resize
    --images raw         decoded pixels, for small images
    """  # noqa: D301 - \b is click's mark for lines that it must not join
    from wds_tools.packing.packer import pack as pack_one
    from wds_tools.packing.splits import pack_splits

    run.after_interrupt = "finished shards are kept; run the same command again to continue"
    machines = _machines_given(options)
    single: dict[str, Any] = {"shuffle": not keep_order, "first": first, **machines}
    is_several = machines["finish"] or machines["task"] or machines["engine"] != "local"
    if split is not None and (keep_order or first is not None or is_several):
        raise OptionError(
            "--split cannot be combined with --keep-order, --first, --task-index, --finish or --engine: these options "
            "are for a single dataset"
        )
    if keep_together is not None and split is None:
        raise OptionError("--keep-together requires --split with shares, such as --split train=0.9,val=0.1")
    pack_all: Callable[..., Any] = (
        partial(pack_one, **single) if split is None else partial(pack_splits, split=split, keep_together=keep_together)
    )
    options |= {"columns": parse_columns(columns, label), "dry_run": dry_run, "storage_options": run.storage_options}
    packed = pack_all(src, dst, **options)
    reports: dict[str, PackReport] = packed if isinstance(packed, dict) else {"": packed}
    if dry_run:
        for name, report in reports.items():
            click.echo(f"{name}, of {report.preview}" if name else report.preview)
        return
    for report in reports.values():
        click.echo(_pack_summary(report))
    if all(report.complete for report in reports.values()):
        click.echo(_next_steps(list(reports.values())))
    else:
        click.echo(_NEXT_TASKS)


def _next_steps(reports: Sequence[PackReport]) -> str:
    first = reports[0]
    return next_steps([str(report.dst) for report in reports], first.manifest, indexes_of(first.dst))


def _pack_summary(report: PackReport) -> str:
    from wds_tools.format.label_lists import LABELS
    from wds_tools.format.recorded_source import is_beginning
    from wds_tools.packing.work_folder import SKIPPED_NAME
    from wds_tools.storage import join
    from wds_tools.wording import counted

    manifest, written = report.manifest, len(report.manifest.shards) - report.kept
    several = manifest.field_classes.get(LABELS)
    names = several.names if several else manifest.classes
    unnamed = "labels without class names" if manifest.has_labels or LABELS in manifest.fields else "no labels"
    classes = counted(len(names), "class", "classes") if names else unnamed
    size = f"{amount(report.packed, len(manifest.shards), manifest.bytes, noun='image')}, {classes}"
    if not report.complete:
        lines = [f"{report.dst} now has {counted(len(manifest.shards), 'shard')}: {size}"]
    elif written == 0:
        lines = [f"{report.dst} is already packed: {size}"]
    else:
        speed = f" ({report.packed / max(report.seconds, 1e-9):,.0f} images/s)" if not report.kept else ""
        kept = f"; kept {counted(report.kept, 'shard')} from an earlier run" if report.kept else ""
        lines = [f"packed {size}, into {report.dst} in {report.seconds:.1f} s{speed}{kept}"]
    if report.skipped:
        reasons = join(str(report.dst), SKIPPED_NAME)
        lines.append(f"skipped {counted(len(report.skipped), 'file')}; {reasons} lists them with the reasons")
    if is_beginning(manifest.source):
        lines.append(
            f"only the first of {report.account.given:,} images are packed; the same command without --first packs "
            "the rest"
        )
    return "\n".join(lines)


@click.command(epilog=example("wds-tools append more-photos/ shards/photos"))
@click.argument("src", type=PATH_OR_URL)
@click.argument("dst", type=PATH_OR_URL)
@_shard_bytes(None, "Maximum size of a new shard; by default as in the dataset.")
@_seed
@workers_option
@source_options
@_classes
@_strict
@click.option("--fresh", is_flag=True, help="Delete what an interrupted append left, and start over.")
@click.option(
    "--repeated",
    type=click.Choice(["skip", "append"]),
    help="Records that DST has already: leave them out, or append them. By default, equal ones are left out, and "
    "changed or moved ones are an error.",
)
@click.option("--images", type=_IMAGES, help="The same value as when the dataset was packed.")
@click.option("--resize", metavar="SIZE", help="The same value as when the dataset was packed.")
@click.option("--quality", type=int, help="The same value as when the dataset was packed.")
@storage_option
@click.pass_obj
def append(run: Run, /, src: str, dst: str, columns: tuple[str, ...], label: str | None, **options: Any) -> None:
    """Add images to a dataset, in new shards.

    SRC is anything that `wds-tools pack` accepts, DST a dataset that it packed. --label, --column,
    --label-type and --label-separator default to those DST was packed with, if SRC has these columns.
    Classes are matched by name; new classes get the next numbers. The dataset can be read in the
    meantime. A resumed training run uses the new samples from its next epoch on.
    """
    from wds_tools.packing.append import append as append_one

    run.after_interrupt = "the dataset is unchanged; run the same command again to continue, finished shards are kept"
    report = append_one(src, dst, columns=parse_columns(columns, label), storage_options=run.storage_options, **options)
    manifest = report.manifest
    total = amount(manifest.samples, len(manifest.shards), manifest.bytes)
    done = f"appended {report.packed:,} samples" if report.packed else "appended nothing: already in the dataset"
    click.echo(f"{done}; {dst} now has {total}\n{_next_steps([report])}")


@click.command(
    epilog=example(
        "wds-tools reshard shards/old shards/new --shard-bytes 1GB --shuffle",
        "wds-tools reshard --in-place --images crop-ready shards/photos",
    )
)
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("dst", required=False, type=PATH_OR_URL)
@click.option(
    "--in-place",
    is_flag=True,
    help="Rewrite the images in DATASET, at low priority; only with --images crop-ready. The dataset can be read in "
    "the meantime.",
)
@_shard_bytes("1GB", "Maximum size of a shard, such as 256MB or 1GiB.")
@click.option("--shuffle", is_flag=True, help="Shuffle the samples once; by default they keep their order.")
@_seed
@workers_option
@label_option
@label_type_option
@label_separator_option
@click.option(
    "--images",
    type=_IMAGES,
    help="How to store images, as for `wds-tools pack`; by default keep, or resize with --resize.",
)
@_resize
@_quality
@_fresh
@_machine_options
@storage_option
@click.pass_obj
def reshard(
    run: Run,
    /,
    dataset: str,
    dst: str | None,
    in_place: bool,
    images: str | None,
    resize: str | None,
    **options: Any,
) -> None:
    """Rewrite a dataset with other shards, order or images.

    DATASET is a folder or URL with a dataset, or with tar shards that other tools wrote,
    compressed or not (.tar.gz, .tar.zst). It is not changed.

    With --in-place --images crop-ready, the JPEGs of a local DATASET become crop-ready, shard by shard,
    without a DST and with the space of one more shard. Samples, keys, order, labels and saved states of
    training runs stay, and running loaders continue with the new shards. Each new shard is verified before
    the old one is removed.
    """
    from wds_tools.packing.append import reshard as reshard_one

    run.after_interrupt = "finished shards are kept; run the same command again to continue"
    images = images or ("keep" if resize is None else "resize")
    if in_place:
        os.nice(_NICE)
    options |= _machines_given(options)
    report = reshard_one(
        dataset, dst, in_place=in_place, images=images, resize=resize, storage_options=run.storage_options, **options
    )
    if in_place:
        click.echo(_summary_in_place(report))
    else:
        click.echo(f"{_pack_summary(report)}\n{_next_steps([report]) if report.complete else _NEXT_TASKS}")


def _summary_in_place(report: PackReport) -> str:
    from wds_tools.wording import counted

    manifest = report.manifest
    total = amount(manifest.samples, len(manifest.shards), manifest.bytes, noun="image")
    written = len(manifest.shards) - report.kept
    if not written:
        return f"nothing to rewrite: {report.dst} is crop-ready already: {total}"
    kept = f"; nothing was left to rewrite in {counted(report.kept, 'other shard')}" if report.kept else ""
    return f"rewrote {counted(written, 'shard')} of {report.dst} in {report.seconds:.1f} s{kept}; it has {total}"
