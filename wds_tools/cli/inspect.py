"""Commands that look at datasets: what is there, is it whole, how will it train, how fast is it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wds_tools.cli.words import FILE, PLACE, Run, amount, example, named, one_line
from wds_tools.errors import OptionError

if TYPE_CHECKING:
    from wds_tools.inspection.doctor import Finding
    from wds_tools.inspection.machine import Machine
    from wds_tools.upkeep.verifier import VerifyReport


@click.command(epilog=example("wds-tools info shards/photos"))
@click.argument("dataset", type=PLACE)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def info(dataset: str, as_json: bool) -> None:
    """Describe a dataset: counts, bytes, sizes, fields, classes.

    DATASET is a folder or URL with a manifest.json, a manifest, or a pattern of shards that have an index. Only the
    manifest and the indexes are read.
    """
    from wds_tools.inspection.stats import describe, format_stats

    stats = describe(dataset)
    click.echo(json.dumps(stats.to_dict(), indent=2) if as_json else format_stats(stats))


@click.command(epilog=example("wds-tools verify shards/photos && python train.py"))
@click.argument("dataset", type=PLACE)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def verify(run: Run, dataset: str, as_json: bool) -> int:
    """Check every byte of a dataset against its checksums.

    Checked are indexes, shards, tar headers and fields of DATASET; all damage is listed, with shard, key, field and
    byte. The exit code is 0 if all is whole, 1 if there is damage, and 2 if something could not be checked.
    """
    from wds_tools.upkeep.verifier import verify as verify_dataset

    run.failure_code = 2
    report = verify_dataset(dataset)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else _verify_text(report))
    if report.damage_count:
        return 1
    return 2 if report.unchecked else 0


def _verify_text(report: VerifyReport) -> str:
    from wds_tools.wording import counted

    lines = [f"damage: {one_line(damage)}" for damage in report.damages]
    if report.damage_count > len(report.damages):
        lines.append(f"... and {counted(report.damage_count - len(report.damages), 'more damage')}")
    lines += [f"not checked: shard {shard}: {one_line(reason)}" for shard, reason in report.unchecked.items()]
    lines += [f"note: {one_line(note)}" for note in report.notes]
    if report.strangers:
        lines.append(f"not part of the dataset, so never read: {named(report.strangers)}")
    checked = amount(report.samples, report.shards, report.bytes)
    if report.damage_count:
        count, where = counted(report.damage_count, "damage"), named(report.damaged_shards)
        lines.append(
            f"{report.dataset} is damaged: {count} in {where}; copy those again, or pack again (checked: {checked})"
        )
    elif report.unchecked:
        lines.append(f"{report.dataset} could not be checked whole; no damage in {checked}")
    else:
        lines.append(f"{report.dataset} is whole: {checked}, checked in {report.seconds:.1f} s")
    return "\n".join(lines)


@click.command(epilog=example("wds-tools sample shards/photos --out grid.png --view train"))
@click.argument("dataset", type=PLACE)
@click.option("--out", type=FILE, default="sample.png", show_default=True, help="File to write.")
@click.option(
    "--view",
    type=click.Choice(["train", "eval", "whole"]),
    default="train",
    show_default=True,
    help="Crops as in training, as in evaluation, or the whole pictures.",
)
@click.option("--size", default=128, show_default=True, help="Pixels of a tile.")
@click.option("--count", default=48, show_default=True, help="How many samples, at most.")
@click.option("--seed", default=0, show_default=True, help="Of order, crops and flips.")
@click.option("--epoch", default=0, show_default=True, help="Which epoch.")
def sample(dataset: str, out: Path, view: str, size: int, count: int, seed: int, epoch: int) -> None:
    """Write a contact sheet of what the loader yields.

    Shown are the first samples of an epoch of DATASET, in the order and with the crops that training would see.
    """
    from wds_tools.inspection.contact_sheet import contact_sheet

    shown = contact_sheet(dataset, out, view=view, size=size, count=count, seed=seed, epoch=epoch)
    click.echo(f"{shown} samples of {dataset} as {view} shows them: {out}")


@click.command(epilog=example("wds-tools plan shards/photos --batch-size 256 --world-size 8 --ranks-per-node 8"))
@click.argument("dataset", type=PLACE)
@click.option("--batch-size", default=256, show_default=True, help="Samples per batch of a rank.")
@click.option("--world-size", default=1, show_default=True, help="Number of ranks (GPUs).")
@click.option("--ranks-per-node", type=int, help="Ranks of one machine; all of them, if not given.")
@click.option("--num-workers", default=8, show_default=True, help="Workers of each rank.")
@click.option("--shuffle", default="yes", show_default=True, help="yes, no, a window in samples, or a quality as 0.95.")
@click.option("--seed", default=0, show_default=True, help="Of the order.")
@click.option(
    "--tail",
    type=click.Choice(["drop", "pad", "mask"]),
    default="drop",
    show_default=True,
    help="What becomes of samples that fill no batch.",
)
@click.option("--where", metavar="CONDITION", help='Only samples for which this holds: "width >= 256".')
@click.option("--subset", type=float, help="A fraction of them.")
@click.option("--class-weights", help="balanced, or as cat=2,dog=0.5: how often the classes come.")
@click.option(
    "--size",
    type=click.IntRange(1),
    metavar="PIXELS",
    help="Side of the pictures in a batch: tells the memory of slots.",
)
@click.option("--step-seconds", type=float, help="How long a training step takes: tells the read rate needed.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--plot", type=FILE, metavar="FILE.svg", help="Draw the shuffle, too.")
def plan(
    dataset: str,
    batch_size: int,
    world_size: int,
    ranks_per_node: int | None,
    num_workers: int,
    shuffle: str,
    seed: int,
    tail: str,
    where: str | None,
    subset: float | None,
    class_weights: str | None,
    size: int | None,
    step_seconds: float | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Tell what an epoch takes, before any training.

    Printed are steps, samples left out, the quality of the shuffle, what each machine reads, and memory. Only the
    manifest is read, and the labels in the indexes, if there are not too many.
    """
    from wds_tools.inspection.forecast import forecast, format_forecast, parse_shuffle
    from wds_tools.inspection.forecast_chart import forecast_chart
    from wds_tools.inspection.svg import check_svg_name, write_svg
    from wds_tools.reading.select import Choice, parse_weights
    from wds_tools.reading.shardset import open_shards

    if plot:
        check_svg_name(plot)
    shards = open_shards(dataset)
    choice = Choice(where, subset, parse_weights(class_weights) if class_weights else None, seed)
    told = forecast(
        shards,
        batch_size=batch_size,
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        num_workers=num_workers,
        shuffle=parse_shuffle(shuffle),
        seed=seed,
        tail=tail,  # type: ignore[arg-type]
        image_bytes=3 * size * size if size else None,
        step_seconds=step_seconds,
        choice=choice,
    )
    click.echo(json.dumps(told.to_dict(), indent=2) if as_json else format_forecast(told))
    if plot:
        write_svg(plot, forecast_chart(shards, told, seed=seed, choice=choice))
        click.echo(f"picture: {plot}", err=as_json)  # JSON stays alone on stdout


@click.command(epilog=example("wds-tools tune shards/photos --view train --device cuda --plot tune.svg"))
@click.argument("dataset", type=PLACE)
@click.option(
    "--view",
    type=click.Choice(["train", "eval", "small", "raw"]),
    default="train",
    show_default=True,
    help="What is made of the pictures; `wds-tools bench --help` describes it.",
)
@click.option("--batch-size", type=int, help="Samples per batch: 128, or 256 for small and raw, unless told.")
@click.option("--device", help="Where batches go, such as cuda; memory, if not given.")
@click.option("--rounds", default=3, show_default=True, help="How often each number is measured, in turn.")
@click.option("--seconds", default=3.0, show_default=True, help="Least duration of a measurement.")
@click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write the figures to FILE.")
@click.option("--plot", type=FILE, metavar="FILE.svg", help="Draw them.")
def tune(
    dataset: str,
    view: str,
    batch_size: int | None,
    device: str | None,
    rounds: int,
    seconds: float,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Find the number of workers to use.

    DATASET is loaded with 0, 1, 2, ... workers, up to the cores there are. Proposed is the smallest number within 5 %
    of the best, then the smallest prefetch_factor by the same rule. The loop that takes the batches does nothing else:
    a training step that takes longer needs fewer workers, and num_workers="auto" finds out how many. The call of
    make_loader to paste is printed last.
    """
    from wds_tools.bench.tune import tune as run_tune
    from wds_tools.inspection.svg import check_svg_name, write_svg

    _check_file(json_file)
    _check_file(plot)
    if plot:
        check_svg_name(plot)
    found = run_tune(
        dataset,
        view=view,
        batch_size=batch_size,
        device=device,
        rounds=rounds,
        seconds=seconds,
        progress=lambda line: click.echo(line, err=True),
    )
    click.echo(found.render())  # first: a file that cannot be written takes no figures with it
    if json_file:
        json_file.write_text(json.dumps(found.to_dict(), indent=2) + "\n")
    if plot:
        write_svg(plot, found.picture())


@click.command(epilog=example("wds-tools bench shards/photos --against imagefolder,dali --python dali=dali/bin/python"))
@click.argument("dataset", type=PLACE)
@click.option(
    "--view",
    type=click.Choice(["train", "eval", "small", "raw", "bytes"]),
    default="train",
    show_default=True,
    help="What is made of the pictures; see above.",
)
@click.option(
    "--against", default="crop-ready,imagefolder,webdataset", show_default=True, help="Peers, with commas; see above."
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="Python of the environment that peer NAME is installed in. May be repeated.",
)
@click.option(
    "--workers", default="2", show_default=True, help="Processes that decode, of each contender: 2, or 1,2,4."
)
@click.option("--batch-size", type=int, help="Samples per batch: 128, or 256 for small, raw and bytes, unless told.")
@click.option("--rounds", default=5, show_default=True, help="How often each contender is measured, in turn.")
@click.option("--seconds", default=5.0, show_default=True, help="Least duration of a round.")
@click.option(
    "--stages", is_flag=True, help="Measure our own path too: read, verify, slice, decode, resize, write, ..."
)
@click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write the figures to FILE.")
@click.option("--plot", type=FILE, metavar="FILE.svg", help="Draw them.")
def bench(
    dataset: str,
    view: str,
    against: str,
    pythons: tuple[str, ...],
    workers: str,
    batch_size: int | None,
    rounds: int,
    seconds: float,
    stages: bool,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Measure the loader beside its peers.

    All get the same pictures, those of DATASET, in processes of their own, in alternating rounds. A ratio is taken
    within a round; medians are printed with their range. Peers that are not installed are named, with what to install.

    \b
    train  RandomResizedCrop(224) and flip     limit: decoding alone
    eval   resize to 256, CenterCrop(224)      limit: decoding alone
    small  224 x 224 JPEGs resized to 128      limit: decoding alone
    raw    128 x 128 x 3 bytes, stored decoded limit: copying in memory
    bytes  stored bytes, not decoded           limit: reading the shards

    Peers: crop-ready (ours, packed so), imagefolder, imagefolder-io, webdataset, hdf5, hdf5-uint8, lmdb, dali, ffcv,
    tfdata, tfdata-plain, litdata, mosaic. Several need an environment of their own: make one, install the peer there,
    and name its Python.
    """  # noqa: D301 - click's own mark of lines that stay as they are
    from wds_tools.bench import bench as run_bench
    from wds_tools.inspection.svg import check_svg_name, write_svg

    _check_file(json_file)
    _check_file(plot)
    if plot:
        check_svg_name(plot)
    found = run_bench(
        dataset,
        view=view,
        against=_split(against),
        workers=[_whole_number(word, "--workers") for word in _split(workers)],
        rounds=rounds,
        seconds=seconds,
        batch_size=batch_size,
        pythons=dict(_named_path(word) for word in pythons),
        stages=stages,
        progress=lambda line: click.echo(line, err=True),
    )
    click.echo(found.render())  # first: a file that cannot be written takes no figures with it
    if json_file:
        json_file.write_text(json.dumps(found.to_dict(), indent=2) + "\n")
    if plot:
        write_svg(plot, found.picture())


@click.command(epilog=example("wds-tools doctor", "wds-tools doctor shards/photos"))
@click.argument("dataset", required=False, type=PLACE)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def doctor(dataset: str | None, as_json: bool) -> int:
    """Check this machine, and say what to do.

    Checked are versions, security holes that are known, the fast path, cores, memory, limits, the GPU and the cache.
    With DATASET, a quick look at that too: manifest, indexes, lengths of the shards. The exit code is 1 if there is a
    problem; notes are no problem.
    """
    from wds_tools.inspection.doctor import examine, format_findings
    from wds_tools.inspection.machine import inspect_machine

    if sys.stderr.isatty():
        click.echo("importing the packages ...", err=True)
    machine = inspect_machine()
    findings = examine(machine)
    if dataset is not None:
        findings += _examine_dataset(dataset, machine)
    click.echo(json.dumps([one.to_dict() for one in findings], indent=2) if as_json else format_findings(findings))
    return int(any(one.status == "problem" for one in findings))


def _examine_dataset(dataset: str, machine: Machine) -> list[Finding]:
    from wds_tools.inspection.doctor import Finding
    from wds_tools.inspection.machine import NATIVE

    if machine.imports.broken.keys() - {"torch", NATIVE}:
        return [Finding("dataset", "note", "not looked at: that takes packages that cannot be imported")]
    from wds_tools.inspection.datacheck import examine_dataset

    return examine_dataset(dataset, memory_bytes=machine.memory, cache=machine.cache)


def _check_file(path: Path | None) -> None:
    """Refuse a file that could not be written, before figures are gathered for it."""
    if path is not None and not path.parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")


def _split(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _whole_number(word: str, option: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise OptionError(f"{option} {word!r}; allowed are whole numbers with commas between, such as 1,2,4") from None


def _named_path(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not (name and equals and path):
        raise OptionError(f"--python {word!r}; allowed is NAME=PATH, such as dali=/opt/dali/bin/python")
    return name, path
