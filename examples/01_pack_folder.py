"""Pack a folder of images into shards, and look at what was made.

    python examples/01_pack_folder.py                                 # the sample photographs
    python examples/01_pack_folder.py ~/imagenet/train shards/imagenet --shard-bytes 1GB

The folder holds ``<class>/**/*.{jpg,jpeg,png,webp}``, or images alone, which then get no labels.
``wds-tools pack SRC DST`` does the same from the shell. Run it twice: the second run finds its work done.
"""

import argparse
from pathlib import Path

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack a folder of images into shards.")
    parser.add_argument("src", nargs="?", type=Path, default=ROOT / "shards/sample/images", help="image folder")
    parser.add_argument("dst", nargs="?", type=Path, default=ROOT / "shards/photos", help="where the shards go")
    parser.add_argument("--shard-bytes", default="1MB", help="largest shard (default: %(default)s; 1GB is usual)")
    args = parser.parse_args()

    report = wt.pack(args.src, args.dst, shard_bytes=args.shard_bytes)

    manifest = report.manifest
    print(f"{report.packed} images of {len(manifest.classes)} classes, {manifest.bytes / 1e6:.2f} MB, in {report.dst}:")
    for shard in manifest.shards:
        print(f"  {shard.name}  {shard.samples:4} samples  {shard.bytes / 1e6:6.2f} MB  index {shard.index}")
    print("fields:", ", ".join(f"{name} ({count})" for name, count in manifest.fields.items()))
    print("classes:", ", ".join(f"{number} {name}" for number, name in enumerate(manifest.classes)))
    for skip in report.skipped:  # they are listed in skipped.jsonl too
        print(f"skipped {skip.path}: {skip.reason}")
    made = len(manifest.shards) - report.kept
    print(f"{made} shards made, {report.kept} kept from an earlier run, in {report.seconds:.1f} s")


if __name__ == "__main__":
    main()
