"""Commands that move datasets: several into one, and back to files."""

from __future__ import annotations

import shlex
from typing import Any

import click

from wds_tools.cli.common import PATH_OR_URL, Run, amount, example, storage_option
from wds_tools.wording import first_few


@click.command(epilog=example("wds-tools merge shards/2024 shards/2025 -o shards/both"))
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...", type=PATH_OR_URL)
@click.option(
    "-o", "--out", "dst", required=True, metavar="DST", type=PATH_OR_URL, help="Local folder for the merged dataset."
)
@click.option("--copy", is_flag=True, help="Copy local shards; by default they are hard-linked.")
@click.option("--fresh", is_flag=True, help="Delete what an earlier pack or merge left in DST, and start over.")
@storage_option
@click.pass_obj
def merge(run: Run, datasets: tuple[str, ...], dst: str, copy: bool, fresh: bool) -> None:
    """Join datasets into one without rewriting shards.

    Local shards become hard links, which need no disk space; remote shards are copied. Classes are
    matched by name: labels get new numbers in the indexes, and the shards keep the old ones in their
    field cls. Run the same command again to continue an interrupted merge.
    """
    from wds_tools.upkeep.merger import merge as merge_datasets
    from wds_tools.wording import counted

    run.after_interrupt = "finished shards are kept; run the same command again to continue"
    report = merge_datasets(datasets, dst, copy=copy, fresh=fresh, storage_options=run.storage_options)
    manifest = report.manifest
    size = amount(manifest.samples, len(manifest.shards), manifest.bytes)
    if report.kept == len(manifest.shards):
        click.echo(f"{dst} is already merged: {size}")
        return
    how = [f"{count:,} {verb}" for count, verb in ((report.linked, "linked"), (report.copied, "copied")) if count]
    if report.kept:
        how.append(f"{report.kept:,} kept from an earlier run")
    click.echo(f"merged {counted(len(datasets), 'dataset')} into {dst}: {size} ({', '.join(how)})")
    if report.relabelled:
        click.echo(
            f"classes were matched by name: {counted(len(manifest.classes), 'class', 'classes')}; the labels of "
            f"{counted(report.relabelled, 'shard')} have new numbers in the index, and other readers see the old ones "
            f"in the field cls: to write the new ones, run `wds-tools reshard {shlex.quote(dst)} NEW`"
        )
    click.echo(f"next: wds-tools verify {shlex.quote(dst)}")


@click.command(
    epilog=example(
        "wds-tools copy http://node1:8080/data/photos /local/photos", "wds-tools copy s3://bucket/train /local/train"
    )
)
@click.argument("url", type=PATH_OR_URL)
@click.argument("dst", type=PATH_OR_URL)
@storage_option
@click.pass_obj
def copy(run: Run, url: str, dst: str) -> None:
    """Copy a dataset from a URL to a local folder.

    Every shard and index is compared with its checksum. Run the same command again to continue an
    interrupted copy. A token for `wds-tools serve` comes from the environment variable
    WDS_TOOLS_TOKEN, which is http://HOST:PORT=TOKEN.
    """
    from wds_tools.upkeep.copier import copy_dataset
    from wds_tools.wording import human_bytes

    run.after_interrupt = "what was copied is kept; run the same command again to continue"
    report = copy_dataset(url, dst, storage_options=run.storage_options)
    manifest = report.manifest
    size = amount(manifest.samples, len(manifest.shards), manifest.bytes)
    if not report.copied_bytes:
        click.echo(f"{dst} is already copied: {size}")
        return
    kept = f", {human_bytes(report.kept_bytes)} kept from an earlier run" if report.kept_bytes else ""
    rate = human_bytes(report.copied_bytes / max(report.seconds, 1e-9))
    click.echo(f"copied {size} into {dst} in {report.seconds:.1f} s ({rate}/s{kept})")
    click.echo(f"next: wds-tools info {shlex.quote(dst)}")


@click.command(
    epilog=example("wds-tools unpack shards/photos photos/", "wds-tools unpack a.json out/ --fields image,txt")
)
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("dst", type=PATH_OR_URL)
@click.option(
    "--fields",
    metavar="NAMES",
    help="Fields to write, comma-separated; `image` is the image of any type. By default all fields.",
)
@click.option(
    "--layout",
    type=click.Choice(["paths", "keys", "shards"]),
    default="paths",
    show_default=True,
    help="How to name the files; see above.",
)
@click.option("--overwrite", is_flag=True, help="Accept a DST that is not empty, and replace files of the same names.")
@storage_option
@click.pass_obj
def unpack(run: Run, /, dataset: str, dst: str, fields: str | None, **options: Any) -> None:
    """Write the samples of a dataset to files.

    Every byte is verified. DST must be empty, or not exist. Run the same command again to continue an
    interrupted run.

    \b
    --layout paths   images packed from files get their paths back;
                     other samples become KEY.FIELD files
    --layout keys    KEY.FIELD files
    --layout shards  KEY.FIELD files, in one folder per shard
    """  # noqa: D301 - \b is click's mark for lines that it must not join
    from wds_tools.upkeep.unpacker import unpack as unpack_dataset
    from wds_tools.wording import counted, human_bytes

    run.after_interrupt = "finished files are kept; run the same command again to continue"
    names = None if fields is None else [name.strip() for name in fields.split(",") if name.strip()]
    report = unpack_dataset(dataset, dst, fields=names, storage_options=run.storage_options, **options)
    files = counted(report.written + report.kept, "file")
    kept = f"; {report.kept:,} of them existed already" if report.kept else ""
    click.echo(
        f"unpacked {counted(report.samples, 'sample')} into {dst}: {files}, {human_bytes(report.bytes)}, "
        f"in {report.seconds:.1f} s{kept}"
    )


_USE = {
    "coco": "wds-tools pack {dst} SHARDS --from coco",
    "yolo": "yolo detect train data={dst}/data.yaml (Ultralytics requires the splits train and val)",
    "dali": """fn.readers.webdataset(paths=tars, index_paths=[tar[:-4] + '.idx' for tar in tars], ext=[...]), with
      import json, pathlib; manifest = json.loads(pathlib.Path('{manifest}').read_bytes())
      tars = ['{folder}/' + shard['name'] for shard in manifest['shards']]""",
    "energon": "get_train_dataset('{folder}', ...)",
    "hf": "datasets.load_dataset('{folder}')",
    "timm": "timm.data.create_dataset('wds/', '{folder}', split='{split}', input_key='{images}', batch_size=64)",
    "wids": "wids.ShardListDataset('{folder}/shardindex.json')",
}


@click.command(
    epilog=example(
        "wds-tools export shards/photos --to dali,timm",
        "wds-tools export s3://bucket/train --to energon",
        "wds-tools export shards/coco/val exported --to coco,yolo --split val",
    )
)
@click.argument("dataset", type=PATH_OR_URL)
@click.argument("dst", type=PATH_OR_URL, required=False)
@click.option(
    "--to",
    required=True,
    metavar="NAMES",
    help="Comma-separated: coco, yolo, dali, energon, hf (Hugging Face datasets), timm, wids.",
)
@click.option("--split", default="train", show_default=True, help="Name of the split, for all but dali, hf and wids.")
@click.option("--overwrite", is_flag=True, help="Replace files in DST that exist with other content.")
@storage_option
@click.pass_obj
def export(run: Run, dataset: str, dst: str | None, to: str, split: str, overwrite: bool) -> None:
    """Write files for other readers, or images as COCO and YOLO.

    DATASET is a folder or URL with a dataset, or its manifest. For readers of shards, files are
    written next to the shards, from the manifest and the indexes; no shard is read. Run the command
    again after samples were appended. For coco and yolo, images and annotations are written to the
    folder DST, which may have other splits.

    \b
    --to coco     images/SPLIT/, annotations/instances_SPLIT.json
    --to yolo     images/SPLIT/, labels/SPLIT/, data.yaml
    --to dali     an .idx file per shard, as NVIDIA DALI's wds2idx writes it
    --to energon  a .tar.idx file per shard and .nv-meta/, as `energon prepare` writes them
    --to hf       README.md, the dataset card
    --to timm     _info.json
    --to wids     shardindex.json
    """  # noqa: D301 - \b is click's mark for lines that it must not join
    from wds_tools.format.sample import IMAGE_FIELDS
    from wds_tools.reading.names import split_manifest
    from wds_tools.reading.opening import open_shards
    from wds_tools.storage import join
    from wds_tools.upkeep.exporter import export as export_dataset
    from wds_tools.wording import counted

    run.after_interrupt = "finished files are kept; run the same command again to continue"
    report = export_dataset(dataset, to, dst=dst, split=split, overwrite=overwrite, storage_options=run.storage_options)
    fields = open_shards(dataset).manifest.fields if run.storage_options is None else {}
    manifest = join(*split_manifest(dataset))
    images = ";".join(["jpg", *(name for name in IMAGE_FIELDS if name in fields and name != "jpg")])
    for reader, files in report.files.items():
        if files:
            click.echo(f"{reader}: {counted(len(files), 'file')}, {first_few(files)}")
        use = _USE[reader].format(folder=report.folder, dst=report.dst, manifest=manifest, split=split, images=images)
        click.echo(f"      {use}")
    for note in report.notes:
        click.echo(note)
    for name in report.kept:
        click.echo(f"kept {name}, which a user has written or edited")
