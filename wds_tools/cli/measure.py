"""Commands that measure loaders: bench and tune."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from wds_tools.cli.common import LOCAL_PATH, PATH_OR_URL, Run, check_writable, example, storage_option
from wds_tools.errors import OptionError

_json_file = click.option(
    "--json", "json_file", type=LOCAL_PATH, metavar="FILE", help="Also write the results to FILE as JSON."
)


@click.command(epilog=example("wds-tools tune shards/photos --view train --device cuda"))
@click.argument("dataset", type=PATH_OR_URL)
@click.option(
    "--view",
    type=click.Choice(["train", "eval", "small", "raw"]),
    default="train",
    show_default=True,
    help="Workload to measure; see `wds-tools bench --help`.",
)
@click.option("--batch-size", type=int, help="Samples per batch; by default 128 (small, raw: 256).")
@click.option("--device", metavar="DEVICE", help="Device to copy batches to, such as cuda; by default none.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; each measures every setting once.")
@click.option("--seconds", metavar="SECONDS", default=3.0, show_default=True, help="Minimum duration of a measurement.")
@_json_file
@storage_option
@click.pass_obj
def tune(run: Run, /, dataset: str, json_file: Path | None, **options: Any) -> None:
    """Find the number of workers to use.

    Measures the loader on DATASET with 0, 1, 2, ... workers, at most one per core. Proposes the
    smallest number within 5 % of the best speed, and prints the make_loader call to paste.

    There is no training step in this measurement. With one, fewer workers may be enough;
    num_workers="auto" finds the number during training.
    """
    from wds_tools.bench.tune import tune as run_tune

    check_writable(json_file)
    _show(run_tune(dataset, progress=_print_line, remote=run.remote, **options), json_file)


@click.command(epilog=example("wds-tools bench shards/photos --against imagefolder,dali --python dali=dali/bin/python"))
@click.argument("dataset", type=PATH_OR_URL)
@click.option(
    "--view",
    type=click.Choice(["train", "eval", "small", "ssl", "detect", "letterbox", "mosaic", "raw", "bytes"]),
    default="train",
    show_default=True,
    help="Workload to measure; see above.",
)
@click.option(
    "--against",
    metavar="PEERS",
    default="crop-ready,imagefolder,webdataset",
    show_default=True,
    help="Peers to compare with, comma-separated; see above.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="Python of the environment that has peer NAME; by default this one. Repeatable.",
)
@click.option("--workers", default=2, show_default=True, help="Decoding workers of each loader.")
@click.option(
    "--batch-size",
    type=int,
    help="Samples per batch; by default 128 (small, raw, bytes: 256; ssl: 64; detect, letterbox, mosaic: 16).",
)
@click.option("--rounds", default=5, show_default=True, help="Rounds; each measures every loader once.")
@click.option("--seconds", metavar="SECONDS", default=5.0, show_default=True, help="Minimum duration of a measurement.")
@click.option(
    "--stages", is_flag=True, help="Also measure the stages of our loader: read, verify, slice, decode, resize, write."
)
@_json_file
@storage_option
@click.pass_obj
def bench(
    run: Run,
    /,
    dataset: str,
    against: str,
    pythons: tuple[str, ...],
    json_file: Path | None,
    **options: Any,
) -> None:
    """Compare the speed of our loader with other loaders.

    All loaders get the same images of DATASET, each in its own process, and are measured in
    alternating rounds. Ratios are computed round by round; medians are printed with their range.
    The limit is one step of the work measured alone, a reference for comparing machines.

    \b
    VIEW       workload                               limit
    train      RandomResizedCrop(224) and flip        decoding whole images
    eval       resize to 256, CenterCrop(224)         decoding whole images
    small      224 x 224 JPEGs resized to 128 x 128   decoding whole images
    ssl        2 crops of 224 and 8 of 96 per image   decoding whole images
    detect     resize to 640 x 640, with 8 boxes      decoding whole images
    letterbox  fit into 640 x 640, with 8 boxes       decoding whole images
    mosaic     4 images in 640 x 640, HSV, boxes      decoding whole images
    raw        128 x 128 x 3 bytes, stored decoded    copying in memory
    bytes      stored bytes, not decoded              reading the shards

    Peers: crop-ready (our loader on crop-ready shards), imagefolder, imagefolder-io, webdataset,
    hdf5, hdf5-uint8, lmdb, dali, ffcv, tfdata, litdata, mosaic (Mosaic Streaming), ultralytics,
    albumentations. All except crop-ready require an installation from a clone of the source
    repository (`pip install -e .`). Peers that are not installed are skipped, and the command to
    install them is printed. Some need a separate environment: create one, install the peer in
    it, and name its Python with --python.
    """  # noqa: D301 - \b is click's mark for lines that it must not join
    from wds_tools.bench import bench as run_bench

    check_writable(json_file)
    report = run_bench(
        dataset,
        against=_split(against),
        pythons=dict(_parse_python(word) for word in pythons),
        progress=_print_line,
        remote=run.remote,
        **options,
    )
    _show(report, json_file)


def _print_line(line: str) -> None:
    """Print a line to stderr, above a progress bar."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def _show(report: Any, json_file: Path | None) -> None:
    click.echo(report.to_text())  # first, so that an error while writing a file does not lose the results
    if json_file:
        json_file.write_text(json.dumps(report.to_dict(), indent=2) + "\n")


def _split(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _parse_python(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not (name and equals and path):
        raise OptionError(f"--python {word!r}; expected NAME=PATH, such as dali=/opt/dali/bin/python")
    return name, path
