"""The command line. A command imports the code it runs only when it runs: ``wds-tools --help`` imports only click.

Exit codes: 0 success; 1 failure (``verify``: damage); 2 invalid arguments, no dataset, or no source
(``verify``: could not check); 70 a bug in wds_tools; 130 interrupted; 141 the reader of the output
has closed it.
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
from functools import partial

import click

from wds_tools import __version__
from wds_tools.cli import cache, create, inspect, measure, runs, serve, shards, transfer
from wds_tools.cli.common import Run, example
from wds_tools.errors import MissingSourceError, NotADatasetError, OptionError, WdsToolsError
from wds_tools.wording import missing_package, one_line

COMPLETE = "_WDS_TOOLS_COMPLETE"
STDOUT, STDERR = 1, 2
_WRONG_ARGUMENT = (OptionError, NotADatasetError, MissingSourceError)  # errors of exit code 2
_INTERRUPTS = (KeyboardInterrupt, click.Abort)
_COMPLETION_HELP = """\b
Tab completion:
  bash: eval "$(_WDS_TOOLS_COMPLETE=bash_source wds-tools)" in ~/.bashrc
  zsh:  eval "$(_WDS_TOOLS_COMPLETE=zsh_source wds-tools)" in ~/.zshrc"""


class _Lines(logging.Formatter):
    """Begins each message with its level, except information.

    Debug output also names its process, as worker processes write too.
    """

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.INFO:
            return super().format(record)
        process = f" {record.processName}" if record.levelno == logging.DEBUG else ""
        return f"{record.levelname.lower()}{process}: {super().format(record)}"


class _OrderedGroup(click.Group):
    """Lists the commands in the order in which they were added; click sorts them by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


def _print_version(context: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        from wds_tools.inspection.machine import active_decoder

        click.echo(f"wds-tools {__version__} ({active_decoder()})")
        context.exit()


@click.group(
    cls=_OrderedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example("wds-tools pack photos/ shards/photos", "wds-tools info shards/photos") + "\n\n" + _COMPLETION_HELP,
)
@click.option("--debug", is_flag=True, help="Show debug messages, and the full traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and whether compiled code decodes JPEGs.",
)
@click.pass_obj
def cli(run: Run, debug: bool) -> None:
    """Pack an image dataset into shards once, and stream it into PyTorch training."""
    run.debug = debug
    logger = logging.getLogger("wds_tools")
    click.get_current_context().call_on_close(partial(logger.setLevel, logger.level))
    logger.setLevel(logging.DEBUG if debug else logging.INFO)


for _command in (
    *(create.pack, create.append, create.reshard, shards.index),
    *(transfer.merge, transfer.copy, transfer.unpack, transfer.export, shards.add_fields),
    *(
        inspect.info,
        inspect.verify,
        shards.reseal,
        inspect.sample,
        inspect.plan,
        measure.tune,
        measure.bench,
        serve.serve,
        serve.view,
        serve.token,
        runs.runs,
        cache.cache,
        inspect.doctor,
    ),
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for file names that stdout cannot encode
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    run = Run()
    if instruction := os.environ.get(COMPLETE):
        sys.exit(_complete(instruction))
    try:
        # Not cli.main(): it exits with 1, our code for damage, if the output is closed.
        args = sys.argv[1:] if arguments is None else list(arguments)
        with cli.make_context("wds-tools", args, obj=run) as context:
            code = cli.invoke(context) or 0
        if sys.stdout is not None:  # None if the parent process has closed it
            sys.stdout.flush()
    except BaseException as error:
        if is_interrupt := isinstance(error, _INTERRUPTS):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C would hide the message
        code = _report_error(error, run)
        if is_interrupt:
            signal.signal(signal.SIGINT, lambda *_: os._exit(code))  # another Ctrl-C ends what the exit waits for
    _discard_unwritable_output()
    sys.exit(code)


def _discard_unwritable_output() -> None:
    """Flush the streams, or redirect them if that fails: some releases of Python would exit with code 120."""
    for stream, descriptor in ((sys.stdout, STDOUT), (sys.stderr, STDERR)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _complete(instruction: str) -> int:
    """Print what a shell asks for: its completion script, or the matching words. Return the exit code.

    ``cli.main()`` would do the same: https://click.palletsprojects.com/en/stable/shell-completion/
    """
    from click.shell_completion import shell_complete

    if shell_complete(cli, {"obj": Run()}, "wds-tools", COMPLETE, instruction) == 0:
        return 0
    click.echo(f"error: {COMPLETE}={instruction!r}; allowed are bash_source, zsh_source and fish_source", err=True)
    return 2


def _report_error(error: BaseException, run: Run) -> int:
    """Print an error in one line; return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError) and _stdout_is_closed():
        return 141
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    message, code = _explain(error, run)
    with suppress(OSError):  # the exit code is right even if stderr cannot be written
        if run.debug:
            traceback.print_exception(error)
        click.echo(f"error: {one_line(message)}", err=True)
    return code


def _explain(error: BaseException, run: Run) -> tuple[str, int]:
    """Return the message and the exit code for an error."""
    if isinstance(error, _INTERRUPTS):
        return "; ".join(filter(None, ("interrupted", run.after_interrupt))), 130
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        return f"ended by {signal.Signals(error.code - 128).name}", error.code  # bench turns signals into SystemExit
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "wds-tools"
        message = error.format_message()
        end = "" if message.endswith((".", "?", "?)")) else "."
        return f"{message}{end} See `{path} --help`.", 2
    if isinstance(error, WdsToolsError):
        return str(error), 2 if isinstance(error, _WRONG_ARGUMENT) else run.failure_code
    if message := _system_message(error):
        return message, run.failure_code
    hint = "" if run.debug else "; run `wds-tools --debug ...` for the traceback"
    return f"unexpected {type(error).__name__}: {error}{hint}", 70


def _system_message(error: BaseException) -> str:
    """Return the message of a full disk and the like, or of a missing package; "" for any other error."""
    if isinstance(error, ModuleNotFoundError):
        return missing_package("this command", error)
    if not isinstance(error, OSError) or error.errno is None or isinstance(error, ConnectionError):
        return ""
    return f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}"


def _stdout_is_closed() -> bool:
    """Return whether the reader of stdout has closed it; a broken pipe may also be one to a worker."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
