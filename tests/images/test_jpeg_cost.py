"""Memory and time of our JPEG decoder for hostile files are bounded by the size of the image."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import oracle
import pytest
from native_helpers import needs_native
from test_hostile import segment

from wds_tools.format.image_header import MAX_PIXELS
from wds_tools.images import native

pytestmark = needs_native

MEASURE = """
import struct, sys, time
sys.path.insert(0, sys.argv[1])
from oracle import load
module, data, (task, *numbers) = load(sys.argv[2]), open(sys.argv[3], "rb").read(), sys.argv[4:]
left, top, width, height, most_pixels = map(int, numbers)
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024
before, start = peak(), time.process_time()
if task == "transcode":
    made = module.transcode_jpeg(data, 8, 11, most_pixels) is not None
else:
    box = left, top, width, height
    geometry = struct.pack("15d", *box, 224, 224, 0, 0, 0, *box, 0, 0)
    sizes, out = struct.pack("2i", 224, 224), bytearray(3 * 224 * 224)
    made = module.render_jpegs([data], geometry, [out], sizes, most_pixels, None) == b"\\1"
print(int(made), peak() - before, time.process_time() - start)
"""

END = b"\xff\xd9"


def head(marker: int, width: int, height: int, components: int) -> bytes:
    """Return headers whose codes are as short as possible: 0 for an equal DC, 0 for an end of block, 10 for EOB14."""
    frame = struct.pack(">BHHB", 8, height, width, components)
    frame += b"".join(bytes([1 + c, 0x11, 0]) for c in range(components))
    dc, ac = b"\x00\x01" + bytes(15) + b"\x00", b"\x10\x01\x01" + bytes(14) + b"\x00\xe0"
    return b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + segment(marker, frame) + segment(0xC4, dc + ac)


def scan(components: Iterator[int] | range, first: int, last: int, bits: int) -> bytes:
    members = bytes(number for c in components for number in (1 + c, 0))
    return segment(0xDA, bytes([len(members) // 2]) + members + bytes([first, last, bits]))


def blocks_of(width: int, height: int) -> int:
    return -(-width // 8) * -(-height // 8)


def sequential(width: int, height: int, components: int, *, markers: bool = False) -> bytes:
    """Return an image of one colour, with a restart marker after each MCU or without markers."""
    blocks, coded = blocks_of(width, height), bytes(-(-2 * components * blocks_of(width, height) // 8))
    restart = b""
    if markers:
        restart = segment(0xDD, b"\x00\x01")
        one = b"\x3f" if components == 1 else b"\x03"  # two bits per block; the other bits are ones
        coded = b"".join(one + bytes([0xFF, 0xD0 | i & 7]) for i in range(blocks - 1)) + one
    return head(0xC0, width, height, components) + restart + scan(range(components), 0, 63, 0) + coded + END


def progressive(width: int, height: int, components: int, *, bits: int, bands: int) -> bytes:
    """Return an image in which each scan refines one bit of one band, without changing a coefficient."""
    blocks = blocks_of(width, height)
    runs = ("10" + "1" * 14) * (blocks // 32_767) + "0" * (blocks % 32_767)
    runs = runs.ljust(-(-len(runs) // 8) * 8, "1")
    coded = int(runs, 2).to_bytes(len(runs) // 8, "big").replace(b"\xff", b"\xff\x00")
    out = [head(0xC2, width, height, components), scan(range(components), 0, 0, 0), bytes(-(-blocks * components // 8))]
    for c in range(components):
        for band in range(1, 64, 63 // bands):
            for bit in range(bits - 1, -1, -1):
                above = 0 if bit == bits - 1 else bit + 1
                out += [scan(range(c, c + 1), band, band + 63 // bands - 1, above << 4 | bit), coded]
    return b"".join([*out, END])


Case = tuple[Callable[[], bytes], int, int, bool, int, int]  # file, width, height, whether it is supported, 2 x MB
CASES: dict[str, Case] = {
    "huge": (
        lambda: head(0xC0, 65_500, 65_500, 1) + scan(range(1), 0, 63, 0) + bytes(999) + END,
        65_500,
        65_500,
        False,
        9,
        9,
    ),
    "large": (lambda: sequential(4800, 4800, 1), 4800, 4800, True, 20, 100),
    "intervals": (lambda: sequential(4800, 4800, 1, markers=True), 4800, 4800, True, 40, 120),
    "progressive": (lambda: progressive(4800, 4800, 3, bits=1, bands=1), 4800, 4800, True, 160, 270),
    "scans": (lambda: progressive(320, 240, 3, bits=14, bands=63), 320, 240, True, 30, 30),
    "too many scans": (lambda: progressive(4800, 4800, 1, bits=10, bands=9), 4800, 4800, False, 70, 70),
    "segments": (lambda: sequential(800, 600, 1)[:-2] + segment(0xFE, b"") * 1_000_000 + END, 800, 600, True, 20, 20),
    "tables": (
        lambda: b"\xff\xd8" + segment(0xC4, b"\x10" + bytes(16)) * 300_000 + sequential(800, 600, 1)[2:],
        800,
        600,
        True,
        20,
        20,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.torture_except("huge", "segments", "scans", "tables")
def test_memory_and_time_of_a_hostile_file_are_bounded(name: str, tmp_path: Path) -> None:
    make, width, height, is_supported, *limits = CASES[name]
    (tmp_path / "file").write_bytes(make())
    for task, megabytes in zip(("render", "transcode"), limits, strict=True):
        command = [
            sys.executable,
            "-c",
            MEASURE,
            Path(oracle.__file__).parent,
            native.compiled.__file__,
            tmp_path / "file",
        ]
        arguments = [*command, task, 0, 0, width, height, MAX_PIXELS // 4]
        done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=True)
        is_done, memory, seconds = done.stdout.split()
        assert int(is_done) == is_supported
        assert int(memory) < megabytes, task
        assert float(seconds) < 10, task  # CPU time; usually less than one second
