"""JPEGs that nobody should have made, and places that nobody should have asked for: the compiled path has to bear both.

Run as a program it throws them at a module, such as one that was built with AddressSanitizer:
python mutants.py MODULE.so FOLDER_OF_JPEGS FIRST_CASE CASES
It says how many pictures were made, and a hash of their pixels.
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

FRAMES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCD)
ODD_NUMBERS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 4096, 65_499, 65_500, 65_501, 65_535)
LIMITS = (0, 1, 2, 1 << 15, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, -1, -(1 << 31))


def segments(data: bytes) -> list[bytes]:
    """Split a JPEG into its start, its segments and, as the last, its first scan with all that follows."""
    parts, at = [data[:2]], 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        stop = at + 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        parts.append(data[at:stop])
        at = stop
    return [*parts, data[at:]]


def _frame_field(parts: list[bytes], rng: random.Random) -> list[bytes]:
    """Change a number of the frame header: precision, height, width, components, sampling, table."""
    for i, part in enumerate(parts):
        if len(part) > 9 and part[1] in FRAMES:
            changed = bytearray(part)
            if rng.random() < 0.4:
                struct.pack_into(">H", changed, rng.choice((5, 7)), rng.choice(ODD_NUMBERS))
            elif rng.random() < 0.8 and len(part) > 11:
                factors = rng.randint(1, 4) << 4 | rng.randint(1, 4)
                changed[rng.randrange(11, len(part), 3)] = factors if rng.random() < 0.9 else rng.randrange(256)
            else:
                changed[rng.randrange(2, len(part))] = rng.choice((0, 1, 2, 3, 4, 8, 12, 255))
            parts[i] = bytes(changed)
    return parts


def _other_frame(parts: list[bytes], rng: random.Random) -> list[bytes]:
    return [
        bytes([0xFF, rng.choice(FRAMES)]) + part[2:] if len(part) > 2 and part[1] in FRAMES else part for part in parts
    ]


def _restart(parts: list[bytes], rng: random.Random) -> list[bytes]:
    interval = struct.pack(">HHH", 0xFFDD, 4, rng.choice(ODD_NUMBERS))
    return [*parts[:-1], interval, parts[-1]]


def _odd_segment(parts: list[bytes], rng: random.Random) -> list[bytes]:
    odd = struct.pack(">BBH", 0xFF, rng.randrange(256), rng.choice((0, 1, 2, 3, 9, 65_535)))
    parts.insert(rng.randint(1, len(parts) - 1), odd)
    return parts


def _lost(parts: list[bytes], rng: random.Random) -> list[bytes]:
    del parts[rng.randint(1, len(parts) - 1)]
    return parts


def _doubled(parts: list[bytes], rng: random.Random) -> list[bytes]:
    parts.insert(rng.randint(1, len(parts)), rng.choice(parts))
    return parts


def _swapped(parts: list[bytes], rng: random.Random) -> list[bytes]:
    a, b = rng.randrange(1, len(parts)), rng.randrange(1, len(parts))
    parts[a], parts[b] = parts[b], parts[a]
    return parts


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(data))] = rng.choice((0, 0xFF, 0xD0, 0xD9, rng.randrange(256)))
    return bytes(changed)


def _header_flipped(data: bytes, rng: random.Random) -> bytes:
    start = max(3, data.find(b"\xff\xda") + 12)
    return _flipped(data[:start], rng) + data[start:]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _hole(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 2, 40, 400)) :]


def _spliced(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Put the head of a file before the scan of another one, or all of it, or a part of it into the middle."""
    head, tail = segments(data), segments(other)
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    return rng.choice(
        (b"".join([*head[:-1], tail[-1]]), data + other, data[:at] + other[start : start + 500] + data[at:])
    )


PARTS = (_frame_field, _frame_field, _other_frame, _restart, _odd_segment, _lost, _doubled, _swapped)
BYTES = (_flipped, _header_flipped, _cut, _hole)


def mutant(files: list[bytes], rng: random.Random) -> bytes:
    """Return one of the files with up to three things wrong."""
    data = rng.choice(files)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        kind = rng.random()
        if len(data) < 4:
            break
        if kind < 0.1:
            data = _spliced(data, rng.choice(files), rng)
        elif kind < 0.5:
            data = rng.choice(BYTES)(data, rng)
        else:
            data = b"".join(rng.choice(PARTS)(segments(data), rng))
    return data


def _inside(length: int, rng: random.Random) -> tuple[int, int]:
    start = rng.choice((0, rng.randrange(length)))
    return start, rng.choice((1, length - start, rng.randint(1, length - start)))


def place(size: tuple[int, int], out: tuple[int, int], rng: random.Random) -> list[int]:
    """Return the numbers of a place in a picture of (width, height): nearly always possible ones."""
    (left, width), (top, height) = (_inside(length, rng) for length in size)
    resized = [side + rng.choice((0, 0, rng.randrange(9), rng.randrange(300))) for side in out]
    corner = [rng.randint(0, whole - side) for whole, side in zip(resized, out, strict=True)]
    numbers = [left, top, width, height, *resized, *corner, rng.randrange(2), left, top, width, height]
    if rng.random() < 0.2:
        (x, numbers[11]), (y, numbers[12]) = _inside(width, rng), _inside(height, rng)
        numbers[9:11] = left + x, top + y
    for _ in range(rng.choice((0,) * 9 + (1, 2))):
        numbers[rng.randrange(13)] = rng.choice(LIMITS)
    return numbers


def size_of(data: bytes) -> tuple[int, int]:
    """Return what the first frame header says, or some size where there is none."""
    for part in segments(data):
        if len(part) > 9 and part[1] in FRAMES:
            height, width = struct.unpack_from(">HH", part, 5)
            return max(1, width), max(1, height)
    return 40, 30


Case = tuple[list[bytes | None], list[list[int]], tuple[int, int]]


def cases(files: list[bytes], first: int, count: int) -> Iterator[Case]:
    """Yield batches of mutants, their places, and the height and width of the result; each has a number of its own."""
    for number in range(first, first + count):
        rng = random.Random(number)
        out = rng.choice(((1, 1), (7, 33), (32, 32), (rng.randint(1, 70), rng.randint(1, 70))))
        batch = [mutant(files, rng) for _ in range(rng.randint(1, 4))]
        places = [place(size_of(data), out, rng) for data in batch]
        yield [data if rng.random() < 0.97 else None for data in batch], places, out


def run(
    module: Any, batch: list[bytes | None], places: list[list[int]], out: tuple[int, int]
) -> tuple[bytes, bytearray]:
    """Call the compiled path; return which pictures were made, and the pixels."""
    numbers = b"".join(struct.pack("13i", *row) for row in places)
    pixels = bytearray(len(batch) * 3 * out[0] * out[1])
    return module.render_jpegs(batch, numbers, pixels, *out, 1 << 22, None), pixels


def main() -> None:
    name, folder, first, count = sys.argv[1:]
    loader = ExtensionFileLoader("_native", name)
    spec = spec_from_loader("_native", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    files = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    made, total, digest = 0, 0, hashlib.md5()
    for batch, places, out in cases(files, int(first), int(count)):
        done, pixels = run(module, batch, places, out)
        digest.update(pixels)
        made, total = made + sum(done), total + len(done)
    sys.stdout.write(f"{made} of {total} made, {digest.hexdigest()}\n")


if __name__ == "__main__":
    main()
