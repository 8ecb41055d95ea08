"""The program of a helper process: it answers messages from its standard input, with few rights, memory and time."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from wds_tools.service import rights
from wds_tools.service.pages import frames

_NICE = 10
_BATCHES_MEMORY = 2 << 30
_Answer = Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]


def _thumbnail() -> _Answer:
    from PIL import Image  # noqa: PLC0415 - each helper loads what it needs

    from wds_tools.service.pages.annotations import caption_of, objects_of  # noqa: PLC0415
    from wds_tools.service.pages.thumbnails import mask, thumbnail  # noqa: PLC0415

    Image.init()  # imports all plugins, which the user nobody may not be allowed to read

    def answer(message: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        if message.get("question") == "objects":
            return objects_of(payload, width=message["width"], height=message["height"]), b""
        if message.get("question") == "caption":
            return {"text": caption_of(payload)}, b""
        if message["is_mask"]:
            data, facts = mask(payload, field=message["field"], size=message["size"])
            return facts, data
        return {}, thumbnail(payload, field=message["field"], size=message["size"])

    return answer


def _indexes() -> _Answer:
    import pyarrow.compute  # noqa: F401, PLC0415 - for conditions: the user nobody may not be allowed to read it

    from wds_tools.service.pages.indexes import Indexes  # noqa: PLC0415

    return Indexes().answer


def _problems() -> _Answer:
    from wds_tools.service.pages.image_columns import problems_of  # noqa: PLC0415

    return problems_of


def _batches() -> _Answer:
    try:
        from PIL import Image  # noqa: PLC0415

        from wds_tools.service.pages.loaded import LoadedSteps  # noqa: PLC0415
    except ImportError as error:
        message = f"this tab needs torch where the service runs ({error})"
        return lambda _message, _payload: ({"error": message}, b"")
    Image.init()
    _limit_growth(_BATCHES_MEMORY)
    return LoadedSteps().answer


def _limit_growth(size: int) -> None:
    """Limit what the process may take in addition to its libraries, whose size is not known in advance."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    limit = pages * resource.getpagesize() + size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


_KINDS = {"thumbnail": _thumbnail, "indexes": _indexes, "problems": _problems, "batches": _batches}


def main(kind: str, memory_bytes: int, seconds: float) -> None:
    """Answer messages until the standard input ends.

    Args:
        kind: What is answered: ``thumbnail``, ``indexes``, ``problems`` or ``batches``.
        memory_bytes: Limit of the address space.
        seconds: Limit for one answer; the process is killed then, even if its parent has died.
    """
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    answers: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be read as an answer
    questions = sys.stdin.buffer
    answer = _KINDS[kind]()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    frames.write(answers, {"refused": rights.drop_rights()})
    while (received := frames.read(questions)) is not None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            message, payload = answer(*received)
        except MemoryError:
            message, payload = {"error": "it takes too much memory"}, b""
        except Exception as error:  # whatever hostile data causes
            message, payload = {"error": f"{type(error).__name__}: {error}"[:500]}, b""
        signal.setitimer(signal.ITIMER_REAL, 0)
        frames.write(answers, message, payload)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
