"""The program of a loader process: ``python start.py FD NAME FOLDER``.

A peer may be installed in an environment without wds_tools and its dependencies. So this file is
run by its path and makes only `wds_tools.bench` importable: `wds_tools/__init__` does not run, and
packages installed next to wds_tools do not hide packages of the environment. Worker processes that are
spawned run this file again.
"""

import sys
import types
from multiprocessing.connection import Connection
from pathlib import Path

_BENCH = Path(__file__).resolve().parent


def _add_package(name: str, folder: Path) -> None:
    """Add a package without running its ``__init__``."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules.setdefault(name, package)


_add_package("wds_tools", _BENCH.parent)
_add_package("wds_tools.bench", _BENCH)
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _BENCH]  # Python adds a script's folder

if __name__ == "__main__":
    from wds_tools.bench.child import serve  # importable only now

    serve(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3])
