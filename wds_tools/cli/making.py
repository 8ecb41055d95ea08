"""Commands that make datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wds_tools.cli.words import Run, amount, example, next_steps
from wds_tools.errors import OptionError

if TYPE_CHECKING:
    from wds_tools.packer import PackReport


@click.command(
    epilog=example(
        "wds-tools pack photos/ shards/photos --shard-bytes 256MB",
        "wds-tools pack birds.csv shards/birds --column image=path --column label=species",
        "wds-tools pack photos/ s3://bucket/photos",
    )
)
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst")
@click.option("--shard-bytes", default="1GB", show_default=True, help="Largest shard: bytes, or as 4MB, 256MiB.")
@click.option("--seed", default=0, show_default=True, help="Of the random order that the samples are put in, once.")
@click.option("--workers", type=int, help="Processes; as many as pay, up to the cores there are, if not given.")
@click.option(
    "--from", "kind", metavar="FORMAT", help="What SRC is, such as csv, hdf5 or parquet, if its name does not tell."
)
@click.option("--column", "columns", multiple=True, metavar="ROLE=NAME", help="Column that is the image, or the label.")
@click.option("--split", metavar="SHARES", help="A dataset each: train=0.9,val=0.1; or `folders`, if SRC holds those.")
@click.option("--classes", type=click.Path(path_type=Path), metavar="FILE", help="Class names by number, one per line.")
@click.option("--strict", is_flag=True, help="Pack nothing if a file cannot be packed, and name all such files.")
@click.option("--fresh", is_flag=True, help="Remove what an earlier pack left in DST, and start over.")
@click.option("--images", metavar="POLICY", help="keep, crop-ready, resize or raw; crop-ready if jpegtran is there.")
@click.option("--resize", metavar="SIZE", help="Pixels of the shorter side, or WIDTHxHEIGHT, for resize and raw.")
@click.option("--quality", type=int, help="Of resized JPEGs; 90 if not given.")
@click.option("--verify-pixels", is_flag=True, help="Prove by decoding that crop-ready changes no pixel.")
@click.option("--spool", type=click.Path(path_type=Path), metavar="DIR", help="Where shards wait for their upload.")
@click.option("--keep-order", is_flag=True, help="Leave the samples in the order of SRC.")
@click.option("--task-index", type=int, help="Pack a part: this process is number so of --task-count (Slurm arrays).")
@click.option("--task-count", type=int, help="Processes that share DST, each started by itself.")
@click.option("--finish", is_flag=True, help="Complete what the tasks have packed.")
@click.option("--engine", default="local", show_default=True, help="local processes, or ray.")
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

    SRC holds a folder per class, or images alone, which then get no labels. Packed are .jpg, .jpeg, .png and .webp.
    SRC may also be a table of paths (CSV, TSV, JSON Lines), Parquet, Arrow, HDF5, LMDB, TFRecord, NumPy, .pt, Zarr,
    tar, zip, or WebDataset shards; docs/packing.md says what is taken from each.
    DST becomes a dataset: shards, an index beside each, and manifest.json, written last. An interrupted pack goes on
    when it is run again; the bytes written do not depend on the number of workers.

    DST may be a URL such as s3://bucket/train: each shard is uploaded when it is finished, and removed here, so that
    no more than two shards beyond the number of workers take room on this machine.

    crop-ready changes no pixel: JPEGs get restart markers, with which a crop is decoded without the rest. keep writes
    the files' own bytes, resize writes JPEGs of that size, raw stores pixels, for small images.
    """
    from wds_tools.packer import pack as pack_one
    from wds_tools.splits import pack_splits

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
    from wds_tools.snippet import first_call, usual_side

    side = usual_side(report.manifest for report in reports.values())
    return next_steps(
        {
            str(report.dst): first_call(str(report.dst), report.manifest, side=side, split=split)
            for split, report in reports.items()
        }
    )


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return ``ROLE=NAME`` words as pairs."""
    for word in words:
        if "=" not in word:
            raise OptionError(f"--column {word!r} has no '='; expected ROLE=NAME, such as image=path or label=species")
    return {role: name for role, _, name in (word.partition("=") for word in words)}


def _pack_summary(report: PackReport) -> str:
    from wds_tools.packstate import SKIPPED_NAME
    from wds_tools.stats import counted
    from wds_tools.storage import join

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
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--shard-bytes", help="Largest new shard; as in the dataset if not given.")
@click.option("--seed", default=0, show_default=True, help="Of the random order that the new samples are put in.")
@click.option("--workers", type=int, help="Processes; as many as pay, up to the cores there are, if not given.")
@click.option(
    "--from", "kind", metavar="FORMAT", help="What SRC is, such as csv, hdf5 or parquet, if its name does not tell."
)
@click.option("--column", "columns", multiple=True, metavar="ROLE=NAME", help="Column that is the image, or the label.")
@click.option("--strict", is_flag=True, help="Pack nothing if a file cannot be packed, and name all such files.")
@click.option("--images", metavar="POLICY", help="What the dataset was packed with: keep, crop-ready, resize or raw.")
@click.option("--resize", metavar="SIZE", help="As the dataset was packed.")
@click.option("--quality", type=int, help="As the dataset was packed.")
@click.pass_obj
def append(
    run: Run,
    src: Path,
    dst: Path,
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

    Classes are known by name, new ones get the next numbers. The dataset stays whole while this runs, and a training
    run that is resumed takes the new samples in at its next epoch.
    """
    from wds_tools.appender import append as append_one

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
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--shard-bytes", default="1GB", show_default=True, help="Largest shard: bytes, or as 4MB, 256MiB.")
@click.option("--shuffle", is_flag=True, help="Put the samples in random order; else they keep theirs.")
@click.option("--seed", default=0, show_default=True, help="Of that order.")
@click.option("--workers", type=int, help="Processes; as many as pay, up to the cores there are, if not given.")
@click.option("--images", metavar="POLICY", default="keep", show_default=True, help="keep, crop-ready, resize or raw.")
@click.option("--resize", metavar="SIZE", help="Pixels of the shorter side, or WIDTHxHEIGHT, for resize and raw.")
@click.option("--quality", type=int, help="Of resized JPEGs; 90 if not given.")
@click.option("--fresh", is_flag=True, help="Remove what an earlier pack left in DST, and start over.")
@click.pass_obj
def reshard(
    run: Run,
    dataset: Path,
    dst: Path,
    shard_bytes: str,
    shuffle: bool,
    seed: int,
    workers: int | None,
    images: str,
    resize: str | None,
    quality: int | None,
    fresh: bool,
) -> None:
    """Write a dataset anew: other shards, order or images."""
    from wds_tools.appender import reshard as reshard_one

    run.after_interrupt = "finished shards are kept, run the same command again to go on"
    report = reshard_one(
        dataset,
        dst,
        shard_bytes=shard_bytes,
        shuffle=shuffle,
        seed=seed,
        workers=workers,
        images=images,
        resize=resize,
        quality=quality,
        fresh=fresh,
    )
    click.echo(f"{_pack_summary(report)}\n{_next_steps({'': report})}")


@click.command(epilog=example("wds-tools index 'train-{000000..000009}.tar' --manifest train.json"))
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
@click.option("--manifest", metavar="NAME", help="File name of the manifest, manifest.json if not given.")
@click.pass_obj
def index(run: Run, patterns: tuple[str, ...], manifest: str | None) -> None:
    """Give tar shards that others made indexes and a manifest.

    Every shard is read once, strictly: damage is an error that names the byte. The shards are not changed; indexes and
    manifest are written beside them.
    """
    from wds_tools.indexer import index_shards
    from wds_tools.manifest import MANIFEST_NAME
    from wds_tools.shardset import open_shards
    from wds_tools.snippet import first_call, usual_side
    from wds_tools.storage.patterns import expand_pattern

    run.after_interrupt = "run the same command again to start over"
    made = index_shards(patterns, manifest=manifest)
    folder = Path(expand_pattern(patterns[0])[0]).parent
    dataset = str(folder if manifest is None else folder / manifest)
    shards = open_shards(dataset)
    call = first_call(dataset, made, side=usual_side([made]), indexes=map(shards.index, range(len(made.shards))))
    click.echo(
        f"indexed {amount(made.samples, len(made.shards), made.bytes)}, fields {', '.join(made.fields)}, "
        f"into {folder / (manifest or MANIFEST_NAME)}\n{next_steps({dataset: call})}"
    )


@click.command(epilog=example("wds-tools reseal shards/photos"))
@click.argument("dataset")
def reseal(dataset: str) -> None:
    """Give an edited manifest a new checksum.

    DATASET is a folder or URL with a manifest.json, or the manifest. Use this after you edited the manifest on purpose,
    such as to rename a class, and for manifests of version 1, which have no checksum. The manifest must be valid and
    agree with all indexes and with the lengths of the shards. Nothing else is written.
    """
    from wds_tools.resealer import reseal as reseal_one
    from wds_tools.stats import counted

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
