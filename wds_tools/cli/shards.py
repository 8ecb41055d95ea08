"""Commands on the shards of a dataset that is there: index, reseal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wds_tools.cli.common import LOCAL_PATH, PATH_OR_URL, Run, amount, example, indexes_of, next_steps, storage_option


@click.command(
    epilog=example(
        "wds-tools index 'train-{000000..000009}.tar' --manifest train.json",
        "wds-tools index 'cc12m/*.tar' --label json:label",
        "wds-tools index 'data/train/*.tar' 'data/val/*.tar'",
    )
)
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...", type=PATH_OR_URL)
@click.option("--manifest", metavar="NAME", help="File name of the manifest.  [default: manifest.json]")
@click.option(
    "--label",
    metavar="NAME",
    help="Where labels are: a field, json:label for an entry of a JSON field, or `folder` for class folders in the "
    "names of members.  [default: cls]",
)
@click.option(
    "--classes",
    type=LOCAL_PATH,
    metavar="FILE",
    help="Text file of class names in the order of class numbers; by default names in labels, sorted.",
)
@click.option(
    "--dots-in-fields",
    is_flag=True,
    help="Read a.b.jpg as field b.jpg of key a; by default an error if the dots seem to belong to the keys.",
)
@storage_option
@click.pass_obj
def index(
    run: Run,
    patterns: tuple[str, ...],
    manifest: str | None,
    label: str | None,
    classes: Path | None,
    dots_in_fields: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Write indexes and a manifest for existing tar shards.

    PATTERN is a shard, or a quoted pattern of several: 'train-{000000..000009}.tar', 'train-*.tar'.
    Each shard is read once; a damaged one is an error with the byte offset. Shards are not changed;
    indexes and manifest are written to their folder. Shards of several folders become one dataset per
    folder, with the same class numbers. PATTERN can be a URL, such as
    's3://bucket/train/*.tar': the shards are streamed, and indexes and manifest are uploaded.

    A table that another tool wrote beside a shard, such as 00000.parquet of img2dataset, stays as it is;
    its columns can be used in where=.
    """
    from wds_tools.format.manifest import MANIFEST_NAME
    from wds_tools.packing.remote_destination import parse_destination
    from wds_tools.packing.snippet import first_call, usual_side
    from wds_tools.storage import join
    from wds_tools.upkeep.indexer import index_folders
    from wds_tools.wording import counted

    run.after_interrupt = "run the same command again to start over"
    found = index_folders(
        patterns,
        manifest=manifest,
        label=label,
        classes=classes,
        dots_in_fields=dots_in_fields,
        storage_options=storage_options,
    )
    side, calls = usual_side(found.values()), {}
    for folder, result in found.items():
        written = join(folder, manifest or MANIFEST_NAME)
        dataset = parse_destination(folder if manifest is None else written)
        calls[str(dataset)] = first_call(str(dataset), result, side=side, indexes=indexes_of(dataset))
        named = f", {counted(len(result.classes), 'class', 'classes')}" if result.classes else ""
        click.echo(
            f"indexed {amount(result.samples, len(result.shards), result.bytes)}, fields {', '.join(result.fields)}"
            f"{named}, into {written}"
        )
        if columns := dict.fromkeys(name for index in indexes_of(dataset) for name in index.columns):
            click.echo(f"columns for where=: {', '.join(columns)}")
    click.echo(next_steps(calls))


@click.command(epilog=example("wds-tools reseal shards/photos"))
@click.argument("dataset", type=PATH_OR_URL)
@storage_option
def reseal(dataset: str, storage_options: dict[str, Any] | None) -> None:
    """Update the checksum of an edited manifest.

    DATASET is a folder or URL with a manifest.json, or the manifest. Use this after editing the
    manifest on purpose, for example to rename a class, and for manifests of version 1, which have
    no checksum. The manifest must be valid and match all indexes and the sizes of the shards.
    Nothing else is written.
    """
    from wds_tools.upkeep.resealer import reseal as reseal_one
    from wds_tools.wording import counted

    report = reseal_one(dataset, storage_options=storage_options)
    manifest, classes = report.manifest, report.manifest.classes
    size = amount(manifest.samples, len(manifest.shards), manifest.bytes)
    named = f", {counted(len(classes), 'class', 'classes')} from {classes[0]!r} to {classes[-1]!r}" if classes else ""
    result = {
        "sealed": "already has the right checksum; nothing was written",
        "edited": "was changed after its checksum was computed; it has a new checksum now",
        "unsealed": "had no checksum (version 1); it has one now",
    }
    click.echo(f"{report.path} {result[report.before]}: {size}{named}")
