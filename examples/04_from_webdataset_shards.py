"""Stream shards that another tool wrote: index them once in place, then load them like any other dataset.

    python examples/04_from_webdataset_shards.py

This example first writes some shards with webdataset's ShardWriter. Indexing does not change shards: it writes a small
file next to each. ``wds-tools index 'shards/old/train-{000000..000003}.tar'`` does the same in a shell.
"""

import argparse
from pathlib import Path

import webdataset

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def write_shards(images: Path, folder: Path) -> None:
    """Write plain WebDataset shards, without index and manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = sorted(path.name for path in images.iterdir())
    with webdataset.ShardWriter(f"{folder}/train-%06d.tar", maxcount=100, verbose=0) as writer:
        for number, path in enumerate(sorted(images.glob("*/*.jpg"))):
            name = path.parent.name
            sample = {"__key__": f"{number:06}", "jpg": path.read_bytes(), "cls": classes.index(name), "txt": name}
            writer.write(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description="Index shards of another tool and stream them.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "shards/old", help="folder for the shards")
    args = parser.parse_args()
    write_shards(ROOT / "shards/sample/images", args.folder)

    manifest = wt.index_shards([f"{args.folder}/train-{{000000..000003}}.tar"])
    print(
        f"indexed {len(manifest.shards)} shards with {manifest.samples} samples; fields: {', '.join(manifest.fields)}"
    )

    # These shards are sorted by class. shuffle=True chooses a window that mixes them well.
    with wt.make_loader(
        args.folder, batch_size=8, view=wt.Resize((96, 96)), shuffle=True, fields=("image", "label", "txt")
    ) as loader:
        for number, (images, labels, texts) in enumerate(loader):
            if number < 3:
                print(list(images.shape), labels.tolist(), " ".join(texts))
        print(f"{len(loader)} batches of 8 in an epoch")


if __name__ == "__main__":
    main()
