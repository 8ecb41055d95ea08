"""Commands on the shards of a dataset: index, add-fields, reseal."""

from __future__ import annotations

import shlex
from typing import Any

import click

from wds_tools.cli.common import (
    LOCAL_PATH,
    PATH_OR_URL,
    Run,
    amount,
    engine_option,
    example,
    indexes_of,
    label_type_option,
    next_steps,
    storage_option,
    workers_option,
)
from wds_tools.errors import OptionError


@click.command(
    epilog=example(
        "wds-tools index 'train-{000000..000009}.tar' --manifest train.json",
        "wds-tools index 'cc12m/*.tar' --label json:label",
        "wds-tools index 'data/train/*.tar' 'data/val/*.tar'",
        "wds-tools index --signatures shards/photos",
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
@label_type_option
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
@click.option(
    "--signatures",
    is_flag=True,
    help="Add signatures, by which `wds-tools doctor` finds similar and blurred images; PATTERN is a packed dataset.",
)
@workers_option
@engine_option
@storage_option
@click.pass_obj
def index(run: Run, /, patterns: tuple[str, ...], manifest: str | None, *, signatures: bool, **options: Any) -> None:
    """Write indexes and a manifest for existing tar shards.

    PATTERN is a shard, or a quoted pattern of several: 'train-{000000..000009}.tar', 'train-*.tar'.
    Each shard is read once; a damaged one is an error with the byte offset. Shards are not changed;
    indexes and manifest are written to their folder. Shards of several folders become one dataset per
    folder, with the same class numbers. PATTERN can be a URL, such as
    's3://bucket/train/*.tar': the shards are streamed, and indexes and manifest are uploaded.

    A table that another tool wrote next to a shard, such as 00000.parquet of img2dataset, stays as it is;
    its columns can be used in where=.

    With --signatures, PATTERN is a packed dataset. Its images are decoded, and its indexes get the columns
    phash, brightness, contrast and sharpness, for where= and `wds-tools doctor`. The shards do not change.
    """
    if signatures:
        workers, engine = options.pop("workers"), options.pop("engine")
        others = {"manifest": manifest, "engine": engine != "local", **options}
        _sign(run, patterns, workers, [name for name, value in others.items() if value])
        return
    from wds_tools.format.manifest import MANIFEST_NAME
    from wds_tools.packing.remote_destination import parse_destination
    from wds_tools.storage import join
    from wds_tools.upkeep.indexer import index_folders
    from wds_tools.wording import counted

    run.after_interrupt = "run the same command again to start over"
    manifests = index_folders(patterns, manifest=manifest, storage_options=run.storage_options, **options)
    datasets = []
    for folder, result in manifests.items():
        written = join(folder, manifest or MANIFEST_NAME)
        dataset = parse_destination(folder if manifest is None else written)
        datasets.append(dataset)
        label = "" if result.label is None else f", label {result.label}"
        named = f"{label}, {counted(len(result.classes), 'class', 'classes')}" if result.classes else label
        click.echo(
            f"indexed {amount(result.samples, len(result.shards), result.bytes)}, fields {', '.join(result.fields)}"
            f"{named}, into {written}"
        )
        if columns := dict.fromkeys(name for index in indexes_of(dataset) for name in index.columns):
            click.echo(f"columns for where=: {', '.join(columns)}")
    click.echo(
        next_steps([str(dataset) for dataset in datasets], next(iter(manifests.values())), indexes_of(datasets[0]))
    )


def _sign(run: Run, datasets: tuple[str, ...], workers: int | None, other_options: list[str]) -> None:
    from wds_tools.upkeep.signer import sign_images
    from wds_tools.wording import counted

    if other_options:
        raise OptionError(f"--signatures cannot be combined with --{other_options[0].replace('_', '-')}")
    run.after_interrupt = "the dataset is intact; run the same command again to continue"
    for dataset in datasets:
        report = sign_images(dataset, workers=workers)
        more = f", {report.kept:,} had one" if report.kept else ""
        more += f", {report.unreadable:,} cannot be decoded" if report.unreadable else ""
        click.echo(f"{dataset}: {counted(report.signed, 'image')} got a signature{more}, in {report.seconds:.1f} s")
        click.echo(f"next: wds-tools doctor {shlex.quote(dataset)}")


@click.command(epilog=example("wds-tools reseal shards/photos"))
@click.argument("dataset", type=PATH_OR_URL)
@storage_option
@click.pass_obj
def reseal(run: Run, dataset: str) -> None:
    """Update the checksum of an edited manifest.

    DATASET is a folder or URL with a manifest.json, or the manifest. Use this after editing the
    manifest on purpose, for example to rename a class, and for manifests of version 1, which have
    no checksum. The manifest must be valid and match all indexes and the sizes of the shards.
    Only the manifest and the dataset card README.md are written.
    """
    from wds_tools.upkeep.resealer import reseal as reseal_one
    from wds_tools.wording import counted

    report = reseal_one(dataset, storage_options=run.storage_options)
    manifest, classes = report.manifest, report.manifest.classes
    size = amount(manifest.samples, len(manifest.shards), manifest.bytes)
    named = f", {counted(len(classes), 'class', 'classes')} from {classes[0]!r} to {classes[-1]!r}" if classes else ""
    result = {
        "sealed": "already has the right checksum; nothing was written",
        "edited": "was changed after its checksum was computed; it has a new checksum now",
        "unsealed": "had no checksum (version 1); it has one now",
    }
    click.echo(f"{report.path} {result[report.before]}: {size}{named}")


@click.command(
    "add-fields",
    epilog=example(
        "wds-tools add-fields shards/photos --from captions.parquet",
        "wds-tools add-fields shards/photos --from masks/ --field mask.png=png",
        "wds-tools add-fields shards/photos --from clip.parquet --match path --key file --field clip.npy=vector",
        "wds-tools add-fields shards/photos --remove captions",
    ),
)
@click.argument("dataset", type=PATH_OR_URL)
@click.option(
    "--from",
    "source",
    type=PATH_OR_URL,
    metavar="SRC",
    help="Parquet, CSV, TSV or JSON Lines file, folder of Parquet files or of files KEY.FIELD, or tar shards.",
)
@click.option("--name", help="Name of the subfolder for the new shards; by default the name of SRC.")
@click.option("--key", default="key", show_default=True, help="Column of a table with the keys.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="New field, and its column in a table or its field in files and shards; by default all. Repeatable.",
)
@click.option(
    "--match",
    type=click.Choice(["key", "path"]),
    default="key",
    show_default=True,
    help="What the keys in SRC are: keys of samples, or the path in their field json.",
)
@click.option("--strict", is_flag=True, help="Add nothing if a key is unknown or a sample gets no field.")
@workers_option
@engine_option
@click.option("--remove", metavar="NAME", help="Remove fields that were added with this name.")
@click.pass_obj
def add_fields(
    run: Run,
    /,
    dataset: str,
    source: str | None,
    fields: tuple[str, ...],
    remove: str | None,
    **options: Any,
) -> None:
    """Add captions, embeddings or masks to a dataset.

    DATASET is a local folder with a dataset, or its manifest. The new fields go into shards of their
    own, in a subfolder of DATASET, and loaders read them with the others. The shards of DATASET,
    the order of samples and saved states of loaders do not change.
    """
    from wds_tools.upkeep.field_adder import add_fields as add
    from wds_tools.upkeep.field_adder import remove_fields
    from wds_tools.wording import counted, human_bytes

    if (source is None) == (remove is None):
        raise OptionError("give either --from SRC or --remove NAME")
    if remove is not None:
        removed = remove_fields(dataset, remove)
        click.echo(f"removed {', '.join(removed.fields)} from {dataset}")
        return
    run.after_interrupt = "the dataset is unchanged; run the same command again to start over"
    for value in fields:
        if "=" not in value:
            raise OptionError(f"--field {value!r} has no '='; expected FIELD=COLUMN, such as mask.png=png")
    columns = {field: column for field, _, column in (value.partition("=") for value in fields)}
    report = add(dataset, source, fields=columns, **options)
    listed = ", ".join(f"{field} ({count:,})" for field, count in report.fields.items())
    click.echo(
        f"added {listed} to {counted(report.samples, 'sample')}, {human_bytes(report.bytes)}, into {report.folder} "
        f"in {report.seconds:.1f} s"
    )
    if report.missing:
        click.echo(f"{counted(report.missing, 'sample')} got no new field")
    if report.unknown:
        click.echo(f"{counted(report.unknown, 'key')} of {source} unknown, such as {report.unknown_key!r}")
    click.echo(f"next: wds-tools verify {shlex.quote(dataset)}")
