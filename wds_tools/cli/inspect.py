"""Commands that inspect datasets and this machine: contents, damage, the epoch ahead, speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wds_tools.cli.common import (
    LOCAL_PATH,
    PATH_OR_URL,
    Run,
    amount,
    as_json_option,
    check_writable,
    choice_options,
    engine_option,
    example,
    source_given,
    source_options,
    step_options,
    storage_option,
    workers_option,
)
from wds_tools.terminal import shows_progress
from wds_tools.wording import first_few, one_line

if TYPE_CHECKING:
    from wds_tools.inspection.doctor import Finding
    from wds_tools.inspection.machine import Machine
    from wds_tools.options import RemoteOptions
    from wds_tools.upkeep.verifier import VerifyReport


@click.command(epilog=example("wds-tools info shards/photos"))
@click.argument("dataset", type=PATH_OR_URL)
@as_json_option
@storage_option
@click.pass_obj
def info(run: Run, dataset: str, as_json: bool) -> None:
    """Show counts, sizes, fields and classes of a dataset.

    DATASET is a folder or URL with a manifest.json, a manifest, or a pattern of indexed shards.
    Only the manifest and the indexes are read.
    """
    from wds_tools.inspection.stats import describe, format_stats

    stats = describe(dataset, storage_options=run.storage_options)
    click.echo(json.dumps(stats.to_dict(), indent=2) if as_json else format_stats(stats))


@click.command(epilog=example("wds-tools verify shards/photos && python train.py"))
@click.argument("dataset", type=PATH_OR_URL)
@workers_option
@engine_option
@as_json_option
@storage_option
@click.pass_obj
def verify(run: Run, /, dataset: str, as_json: bool, **options: Any) -> int:
    """Check every byte of a dataset against its checksums.

    Checks indexes, shards, tar headers and fields of DATASET, and whether image sizes and labels match
    the indexes. Lists all damage with shard, key, field and byte offset. The exit code is 0 if
    nothing is damaged, 1 if something is, and 2 if something could not be checked.
    """
    from wds_tools.upkeep.verifier import verify as verify_dataset

    run.failure_code = 2
    report = verify_dataset(dataset, storage_options=run.storage_options, **options)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else _verify_text(report))
    if report.damage_count:
        return 1
    return 2 if report.unchecked else 0


def _verify_text(report: VerifyReport) -> str:
    from wds_tools.wording import counted

    lines = [f"damage: {one_line(damage)}" for damage in report.damages]
    if report.damage_count > len(report.damages):
        lines.append(f"... and {report.damage_count - len(report.damages):,} more")
    lines += [f"not checked: shard {shard}: {one_line(reason)}" for shard, reason in report.unchecked.items()]
    lines += [f"note: {one_line(note)}" for note in report.notes]
    if report.objects:
        text = f"{counted(len(report.objects), 'object')} in images with unusual or invalid values, but no damage"
        lines.append(f"{text} (--json lists all): {first_few(report.objects)}")
    if report.strangers:
        lines.append(f"not part of the dataset and never read: {first_few(report.strangers)}")
    checked = amount(report.samples, report.shards, report.bytes)
    if report.damage_count:
        count = counted(report.damage_count, "damaged part")
        lines.append(
            f"{report.dataset} is damaged: {count} in {first_few(report.damaged_shards)}; copy these files again, or "
            f"pack again (checked: {checked})"
        )
    elif report.unchecked:
        lines.append(f"{report.dataset} could not be checked completely; no damage in {checked}")
    else:
        lines.append(f"{report.dataset} is undamaged: {checked}, checked in {report.seconds:.1f} s")
    return "\n".join(lines)


_OPTIONS_OF_STEP = ("state", "step", "epoch", "rank")
_CHOICE = ("where", "subset", "class_weights")


def _check_step_options(context: click.Context, both: Sequence[str]) -> None:
    """Refuse options that --state replaces, and options of a step without it.

    Args:
        context: The command.
        both: Options that are allowed with and without --state.
    """
    given = [
        name
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE and name not in both
    ]
    is_step = "state" in given
    wrong = [name for name in given if (name in _OPTIONS_OF_STEP) != is_step]
    if wrong:
        option = f"--{wrong[0].replace('_', '-')}"
        reason = "is recorded in the state: remove it" if is_step else "requires --state FILE"
        raise click.UsageError(f"{option} {reason}.", context)
    if is_step != ("step" in given):
        raise click.UsageError("--state FILE requires --step N.", context)


@click.command(
    epilog=example(
        "wds-tools sample shards/photos --out grid.png --view train",
        "wds-tools sample birds.csv --label species --view whole",
        "wds-tools sample shards/photos --state checkpoint.pt --step 13402",
    )
)
@click.argument("dataset", type=PATH_OR_URL)
@click.option(
    "--out", type=LOCAL_PATH, default="sample.png", show_default=True, help="Image file to write: .png, .jpg or .webp."
)
@click.option(
    "--view",
    type=click.Choice(["train", "eval", "whole"]),
    default="train",
    show_default=True,
    help="Crop as for training or for evaluation, or show whole images.",
)
@click.option("--size", metavar="PIXELS", default=128, show_default=True, help="Side of a tile.")
@click.option("--count", default=48, show_default=True, help="Maximum number of samples.")
@click.option("--seed", default=0, show_default=True, help="Seed of order, crops and flips.")
@click.option(
    "--epoch",
    type=click.IntRange(0),
    help="Zero-based epoch whose first samples are shown, 0 by default; with --state, the one that --step counts from.",
)
@choice_options
@step_options
@source_options
@storage_option
@click.pass_context
def sample(
    context: click.Context,
    /,
    dataset: str,
    out: Path,
    view: str,
    size: int,
    count: int,
    seed: int,
    epoch: int | None,
    where: str | None,
    subset: float | None,
    class_weights: str | None,
    state: Path | None,
    step: int | None,
    rank: int | None,
    **source: Any,
) -> None:
    """Write a contact sheet of the images that the loader yields.

    It shows the first samples of an epoch of DATASET, in the order and with the crops of a training
    run, and draws their masks, boxes, outlines and key points with class names.

    With --state FILE --step N it shows the samples of a step of a run, past or future, with the crops
    of the run. If the run had --where, --subset or --class-weights, give the same ones here.

    DATASET can also be a source that is not packed: anything that `wds-tools pack` reads. Its first
    images are then packed into a temporary folder. --from, --column, --label and the options after
    them are for such a source.
    """
    from wds_tools.inspection.contact_sheet import check_count, contact_sheet, sheet_of_step
    from wds_tools.inspection.unpacked import as_dataset
    from wds_tools.reading.select import Choice, parse_weights

    _check_step_options(context, ("dataset", "out", "size", "count", "epoch", *_CHOICE))
    check_writable(out)
    check_count(count)
    choice = Choice(where, subset, parse_weights(class_weights) if class_weights else None, seed)
    remote = context.obj.remote
    if state is not None and step is not None:
        from wds_tools.inspection.saved_step import SavedStep

        saved = SavedStep(file=state, step=step, epoch=epoch, rank=rank)
        shown, seen = sheet_of_step(saved, dataset, out, size=size, count=count, choice=choice, remote=remote)
        click.echo(f"wrote {shown} of {len(seen.ids):,} samples of step {seen.step:,} to {out}")
        return
    options: dict[str, Any] = {"view": view, "size": size, "count": count, "seed": seed, "epoch": epoch or 0}
    with as_dataset(dataset, source_given(**source), first=count, remote=remote) as opened:
        shown = contact_sheet(opened.dataset, out, choice=choice, remote=remote, **options)
    click.echo(f"wrote {shown} samples of {dataset} with view {view} to {out}")
    if opened.note:
        click.echo(opened.note)


@click.command(
    epilog=example(
        "wds-tools plan shards/photos --batch-size 256 --world-size 8 --ranks-per-node 8",
        "wds-tools plan shards/photos --state checkpoint.pt --step 13402",
    )
)
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--batch-size", default=256, show_default=True, help="Samples per batch of each rank.")
@click.option("--world-size", default=1, show_default=True, help="Number of ranks (GPUs).")
@click.option("--ranks-per-node", type=int, help="Ranks per machine; by default all ranks are on one machine.")
@click.option("--num-workers", default=8, show_default=True, help="Worker processes of each rank.")
@click.option(
    "--shuffle",
    metavar="SHUFFLE",
    default="yes",
    show_default=True,
    help="yes, no, a window in samples such as 20000, or a quality such as 0.95.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the order.")
@click.option(
    "--tail",
    type=click.Choice(["drop", "pad", "mask"]),
    default="drop",
    show_default=True,
    help="Drop the samples that do not fill the last batch, or pad it; mask also marks the padding.",
)
@choice_options
@click.option(
    "--size",
    type=click.IntRange(1),
    metavar="PIXELS",
    help="Side of the images in a batch; required to compute the memory of batch slots.",
)
@step_options
@click.option("--epoch", type=click.IntRange(0), help="With --state: zero-based epoch that --step counts from.")
@as_json_option
@click.option("--plot", type=LOCAL_PATH, metavar="FILE.svg", help="Also draw the shuffle as a chart.")
@storage_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    dataset: str,
    shuffle: str,
    seed: int,
    where: str | None,
    subset: float | None,
    class_weights: str | None,
    size: int | None,
    state: Path | None,
    step: int | None,
    epoch: int | None,
    rank: int | None,
    as_json: bool,
    plot: Path | None,
    **options: Any,
) -> None:
    """Forecast an epoch, or show what a step of a run saw.

    Prints steps, dropped samples, shuffle quality and memory. Also prints the bytes that each machine
    reads and, for a remote dataset, the requests and cache hits of an epoch. Reads only the manifest,
    and the labels in the indexes of all but very large datasets.

    With --state FILE --step N it prints the samples of a step, past or future, with their keys and
    crops. If the run had --where, --subset or --class-weights, give the same ones here.
    """
    from wds_tools.inspection.forecast import forecast, format_forecast
    from wds_tools.inspection.forecast_chart import forecast_chart
    from wds_tools.inspection.svg import check_svg_name, write_svg
    from wds_tools.options import parse_shuffle
    from wds_tools.reading.opening import open_shards
    from wds_tools.reading.select import Choice, parse_weights

    _check_step_options(context, ("dataset", "as_json", *_CHOICE))
    check_writable(plot)
    choice = Choice(where, subset, parse_weights(class_weights) if class_weights else None, seed)
    if state is not None and step is not None:
        from wds_tools.inspection.saved_step import SavedStep

        saved = SavedStep(file=state, step=step, epoch=epoch, rank=rank)
        explanation = saved.explain(dataset, choice, context.obj.remote)
        click.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else str(explanation))
        return
    if plot:
        check_svg_name(plot)
    shards = open_shards(dataset, remote=context.obj.remote)
    options |= {"shuffle": parse_shuffle(shuffle), "image_bytes": 3 * size * size if size else None}
    report = forecast(shards, seed=seed, choice=choice, **options)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else format_forecast(report))
    if plot:
        write_svg(plot, forecast_chart(shards, report, seed=seed, choice=choice))
        click.echo(f"chart: {plot}", err=as_json)  # with --json, stdout has nothing but JSON


@click.command(
    epilog=example(
        "wds-tools doctor",
        "wds-tools doctor shards/photos",
        "wds-tools doctor shards/train shards/val --write-bans bans",
    )
)
@click.argument("datasets", nargs=-1, metavar="[DATASET]...", type=PATH_OR_URL)
@click.option(
    "--distance",
    metavar="BITS",
    type=int,
    help="Images are similar if their hashes differ in at most this many of 64 bits, 0 to 16.  [default: 6]",
)
@click.option(
    "--write-bans", type=LOCAL_PATH, metavar="FOLDER", help="Write the samples of each problem to a file for ban=."
)
@as_json_option
@storage_option
@click.pass_obj
def doctor(run: Run, datasets: tuple[str, ...], distance: int | None, write_bans: Path | None, as_json: bool) -> int:
    """Check this machine and datasets, and suggest fixes.

    Checks versions, the compiled code, cores, memory, limits, the GPU and the cache. With DATASET,
    also checks its manifest, its indexes and the sizes of its shards, and finds copies, similar,
    blank, blurred, tiny and narrow images, copies with different labels, and classes with one
    sample. With several datasets, such as train and val, it also finds images that are in two of
    them. The exit code is 1 if there is a problem, such as such an image; notes do not count.
    """
    from wds_tools.inspection.doctor import examine, format_findings
    from wds_tools.inspection.machine import inspect_machine

    if shows_progress():
        click.echo("importing the packages ...", err=True)
    machine = inspect_machine()
    findings = examine(machine)
    if datasets:
        findings += _examine_datasets(datasets, machine, run.remote, distance, write_bans)
    values = [finding.to_dict() for finding in findings]
    click.echo(json.dumps(values, indent=2) if as_json else format_findings(findings))
    return int(any(finding.status == "problem" for finding in findings))


def _examine_datasets(
    datasets: tuple[str, ...], machine: Machine, remote: RemoteOptions, distance: int | None, bans: Path | None
) -> list[Finding]:
    from wds_tools.inspection.doctor import Finding
    from wds_tools.inspection.machine import NATIVE

    if machine.imports.broken.keys() - {"torch", NATIVE}:
        return [Finding("dataset", "note", "not checked: packages that it needs cannot be imported")]
    from wds_tools.images.near_duplicates import DISTANCE
    from wds_tools.inspection.datacheck import examine_datasets

    return examine_datasets(datasets, remote=remote, distance=DISTANCE if distance is None else distance, bans=bans)
