"""Commands that make datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from wds_tools.cli.words import FILE, PLACE, Run, amount, example, next_steps
from wds_tools.errors import OptionError

if TYPE_CHECKING:
    from wds_tools.format.index import Index
    from wds_tools.packing.packer import PackReport


_workers = click.option(
    "--workers", type=int, help="Number of processes. By default as many as help, at most the cores."
)
_seed = click.option("--seed", default=0, show_default=True, help="Seed of the random order.")
_column = click.option(
    "--column", "columns", multiple=True, metavar="ROLE=NAME", help="Name of the column with the image, or the label."
)
_strict = click.option(
    "--strict", is_flag=True, help="Pack nothing if a file cannot be packed, and name all such files."
)
_images = click.option(
    "--images",
    type=click.Choice(["keep", "crop-ready", "resize", "raw"]),
    help="What becomes of the images; see above.",
)
_resize = click.option("--resize", metavar="SIZE", help="Pixels of the shorter side, or WIDTHxHEIGHT.")
_quality = click.option("--quality", type=int, help="Quality of resized JPEGs, 1 to 100.  [default: 90]")


def _formats(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    from wds_tools.sources.detect import names_of_kinds

    return [CompletionItem(name) for name in names_of_kinds() if name.startswith(begun)]


_from = click.option(
    "--from",
    "kind",
    metavar="FORMAT",
    shell_complete=_formats,
    help="What SRC is, such as csv, hdf5 or parquet, where its name does not tell.",
)


@click.command(
    epilog=example(
        "wds-tools pack photos/ shards/photos --shard-bytes 256MB",
        "wds-tools pack birds.csv shards/birds --column image=path --column label=species",
        "wds-tools pack photos/ s3://bucket/photos",
    )
)
@click.argument("src", type=FILE)
@click.argument("dst", type=PLACE)
@click.option("--shard-bytes", default="1GB", show_default=True, help="Largest shard, such as 4MB or 256MiB.")
@_seed
@_workers
@_from
@_column
@click.option(
    "--split",
    metavar="SHARES",
    help="Pack several datasets: train=0.9,val=0.1, or `folders` if SRC holds train/, val/.",
)
@click.option("--classes", type=FILE, metavar="FILE", help="Class names by number, one per line.")
@_strict
@click.option("--fresh", is_flag=True, help="Remove what an earlier pack left in DST, and start over.")
@_images
@_resize
@_quality
@click.option("--verify-pixels", is_flag=True, help="Prove by decoding that crop-ready changes no pixel.")
@click.option(
    "--spool",
    type=FILE,
    metavar="DIR",
    help="Local folder for shards that are not uploaded yet.",
)
@click.option("--keep-order", is_flag=True, help="Leave the samples in the order of SRC.")
@click.option("--task-index", type=int, help="Pack one part of --task-count, numbered from 0 (for Slurm arrays).")
@click.option("--task-count", type=int, help="Number of tasks that share DST; each is started by itself.")
@click.option("--finish", is_flag=True, help="Complete what the tasks have packed.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where the work runs: processes of this machine, or tasks of Ray.",
)
@click.pass_obj
def pack(
    run: Run,
    src: Path,
    dst: str,
    shard_bytes: str,
    seed: int,
    workers: int | None,
    kind: str | None,
    columns: tuple[str, ...],
    split: str | None,
    classes: Path | None,
    strict: bool,
    fresh: bool,
    images: str | None,
    resize: str | None,
    quality: int | None,
    verify_pixels: bool,
    spool: Path | None,
    keep_order: bool,
    task_index: int | None,
    task_count: int | None,
    finish: bool,
    engine: str,
) -> None:
    """Pack images into WebDataset shards.

    SRC is a folder with a subfolder for each class, or with images alone, which then get no labels; packed are .jpg,
    .jpeg, .png and .webp. SRC may also be a table of paths (CSV, TSV, JSON Lines), Parquet, Arrow, HDF5, LMDB,
    TFRecord, NumPy, .pt, Zarr, tar, zip, or WebDataset shards; docs/packing.md says what is taken from each.

    DST becomes a dataset: shards, an index beside each, and manifest.json, which is written last. The same command
    continues an interrupted pack. The bytes written do not depend on the number of workers.

    DST may be a URL such as s3://bucket/train: each shard is uploaded when it is finished, and then removed here.

    \b
    --images keep        the files' own bytes
    --images crop-ready  the same pixels; JPEGs get restart markers, so that a
                         crop is decoded without the rest. The default
    --images resize      JPEGs of the size given by --resize; the default with it
    --images raw         stored pixels, for small images
    """  # noqa: D301 - click's own mark of lines that stay as they are
    from wds_tools.packing.packer import pack as pack_one
    from wds_tools.packing.splits import pack_splits

    run.after_interrupt = "finished shards are kept, run the same command again to go on"
    if (task_index is None) != (task_count is None):
        raise OptionError("--task-index and --task-count go together")
    alone: dict[str, Any] = {
        "shuffle": not keep_order,
        "task": None if task_index is None else (task_index, task_count),
        "finish": finish,
        "engine": engine,
    }
    if split is not None and (keep_order or finish or task_index is not None or engine != "local"):
        raise OptionError(
            "--split packs several datasets: --keep-order, --task-index, --finish and --engine are for one"
        )
    pack_all: Callable[..., Any] = partial(pack_one, **alone) if split is None else partial(pack_splits, split=split)
    made = pack_all(
        src,
        dst,
        kind=kind,
        columns=_pairs(columns),
        shard_bytes=shard_bytes,
        seed=seed,
        workers=workers,
        classes=classes,
        strict=strict,
        fresh=fresh,
        images=images,
        resize=resize,
        quality=quality,
        verify_pixels=verify_pixels,
        spool=spool,
    )
    reports: dict[str, PackReport] = made if isinstance(made, dict) else {"": made}
    for report in reports.values():
        click.echo(_pack_summary(report))
    if all(report.complete for report in reports.values()):
        click.echo(_next_steps(reports))
    else:
        click.echo("next: when all tasks have ended, the same with --finish")


def _next_steps(reports: Mapping[str, PackReport]) -> str:
    """Return what to do next with datasets, by the name of their split."""
    from wds_tools.packing.snippet import first_call, usual_side

    side = usual_side(report.manifest for report in reports.values())
    return next_steps(
        {
            str(report.dst): first_call(
                str(report.dst), report.manifest, side=side, split=split, indexes=_indexes(report.dst)
            )
            for split, report in reports.items()
        }
    )


def _indexes(dataset: Path | str) -> Iterator[Index]:
    """Yield the indexes of a local dataset; those at a URL would have to be fetched."""
    from wds_tools.reading.shardset import open_shards

    if isinstance(dataset, Path):
        shards = open_shards(dataset)
        yield from map(shards.index, range(len(shards.locations)))


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return ``ROLE=NAME`` words as pairs."""
    for word in words:
        if "=" not in word:
            raise OptionError(f"--column {word!r} has no '='; expected ROLE=NAME, such as image=path or label=species")
    return {role: name for role, _, name in (word.partition("=") for word in words)}


def _pack_summary(report: PackReport) -> str:
    from wds_tools.packing.destination import SKIPPED_NAME
    from wds_tools.storage import join
    from wds_tools.wording import counted

    manifest, made = report.manifest, len(report.manifest.shards) - report.kept
    classes = counted(len(manifest.classes), "class", "classes") if manifest.classes else "no labels"
    size = f"{amount(report.packed, len(manifest.shards), manifest.bytes, word='image')}, {classes}"
    if not report.complete:
        lines = [f"{report.dst} has {counted(len(manifest.shards), 'shard')} now: {size}"]
    elif made == 0:
        lines = [f"{report.dst} was packed already: {size}"]
    else:
        speed = f" ({report.packed / max(report.seconds, 1e-9):,.0f} images/s)" if not report.kept else ""
        kept = f"; kept {counted(report.kept, 'shard')} of an earlier run" if report.kept else ""
        lines = [f"packed {size}, into {report.dst} in {report.seconds:.1f} s{speed}{kept}"]
    if report.skipped:
        lines.append(
            f"skipped {counted(len(report.skipped), 'file')}: {join(str(report.dst), SKIPPED_NAME)} says which and why"
        )
    return "\n".join(lines)


@click.command(epilog=example("wds-tools append more-photos/ shards/photos"))
@click.argument("src", type=FILE)
@click.argument("dst", type=PLACE)
@click.option("--shard-bytes", help="Largest new shard. By default as in the dataset.")
@_seed
@_workers
@_from
@_column
@_strict
@click.option(
    "--images",
    type=click.Choice(["keep", "crop-ready", "resize", "raw"]),
    help="What the dataset was packed with.",
)
@click.option("--resize", metavar="SIZE", help="What the dataset was packed with.")
@click.option("--quality", type=int, help="What the dataset was packed with.")
@click.pass_obj
def append(
    run: Run,
    src: Path,
    dst: str,
    shard_bytes: str | None,
    seed: int,
    workers: int | None,
    kind: str | None,
    columns: tuple[str, ...],
    strict: bool,
    images: str | None,
    resize: str | None,
    quality: int | None,
) -> None:
    """Add images to a dataset, as shards of their own.

    SRC is what `wds-tools pack` takes, DST a dataset that it made. Classes are matched by name; new ones get the next
    numbers. The dataset can be read while this runs. A training run that is resumed gets the new samples in its next
    epoch.
    """
    from wds_tools.packing.append import append as append_one

    run.after_interrupt = "the dataset is as it was, finished shards are kept: run the same command again to go on"
    report = append_one(
        src,
        dst,
        kind=kind,
        columns=_pairs(columns),
        shard_bytes=shard_bytes,
        seed=seed,
        workers=workers,
        strict=strict,
        images=images,
        resize=resize,
        quality=quality,
    )
    manifest = report.manifest
    whole = amount(manifest.samples, len(manifest.shards), manifest.bytes)
    done = f"appended {report.packed:,} samples" if report.packed else "appended nothing: they are in it already"
    click.echo(f"{done}; {dst} has {whole} now\n{_next_steps({'': report})}")


@click.command(epilog=example("wds-tools reshard shards/old shards/new --shard-bytes 1GB --shuffle"))
@click.argument("dataset", type=FILE)
@click.argument("dst", type=PLACE)
@click.option("--shard-bytes", default="1GB", show_default=True, help="Largest shard, such as 4MB or 256MiB.")
@click.option("--shuffle", is_flag=True, help="Put the samples in random order. By default they keep theirs.")
@_seed
@_workers
@click.option(
    "--images",
    type=click.Choice(["keep", "crop-ready", "resize", "raw"]),
    help="What becomes of the images, as for `wds-tools pack`. By default keep; resize if a size is given.",
)
@_resize
@_quality
@click.option("--fresh", is_flag=True, help="Remove what an earlier pack left in DST, and start over.")
@click.pass_obj
def reshard(
    run: Run,
    dataset: Path,
    dst: str,
    shard_bytes: str,
    shuffle: bool,
    seed: int,
    workers: int | None,
    images: str | None,
    resize: str | None,
    quality: int | None,
    fresh: bool,
) -> None:
    """Write a dataset again, with other shards, order or images.

    DATASET is a local folder of a dataset, or of tar shards that other tools made. It is not changed.
    """
    from wds_tools.packing.append import reshard as reshard_one

    run.after_interrupt = "finished shards are kept, run the same command again to go on"
    report = reshard_one(
        dataset,
        dst,
        shard_bytes=shard_bytes,
        shuffle=shuffle,
        seed=seed,
        workers=workers,
        images=images or ("keep" if resize is None else "resize"),
        resize=resize,
        quality=quality,
        fresh=fresh,
    )
    click.echo(f"{_pack_summary(report)}\n{_next_steps({'': report})}")


@click.command(epilog=example("wds-tools index 'train-{000000..000009}.tar' --manifest train.json"))
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...", type=PLACE)
@click.option("--manifest", metavar="NAME", help="File name of the manifest.  [default: manifest.json]")
@click.option("--dots-in-fields", is_flag=True, help="a.b.jpg is field b.jpg of key a, also where that looks wrong.")
@click.pass_obj
def index(run: Run, patterns: tuple[str, ...], manifest: str | None, dots_in_fields: bool) -> None:
    """Write indexes and a manifest for existing tar shards.

    PATTERN is a shard, or several: 'train-{000000..000009}.tar', 'train-*.tar', in quotes. Each shard is read once;
    damage is an error that names the byte. The shards are not changed; indexes and manifest are written beside them.
    """
    from wds_tools.format.manifest import MANIFEST_NAME
    from wds_tools.packing.snippet import first_call, usual_side
    from wds_tools.storage.patterns import expand_pattern
    from wds_tools.upkeep.indexer import index_shards

    run.after_interrupt = "run the same command again to start over"
    made = index_shards(patterns, manifest=manifest, dots_in_fields=dots_in_fields)
    folder = Path(expand_pattern(patterns[0])[0]).parent
    dataset = str(folder if manifest is None else folder / manifest)
    call = first_call(dataset, made, side=usual_side([made]), indexes=_indexes(Path(dataset)))
    click.echo(
        f"indexed {amount(made.samples, len(made.shards), made.bytes)}, fields {', '.join(made.fields)}, "
        f"into {folder / (manifest or MANIFEST_NAME)}\n{next_steps({dataset: call})}"
    )


@click.command(epilog=example("wds-tools reseal shards/photos"))
@click.argument("dataset", type=PLACE)
def reseal(dataset: str) -> None:
    """Give an edited manifest a new checksum.

    DATASET is a folder or URL with a manifest.json, or the manifest. Use this after you edited the manifest on purpose,
    such as to rename a class, and for manifests of version 1, which have no checksum. The manifest must be valid and
    agree with all indexes and with the lengths of the shards. Nothing else is written.
    """
    from wds_tools.upkeep.resealer import reseal as reseal_one
    from wds_tools.wording import counted

    report = reseal_one(dataset)
    made, classes = report.manifest, report.manifest.classes
    what = amount(made.samples, len(made.shards), made.bytes)
    named = f", {counted(len(classes), 'class', 'classes')} from {classes[0]!r} to {classes[-1]!r}" if classes else ""
    found = {
        "sealed": "has the right checksum already; nothing was written",
        "edited": "had changed since it got its checksum; it has a new one now",
        "unsealed": "was of version 1, without a checksum; it has one now",
    }
    click.echo(f"{report.path} {found[report.before]}: {what}{named}")
