"""Commands for the cache of remote blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wds_tools.cli.common import LOCAL_PATH, as_json_option, example

if TYPE_CHECKING:
    from wds_tools.storage.cache.blocks import CachedDataset

_folder = click.option(
    "--cache-dir",
    type=LOCAL_PATH,
    metavar="FOLDER",
    help="Folder of the cache. Default: WDS_TOOLS_CACHE_DIR, or wds_tools in the cache folder of the user.",
)
_urls = click.argument("urls", nargs=-1, metavar="[URL]...")


@click.group(epilog=example("wds-tools cache list"))
def cache() -> None:
    """Show, check or empty the local cache of remote datasets.

    Loaders that read a URL keep blocks of its shards in this cache. It may be emptied at any time,
    even while loaders use it: they fetch the blocks again.
    """


@cache.command("list", epilog=example("wds-tools cache list"))
@_folder
@as_json_option
def list_(cache_dir: Path | None, as_json: bool) -> None:
    """List the cached datasets, with their size and their last use."""
    from datetime import datetime

    from wds_tools.wording import counted, human_bytes

    folder, datasets = _find(cache_dir, ())
    if as_json:
        rows = [
            {
                "url": d.url,
                "blocks": d.blocks,
                "bytes": d.bytes,
                "last_use": round(d.last_use, 3) if d.blocks else None,
            }
            for d in datasets
        ]
        click.echo(json.dumps({"cache": str(folder), "datasets": rows}, indent=2))
        return
    for dataset in datasets:
        last_use = datetime.fromtimestamp(dataset.last_use).astimezone()
        used = last_use.strftime("last used %Y-%m-%d %H:%M") if dataset.blocks else "all removed to make space"
        size = human_bytes(dataset.bytes)
        click.echo(f"{size:>10}  {counted(dataset.blocks, 'block'):>14}  {used}  {dataset.url}")
    total = human_bytes(sum(dataset.bytes for dataset in datasets))
    click.echo(f"{folder}: {counted(len(datasets), 'dataset')}, {total}")


@cache.command(epilog=example("wds-tools cache verify s3://bucket/train"))
@_urls
@_folder
def verify(urls: tuple[str, ...], cache_dir: Path | None) -> int:
    """Check cached blocks and remove damaged ones, by default of all datasets.

    The exit code is 1 if a block was damaged.
    """
    from tqdm import tqdm

    from wds_tools.storage.cache.blocks import damaged_blocks
    from wds_tools.terminal import shows_progress
    from wds_tools.wording import counted

    folder, datasets = _find(cache_dir, urls)
    damaged, checked = [], 0
    with tqdm(total=sum(d.blocks for d in datasets), unit=" blocks", disable=not shows_progress()) as bar:
        for dataset in datasets:
            for path, is_damaged in damaged_blocks(dataset):
                checked += 1
                bar.update()
                if is_damaged:
                    path.unlink(missing_ok=True)
                    damaged.append(path)
    for path in damaged:
        click.echo(f"damaged, removed: {path}")
    click.echo(f"{folder}: {counted(checked, 'block')} checked, {len(damaged):,} damaged")
    return 1 if damaged else 0


@cache.command(epilog=example("wds-tools cache clear s3://bucket/train"))
@_urls
@_folder
def clear(urls: tuple[str, ...], cache_dir: Path | None) -> None:
    """Remove cached blocks, by default of all datasets."""
    from wds_tools.storage.cache.blocks import remove_cached
    from wds_tools.wording import counted, human_bytes

    folder, datasets = _find(cache_dir, urls)
    size = human_bytes(sum(dataset.bytes for dataset in datasets))
    remove_cached(folder, datasets)
    click.echo(f"{folder}: removed {counted(len(datasets), 'dataset')}, {size}")


def _find(cache_dir: Path | None, urls: tuple[str, ...]) -> tuple[Path, list[CachedDataset]]:
    """Return the folder of the cache, and the datasets with these URLs in it; all of them without URLs."""
    from wds_tools.errors import OptionError
    from wds_tools.options import RemoteOptions
    from wds_tools.storage.cache.blocks import cached_datasets

    folder = RemoteOptions.of(cache_dir).cache_folder
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is not a folder; the cache of loaders is in the folder that is their cache_dir")
    datasets = cached_datasets(folder)
    cached = [dataset.url for dataset in datasets]
    for url in urls:
        if url.rstrip("/") not in cached:
            raise OptionError(f"{url} is not in the cache {folder}; it has {', '.join(cached) or 'no datasets'}")
    requested = {url.rstrip("/") for url in urls}
    return folder, [dataset for dataset in datasets if not urls or dataset.url in requested]
