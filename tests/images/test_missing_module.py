"""A process without the compiled module says so once, and a worker that lacks what its parent has is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest
from native_helpers import needs_native

import wds_tools

ROOT = Path(wds_tools.__file__).parents[1]
WITHOUT = "import sys; sys.modules['wds_tools.images._native'] = None\n"
LOADERS = """
import os
import wds_tools as wt

def load():
    list(wt.make_loader(sys.argv[1], batch_size=20, view=wt.Resize((8, 8)), num_workers=0))
    list(wt.StreamingDataset(sys.argv[1], view=wt.Resize((8, 8))))

os.environ["WDS_TOOLS_NATIVE"] = "0"
load()
print("nothing before this line", file=sys.stderr)
del os.environ["WDS_TOOLS_NATIVE"]
load()
"""


def run(code: str, *words: str | Path, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.torture
def test_loaders_warn_once_unless_the_compiled_module_is_switched_off(few: Path) -> None:
    done = run(WITHOUT + LOADERS, few)
    assert done.returncode == 0, done.stderr
    marker, warning = done.stderr.splitlines()
    assert marker == "nothing before this line"
    assert f"Python imports the package from the source tree {ROOT}, in which it was not compiled" in warning
    assert f"run `pip install --editable {ROOT}`" in warning


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder for PYTHONPATH in which processes cannot import the compiled module after LACKING is set."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(f"import os\nif 'LACKING' in os.environ: {WITHOUT}")
    return tmp_path / "site"


WORKERS = {
    "make_loader": "next(iter(wt.make_loader(sys.argv[1], batch_size=8, view=view, num_workers=1, "
    "multiprocessing_context='spawn')))",
    "pack": "wt.pack(sys.argv[2], sys.argv[3], shard_bytes='100kB', workers=2)",
}


@needs_native
@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.torture_except("pack")
def test_a_worker_that_lacks_the_compiled_module_of_its_parent_is_an_error(
    few: Path, six_photos: Path, site: Path, tmp_path: Path, name: str
) -> None:
    code = f"""
import os, sys
import wds_tools as wt
os.environ["LACKING"] = "1"  # for the processes that start from now on
view = wt.Resize((8, 8))
try:
    {WORKERS[name]}
except wt.errors.WorkerError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = preloaded.run(["-c", code, few, six_photos, tmp_path / "out"], env=environment)
    assert "differs from the process that started it, which has the compiled module" in done.stdout, done.stderr
    assert f"from the source tree {ROOT}, in which it was not compiled" in done.stdout
