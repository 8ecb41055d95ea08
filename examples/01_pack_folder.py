"""Pack a folder of images into shards, and show the result.

    python examples/01_pack_folder.py                                 # the sample images
    python examples/01_pack_folder.py ~/imagenet/train shards/imagenet --shard-bytes 1GB

The folder has images in ``<class>/**``, or images without class folders, which then get no labels.
``wds-tools pack SRC DST`` does the same in a shell. A second run has nothing to do.
"""

import argparse
from pathlib import Path

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack a folder of images into shards.")
    parser.add_argument("src", nargs="?", type=Path, default=ROOT / "shards/sample/images", help="image folder")
    parser.add_argument("dst", nargs="?", type=Path, default=ROOT / "shards/photos", help="folder for the shards")
    parser.add_argument("--shard-bytes", default="1MB", help="largest shard (default: %(default)s; 1GB is usual)")
    args = parser.parse_args()

    report = wt.pack(args.src, args.dst, shard_bytes=args.shard_bytes)

    manifest = report.manifest
    print(f"{report.packed} images of {len(manifest.classes)} classes, {manifest.bytes / 1e6:.2f} MB, in {report.dst}:")
    for shard in manifest.shards:
        print(f"  {shard.name}  {shard.samples:4} samples  {shard.bytes / 1e6:6.2f} MB  index {shard.index}")
    print("fields:", ", ".join(f"{name} ({count})" for name, count in manifest.fields.items()))
    print("classes:", ", ".join(f"{number} {name}" for number, name in enumerate(manifest.classes)))
    for skip in report.skipped:  # also listed in skipped.jsonl
        print(f"skipped {skip.path}: {skip.reason}")
    written = len(manifest.shards) - report.kept
    print(f"{written} shards written, {report.kept} kept from an earlier run, in {report.seconds:.1f} s")


if __name__ == "__main__":
    main()
