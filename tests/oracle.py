"""JPEGs of every coding, each with a number of its own, and what libjpeg-turbo makes of them.

Run as a program it compares the planes of our decoder with those of libjpeg-turbo, to the bit, in a process of its own:
python oracle.py MODULE.so FOLDER_OF_PHOTOS FIRST_CASE CASES
"""

from __future__ import annotations

import ctypes
import io
import random
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image
from turbo import Coding, Plane, Script, decode, encode, library

Array = NDArray[np.uint8]

EVEN_FACTORS = [  # of the first component and of the two others
    ((1, 1), (1, 1)),
    ((2, 1), (1, 1)),
    ((1, 2), (1, 1)),
    ((2, 2), (1, 1)),
    ((2, 2), (1, 2)),
    ((2, 2), (2, 1)),
    ((2, 1), (2, 1)),
    ((1, 2), (1, 2)),
    ((4, 1), (1, 1)),
    ((1, 4), (1, 1)),
    ((4, 2), (1, 1)),
    ((2, 4), (1, 1)),
    ((4, 1), (2, 1)),
    ((3, 1), (1, 1)),
    ((1, 3), (1, 1)),
]
UNLIKE_FACTORS = [
    ((2, 2), (1, 2), (2, 1)),
    ((2, 2), (2, 1), (1, 1)),
    ((1, 1), (2, 2), (1, 1)),
    ((1, 1), (1, 1), (2, 2)),
    ((2, 1), (1, 2), (1, 2)),
]


def read_photos(folder: Path) -> list[Array]:
    """Return a few photographs."""
    paths = sorted(folder.glob("*/*.jpg"))
    return [np.asarray(Image.open(path).convert("RGB")) for path in paths[:: max(1, len(paths) // 12)]]


def content(photos: Sequence[Array], height: int, width: int, rng: random.Random) -> Array:
    """Return pixels [height][width][3] of some kind; each of the three may become anything."""
    arrays = np.random.default_rng(rng.randrange(1 << 30))
    kind = rng.choice(("photo", "photo", "photo", "noise", "flat", "gradient", "edges", "sparks"))
    if kind == "photo":
        image = Image.fromarray(rng.choice(photos))
        share = rng.choice((1, 2, 4, 8))
        w, h = max(1, image.width // share), max(1, image.height // share)
        x, y = rng.randint(0, image.width - w), rng.randint(0, image.height - h)
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, (x, y, x + w, y + h)))
    if kind == "noise":
        low = rng.randrange(256)
        return arrays.integers(low, rng.randint(low, 255) + 1, (height, width, 3), np.uint8)
    if kind == "flat":
        return np.full((height, width, 3), arrays.integers(0, 256, 3), np.uint8)
    y, x = np.mgrid[:height, :width]
    if kind == "gradient":
        steps = arrays.integers(-12, 13, (2, 3)) / rng.choice((1, 4, 16))
        return np.clip(y[..., None] * steps[0] + x[..., None] * steps[1] + 128, 0, 255).astype(np.uint8)
    if kind == "edges":
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        return np.stack([255 * ((y // a + x // (b + c)) & 1) for c in range(3)], axis=2).astype(np.uint8)
    return 255 * (arrays.random((height, width, 3)) < rng.choice((0.01, 0.5, 0.99))).astype(np.uint8)


def groups_of(components: list[int], rng: random.Random) -> list[tuple[int, ...]]:
    """Put components into scans, in any order of the scans."""
    groups: list[list[int]] = []
    for component in components:
        if groups and rng.random() < 0.5:
            rng.choice(groups).append(component)
        else:
            groups.append([component])
    rng.shuffle(groups)
    return [tuple(sorted(group)) for group in groups]


def bands_of(rng: random.Random) -> list[tuple[int, int]]:
    """Cut the coefficients 1 to 63 into bands."""
    cuts = sorted(rng.sample(range(2, 64), rng.choice((0, 0, 1, 1, 2, 5))))
    return [(first, last - 1) for first, last in zip([1, *cuts], [*cuts, 64], strict=True)]


def progressive_script(count: int, rng: random.Random) -> Script:
    """Draw scans that bring every bit of every coefficient (T.81, G.1.1.1)."""
    low = rng.choice((0, 0, 1, 2, 5))
    dc: Script = [(group, 0, 0, 0, low) for group in groups_of(list(range(count)), rng)]
    for bit in range(low - 1, -1, -1):
        dc += [(group, 0, 0, bit + 1, bit) for group in groups_of(list(range(count)), rng)]
    queues: list[Script] = [dc]
    for component in range(count):
        low = rng.choice((0, 0, 1, 2, 4))
        scans: Script = [((component,), *band, 0, low) for band in bands_of(rng)]
        for bit in range(low - 1, -1, -1):
            scans += [((component,), *band, bit + 1, bit) for band in bands_of(rng)]
        queues.append(scans)
    # What comes first of the DC coefficients must; the rest is in any order that keeps each queue's.
    script = [dc.pop(0) for scan in dc[:] if not scan[3]]
    while queues := [queue for queue in queues if queue]:
        script.append(rng.choice(queues).pop(0))
    return script


def length(rng: random.Random) -> int:
    return rng.randint(1, 65) if rng.random() < 0.8 else rng.randint(66, 200) if rng.random() < 0.9 else 700


def draw(photos: Sequence[Array], number: int) -> tuple[Array, Coding, random.Random]:
    """Return the pixels and the coding of a case, and what draws the rest of it."""
    rng = random.Random(number)
    space = rng.choice(("L", "YCC", "YCC", "YCC", "RGB"))
    height, width = length(rng), length(rng)
    pixels = content(photos, height, width, rng)
    if space == "L":
        pixels = pixels[..., :1]
        factors: tuple[tuple[int, int], ...] = ((rng.choice((1, 1, 2)), rng.choice((1, 1, 2))),)
    else:
        first, other = rng.choice(EVEN_FACTORS) if rng.random() < 0.5 else rng.choice(EVEN_FACTORS[:4])
        factors = (first, other, other) if rng.random() < 0.97 else rng.choice(UNLIKE_FACTORS)
    mcus = -(-width // (8 * max(across for across, _ in factors)))
    kind, script = rng.choice(("one", "one", "one", "default", "scans", "script")), None
    if kind == "scans":
        script = [(group, 0, 63, 0, 0) for group in groups_of(list(range(len(factors))), rng)]
    elif kind == "script":
        script = progressive_script(len(factors), rng)
    return (
        pixels,
        Coding(
            space=space,
            factors=factors,
            quality=rng.choice((1, 50, 75, 90, 100, rng.randint(1, 100), rng.randint(1, 100))),
            baseline=rng.random() < 0.7,
            restart=rng.choice((0, 0, 1, 2, 3, 5, 7, mcus, 2 * mcus, 3 * mcus, mcus + 1, rng.randint(1, 300), 65_535)),
            restart_rows=rng.choice((0, 0, 0, 0, 1, 2)),
            optimize=rng.random() < 0.3,
            progressive=kind == "default",
            script=script,
        ),
        rng,
    )


def is_ours(coding: Coding) -> bool:
    """Return whether the compiled path takes a picture: both planes of chroma alike, and no finer than luma."""
    (across, down), *rest = coding.factors
    return coding.space == "L" or (rest[0] == rest[1] and across % rest[0][0] == 0 and down % rest[0][1] == 0)


def cut(start: int, size: int, whole: int, scale: tuple[int, int]) -> slice:
    """Return the samples of a plane that pixels [start, start + size) of `whole` ones touch."""
    above, below = scale
    return slice(start * above // below, min(-(-(start + size) * above // below), -(-whole * above // below)))


def compare(
    module: Any,
    data: bytes,
    region: tuple[int, int, int, int],
    smaller: int,
    planes: list[Plane],
    size: tuple[int, int],
) -> None:
    """Compare our planes of a region with those of libjpeg-turbo."""
    made = module.decode_jpeg(data, region, smaller)
    assert made is not None, "left alone"
    assert len(made) == len(planes)
    left, top, width, height = region
    for number, ((columns, samples), plane) in enumerate(zip(made, planes, strict=True)):
        expected = plane.samples[cut(top, height, size[0], plane.down), cut(left, width, size[1], plane.across)]
        assert columns == expected.shape[1]
        assert samples == expected.tobytes(), f"component {number}"


def part_of(whole: int, rng: random.Random) -> tuple[int, int]:
    size = rng.choice((1, whole, rng.randint(1, whole), rng.randint(1, whole)))
    return rng.choice((0, whole - size, rng.randint(0, whole - size))), size


def kind_of(coding: Coding) -> str:
    if not is_ours(coding):
        return "left alone"
    scans = "progressive" if coding.progressive or (coding.script and coding.script[0][2] == 0) else "sequential"
    return f"{scans} {coding.space}"


def by_pillow(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        return image.tobytes()


def by_simplejpeg(data: bytes) -> bytes | None:
    try:
        return simplejpeg.decode_jpeg(data, "RGB").tobytes()
    except ValueError:  # it knows usual samplings only
        return None


def try_transcoder(turbo: ctypes.CDLL, module: Any, data: bytes, rng: random.Random) -> None:
    """Check that a transcoded picture has the same samples as before, also for those that decode it later."""
    restart = rng.choice((1, 2, 3, 8, rng.randint(1, 300), 65_535))
    made = module.transcode_jpeg(data, restart, rng.randint(9, 16), 1 << 20)
    assert made is not None, "not transcoded"
    for before, after in zip(decode(turbo, data, 1), decode(turbo, made, 1), strict=True):
        assert np.array_equal(before.samples, after.samples), "transcoded to something else"
    assert by_pillow(data) == by_pillow(made)
    assert by_simplejpeg(data) == by_simplejpeg(made)


def try_case(turbo: ctypes.CDLL, module: Any, photos: Sequence[Array], number: int) -> str:
    """Compare one picture, whole and in parts, at all scales, with and without SIMD; return what kind it was."""
    pixels, coding, rng = draw(photos, number)
    height, width = size = pixels.shape[:2]
    data = encode(turbo, pixels, coding)
    try:
        try_transcoder(turbo, module, data, rng)
    except AssertionError as error:
        error.add_note(f"case {number}, {size=}, {coding}")
        raise
    if not is_ours(coding):
        assert module.decode_jpeg(data, (0, 0, width, height), 1) is None, f"case {number} is taken: {coding}"
        return kind_of(coding)
    for smaller in (1, 2, 4, 8):
        planes = decode(turbo, data, smaller)
        (left, across), (top, down) = part_of(width, rng), part_of(height, rng)
        for simd in (False, True):
            module.simd(simd)
            for region in ((0, 0, width, height), (left, top, across, down)):
                try:
                    compare(module, data, region, smaller, planes, size)
                except AssertionError as error:
                    error.add_note(f"case {number}, {size=}, {region=}, {smaller=}, {simd=}, {coding}")
                    raise
    return kind_of(coding)


def load(path: str) -> Any:
    """Import the compiled module from a file."""
    loader = ExtensionFileLoader("_native", path)
    spec = spec_from_loader("_native", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def write_seeds(folder: Path, photos: Sequence[Array], count: int) -> None:
    """Write JPEGs of every coding, most of them small, with the bytes behind them that csrc/fuzz_target.c takes."""
    turbo, number, small = library(), 0, 0
    while small < count:
        pixels, coding, rng = draw(photos, number)
        data = encode(turbo, pixels, coding)
        if len(data) < 2500 or number % 16 == 0:
            (folder / f"{number:05}").write_bytes(data + rng.randbytes(8))
            small += len(data) < 2500
        number += 1
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    for task, options in enumerate([{}, {"restart": 1}, {"progressive": True}, {"optimize": True}] * 4):
        data = encode(turbo, noise, Coding(quality=100, factors=((1, 1),) * 3, **options))
        (folder / f"noise-{task:02}").write_bytes(data + bytes([task // 4 % 4]) + bytes(3) + b"\xff" * 4)


def main() -> None:
    name, folder, first, count = sys.argv[1:]
    turbo, module, photos = library(), load(name), read_photos(Path(folder))
    kinds: Counter[str] = Counter()
    for number in range(int(first), int(first) + int(count)):
        kinds[try_case(turbo, module, photos, number)] += 1
    words = [f"{many} {kind}" for kind, many in sorted(kinds.items())]
    sys.stdout.write(f"{kinds.total()} pictures: {', '.join(words)}\n")


if __name__ == "__main__":
    main()
