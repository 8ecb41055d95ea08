"""Shared by the commands: the state of a run, types of arguments, and wording."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from wds_tools.errors import OptionError

if TYPE_CHECKING:
    from wds_tools.format.index import Index
    from wds_tools.format.manifest import Manifest
    from wds_tools.options import RemoteOptions


class NonEmptyPath(click.Path):
    """A folder, a file, a URL or a pattern; with this type, Tab completes file names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty path: it would be the current folder, but is more likely an unset shell variable."""
        if not os.fspath(value):
            self.fail("the path is empty; use . for the current folder.", param, ctx)
        return super().convert(value, param, ctx)


def _keep_storage_options(context: click.Context, _option: click.Parameter, words: tuple[str, ...]) -> None:
    if words:
        from wds_tools.storage_options import parse_storage_options

        context.ensure_object(Run).storage_options = parse_storage_options(words)


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
label_type_option = click.option(
    "--label-type",
    type=click.Choice(["name", "number"]),
    help="Whether labels are names or numbers, where their text could be either; by default 3 and 3.0 are numbers, "
    "and any other text is a name.",
)
column_option = click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="ROLE=NAME",
    help="Column to use as image or label, such as label=species; `label=` for none; by default detected. Repeatable.",
)


def _only(_: click.Context, parameter: click.Parameter, values: Sequence[str]) -> str | None:
    if len(values) > 1:
        raise OptionError(
            f"{parameter.opts[0]} is given {len(values)} times, with {', '.join(map(repr, values))}: name one of them"
        )
    return next(iter(values), None)


label_option = click.option(
    "--label",
    metavar="NAME",
    multiple=True,
    callback=_only,
    help="Where labels are: a column; in shards a field such as cls, json:label for an entry of a JSON field, or "
    "`folder` for class folders.",
)
label_separator_option = click.option(
    "--label-separator",
    metavar="TEXT",
    help="Separator of the labels in a text, such as ' ' or ','; by default a text is one label.",
)
encoding_option = click.option(
    "--encoding",
    metavar="NAME",
    help="Encoding of a table, such as latin-1; by default UTF-8.",
)


def _complete_format(_context: click.Context, _option: click.Parameter, prefix: str) -> list[CompletionItem]:
    from wds_tools.sources.detect import names_of_kinds

    return [CompletionItem(name, help=what) for name, what in names_of_kinds().items() if name.startswith(prefix)]


from_option = click.option(
    "--from",
    "kind",
    metavar="FORMAT",
    shell_complete=_complete_format,
    help="Format of the source, such as folder, table, hdf5, coco, yolo, voc, mds or litdata; by default detected.",
)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a source that is not packed; `source_given` collects their values."""
    for option in (
        encoding_option,
        label_separator_option,
        label_type_option,
        label_option,
        column_option,
        from_option,
    ):
        command = option(command)
    return command


def choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select samples of a dataset, as `Choice` has them."""
    for option in (
        click.option(
            "--class-weights",
            metavar="WEIGHTS",
            help="How often samples of each class occur: balanced, or cat=2,dog=0.5.",
        ),
        click.option(
            "--subset", type=float, metavar="FRACTION", help="Use only this fraction of the samples, such as 0.1."
        ),
        click.option("--where", metavar="CONDITION", help="Use only samples that match, such as 'width >= 256'."),
    ):
        command = option(command)
    return command


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a step of a training run."""
    for option in (
        click.option("--rank", type=click.IntRange(0), help="With --state: show only the samples of this rank."),
        click.option(
            "--step",
            type=click.IntRange(0),
            help="With --state: zero-based step of the run, or of the epoch in --epoch.",
        ),
        click.option(
            "--state",
            type=LOCAL_PATH,
            metavar="FILE",
            help="Show a step of a training run instead: JSON or a torch.save checkpoint that contains "
            "loader.state_dict().",
        ),
    ):
        command = option(command)
    return command


def source_given(
    *,
    kind: str | None,
    columns: Sequence[str],
    label: str | None,
    label_type: str | None,
    label_separator: str | None,
    encoding: str | None,
) -> dict[str, Any]:
    """Return the values of `source_options` as arguments of `pack`."""
    return {
        "kind": kind,
        "columns": parse_columns(columns, label),
        "label_type": label_type,
        "label_separator": label_separator,
        "encoding": encoding,
    }


storage_option = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="KEY=VALUE",
    expose_value=False,
    callback=_keep_storage_options,
    help="Option for URLs, by its name in fsspec, such as anon=true or client_kwargs.endpoint_url=URL; "
    "no secrets: these come from the environment or from files. Repeatable.",
)

workers_option = click.option(
    "--workers", type=int, help="Worker processes; by default automatic, at most one per core."
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Work in local processes, or in Ray tasks, one for each shard.",
)

PATH_OR_URL = NonEmptyPath()
LOCAL_PATH = NonEmptyPath(path_type=Path)


@dataclass(slots=True)
class Run:
    """One run of the program: how an error ends it, and what all commands share.

    Attributes:
        debug: Show tracebacks.
        failure_code: Exit code of an error that is not about the arguments.
        after_interrupt: Message after Ctrl-C: how to continue.
        storage_options: Options for URLs, of a command with `storage_option`; None if none were given.
    """

    debug: bool = False
    failure_code: int = 1
    after_interrupt: str = ""
    storage_options: dict[str, Any] | None = None

    @property
    def remote(self) -> RemoteOptions:
        """How the command reads URLs."""
        from wds_tools.options import RemoteOptions

        return RemoteOptions.of(storage_options=self.storage_options)


def example(*lines: str) -> str:
    """Return an example for the end of a help text; the mark at its start keeps click from joining the lines."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def amount(samples: int, shards: int, size: int, *, noun: str = "sample") -> str:
    """Return the size of a dataset as text: samples, shards and bytes."""
    from wds_tools.wording import counted, human_bytes

    return f"{counted(samples, noun)} in {counted(shards, 'shard')}, {human_bytes(size)}"


def check_writable(path: Path | None) -> None:
    """Refuse an output file without a folder, before the work that it is for."""
    from wds_tools.errors import OptionError

    if path is not None and not path.parent.is_dir():
        raise OptionError(f"cannot write {path}: no folder {path.parent}")


def next_steps(datasets: Sequence[str], manifest: Manifest, indexes: Iterable[Index]) -> str:
    """Return what to do with new datasets: commands that describe them, and a statement that loads the first one."""
    from wds_tools.packing.snippet import IMPORT, first_call

    commands = "\n      ".join(f"wds-tools info {shlex.quote(dataset)}" for dataset in datasets)
    return "\n".join([f"next: {commands}", "", IMPORT, "", first_call(datasets[0], manifest, indexes=indexes)])


def indexes_of(dataset: Path | str) -> Iterator[Index]:
    """Yield the indexes of a local dataset, and none of a remote one: they would have to be downloaded."""
    from wds_tools.reading.opening import open_shards

    if isinstance(dataset, Path):
        shards = open_shards(dataset)
        yield from map(shards.index, range(len(shards.locations)))


def parse_columns(values: Sequence[str], label: str | None) -> dict[str, str]:
    """Return the names of columns by role, from values such as ``image=path``; ``label`` is that of --label."""
    columns: dict[str, str] = {}
    for value in (*values, *([f"label={label}"] if label is not None else [])):
        role, equals, name = value.partition("=")
        if not equals:
            raise OptionError(f"--column {value!r} has no '='; expected ROLE=NAME, such as image=path or label=species")
        if role in columns:
            raise OptionError(
                f"--label or --column names two columns for {role} ({columns[role]!r}, {name!r}): name one of them; "
                "other columns are kept as they are"
            )
        columns[role] = name
    return columns
