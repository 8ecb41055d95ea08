"""The program of a contender's process: ``python start.py FD NAME FOLDER``.

A peer may live in an environment that has neither this package nor what it needs. So this file is run by its path and
makes only `wds_tools.bench` importable, without running `wds_tools/__init__` and without a search path that would hide
that environment's packages behind those beside ours. Worker processes that are spawned run it again.
"""

import sys
import types
from multiprocessing.connection import Connection
from pathlib import Path

_BENCH = Path(__file__).resolve().parent


def _bare(name: str, folder: Path) -> None:
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules.setdefault(name, package)


_bare("wds_tools", _BENCH.parent)
_bare("wds_tools.bench", _BENCH)
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _BENCH]  # Python put it there

if __name__ == "__main__":
    from wds_tools.bench.child import serve  # only now can it be found

    serve(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3])
