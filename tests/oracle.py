"""Compares the compiled decoder with libjpeg-turbo, bit for bit, on generated JPEGs of every kind.

Each case has a number, which is the seed of everything random in it. Usage, as a process of its own:
python oracle.py MODULE.so FOLDER_OF_PHOTOS FIRST_CASE CASES
"""

from __future__ import annotations

import ctypes
import io
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from mutants import load
from numpy.typing import NDArray
from PIL import Image
from turbo import Coding, Plane, Script, decode, encode, library

Array = NDArray[np.uint8]

SUPPORTED_FACTORS = [  # horizontal and vertical sampling factors: of luma, and of both chroma components
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
UNSUPPORTED_FACTORS = [  # of the three components
    ((2, 2), (1, 2), (2, 1)),
    ((2, 2), (2, 1), (1, 1)),
    ((1, 1), (2, 2), (1, 1)),
    ((1, 1), (1, 1), (2, 2)),
    ((2, 1), (1, 2), (1, 2)),
]


def read_photos(folder: Path) -> list[Array]:
    """Return about twelve of the sample photographs."""
    paths = sorted(folder.glob("*/*.jpg"))
    return [np.asarray(Image.open(path).convert("RGB")) for path in paths[:: max(1, len(paths) // 12)]]


def content(photos: Sequence[Array], height: int, width: int, rng: random.Random) -> Array:
    """Return random pixels [height, width, 3]: a photograph or a pattern. They can be used as RGB or YCbCr."""
    array_rng = np.random.default_rng(rng.randrange(1 << 30))
    kind = rng.choice(("photo", "photo", "photo", "noise", "flat", "gradient", "edges", "sparks"))
    if kind == "photo":
        image = Image.fromarray(rng.choice(photos))
        zoom = rng.choice((1, 2, 4, 8))
        w, h = max(1, image.width // zoom), max(1, image.height // zoom)
        x, y = rng.randint(0, image.width - w), rng.randint(0, image.height - h)
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, (x, y, x + w, y + h)))
    if kind == "noise":
        low = rng.randrange(256)
        return array_rng.integers(low, rng.randint(low, 255) + 1, (height, width, 3), np.uint8)
    if kind == "flat":
        return np.full((height, width, 3), array_rng.integers(0, 256, 3), np.uint8)
    y, x = np.mgrid[:height, :width]
    if kind == "gradient":
        steps = array_rng.integers(-12, 13, (2, 3)) / rng.choice((1, 4, 16))
        return np.clip(y[..., None] * steps[0] + x[..., None] * steps[1] + 128, 0, 255).astype(np.uint8)
    if kind == "edges":
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        return np.stack([255 * ((y // a + x // (b + c)) & 1) for c in range(3)], axis=2).astype(np.uint8)
    return 255 * (array_rng.random((height, width, 3)) < rng.choice((0.01, 0.5, 0.99))).astype(np.uint8)


def random_groups(components: list[int], rng: random.Random) -> list[tuple[int, ...]]:
    """Distribute components over scans at random."""
    groups: list[list[int]] = []
    for component in components:
        if groups and rng.random() < 0.5:
            rng.choice(groups).append(component)
        else:
            groups.append([component])
    rng.shuffle(groups)
    return [tuple(sorted(group)) for group in groups]


def random_bands(rng: random.Random) -> list[tuple[int, int]]:
    """Split the coefficients 1 to 63 into bands (Ss, Se) at random."""
    cuts = sorted(rng.sample(range(2, 64), rng.choice((0, 0, 1, 1, 2, 5))))
    return [(first, last - 1) for first, last in zip([1, *cuts], [*cuts, 64], strict=True)]


def progressive_script(count: int, rng: random.Random) -> Script:
    """Return random progressive scans that contain every bit of every coefficient (T.81, G.1.1.1)."""
    low = rng.choice((0, 0, 1, 2, 5))
    dc: Script = [(group, 0, 0, 0, low) for group in random_groups(list(range(count)), rng)]
    for bit in range(low - 1, -1, -1):
        dc += [(group, 0, 0, bit + 1, bit) for group in random_groups(list(range(count)), rng)]
    queues: list[Script] = [dc]
    for component in range(count):
        low = rng.choice((0, 0, 1, 2, 4))
        scans: Script = [((component,), *band, 0, low) for band in random_bands(rng)]
        for bit in range(low - 1, -1, -1):
            scans += [((component,), *band, bit + 1, bit) for band in random_bands(rng)]
        queues.append(scans)
    # The first scans of DC come first. The others are merged at random; each queue keeps its order.
    script = [dc.pop(0) for scan in dc[:] if not scan[3]]
    while queues := [queue for queue in queues if queue]:
        script.append(rng.choice(queues).pop(0))
    return script


def random_length(rng: random.Random) -> int:
    return rng.randint(1, 65) if rng.random() < 0.8 else rng.randint(66, 200) if rng.random() < 0.9 else 700


def generate_case(photos: Sequence[Array], number: int) -> tuple[Array, Coding, random.Random]:
    """Return the pixels and the coding of a case, and the random generator for the rest of it."""
    rng = random.Random(number)
    space = rng.choice(("L", "YCC", "YCC", "YCC", "RGB"))
    height, width = random_length(rng), random_length(rng)
    pixels = content(photos, height, width, rng)
    if space == "L":
        pixels = pixels[..., :1]
        factors: tuple[tuple[int, int], ...] = ((rng.choice((1, 1, 2)), rng.choice((1, 1, 2))),)
    else:
        luma, chroma = rng.choice(SUPPORTED_FACTORS) if rng.random() < 0.5 else rng.choice(SUPPORTED_FACTORS[:4])
        factors = (luma, chroma, chroma) if rng.random() < 0.97 else rng.choice(UNSUPPORTED_FACTORS)
    mcus = -(-width // (8 * max(h for h, _ in factors)))  # of an MCU row
    kind, script = rng.choice(("one", "one", "one", "default", "scans", "script")), None
    if kind == "scans":
        script = [(group, 0, 63, 0, 0) for group in random_groups(list(range(len(factors))), rng)]
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


def is_supported(coding: Coding) -> bool:
    """Return whether the compiled decoder supports the sampling: equal for both chroma planes, and not above luma."""
    (h, v), *chroma = coding.factors
    return coding.space == "L" or (chroma[0] == chroma[1] and h % chroma[0][0] == 0 and v % chroma[0][1] == 0)


def samples_of(start: int, size: int, length: int, scale: tuple[int, int]) -> slice:
    """Return the samples of a plane that the pixels start to start + size - 1 of an image of `length` pixels touch."""
    numerator, denominator = scale
    end = min(-(-(start + size) * numerator // denominator), -(-length * numerator // denominator))
    return slice(start * numerator // denominator, end)


def compare(
    module: Any,
    data: bytes,
    region: tuple[int, int, int, int],
    denominator: int,
    planes: list[Plane],
    size: tuple[int, int],
) -> None:
    """Compare the planes of a region with those of libjpeg-turbo.

    Args:
        module: The compiled module.
        data: A JPEG.
        region: Left, top, width and height.
        denominator: The region is decoded at 1/denominator of the full size.
        planes: The planes of the whole image, decoded by libjpeg-turbo.
        size: Height and width of the image.
    """
    decoded = module.decode_jpeg(data, region, denominator)
    assert decoded is not None, "not decoded"
    assert len(decoded) == len(planes)
    left, top, width, height = region
    for number, ((columns, samples), plane) in enumerate(zip(decoded, planes, strict=True)):
        rows = samples_of(top, height, size[0], plane.y_scale)
        expected = plane.samples[rows, samples_of(left, width, size[1], plane.x_scale)]
        assert columns == expected.shape[1]
        assert samples == expected.tobytes(), f"component {number}"


def random_part(length: int, rng: random.Random) -> tuple[int, int]:
    """Return start and size of a part of `length` pixels."""
    size = rng.choice((1, length, rng.randint(1, length), rng.randint(1, length)))
    return rng.choice((0, length - size, rng.randint(0, length - size))), size


def kind_of(coding: Coding) -> str:
    if not is_supported(coding):
        return "not supported"
    scans = "progressive" if coding.progressive or (coding.script and coding.script[0][2] == 0) else "sequential"
    return f"{scans} {coding.space}"


def decode_with_pillow(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        return image.tobytes()


def decode_with_simplejpeg(data: bytes) -> bytes | None:
    try:
        return simplejpeg.decode_jpeg(data, "RGB").tobytes()
    except ValueError:  # it supports only the common samplings
        return None


def check_transcoder(turbo: ctypes.CDLL, module: Any, data: bytes, rng: random.Random) -> None:
    """Check that other decoders give the same samples before and after transcoding."""
    restart_interval = rng.choice((1, 2, 3, 8, rng.randint(1, 300), 65_535))
    made = module.transcode_jpeg(data, restart_interval, rng.randint(9, 16), 1 << 20)
    assert made is not None, "not transcoded"
    transcoded, signature = made
    assert module.sign_jpeg(data, 1, 1 << 20) == module.sign_jpeg(transcoded, 1, 1 << 20) == signature
    for before, after in zip(decode(turbo, data, 1), decode(turbo, transcoded, 1), strict=True):
        assert np.array_equal(before.samples, after.samples), "the transcoded file has other samples"
    assert decode_with_pillow(data) == decode_with_pillow(transcoded)
    assert decode_with_simplejpeg(data) == decode_with_simplejpeg(transcoded)


def check_case(turbo: ctypes.CDLL, module: Any, photos: Sequence[Array], number: int) -> str:
    """Check one image and a part of it, at all scales, with and without SIMD; return its kind."""
    pixels, coding, rng = generate_case(photos, number)
    height, width = size = pixels.shape[:2]
    data = encode(turbo, pixels, coding)
    try:
        check_transcoder(turbo, module, data, rng)
    except AssertionError as error:
        error.add_note(f"case {number}, {size=}, {coding}")
        raise
    if not is_supported(coding):
        assert module.decode_jpeg(data, (0, 0, width, height), 1) is None, f"case {number} is decoded: {coding}"
        return kind_of(coding)
    for denominator in (1, 2, 4, 8):
        planes = decode(turbo, data, denominator)
        (left, part_width), (top, part_height) = random_part(width, rng), random_part(height, rng)
        for simd in (False, True):
            module.simd(simd)
            for region in ((0, 0, width, height), (left, top, part_width, part_height)):
                try:
                    compare(module, data, region, denominator, planes, size)
                except AssertionError as error:
                    error.add_note(f"case {number}, {size=}, {region=}, {denominator=}, {simd=}, {coding}")
                    raise
    return kind_of(coding)


def write_seeds(folder: Path, photos: Sequence[Array], count: int) -> None:
    """Write inputs of csrc/fuzz_target.c: JPEGs of every kind, most of them small, followed by 8 bytes each."""
    turbo, number, small = library(), 0, 0  # `small` counts the small files
    while small < count:
        pixels, coding, rng = generate_case(photos, number)
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
    path, folder, first, cases = sys.argv[1:]
    turbo, module, photos = library(), load(path), read_photos(Path(folder))
    kinds: Counter[str] = Counter()
    for number in range(int(first), int(first) + int(cases)):
        kinds[check_case(turbo, module, photos, number)] += 1
    counts = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    sys.stdout.write(f"{kinds.total()} images: {', '.join(counts)}\n")


if __name__ == "__main__":
    main()
