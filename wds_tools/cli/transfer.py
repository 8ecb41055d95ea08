"""Commands that move datasets: several into one, and back to files."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from wds_tools.cli.words import PLACE, Run, amount, example

if TYPE_CHECKING:
    from wds_tools.upkeep.unpacker import UnpackLayout


@click.command(epilog=example("wds-tools merge shards/2024 shards/2025 -o shards/both"))
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...", type=PLACE)
@click.option("-o", "--out", "dst", required=True, metavar="DST", type=PLACE, help="Local folder of the result.")
@click.option("--copy", is_flag=True, help="Copy local shards instead of linking them.")
@click.option("--fresh", is_flag=True, help="Remove what an earlier merge left in DST, and start over.")
@click.pass_obj
def merge(run: Run, datasets: tuple[str, ...], dst: str, copy: bool, fresh: bool) -> None:
    """Join datasets into one, without rewriting a shard.

    Local shards become hard links, which take no room; remote ones are copied. The classes of all DATASETs must be the
    same, because labels are numbers in the shards. An interrupted merge goes on when it is run again.
    """
    from wds_tools.upkeep.merger import merge as merge_datasets
    from wds_tools.wording import counted

    run.after_interrupt = "finished shards are kept, run the same command again to go on"
    report = merge_datasets(datasets, dst, copy=copy, fresh=fresh)
    made = report.manifest
    size = amount(made.samples, len(made.shards), made.bytes)
    if report.kept == len(made.shards):
        click.echo(f"{dst} was merged already: {size}")
        return
    how = [f"{count:,} {word}" for count, word in ((report.linked, "linked"), (report.copied, "copied")) if count]
    if report.kept:
        how.append(f"{report.kept:,} kept of an earlier run")
    click.echo(f"merged {counted(len(datasets), 'dataset')} into {dst}: {size} ({', '.join(how)})")
    click.echo(f"next: wds-tools verify {shlex.quote(dst)}")


@click.command(
    epilog=example("wds-tools unpack shards/photos photos/", "wds-tools unpack a.json out/ --fields image,txt")
)
@click.argument("dataset", type=PLACE)
@click.argument("dst", type=PLACE)
@click.option("--fields", metavar="NAMES", help="Fields to write, with commas; image is whichever image there is.")
@click.option(
    "--layout",
    type=click.Choice(["paths", "keys", "shards"]),
    default="paths",
    show_default=True,
    help="How files are named.",
)
@click.option("--overwrite", is_flag=True, help="Replace files that are there and have other bytes.")
@click.pass_obj
def unpack(run: Run, dataset: str, dst: str, fields: str | None, layout: UnpackLayout, overwrite: bool) -> None:
    """Write the samples of a dataset to files.

    Pictures that pack took from a folder get their paths back (layout paths); other samples become KEY.FIELD files
    (keys), in a folder for each shard if asked (shards). Every byte is verified. Files that are there with the same
    bytes are kept, so an interrupted run goes on when it is run again.
    """
    from wds_tools.upkeep.unpacker import unpack as unpack_dataset
    from wds_tools.wording import counted, human_bytes

    run.after_interrupt = "the files so far are kept, run the same command again to go on"
    names = None if fields is None else [name.strip() for name in fields.split(",") if name.strip()]
    report = unpack_dataset(dataset, dst, fields=names, layout=layout, overwrite=overwrite)
    files = counted(report.written + report.kept, "file")
    kept = f"; {report.kept:,} were there already" if report.kept else ""
    click.echo(
        f"unpacked {counted(report.samples, 'sample')} into {dst}: {files}, {human_bytes(report.bytes)}, "
        f"in {report.seconds:.1f} s{kept}"
    )
