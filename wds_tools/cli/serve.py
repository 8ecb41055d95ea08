"""Commands of the service: `serve`, `view` for one dataset, and `token` for the tokens."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from wds_tools.cli.common import (
    LOCAL_PATH,
    PATH_OR_URL,
    Run,
    as_json_option,
    example,
    source_given,
    source_options,
    storage_option,
)

if TYPE_CHECKING:
    from wds_tools.options import RemoteOptions
    from wds_tools.service.config import Started

_DEFAULT_PORT = 8080


@click.command(
    epilog=example(
        "wds-tools serve shards/",
        "wds-tools serve /data --host 0.0.0.0 --token-file tokens.json --tls-cert cert.pem --tls-key key.pem",
    )
)
@click.argument("roots", nargs=-1, metavar="[ROOT]...", type=LOCAL_PATH)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; all but loopback addresses need --token-file.",
)
@click.option("--port", type=int, default=_DEFAULT_PORT, show_default=True, help="TCP port; 0 chooses a free one.")
@click.option("--token-file", type=LOCAL_PATH, metavar="FILE", help="Tokens; see `wds-tools token`.")
@click.option("--tls-cert", type=LOCAL_PATH, metavar="FILE", help="Certificate and its chain, in PEM format.")
@click.option("--tls-key", type=LOCAL_PATH, metavar="FILE", help="Private key of the certificate, in PEM format.")
@click.option(
    "--processes", type=int, default=1, show_default=True, help="Processes that share the port; useful with TLS."
)
@click.option(
    "--allow-host",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="Another name that clients may use for this machine. Repeatable.",
)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="URL",
    help="Dataset at a URL, such as s3://bucket/photos, that is served through a cache. Repeatable.",
)
@click.option(
    "--access-log",
    type=LOCAL_PATH,
    metavar="FILE",
    help="Append a line of JSON for each request to this file; - for standard output.",
)
@click.option("--cache-dir", type=LOCAL_PATH, metavar="FOLDER", help="Cache folder; by default the one loaders use.")
@click.option("--cache-bytes", metavar="SIZE", help="Size limit of the cache of upstreams; by default 20GB.")
@storage_option
@click.pass_obj
def serve(
    run: Run,
    /,
    roots: tuple[Path, ...],
    upstreams: tuple[str, ...],
    cache_dir: Path | None,
    cache_bytes: str | None,
    **given: Any,
) -> None:
    """Serve all datasets below the ROOTs over HTTP.

    Loaders on other machines read http://HOST:PORT/data/NAME, where NAME is the path of the dataset
    below its ROOT. New datasets are found within a few seconds. A browser shows the datasets and the
    running trainings at http://HOST:PORT/. The list of datasets for programs is at /api/datasets,
    metrics for Prometheus are at /metrics.
    """
    from wds_tools.format.manifest import MANIFEST_NAME
    from wds_tools.options import RemoteOptions
    from wds_tools.service.config import ServeOptions, is_loopback
    from wds_tools.wording import counted

    check_installed()
    from wds_tools.service.server import serve as run_server

    if not upstreams and (cache_bytes is not None or run.storage_options is not None):
        option = "--cache-bytes" if cache_bytes is not None else "--storage-option"
        raise click.UsageError(f"{option} requires --upstream URL.", click.get_current_context())
    remote = RemoteOptions.of(cache_dir, cache_bytes, storage_options=run.storage_options)
    options = ServeOptions(roots=roots, upstreams=upstreams, remote=remote, **given)

    def report(started: Started) -> None:
        where = ", ".join([*map(str, roots), *(url.partition("?")[0] for url in upstreams)])
        click.echo(f"serving {counted(started.datasets, 'dataset')} below {where} at {started.url}")
        if not started.datasets and roots:
            click.echo(
                f"warning: no dataset was found below {', '.join(map(str, roots))}. A dataset is a folder with "
                f"{MANIFEST_NAME}: write one with `wds-tools pack IMAGES DATASET`, or with `wds-tools index` for tar "
                "shards; it is served without a restart if it appears below these folders",
                err=True,
            )
        if options.tls_cert is None and not is_loopback(options.host):
            click.echo("warning: without --tls-cert, tokens and data cross the network unencrypted", err=True)

    run_server(options, on_start=report)
    click.echo("stopped")


@click.command(
    epilog=example("wds-tools view shards/photos", "wds-tools view s3://bucket/photos", "wds-tools view photos/")
)
@click.argument("dataset", type=PATH_OR_URL)
@click.option("--port", type=int, default=0, help="TCP port; by default a free one.")
@click.option("--browser/--no-browser", default=True, help="Open the browser, or only print the address.")
@click.option(
    "--cache-dir", type=LOCAL_PATH, metavar="FOLDER", help="Cache folder for a URL; by default the one loaders use."
)
@click.option(
    "--first",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Number of images to show of a source that is not packed.",
)
@source_options
@storage_option
@click.pass_obj
def view(
    run: Run, /, dataset: str, port: int, browser: bool, cache_dir: Path | None, first: int, **source: Any
) -> None:
    """Look at a DATASET in the browser.

    It shows samples, classes, fields and checksums. A dataset whose manifest is
    damaged is an error, as it is for loaders. Only programs on this machine can connect. Ctrl-C
    ends it.

    DATASET can also be a source that is not packed: anything that `wds-tools pack` reads. Its first
    images are then packed into a temporary folder, which is removed at the end. --first, --from,
    --column, --label and the options after them are for such a source.
    """
    from wds_tools.inspection.unpacked import as_dataset
    from wds_tools.options import RemoteOptions

    check_installed()
    remote = RemoteOptions.of(cache_dir, storage_options=run.storage_options)
    with as_dataset(dataset, source_given(**source), first=first, remote=remote) as shown:
        if shown.note:
            click.echo(shown.note)
        _view(shown.dataset, dataset, remote, port=port, browser=browser)
    click.echo("stopped")


def _view(dataset: str, name: str, remote: RemoteOptions, *, port: int, browser: bool) -> None:
    """Show a dataset until Ctrl-C; ``name`` is what the user has named."""
    from wds_tools.errors import OptionError
    from wds_tools.format.manifest import MANIFEST_NAME
    from wds_tools.reading.opening import open_shards
    from wds_tools.service.config import ServeOptions
    from wds_tools.service.server import serve as run_server

    if not open_shards(dataset, remote=remote).has_manifest:
        raise OptionError(f"{dataset} is a pattern of shards: name their folder, which has the {MANIFEST_NAME}")
    folder = dataset.rstrip("/").removesuffix(f"/{MANIFEST_NAME}")
    is_url, shown = "://" in folder, folder if dataset == name else name
    roots, upstreams = ((), (folder,)) if is_url else ((Path(folder),), ())
    options = ServeOptions(roots=roots, port=port, upstreams=upstreams, remote=remote)

    def report(started: Started) -> None:
        url = f"{started.url}datasets/{quote(_dataset_name(folder))}" if started.datasets else started.url
        click.echo(f"{shown.partition('?')[0]} is shown at {url}; Ctrl-C ends it")
        if browser:
            _open_browser(url)

    run_server(options, on_start=report)


def _dataset_name(folder: str) -> str:
    """Return the name that the service gives a dataset which is served alone."""
    if "://" in folder:
        return folder.partition("?")[0].rstrip("/").rpartition("/")[2]
    return Path(folder).resolve().name or "dataset"


def _open_browser(url: str) -> None:
    """Open a browser, if this machine has a screen: one in the terminal would take it from this program."""
    import os
    import sys
    import threading
    import webbrowser

    if sys.platform == "linux" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def check_installed() -> None:
    """Raise an OptionError if a package that the service needs is not installed."""
    from importlib.util import find_spec

    from wds_tools.errors import OptionError

    for package in ("aiohttp", "jinja2", "prometheus_client"):
        if find_spec(package) is None:
            raise OptionError(
                f'`serve` needs the package {package}, which is not installed: pip install "wds-tools[serve]"'
            )


_token_file = click.option(
    "--token-file", type=LOCAL_PATH, required=True, metavar="FILE", help="File with the tokens, of mode 0600."
)


@click.group(epilog=example("wds-tools token create --token-file tokens.json --name cluster --expires 90d"))
def token() -> None:
    """Create, list and revoke the tokens of `wds-tools serve`."""


@token.command(
    epilog=example("wds-tools token create --token-file tokens.json --name ann --dataset 'imagenet*' --expires 90d")
)
@_token_file
@click.option("--name", default="", help="What or whom the token is for.")
@click.option(
    "--dataset",
    "datasets",
    multiple=True,
    metavar="PATTERN",
    help="Datasets that it is for, such as 'imagenet*'; by default all. Repeatable.",
)
@click.option("--expires", metavar="TIME", help="Time after which it is invalid, such as 12h or 90d; by default never.")
@as_json_option
def create(token_file: Path, name: str, datasets: tuple[str, ...], expires: str | None, as_json: bool) -> None:
    """Create a token, and print it. It is shown only now: the file contains its SHA-256.

    A loader sends it if the environment variable WDS_TOOLS_TOKEN is set to
    http://HOST:PORT=TOKEN.
    """
    from wds_tools.service.tokens import create_token, parse_duration

    seconds = None if expires is None else parse_duration(expires)
    created, secret = create_token(token_file, name=name, datasets=datasets or ("*",), valid_seconds=seconds)
    if as_json:
        click.echo(json.dumps({"id": created.id, "token": secret, "expires": created.expires}))
        return
    click.echo(secret)
    revoke_command = f"wds-tools token revoke {created.id} --token-file {shlex.quote(str(token_file))}"
    click.echo(f"created token {created.id}; revoke it with `{revoke_command}`", err=True)


@token.command("list", epilog=example("wds-tools token list --token-file tokens.json"))
@_token_file
@as_json_option
def list_(token_file: Path, as_json: bool) -> None:
    """List the tokens: id, name, datasets and expiry. Tokens themselves are not stored."""
    from wds_tools.service.tokens import read_tokens
    from wds_tools.wording import counted

    tokens = read_tokens(token_file)
    if as_json:
        rows = [
            {"id": t.id, "name": t.name, "datasets": list(t.datasets), "created": t.created, "expires": t.expires}
            for t in tokens
        ]
        click.echo(json.dumps({"tokens": rows}, indent=2))
        return
    for known in tokens:
        click.echo(f"{known.id}  {_expiry(known.expires):<22}  {', '.join(known.datasets)}  {known.name}".rstrip())
    click.echo(f"{token_file}: {counted(len(tokens), 'token')}")


@token.command(epilog=example("wds-tools token revoke 3fa1b2c4 --token-file tokens.json"))
@click.argument("token_id", metavar="ID")
@_token_file
def revoke(token_id: str, token_file: Path) -> None:
    """Revoke a token: a running service refuses it within 2 seconds."""
    from wds_tools.service.tokens import revoke_token

    revoked = revoke_token(token_file, token_id)
    click.echo(f"revoked token {revoked.id}" + (f" ({revoked.name})" if revoked.name else ""))


def _expiry(expires: int | None) -> str:
    import time
    from datetime import datetime

    if expires is None:
        return "never expires"
    day = datetime.fromtimestamp(expires).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{'expired' if expires <= time.time() else 'until'} {day}"
