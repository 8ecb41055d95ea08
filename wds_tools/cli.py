"""The command line. A command imports its work when it runs, so that ``wds-tools --help`` needs nothing but click.

Exit codes: 0 done, 1 failed (``verify``: damage), 2 wrong arguments or no dataset there (``verify``: could not
check), 70 a defect of ours, 130 interrupted, 141 the reader of our output is gone.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wds_tools import __version__
from wds_tools.errors import NotADatasetError, OptionError, WdsToolsError

if TYPE_CHECKING:
    from wds_tools.packer import PackReport
    from wds_tools.verifier import VerifyReport

STDOUT = 1
MAX_NAMED = 5  # files or shards that a summary names before it counts


@dataclass(slots=True)
class Run:
    """One run of the program: what its end depends on.

    Attributes:
        debug: Show tracebacks.
        failure_code: Exit code of an error that is not about the arguments.
        after_interrupt: What to tell who pressed Ctrl-C.
    """

    debug: bool = False
    failure_code: int = 1
    after_interrupt: str = ""


class _InOrder(click.Group):
    """Commands are listed in the order of the work, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


def _example(*lines: str) -> str:
    """Return the end of a help text; click would join the lines without the mark."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_example("wds-tools pack photos/ shards/photos", "wds-tools info shards/photos"),
)
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
@click.version_option(__version__, prog_name="wds-tools", message="%(prog)s %(version)s")
@click.pass_obj
def cli(run: Run, debug: bool) -> None:
    """Shard an image dataset once, stream it into PyTorch training as fast as the hardware allows."""
    run.debug = debug


@cli.command(epilog=_example("wds-tools pack photos/ shards/photos --shard-bytes 256MB"))
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--shard-bytes", default="1GB", show_default=True, help="Largest shard: bytes, or as 4MB, 256MiB.")
@click.option("--seed", default=0, show_default=True, help="Of the random order that the samples are put in, once.")
@click.option("--workers", type=int, help="Processes; the cores there are, 8 at most, if not given.")
@click.option("--classes", type=click.Path(path_type=Path), metavar="FILE", help="Class names by number, one per line.")
@click.option("--strict", is_flag=True, help="A file that cannot be packed is an error, not a line in skipped.jsonl.")
@click.option("--fresh", is_flag=True, help="Remove what an earlier pack left in DST, and start over.")
@click.pass_obj
def pack(
    run: Run,
    src: Path,
    dst: Path,
    shard_bytes: str,
    seed: int,
    workers: int | None,
    classes: Path | None,
    strict: bool,
    fresh: bool,
) -> None:
    """Pack a folder of images into WebDataset shards.

    SRC holds a folder per class, or images alone, which then get no labels. Packed are .jpg, .jpeg, .png and .webp.
    DST becomes a dataset: shards, an index beside each, and manifest.json, written last. An interrupted pack goes on
    when it is run again; the bytes written do not depend on the number of workers.
    """
    from wds_tools.packer import pack as pack_folder

    run.after_interrupt = "finished shards are kept, run the same command again to go on"
    report = pack_folder(
        src, dst, shard_bytes=shard_bytes, seed=seed, workers=workers, classes=classes, strict=strict, fresh=fresh
    )
    click.echo(_pack_summary(report))


def _pack_summary(report: PackReport) -> str:
    from wds_tools.packstate import SKIPPED_NAME
    from wds_tools.stats import counted

    manifest, made = report.manifest, len(report.manifest.shards) - report.kept
    classes = counted(len(manifest.classes), "class", "classes") if manifest.classes else "no labels"
    size = f"{_amount(report.packed, len(manifest.shards), manifest.bytes, word='image')}, {classes}"
    if made == 0:
        lines = [f"{report.dst} was packed already: {size}"]
    else:
        speed = f" ({report.packed / max(report.seconds, 1e-9):,.0f} images/s)" if not report.kept else ""
        kept = f"; kept {counted(report.kept, 'shard')} of an earlier run" if report.kept else ""
        lines = [f"packed {size}, into {report.dst} in {report.seconds:.1f} s{speed}{kept}"]
    if report.skipped:
        lines.append(f"skipped {counted(len(report.skipped), 'file')}: {report.dst / SKIPPED_NAME} says which and why")
    return "\n".join([*lines, _next_steps(str(report.dst))])


def _next_steps(dataset: str) -> str:
    return (
        f"next: wds-tools info {dataset}\n"
        f'      loader = wds_tools.make_loader("{dataset}", batch_size=256,\n'
        "                                     view=wds_tools.RandomResizedCrop(224, flip=True), shuffle=True)"
    )


@cli.command(epilog=_example("wds-tools index 'train-{000000..000009}.tar' --manifest train.json"))
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
    from wds_tools.storage.patterns import expand_pattern

    run.after_interrupt = "run the same command again to start over"
    made = index_shards(patterns, manifest=manifest)
    folder = Path(expand_pattern(patterns[0])[0]).parent
    dataset = folder if manifest is None else folder / manifest
    click.echo(
        f"indexed {_amount(made.samples, len(made.shards), made.bytes)}, fields {', '.join(made.fields)}, "
        f"into {folder / (manifest or MANIFEST_NAME)}\n{_next_steps(str(dataset))}"
    )


@cli.command(epilog=_example("wds-tools info shards/photos"))
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def info(dataset: str, as_json: bool) -> None:
    """Describe a dataset: counts, bytes, sizes, fields, classes.

    DATASET is a folder or URL with a manifest.json, a manifest, or a pattern of shards that have an index. Only the
    manifest and the indexes are read.
    """
    from wds_tools.stats import describe, render

    stats = describe(dataset)
    click.echo(json.dumps(stats.to_dict(), indent=2) if as_json else render(stats))


@cli.command(epilog=_example("wds-tools verify shards/photos && python train.py"))
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def verify(run: Run, dataset: str, as_json: bool) -> int:
    """Check every byte of a dataset against its checksums.

    Checked are indexes, shards, tar headers and fields of DATASET; all damage is listed, with shard, key, field and
    byte. The exit code is 0 if all is whole, 1 if there is damage, and 2 if something could not be checked.
    """
    from wds_tools.verifier import verify as verify_dataset

    run.failure_code = 2
    report = verify_dataset(dataset)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else _verify_text(report))
    if report.damage_count:
        return 1
    return 2 if report.unchecked else 0


def _verify_text(report: VerifyReport) -> str:
    from wds_tools.stats import counted

    lines = [f"damage: {_one_line(damage)}" for damage in report.damages]
    if report.damage_count > len(report.damages):
        lines.append(f"... and {counted(report.damage_count - len(report.damages), 'more damage')}")
    lines += [f"not checked: shard {shard}: {_one_line(reason)}" for shard, reason in report.unchecked.items()]
    if report.strangers:
        lines.append(f"not part of the dataset, so never read: {_named(report.strangers)}")
    checked = _amount(report.samples, report.shards, report.bytes)
    if report.damage_count:
        count, where = counted(report.damage_count, "damage"), _named(report.damaged_shards)
        lines.append(
            f"{report.dataset} is damaged: {count} in {where}; copy those again, or pack again (checked: {checked})"
        )
    elif report.unchecked:
        lines.append(f"{report.dataset} could not be checked whole; no damage in {checked}")
    else:
        lines.append(f"{report.dataset} is whole: {checked}, checked in {report.seconds:.1f} s")
    return "\n".join(lines)


@cli.command(epilog=_example("wds-tools sample shards/photos --out grid.png --view train"))
@click.argument("dataset")
@click.option("--out", type=click.Path(path_type=Path), default="sample.png", show_default=True, help="File to write.")
@click.option("--view", default="train", show_default=True, help="train, eval, or whole: all of each picture.")
@click.option("--size", default=128, show_default=True, help="Pixels of a tile.")
@click.option("--count", default=48, show_default=True, help="How many samples, at most.")
@click.option("--seed", default=0, show_default=True, help="Of order, crops and flips.")
@click.option("--epoch", default=0, show_default=True, help="Which epoch.")
def sample(dataset: str, out: Path, view: str, size: int, count: int, seed: int, epoch: int) -> None:
    """Write a contact sheet of what the loader yields.

    Shown are the first samples of an epoch of DATASET, in the order and with the crops that training would see.
    """
    from wds_tools.sheet import contact_sheet

    shown = contact_sheet(dataset, out, view=view, size=size, count=count, seed=seed, epoch=epoch)
    click.echo(f"{shown} samples of {dataset} as {view} shows them: {out}")


@cli.command(epilog=_example("wds-tools plan shards/photos --batch-size 256 --world-size 8 --ranks-per-node 8"))
@click.argument("dataset")
@click.option("--batch-size", default=256, show_default=True, help="Samples per batch of a rank.")
@click.option("--world-size", default=1, show_default=True, help="Number of ranks (GPUs).")
@click.option("--ranks-per-node", type=int, help="Ranks of one machine; all of them, if not given.")
@click.option("--num-workers", default=8, show_default=True, help="Workers of each rank.")
@click.option("--shuffle", default="yes", show_default=True, help="yes, no, a window in samples, or a quality as 0.95.")
@click.option("--seed", default=0, show_default=True, help="Of the order.")
@click.option("--tail", default="drop", show_default=True, help="drop, pad or mask.")
@click.option("--where", metavar="CONDITION", help='Only samples for which this holds: "width >= 256".')
@click.option("--subset", type=float, help="A fraction of them.")
@click.option("--class-weights", help="balanced, or as cat=2,dog=0.5: how often the classes come.")
@click.option("--size", type=int, metavar="PIXELS", help="Side of the pictures in a batch: tells the memory of slots.")
@click.option("--step-seconds", type=float, help="How long a training step takes: tells the read rate needed.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the shuffle, too.")
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
    from wds_tools.chart import check_svg_name, write_svg
    from wds_tools.choose import Choice, parse_weights
    from wds_tools.forecast import forecast, parse_shuffle, render
    from wds_tools.picture import picture_of
    from wds_tools.shardset import open_shards

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
    click.echo(json.dumps(told.to_dict(), indent=2) if as_json else render(told))
    if plot:
        write_svg(plot, picture_of(shards, told, seed=seed, choice=choice))
        click.echo(f"picture: {plot}", err=as_json)  # JSON stays alone on stdout


@cli.command(epilog=_example("wds-tools bench shards/photos --against imagefolder,dali --python dali=dali/bin/python"))
@click.argument("dataset")
@click.option("--view", default="train", show_default=True, help="The work: train, eval, small, raw or bytes.")
@click.option("--against", default="imagefolder,webdataset", show_default=True, help="Peers, with commas; see below.")
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
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the figures to FILE.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw them.")
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
    """Measure the loader beside its peers, and beside what no loader can pass.

    All get the same pictures, those of DATASET, in processes of their own, in alternating rounds. A ratio is taken
    within a round; medians are printed with their range. Peers that are not installed are named, with what to install.

    \b
    train  RandomResizedCrop(224) and flip     limit: decoding alone
    eval   resize to 256, CenterCrop(224)      limit: decoding alone
    small  224 x 224 JPEGs resized to 128      limit: decoding alone
    raw    128 x 128 x 3 bytes, stored decoded limit: copying in memory
    bytes  stored bytes, not decoded           limit: reading the shards

    Peers: imagefolder, imagefolder-io, webdataset, hdf5, hdf5-uint8, lmdb, dali, ffcv, tfdata, tfdata-plain, litdata
    and mosaic. Several need an environment of their own: make one, install the peer there, and name its Python.
    """  # noqa: D301 - click's own mark of lines that stay as they are
    from wds_tools.bench import bench as run_bench
    from wds_tools.chart import check_svg_name, write_svg

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
    if json_file:
        json_file.write_text(json.dumps(found.to_dict(), indent=2) + "\n")
    if plot:
        write_svg(plot, found.picture())
    click.echo(found.render())


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


def _amount(samples: int, shards: int, size: int, *, word: str = "sample") -> str:
    from wds_tools.stats import counted, human_bytes

    return f"{counted(samples, word)} in {counted(shards, 'shard')}, {human_bytes(size)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit.

    Args:
        arguments: Of the command line; None takes those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text, nor terminals know all of it
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    run = Run()
    try:
        # Not cli.main(), which exits with 1, our code for damage, when the reader of the output has gone.
        words = sys.argv[1:] if arguments is None else list(arguments)
        with cli.make_context("wds-tools", words, obj=run) as context:
            code = cli.invoke(context) or 0
        sys.stdout.flush()
    except BaseException as error:
        code = _end_with(error, run)
    sys.exit(code)


def _end_with(error: BaseException, run: Run) -> int:
    """Say in one line what went wrong; return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # or Python complains when it flushes at exit
        return 141
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    if run.debug:
        traceback.print_exception(error)
    message, code = _explain(error, run)
    click.echo(f"error: {_one_line(message)}", err=True)
    return code


def _explain(error: BaseException, run: Run) -> tuple[str, int]:
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "; ".join(filter(None, ("interrupted", run.after_interrupt))), 130
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "wds-tools"
        return f"{error.format_message()} See `{path} --help`.", 2
    if isinstance(error, (OptionError, NotADatasetError)):
        return str(error), 2
    if isinstance(error, WdsToolsError):
        return str(error), run.failure_code
    hint = "" if run.debug else "; run `wds-tools --debug ...` for the traceback"
    return f"unexpected {type(error).__name__}: {error}{hint}", 70


def _reader_is_gone() -> bool:
    """A broken pipe may also be one to a worker, which is no reason to end in silence."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


if __name__ == "__main__":
    main()
