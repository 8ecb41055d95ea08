"""Damaged JPEGs and invalid crop geometries, as input of the compiled path.

As a program it passes them to a compiled module, such as one that was built with AddressSanitizer. It prints how many
images were rendered, and a hash of their pixels:
python mutants.py MODULE.so FOLDER_OF_JPEGS FIRST_CASE CASES
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

SOF_MARKERS = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCD)
SPECIAL_NUMBERS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 4096, 65_499, 65_500, 65_501, 65_535)
LIMITS = (0, 1, 2, 1 << 15, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, -1, -(1 << 31))


def segments(data: bytes) -> list[bytes]:
    """Split a JPEG into its SOI marker, its segments, and the rest from the first SOS marker on."""
    parts, at = [data[:2]], 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        stop = at + 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        parts.append(data[at:stop])
        at = stop
    return [*parts, data[at:]]


def _change_frame_header(parts: list[bytes], rng: random.Random) -> list[bytes]:
    """Change a field of the frame header."""
    for i, part in enumerate(parts):
        if len(part) > 9 and part[1] in SOF_MARKERS:
            changed = bytearray(part)
            if rng.random() < 0.4:
                struct.pack_into(">H", changed, rng.choice((5, 7)), rng.choice(SPECIAL_NUMBERS))
            elif rng.random() < 0.8 and len(part) > 11:
                factors = rng.randint(1, 4) << 4 | rng.randint(1, 4)
                changed[rng.randrange(11, len(part), 3)] = factors if rng.random() < 0.9 else rng.randrange(256)
            else:
                changed[rng.randrange(2, len(part))] = rng.choice((0, 1, 2, 3, 4, 8, 12, 255))
            parts[i] = bytes(changed)
    return parts


def _change_frame_type(parts: list[bytes], rng: random.Random) -> list[bytes]:
    return [
        bytes([0xFF, rng.choice(SOF_MARKERS)]) + part[2:] if len(part) > 2 and part[1] in SOF_MARKERS else part
        for part in parts
    ]


def _insert_dri(parts: list[bytes], rng: random.Random) -> list[bytes]:
    interval = struct.pack(">HHH", 0xFFDD, 4, rng.choice(SPECIAL_NUMBERS))
    return [*parts[:-1], interval, parts[-1]]


def _insert_random_segment(parts: list[bytes], rng: random.Random) -> list[bytes]:
    segment = struct.pack(">BBH", 0xFF, rng.randrange(256), rng.choice((0, 1, 2, 3, 9, 65_535)))
    parts.insert(rng.randint(1, len(parts) - 1), segment)
    return parts


def _remove_segment(parts: list[bytes], rng: random.Random) -> list[bytes]:
    del parts[rng.randint(1, len(parts) - 1)]
    return parts


def _repeat_segment(parts: list[bytes], rng: random.Random) -> list[bytes]:
    parts.insert(rng.randint(1, len(parts)), rng.choice(parts))
    return parts


def _swap_segments(parts: list[bytes], rng: random.Random) -> list[bytes]:
    a, b = rng.randrange(1, len(parts)), rng.randrange(1, len(parts))
    parts[a], parts[b] = parts[b], parts[a]
    return parts


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(data))] = rng.choice((0, 0xFF, 0xD0, 0xD9, rng.randrange(256)))
    return bytes(changed)


def _change_header_bytes(data: bytes, rng: random.Random) -> bytes:
    start = max(3, data.find(b"\xff\xda") + 12)
    return _change_bytes(data[:start], rng) + data[start:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _remove_bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 2, 40, 400)) :]


def _splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Combine headers with the scans of another file, append that file, or insert a part of it."""
    head, tail = segments(data), segments(other)
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    return rng.choice(
        (b"".join([*head[:-1], tail[-1]]), data + other, data[:at] + other[start : start + 500] + data[at:])
    )


SEGMENT_MUTATIONS = (
    _change_frame_header,
    _change_frame_header,  # twice as often as the others
    _change_frame_type,
    _insert_dri,
    _insert_random_segment,
    _remove_segment,
    _repeat_segment,
    _swap_segments,
)
BYTE_MUTATIONS = (_change_bytes, _change_header_bytes, _truncate, _remove_bytes)


def mutant(files: list[bytes], rng: random.Random) -> bytes:
    """Return one of the files after up to three mutations."""
    data = rng.choice(files)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        kind = rng.random()
        if len(data) < 4:
            break
        if kind < 0.1:
            data = _splice(data, rng.choice(files), rng)
        elif kind < 0.5:
            data = rng.choice(BYTE_MUTATIONS)(data, rng)
        else:
            data = b"".join(rng.choice(SEGMENT_MUTATIONS)(segments(data), rng))
    return data


def _random_part(length: int, rng: random.Random) -> tuple[int, int]:
    """Return start and size of a part of `length` pixels."""
    start = rng.choice((0, rng.randrange(length)))
    return start, rng.choice((1, length - start, rng.randint(1, length - start)))


def geometry(size: tuple[int, int], out: tuple[int, int], rng: random.Random) -> list[int]:
    """Return the numbers of a CropGeometry (batch.h); most of them are valid.

    Args:
        size: Width and height of the image.
        out: Height and width of the result.
        rng: The random generator.
    """
    (left, width), (top, height) = (_random_part(length, rng) for length in size)
    resized = [side + rng.choice((0, 0, rng.randrange(9), rng.randrange(300))) for side in out]
    corner = [rng.randint(0, length - side) for length, side in zip(resized, out, strict=True)]
    numbers = [left, top, width, height, *resized, *corner, rng.randrange(2), left, top, width, height, 0, 0]
    if rng.random() < 0.2:
        (x, numbers[11]), (y, numbers[12]) = _random_part(width, rng), _random_part(height, rng)
        numbers[9:11] = left + x, top + y
    for _ in range(rng.choice((0,) * 9 + (1, 2))):
        numbers[rng.randrange(15)] = rng.choice(LIMITS)
    return numbers


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height from the first frame header, or some size if there is none."""
    for part in segments(data):
        if len(part) > 9 and part[1] in SOF_MARKERS:
            height, width = struct.unpack_from(">HH", part, 5)
            return max(1, width), max(1, height)
    return 40, 30


Case = tuple[list[bytes | None], list[list[int]], tuple[int, int]]


def cases(files: list[bytes], first: int, count: int) -> Iterator[Case]:
    """Yield batches of mutants, their crop geometries, and height and width of the result, from numbered seeds."""
    for number in range(first, first + count):
        rng = random.Random(number)
        out = rng.choice(((1, 1), (7, 33), (32, 32), (rng.randint(1, 70), rng.randint(1, 70))))
        batch = [mutant(files, rng) for _ in range(rng.randint(1, 4))]
        geometries = [geometry(size_of(data), out, rng) for data in batch]
        yield [data if rng.random() < 0.97 else None for data in batch], geometries, out


def run(
    module: Any, batch: list[bytes | None], crops: list[list[list[int]]], outs: list[tuple[int, int]]
) -> tuple[bytes, list[bytearray]]:
    """Render a batch with the compiled path.

    Args:
        module: The compiled module.
        batch: The files.
        crops: For each crop of an image the geometry of each image.
        outs: Height and width of each crop.

    Returns:
        A 1 for each crop of each image that was rendered, or a 0; and for each crop the pixels of all images.
    """
    numbers = b"".join(struct.pack("15d", *geometry) for image in zip(*crops, strict=True) for geometry in image)
    pixels = [bytearray(len(batch) * 3 * height * width) for height, width in outs]
    outputs = [part for image in zip(*(_divided(one, len(batch)) for one in pixels), strict=True) for part in image]
    sizes = b"".join(struct.pack("2i", *out) for out in outs) * len(batch)
    return module.render_jpegs(batch, numbers, outputs, sizes, 1 << 22, None), pixels


def _divided(pixels: bytearray, count: int) -> list[memoryview]:
    """Return the pixels of each of ``count`` images."""
    size = len(pixels) // count
    return [memoryview(pixels)[i * size : (i + 1) * size] for i in range(count)]


def second_crops(batch: list[bytes | None], number: int) -> tuple[list[list[int]], tuple[int, int]]:
    """Return further geometries of a batch of `cases`, and height and width of the result."""
    rng = random.Random(-1 - number)
    out = rng.choice(((7, 33), (rng.randint(1, 70), rng.randint(1, 70))))
    return [geometry(size_of(data or b""), out, rng) for data in batch], out


def load(path: str) -> Any:
    """Import a compiled module from a file."""
    loader = ExtensionFileLoader("_native", path)
    spec = spec_from_loader("_native", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def main() -> None:
    path, folder, first, count = sys.argv[1:]
    module = load(path)
    files = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    rendered, total, digest = 0, 0, hashlib.md5()
    for number, (batch, geometries, out) in enumerate(cases(files, int(first), int(count)), int(first)):
        others, other_out = second_crops(batch, number)
        for crops, outs in (([geometries], [out]), ([geometries, others], [out, other_out])):
            done, pixels = run(module, batch, crops, outs)
            digest.update(b"".join(pixels))
            rendered, total = rendered + sum(done), total + len(done)
    sys.stdout.write(f"{rendered} of {total} rendered, {digest.hexdigest()}\n")


if __name__ == "__main__":
    main()
