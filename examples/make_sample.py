"""Write the sample images in ``shards/sample/images`` from a few freely licensed photographs.

Each class is one photograph, and each image of a class is a random crop of it that contains the photograph's subject.
Sizes, JPEG qualities, chroma subsampling, progressive scans, greyscale and a few PNGs vary on purpose, so that the set
has the kinds of files that a real folder has.

The photographs are in two packages. Unpack these and give the folders:

* Debian package ``lomiri-wallpapers-16.04`` (version 20.04.0-2), folder ``usr/share/backgrounds``
  (``apt-get download`` it, then ``dpkg -x``);
* the ``scikit-image`` wheel (version 0.26.0), folder ``skimage/data``
  (``pip download --no-deps`` it, then unzip).

``shards/README.md`` gives the author and licence of every photograph.

The output depends only on the photographs, ``--seed`` and the codecs in Pillow: the same Pillow build writes the same
bytes every time. The committed files were written by Pillow 13.0.0 (libjpeg-turbo 3.2.0, the x86-64 Linux wheel).

    python examples/make_sample.py FOLDER_WITH_WALLPAPERS FOLDER_WITH_SKIMAGE_DATA
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "shards" / "sample" / "images"
MIN_SIDE, MAX_SIDE = 160, 500
# Shrinking the wallpapers (up to 5312 pixels wide) once is much cheaper than for every crop, and every crop is still
# larger than the image made from it.
WORK_SIDE = 1600


@dataclass(frozen=True)
class Photo:
    """A source photograph, and the point that every crop contains, as fractions of width and height."""

    file: str
    focus: tuple[float, float]


PHOTOS = {
    "astronaut": Photo("astronaut.png", (0.44, 0.30)),
    "brushes": Photo("Picture_1A_by_freespace.jpg", (0.45, 0.40)),
    "cat": Photo("chelsea.png", (0.52, 0.42)),
    "coffee": Photo("coffee.png", (0.50, 0.38)),
    "dandelion": Photo("seeding_by_Clements_Engelhardt.jpg", (0.29, 0.30)),
    "fig": Photo("Picture_0B_by_freespace.jpg", (0.59, 0.53)),
    "mountain": Photo("picosdeeuropa_by_Aitzol_Berasategi.jpg", (0.62, 0.42)),
    "rocket": Photo("rocket.jpg", (0.50, 0.50)),
}

# PNGs of photographs are several times as large as JPEGs, so each class has only one in colour and one other.
PNG_COLOUR_INDEX, PNG_OTHER_INDEX = 7, 23
PNG_OTHER_MODES = ("P", "RGBA", "L")


def find_photo(name: str, folders: Sequence[Path]) -> Path:
    """Return the first file with this name in ``folders`` and their subfolders."""
    for folder in folders:
        for path in sorted(folder.rglob(name)):
            return path
    raise FileNotFoundError(f"{name} is in none of: {', '.join(map(str, folders))}")


def open_photo(path: Path) -> Image.Image:
    """Read a photograph as RGB, at most WORK_SIDE pixels per side, without metadata (PNGs would keep it)."""
    with Image.open(path) as file:
        file.thumbnail((WORK_SIDE, WORK_SIDE), Image.Resampling.LANCZOS)
        image = file.convert("RGB")
    image.info.clear()
    return image


def draw_side(rng: random.Random, limit: int) -> int:
    """Draw a width or height. The third power makes most of them small, so that the set is small."""
    return round(MIN_SIDE + (limit - MIN_SIDE) * rng.random() ** 3)


def crop(photo: Image.Image, focus: tuple[float, float], limit: int, rng: random.Random) -> Image.Image:
    """Cut a random region around ``focus`` and shrink it to a random size of at most ``limit`` pixels per side."""
    size = (draw_side(rng, min(limit, photo.width)), draw_side(rng, min(limit, photo.height)))
    fit = min(whole / side for whole, side in zip(photo.size, size, strict=True))
    # Not below 1: enlarging a region would only add blur.
    scale = max(1.0, fit * rng.uniform(0.55, 1.0))
    region = [min(float(whole), side * scale) for whole, side in zip(photo.size, size, strict=True)]
    origin = [
        min(max(at * whole - part * rng.uniform(0.25, 0.75), 0.0), whole - part)
        for at, whole, part in zip(focus, photo.size, region, strict=True)
    ]
    box = (origin[0], origin[1], origin[0] + region[0], origin[1] + region[1])
    return photo.resize(size, Image.Resampling.LANCZOS, box=box)


def save_png(image: Image.Image, path: Path, mode: str) -> None:
    """Write an image as a PNG with the given Pillow mode."""
    if mode == "RGBA":
        image.putalpha(Image.radial_gradient("L").resize(image.size).point(lambda value: 255 - value))
    elif mode == "P":
        image = image.quantize(colors=128, method=Image.Quantize.MEDIANCUT)
    else:
        image = image.convert(mode)
    image.save(path, optimize=True)


def save_jpeg(image: Image.Image, path: Path, rng: random.Random) -> None:
    """Write an image as a JPEG with random quality, subsampling and scan order, rarely in greyscale."""
    quality = rng.randint(50, 95)
    subsampling = "4:4:4" if rng.random() < 0.3 else "4:2:0"
    progressive = rng.random() < 0.2
    if rng.random() < 0.08:
        image = image.convert("L")
    image.save(path, quality=quality, subsampling=subsampling, progressive=progressive, optimize=True)


def write_class(name: str, number: int, photo: Image.Image, count: int, seed: int, out: Path) -> int:
    """Write ``count`` crops of a photograph to ``out/name``; return their total size in bytes."""
    # The name is part of the seed, so a class does not change when another one is added or removed.
    rng = random.Random(f"{seed}/{name}")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for index in range(count):
        if index in (PNG_COLOUR_INDEX, PNG_OTHER_INDEX):
            colour = index == PNG_COLOUR_INDEX
            mode = "RGB" if colour else PNG_OTHER_MODES[number % len(PNG_OTHER_MODES)]
            path = folder / f"{index:03}.png"
            save_png(crop(photo, PHOTOS[name].focus, MIN_SIDE + 20, rng), path, mode)
        else:
            path = folder / f"{index:03}.jpg"
            save_jpeg(crop(photo, PHOTOS[name].focus, MAX_SIDE, rng), path, rng)
        total += path.stat().st_size
    return total


def main(argv: Sequence[str] | None = None) -> None:
    """Write the set that the command line describes."""
    parser = argparse.ArgumentParser(description="Write the sample images from freely licensed photographs.")
    parser.add_argument("sources", nargs="+", type=Path, help="folders that are searched for the source photographs")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder for the class folders")
    parser.add_argument("--count", type=int, default=50, help="images per class (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice")
    args = parser.parse_args(argv)
    try:
        paths = {name: find_photo(photo.file, args.sources) for name, photo in PHOTOS.items()}
    except FileNotFoundError as error:
        parser.error(str(error))
    total = sum(
        write_class(name, number, open_photo(path), args.count, args.seed, args.out)
        for number, (name, path) in enumerate(paths.items())
    )
    count = len(paths) * args.count
    print(f"wrote {count} images of {len(paths)} classes, {total / 1e6:.2f} MB, to {args.out}")


if __name__ == "__main__":
    main()
