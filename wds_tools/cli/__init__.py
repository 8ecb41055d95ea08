"""The command line. A command imports its work when it runs, so that ``wds-tools --help`` needs nothing but click.

Exit codes: 0 done, 1 failed (``verify``: damage), 2 wrong arguments or no dataset there (``verify``: could not
check), 70 a defect of ours, 130 interrupted, 141 the reader of our output is gone.
"""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

from wds_tools import __version__
from wds_tools.cli import create, inspect, transfer
from wds_tools.cli.words import Run, example, one_line
from wds_tools.errors import NotADatasetError, OptionError, WdsToolsError

COMPLETE = "_WDS_TOOLS_COMPLETE"
STDOUT, STDERR = 1, 2


class _InOrder(click.Group):
    """Commands are listed in the order of the work, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


def _say_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from wds_tools.inspection.machine import active_decoder

        click.echo(f"wds-tools {__version__} ({active_decoder()})")
        context.exit()


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example("wds-tools pack photos/ shards/photos", "wds-tools info shards/photos")
    + '\n\nTab completion: eval "$(_WDS_TOOLS_COMPLETE=bash_source wds-tools)" in ~/.bashrc; for zsh: zsh_source, in '
    "~/.zshrc",
)
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_say_version, help="Show the version."
)
@click.pass_obj
def cli(run: Run, debug: bool) -> None:
    """Shard an image dataset once, stream it into PyTorch training as fast as the hardware allows."""
    run.debug = debug


for _command in (
    *(create.pack, create.append, create.reshard, create.index),
    *(transfer.merge, transfer.unpack),
    *(
        inspect.info,
        inspect.verify,
        create.reseal,
        inspect.sample,
        inspect.plan,
        inspect.tune,
        inspect.bench,
        inspect.doctor,
    ),
):
    cli.add_command(_command)


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
    if wanted := os.environ.get(COMPLETE):
        sys.exit(_complete(wanted))
    try:
        # Not cli.main(), which exits with 1, our code for damage, when the reader of the output has gone.
        words = sys.argv[1:] if arguments is None else list(arguments)
        with cli.make_context("wds-tools", words, obj=run) as context:
            code = cli.invoke(context) or 0
        if sys.stdout is not None:  # closed by who started us
            sys.stdout.flush()
    except BaseException as error:
        code = _end_with(error, run)
    _drop_what_cannot_be_written()
    sys.exit(code)


def _drop_what_cannot_be_written() -> None:
    """Python writes what is left in its buffers when it exits; where it cannot, some releases end with code 120."""
    for stream, number in ((sys.stdout, STDOUT), (sys.stderr, STDERR)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _complete(wanted: str) -> int:
    """Print what a shell asks for, the script that switches completion on or the words that fit; return the exit code.

    See https://click.palletsprojects.com/en/stable/shell-completion/; ``cli.main()`` would do the same.
    """
    from click.shell_completion import shell_complete

    if shell_complete(cli, {"obj": Run()}, "wds-tools", COMPLETE, wanted) == 0:
        return 0
    click.echo(f"error: {COMPLETE}={wanted!r}; allowed are bash_source, zsh_source and fish_source", err=True)
    return 2


def _end_with(error: BaseException, run: Run) -> int:
    """Say in one line what went wrong; return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        return 141
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    message, code = _explain(error, run)
    with suppress(OSError):  # who cannot be told still gets the exit code
        if run.debug:
            traceback.print_exception(error)
        click.echo(f"error: {one_line(message)}", err=True)
    return code


def _explain(error: BaseException, run: Run) -> tuple[str, int]:
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "; ".join(filter(None, ("interrupted", run.after_interrupt))), 130
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        return f"ended by {signal.Signals(error.code - 128).name}", error.code  # bench cleans up behind itself
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "wds-tools"
        return f"{error.format_message()} See `{path} --help`.", 2
    if isinstance(error, WdsToolsError):
        return str(error), 2 if isinstance(error, (OptionError, NotADatasetError)) else run.failure_code
    if said := _said_by_the_machine(error):
        return said, run.failure_code
    hint = "" if run.debug else "; run `wds-tools --debug ...` for the traceback"
    return f"unexpected {type(error).__name__}: {error}{hint}", 70


def _said_by_the_machine(error: BaseException) -> str:
    """Return what the system reports, such as a full disk behind our output; of anything else nothing."""
    if not isinstance(error, OSError) or error.errno is None or isinstance(error, ConnectionError):
        return ""
    return f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}"


def _reader_is_gone() -> bool:
    """A broken pipe may also be one to a worker, which is no reason to end in silence."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
