"""Stream shards that another tool wrote: index them once, where they are, and load them like any other dataset.

    python examples/04_from_webdataset_shards.py

The shards are written here with webdataset's ShardWriter, to have some. Yours stay as they are too: the index is a
small file beside each shard. ``wds-tools index 'shards/old/train-{000000..000003}.tar'`` does it from the shell.
"""

import argparse
from pathlib import Path

import webdataset

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def write_shards(images: Path, folder: Path) -> None:
    """Write plain WebDataset shards, as many people have them: no index, no manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = sorted(path.name for path in images.iterdir())
    with webdataset.ShardWriter(f"{folder}/train-%06d.tar", maxcount=100, verbose=0) as writer:
        for number, path in enumerate(sorted(images.glob("*/*.jpg"))):
            name = path.parent.name
            sample = {"__key__": f"{number:06}", "jpg": path.read_bytes(), "cls": classes.index(name), "txt": name}
            writer.write(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description="Index shards of another tool and stream them.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "shards/old", help="where the shards go")
    args = parser.parse_args()
    write_shards(ROOT / "shards/sample/images", args.folder)

    manifest = wt.index_shards([f"{args.folder}/train-{{000000..000003}}.tar"])
    print(
        f"indexed {len(manifest.shards)} shards with {manifest.samples} samples; fields: {', '.join(manifest.fields)}"
    )

    # These shards are sorted by class, so the window of the shuffle matters: True takes one that mixes them well.
    with wt.make_loader(
        args.folder, batch_size=8, view=wt.Resize((96, 96)), shuffle=True, fields=("image", "label", "txt")
    ) as loader:
        for number, (images, labels, texts) in enumerate(loader):
            if number < 3:
                print(list(images.shape), labels.tolist(), " ".join(texts))
        print(f"{len(loader)} batches of 8 in an epoch")


if __name__ == "__main__":
    main()
