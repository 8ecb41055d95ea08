"""The command line: the output of each command, and a one-line message for each error."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from xml.etree import ElementTree

import preloaded
import pytest
from folders import write_tar
from waiting import wait_for

import wds_tools.bench
from wds_tools import __version__
from wds_tools.bench.registry import PEERS
from wds_tools.bench.workloads import WORKLOADS
from wds_tools.cli import cli, main
from wds_tools.format.tar import END
from wds_tools.images import native

SHARD = "shard-000001.tar"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Result]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs the program in this process and returns exit code, stdout and stderr."""

    def run(*words: str | Path) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return Result(end.value.code, *capsys.readouterr())

    return run


def process(*words: str | Path, **options: object) -> Result:
    """Run the program in its own process."""
    return result_of(["-m", "wds_tools.cli", *words], **options)


def result_of(words: Sequence[str | Path], imports: Sequence[str] = preloaded.COMMANDS, **options: object) -> Result:
    """Run a Python program."""
    done = preloaded.run(words, imports=imports, **options)
    return Result(done.returncode, done.stdout, done.stderr)


def assert_one_line_error(result: Result, code: int, *words: str) -> None:
    assert result.code == code, result
    assert result.out == ""
    *account, error = result.err.splitlines()
    assert error.startswith("error: ")
    assert "Traceback" not in result.err
    assert not account or " images, " in account.pop(0)  # what `pack` states about its source before it fails
    assert not account
    for word in words:
        assert word in result.err


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of all files below a folder, and None for folders."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def packed_copy(packed_few: Path, tmp_path: Path) -> Path:
    """Return a copy of a small dataset that a test may damage."""
    return Path(shutil.copytree(packed_few, tmp_path / "copy"))


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Return a shard that another tool wrote."""
    members = {"a.txt": b"hello", "a.cls": b"1", "b.txt": b"x" * 3000, "b.cls": b"0"}
    return write_tar(tmp_path / "foreign" / "train-000000.tar", members.items())


# --- help ---


def test_help_imports_only_click() -> None:
    code = (
        "import sys\nfrom wds_tools.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'pyarrow', 'PIL', 'fsspec', 'tqdm', 'xxhash'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert "Commands:" in run.stdout


def test_the_help_of_every_command_has_an_example_on_its_own_line(call: Call) -> None:
    assert {"pack", "index", "info", "verify", "merge", "unpack"} <= set(cli.commands)
    for name in cli.commands:
        result = call(name, "--help")
        assert result.code == 0
        assert re.search(rf"^  Example:\n    wds-tools {name}\b", result.out, re.MULTILINE), name


def test_the_help_of_bench_names_every_workload_and_every_peer(call: Call) -> None:
    workloads, peers = call("bench", "--help").out.split("Peers: ")
    assert re.findall(r"^  (\w+) +\S.*  (?:decoding|copying|reading) ", workloads, re.MULTILINE) == list(WORKLOADS)
    named = " ".join(peers.partition(". All except")[0].split()).replace("mosaic (Mosaic Streaming)", "mosaic")
    assert set(re.sub(r" \(our loader.*?\)", "", named).split(", ")) == set(PEERS)


def test_commands_are_listed_in_the_order_of_use_and_not_truncated(call: Call) -> None:
    listed = call("--help").out.partition("Commands:")[2].split("\n\n")[0]
    assert [line.split()[0] for line in listed.split("\n") if line][:5] == [
        "pack",
        "append",
        "reshard",
        "index",
        "merge",
    ]
    assert "..." not in listed


def test_version_prints_the_version_and_which_code_decodes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WDS_TOOLS_NATIVE", raising=False)
    compiled = importlib.util.find_spec("wds_tools.images._native") is not None
    words = r"compiled(, (AVX2|NEON|no SIMD))?" if compiled else "Python only: not compiled"
    code, out, err = call("--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"wds-tools {re.escape(__version__)} \({words}\)\n", out)
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    assert call("--version").out.endswith("(Python only: WDS_TOOLS_NATIVE=0)\n" if compiled else "not compiled)\n")


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(call: Call) -> None:
    result = call()
    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bogus"], "No such command 'bogus'. See `wds-tools --help`."),
        (["--bogus"], "No such option"),
        (["pack"], "Missing argument 'SRC'. See `wds-tools pack --help`."),
        (["pack", "a", "b", "--shard-byte", "1"], "No such option"),
        (["pack", "a", "b", "--seed", "x"], "'x' is not a valid integer"),
        (["index"], "Missing argument 'PATTERN...'"),
        (["info", "a", "b"], "unexpected extra argument (b). See `wds-tools info --help`."),
    ],
)
def test_invalid_arguments_are_one_line_and_exit_code_2(call: Call, words: list[str], message: str) -> None:
    assert_one_line_error(call(*words), 2, message)


# --- pack ---


def test_pack_prints_a_summary_and_the_next_steps(six_photos: Path, tmp_path: Path) -> None:
    result = process("pack", six_photos, "out", "--workers", "1", "--images", "keep", cwd=tmp_path)
    [warning, account] = result.err.splitlines()  # no progress bar without a terminal
    assert "the 2 classes have images of the same names, such as '000.jpg'" in warning
    assert (result.code, account) == (0, f"{six_photos}: 6 images, 2 classes (cat, fig)")
    assert re.match(
        r"packed 6 images in 1 shard, [\d.]+ kB, 2 classes, into out in [\d.]+ s \([\d,]+ images/s\)\n", result.out
    )
    assert "next: wds-tools info out" in result.out
    assert "skipped" not in result.out
    assert process("info", "out", cwd=tmp_path).code == 0
    assert "\nloader = wds_tools.make_loader(\n    'out',\n    batch_size=4,\n" in result.out


def test_packing_again_changes_nothing_and_prints_so(call: Call, six_photos: Path, tmp_path: Path) -> None:
    call("pack", six_photos, tmp_path / "out", "--workers", "1")
    before = tree(tmp_path / "out")
    result = call("pack", six_photos, tmp_path / "out", "--workers", "1")
    assert result.code == 0
    assert result.out.startswith(f"{tmp_path / 'out'} is already packed: 6 images in 1 shard, ")
    assert tree(tmp_path / "out") == before


def test_pack_prints_where_skipped_files_are_listed(call: Call, six_photos: Path, tmp_path: Path) -> None:
    (six_photos / "cat" / "broken.jpg").write_bytes(b"not an image")
    result = call("pack", six_photos, tmp_path / "out", "--workers", "1")
    assert f"skipped 1 file; {tmp_path / 'out' / 'skipped.jsonl'} lists them with the reasons" in result.out
    assert json.loads((tmp_path / "out" / "skipped.jsonl").read_text())["path"] == "cat/broken.jpg"


def test_pack_of_a_flat_folder_has_no_labels(call: Call, six_photos: Path, tmp_path: Path) -> None:
    assert ", no labels, into" in call("pack", six_photos / "cat", tmp_path / "out", "--workers", "1").out


def test_pack_takes_one_column_for_a_role(call: Call, six_photos: Path, tmp_path: Path) -> None:
    for words in (("--label", "a", "--label", "b"), ("--column", "label=b", "--label", "a")):
        result = call("pack", six_photos, tmp_path / "out", *words)
        assert (result.code, re.search("'[ab]', '[ab]'.*name one of them", result.err) is not None) == (2, True)


def test_pack_of_class_numbers_without_names_has_labels(call: Call, six_photos: Path, tmp_path: Path) -> None:
    rows = [f"{path},{number % 2}\n" for number, path in enumerate(sorted(six_photos.rglob("*.jpg")))]
    (tmp_path / "rows.csv").write_text("".join(["path,label\n", *rows]))
    out = call("pack", tmp_path / "rows.csv", tmp_path / "out", "--workers", "1").out
    assert ", labels without class names, into" in out


def test_every_option_of_pack_reaches_the_packer(call: Call, six_photos: Path, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("fig\ncat\n")
    words = ["--shard-bytes", "40kB", "--seed", "5", "--workers", "1", "--classes", tmp_path / "names", "--strict"]
    assert call("pack", six_photos, tmp_path / "out", *words).code == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["classes"] == ["fig", "cat"]
    assert (manifest["source"]["seed"], manifest["source"]["shard_bytes"]) == (5, 40_000)
    assert call("pack", six_photos, tmp_path / "out", "--workers", "1").code == 1
    assert call("pack", six_photos, tmp_path / "out", "--workers", "1", "--fresh").code == 0
    (six_photos / "cat" / "broken.jpg").write_bytes(b"not an image")
    assert_one_line_error(
        call("pack", six_photos, tmp_path / "new", "--workers", "1", "--strict"), 1, "'cat/broken.jpg'"
    )


def test_the_image_options_of_pack_reach_the_packer(call: Call, six_photos: Path, tmp_path: Path) -> None:
    for words, source in (
        (["--images", "keep"], "keep"),
        (["--images", "raw", "--resize", "32x24"], "raw 32x24"),
        (["--resize", "24", "--quality", "70"], "resize 24 quality 70"),
    ):
        dst = tmp_path / source
        assert call("pack", six_photos, dst, "--workers", "1", *words).code == 0
        assert json.loads((dst / "manifest.json").read_text())["source"]["images"].startswith(source)
    for words, message in (
        (["--images", "keep", "--verify-pixels"], "verify_pixels with images='keep'"),
        (["--images", "smaller"], "'smaller' is not one of 'keep', 'crop-ready', 'resize', 'raw'"),
        (["--images", "resize"], "needs a size: give --resize 256"),
        (["--images", "keep", "--resize", "64"], "a size requires 'resize' or 'raw'"),
    ):
        assert_one_line_error(call("pack", six_photos, tmp_path / "none", *words), 2, message)
        assert not (tmp_path / "none").exists()


LIBRARIES = ("click", "fsspec", "numpy", "PIL.Image", "pyarrow.parquet")
WITHOUT_COMPILED = """
import sys
sys.modules["wds_tools.images._native"] = None
from wds_tools.cli import main
main()
"""


def not_compiled(*words: str | Path) -> Result:
    """Run the program in a process that cannot import the compiled module."""
    return result_of(["-c", WITHOUT_COMPILED, *words], LIBRARIES)


@pytest.mark.torture
def test_a_missing_compiled_module_is_a_single_warning_and_only_when_packing_starts(
    six_photos: Path, tmp_path: Path
) -> None:
    for path in [*(six_photos / "fig").iterdir()]:
        path.rename(path.with_name(f"fig-{path.name}"))  # equal names would be another warning
    split = ["pack", six_photos, tmp_path / "split", "--split", "train=0.5,val=0.5"]
    account = f"{six_photos}: 6 images, 2 classes (cat, fig)\n"
    warning = not_compiled(*split).err
    assert re.fullmatch(
        r"warning: the compiled module of wds_tools is missing: Python imports the package from the source tree .*, in "
        r"which it was not compiled; run `pip install --editable .*`\. Until then, JPEGs are kept .*\n",
        warning.removeprefix(account),
    )
    assert not_compiled(*split).err == account  # nothing to do
    assert_one_line_error(not_compiled("pack", tmp_path / "nowhere", tmp_path / "out"), 2, "nowhere")
    assert_one_line_error(not_compiled("pack", six_photos, tmp_path / "split" / "val"), 1, "holds another dataset")
    assert not_compiled("pack", six_photos, tmp_path / "kept", "--images", "keep").err == account


def test_without_the_compiled_module_the_warning_depends_on_the_image_options(
    call: Call, six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "compiled", None)
    result = call("pack", six_photos, tmp_path / "out", "--resize", "64x48")
    assert result.code == 0
    assert "Until then, JPEGs that need no resizing are kept unchanged" in caplog.text
    images = json.loads((tmp_path / "out" / "manifest.json").read_text())["images"]
    assert images == {"min_width": 64, "max_width": 64, "min_height": 48, "max_height": 48}


@pytest.mark.parametrize("name", ["csv", "table", "TSV", "jsonl"])
def test_pack_accepts_the_usual_names_of_formats_for_any_file_name(
    call: Call, six_photos: Path, tmp_path: Path, name: str
) -> None:
    paths = [str(path.relative_to(tmp_path)) for path in sorted(six_photos.glob("*/*"))]
    rows = [json.dumps({"path": path}) for path in paths] if name == "jsonl" else ["path", *paths]
    (tmp_path / "list.txt").write_text("\n".join(rows) + "\n")
    result = call("pack", tmp_path / "list.txt", tmp_path / "out", "--from", name)
    assert result.code == 0, result.err
    assert result.out.startswith("packed 6 images in 1 shard")


@pytest.mark.parametrize(
    ("src", "words", "code", "message"),
    [
        ("six_photos", ["--from", "jpegs"], 2, "unknown format 'jpegs' (--from, kind=); allowed are arrow, "),
        ("six_photos", ["--from", "csv"], 1, "six_photos is not in the layout table: no table"),
        ("none.csv", [], 2, "none.csv cannot be read: no such file or folder; check the path"),
        ("nonsense://bucket/photos", [], 1, "nonsense://bucket/photos: ValueError: Protocol not known: nonsense"),
        ("s3://bucket/photos", ["--from", "zarr"], 2, "zarr cannot be read from a URL; allowed are folder, tar, webd"),
        ("none-*.parquet", [], 2, "matches no file; check the path, and quote it in the shell"),
    ],
)
def test_an_invalid_source_is_one_line(
    call: Call, six_photos: Path, tmp_path: Path, src: str, words: list[str], code: int, message: str
) -> None:
    path = src if "://" in src else six_photos.parent / src
    assert_one_line_error(call("pack", path, tmp_path / "out", *words), code, message)
    assert not (tmp_path / "out").exists()


def make_nothing(folder: Path) -> None:
    """Leave the source missing."""


def make_empty(folder: Path) -> None:
    folder.mkdir()


def make_text(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("not an image")


def make_broken(folder: Path) -> None:
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "a.jpg").write_bytes(b"not an image")


def make_file(folder: Path) -> None:
    folder.write_text("no folder")


@pytest.mark.parametrize("make", [make_nothing, make_empty, make_text, make_broken, make_file])
@pytest.mark.parametrize("exists", [True, False])
def test_a_source_without_images_is_one_line_and_leaves_nothing(
    call: Call, tmp_path: Path, make: Callable[[Path], None], exists: bool
) -> None:
    make(tmp_path / "src")
    if exists:
        (tmp_path / "out").mkdir()
    before = tree(tmp_path)
    result = call("pack", tmp_path / "src", tmp_path / "out", "--workers", "1")
    code = 1 if make in (make_broken, make_file) else 2
    assert_one_line_error(result, code, "src" if make is not make_broken else "cat/a.jpg")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard-bytes", "much"], "shard_bytes='much' is not a size; allowed are"),
        (["--shard-bytes", "1kB"], "shard_bytes=1000 is too small; allowed are 10,240"),
        (["--seed", "-1"], "seed=-1 is out of range; allowed are 0 to"),
        (["--workers", "-1"], "workers=-1; allowed are whole numbers of 1 and more"),
        (["--workers", "0"], "workers=0; allowed are whole numbers of 1 and more"),
        (["--classes", "/nowhere/names"], "/nowhere/names"),
    ],
)
def test_an_invalid_option_of_pack_is_one_line_and_leaves_nothing(
    call: Call, six_photos: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    before = tree(tmp_path)
    assert_one_line_error(call("pack", six_photos, tmp_path / "out", *words), 2, message)
    assert tree(tmp_path) == before


def test_a_destination_with_another_dataset_is_not_changed(call: Call, six_photos: Path, packed_copy: Path) -> None:
    before = tree(packed_copy)
    result = call("pack", six_photos, packed_copy, "--workers", "1")
    assert_one_line_error(result, 1, str(packed_copy), "holds another dataset", "choose another folder", "--fresh")
    assert tree(packed_copy) == before


def test_a_destination_that_is_a_file_or_inside_the_source_is_one_line(
    call: Call, six_photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    before = tree(tmp_path)
    assert_one_line_error(call("pack", six_photos, tmp_path / "file", "--workers", "1"), 1, str(tmp_path / "file"))
    assert_one_line_error(call("pack", six_photos, six_photos / "out", "--workers", "1"), 2, "is inside the source")
    assert tree(tmp_path) == before


def test_an_interrupted_pack_is_one_line_and_continues_when_run_again(few_photos: Path, tmp_path: Path) -> None:
    words = ["pack", str(few_photos), str(tmp_path / "out"), "--shard-bytes", "100kB", "--workers", "1"]
    words += ["--images", "keep"]
    code = (
        "import sys, time; from wds_tools.cli import main; from wds_tools.packing import worker\n"
        "make_sample = worker.make_sample\n"
        "def slow(task, *rest):\n"
        "    time.sleep(60 * (task.number >= 2))\n"
        "    return make_sample(task, *rest)\n"
        "worker.make_sample = slow\n"
        "sys.exit(main())"
    )
    run = preloaded.Process(["-c", code, *words], imports=preloaded.COMMANDS)
    wait_for(lambda: list((tmp_path / "out" / ".packing").glob("shard-*.json")))  # the report: the shard is finished
    run.send_signal(signal.SIGINT)
    result = Result(run.wait(), run.stdout, run.stderr)
    assert_one_line_error(result, 130, "interrupted; finished shards are kept; run the same command again")
    assert not list((tmp_path / "out").glob("*.tmp"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    again = process(*words)
    assert re.search(r"packed 40 images .*; kept \d+ shards? from an earlier run", again.out)
    assert process("verify", tmp_path / "out").code == 0


# --- index ---


def test_index_writes_a_dataset_that_info_and_verify_read(call: Call, foreign: Path) -> None:
    result = call("index", foreign)
    assert result.code == 0
    assert result.out.startswith("indexed 2 samples in 1 shard, 10.2 kB, fields txt, cls, into ")
    assert f"next: wds-tools info {foreign.parent}\n" in result.out
    assert "2 in 1 shard" in call("info", foreign.parent).out
    assert "is undamaged: 2 samples in 1 shard" in call("verify", foreign).out


def test_index_accepts_braces_and_a_name_for_the_manifest(call: Call, foreign: Path) -> None:
    shutil.copy(foreign, foreign.with_name("train-000001.tar"))
    pattern = foreign.parent / "train-{000000..000001}.tar"
    result = call("index", pattern, "--manifest", "train.json")
    assert f"next: wds-tools info {foreign.parent / 'train.json'}\n" in result.out
    assert not (foreign.parent / "manifest.json").exists()
    assert "4 in 2 shards" in call("info", foreign.parent / "train.json").out


def test_index_warns_of_ignored_members(foreign: Path) -> None:
    with tarfile.open(foreign, "a") as tar:
        tar.addfile(tarfile.TarInfo("README"))
    result = process("index", foreign)
    assert result.code == 0
    assert result.err == "warning: train-000000.tar: 1 members do not belong to samples and are ignored\n"


@pytest.mark.parametrize(
    ("pattern", "code", "message"),
    [
        ("none-*.tar", 2, "matches no file"),
        ("train-{000000..000001}.tar", 2, "train-000001.tar does not exist"),
        ("train-{000000", 2, "brace that is not closed"),
        ("train-000000.tar.gz", 2, "train-000000.tar.gz"),
    ],
)
def test_a_pattern_that_matches_nothing_is_one_line_and_leaves_nothing(
    call: Call, foreign: Path, pattern: str, code: int, message: str
) -> None:
    before = tree(foreign.parent)
    assert_one_line_error(call("index", foreign.parent / pattern), code, message)
    assert tree(foreign.parent) == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def flip_header(path: Path) -> None:
    flip(path, 1024)


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def make_no_tar(path: Path) -> None:
    path.write_bytes(b"hello" * 300)


def make_no_samples(path: Path) -> None:
    path.write_bytes(END)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "train-000000.tar, byte"),
        (flip_header, "train-000000.tar, byte 1024: not a tar header"),
        (append, "train-000000.tar, byte 10240: data after the end"),
        (make_no_tar, "train-000000.tar, byte 0: not a tar header"),
        (make_no_samples, "no sample in 1 shard: "),
    ],
)
def test_a_damaged_shard_is_one_line_and_no_manifest_is_written(
    call: Call, foreign: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(foreign)
    assert_one_line_error(call("index", foreign), 1, message)
    assert not (foreign.parent / "manifest.json").exists()


def test_an_argument_of_the_wrong_kind_is_one_line_with_a_remedy(
    call: Call, six_photos: Path, packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no dataset")
    assert_one_line_error(call("info", tmp_path / "notes.txt"), 2, "notes.txt is a file; pass the folder")
    assert_one_line_error(call("verify", packed / "shard-000000.parquet"), 2, "is a file; pass the folder")
    assert_one_line_error(call("index", packed), 2, f"{packed} is a folder; name the shards in it, such as '{packed}/*")
    assert_one_line_error(
        call("reshard", six_photos, tmp_path / "out"), 2, f"{six_photos} contains no tar files: check the path"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["pack", "{six_photos}", ""], ["pack", "", "x"], ["unpack", "{six_photos}", ""], ["info", ""]]
)
def test_an_empty_path_is_an_error_and_not_the_current_folder(
    call: Call, six_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    assert_one_line_error(
        call(*(word.format(six_photos=six_photos) for word in words)),
        2,
        "the path is empty; use . for the current folder",
    )
    assert tree(tmp_path) == before


def test_reshard_writes_to_a_url_and_append_refuses_one(call: Call, packed_few: Path, six_photos: Path) -> None:
    assert call("reshard", packed_few, "memory://resharded/new", "--images", "keep").code == 0
    assert call("info", "memory://resharded/new").code == 0
    result = call("append", six_photos, "memory://resharded/new")
    assert_one_line_error(result, 2, "is a URL, and samples can be appended only to local datasets")


def test_reshard_with_a_size_resizes(call: Call, packed_few: Path, tmp_path: Path) -> None:
    assert call("reshard", packed_few, tmp_path / "out", "--resize", "8x8").code == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["images"]["max_width"] == 8


# --- info ---


def test_info_prints_text_or_json(call: Call, packed: Path) -> None:
    text = call("info", packed)
    assert (text.code, text.err) == (0, "")
    assert "400 in 7 shards" in text.out
    assert "█" in text.out
    raw = json.loads(call("info", packed, "--json").out)
    assert (raw["samples"], raw["shards"]) == (400, 7)


def test_info_prints_to_a_terminal_that_cannot_encode_its_bars(packed: Path) -> None:
    code = "import sys; from wds_tools.cli import main; sys.stdout.reconfigure(encoding='latin-1'); main()"
    result = result_of(["-c", code, "info", packed])
    assert (result.code, result.err) == (0, "")
    assert "\\u2588" in result.out


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_missing_dataset_is_one_line_and_exit_code_2(call: Call, tmp_path: Path, foreign: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    assert_one_line_error(call(command, tmp_path / "nowhere"), 2, "nowhere: no such folder; pass the folder")
    assert_one_line_error(
        call(command, tmp_path / "empty"), 2, "empty is not a packed dataset (no manifest.json)", "wds-tools pack"
    )
    assert_one_line_error(
        call(command, foreign.parent), 2, "contains tar files but no manifest.json", "wds-tools index"
    )
    assert_one_line_error(call(command, tmp_path / "no-*.tar"), 2, "matches no file")
    assert_one_line_error(call(command, foreign), 2, "no index next to it", "wds-tools index")


def test_a_damaged_manifest_or_index_is_one_line_and_exit_code_1(call: Call, packed_copy: Path) -> None:
    flip(packed_copy / "shard-000002.parquet", 100)
    assert_one_line_error(
        call("info", packed_copy), 1, "shard-000002.tar", "does not match the checksum in the manifest"
    )
    (packed_copy / "manifest.json").write_text("{")
    assert_one_line_error(call("info", packed_copy), 1, "manifest.json is not JSON")


# --- verify ---


def test_verify_reports_an_undamaged_dataset(call: Call, packed: Path) -> None:
    result = call("verify", packed)
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(rf"{packed} is undamaged: 400 samples in 7 shards, 6.37 MB, checked in [\d.]+ s\n", result.out)


def test_verify_reports_shard_key_field_and_byte_of_damage(call: Call, packed_copy: Path) -> None:
    flip(packed_copy / SHARD, 600)
    result = call("verify", packed_copy)
    assert (result.code, result.err) == (1, "")
    first, last = result.out.splitlines()
    assert re.match(
        rf"damage: shard {SHARD}, key \d{{9}}, field jpg, byte 512: the XXH3-64 of its [\d,]+ bytes is", first
    )
    assert f"{packed_copy} is damaged: 1 damaged part in {SHARD}; copy these files again, or pack again" in last


def test_verify_lists_all_damage(call: Call, packed_copy: Path) -> None:
    flip(packed_copy / "shard-000000.tar", 600)
    truncate(packed_copy / SHARD)
    (packed_copy / "shard-000002.tar").unlink()
    result = call("verify", packed_copy)
    assert result.code == 1
    assert [line.split(",")[0] for line in result.out.splitlines()[:2]] == [
        f"damage: shard shard-00000{i}.tar" for i in (0, 1)
    ]
    assert "shard shard-000002.tar: " in result.out
    assert "3 damaged parts in shard-000000.tar, shard-000001.tar, shard-000002.tar;" in result.out


def test_verify_reports_a_damaged_manifest(call: Call, packed_copy: Path) -> None:
    (packed_copy / "manifest.json").write_text("{")
    result = call("verify", packed_copy)
    assert (result.code, result.err) == (1, "")
    assert "damage: shard manifest.json: " in result.out


def test_an_edited_manifest_is_reported_as_damaged_until_it_is_resealed(call: Call, packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    path.write_text(path.read_text().replace('"cat"', '"chat"'))
    result = call("verify", packed_copy)
    assert result.code == 1
    assert "copy it again, or, if you edited it on purpose" in result.out
    result = call("reseal", packed_copy)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(
        f"{path} was changed after its checksum was computed; it has a new checksum now: 40 samples"
    )
    assert call("verify", packed_copy).code == 0
    assert "nothing was written" in call("reseal", packed_copy).out


def test_verify_notes_a_manifest_without_a_checksum(call: Call, packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    words = json.loads(path.read_text())
    del words["xxh3"]
    path.write_text(json.dumps(words | {"version": 1}))
    result = call("verify", packed_copy)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("note: manifest.json has version 1, which has no checksum")
    assert "is undamaged: 40 samples" in result.out


def test_verify_lists_files_that_are_not_part_of_the_dataset(call: Call, packed_copy: Path) -> None:
    (packed_copy / "stray.tar").write_bytes(b"x")
    result = call("verify", packed_copy)
    assert result.code == 0
    assert "not part of the dataset and never read: stray.tar\n" in result.out


def test_verify_exits_with_2_if_a_shard_cannot_be_read(call: Call, packed_copy: Path) -> None:
    (packed_copy / SHARD).unlink()
    (packed_copy / SHARD).mkdir()
    result = call("verify", packed_copy)
    assert result.code == 2
    assert f"not checked: shard {SHARD}: " in result.out
    assert "could not be checked completely" in result.out
    flip(packed_copy / "shard-000002.tar", 600)
    assert call("verify", packed_copy).code == 1  # damage matters more than a shard that could not be read


def test_verify_prints_json(call: Call, packed_copy: Path) -> None:
    assert json.loads(call("verify", packed_copy, "--json").out)["ok"] is True
    flip(packed_copy / SHARD, 600)
    result = call("verify", packed_copy, "--json")
    raw = json.loads(result.out)
    assert result.code == 1
    assert (raw["ok"], raw["damages"][0]["shard"], raw["damages"][0]["offset"]) == (False, SHARD, 512)


# --- merge and unpack ---


def test_merge_prints_how_many_shards_it_linked_and_copied(call: Call, six_photos: Path, tmp_path: Path) -> None:
    for number in range(2):
        call("pack", six_photos, tmp_path / str(number), "--workers", "1", "--seed", str(number))
    result = call("merge", tmp_path / "0", tmp_path / "1", "-o", tmp_path / "both")
    assert result.code == 0
    assert re.match(rf"merged 2 datasets into {tmp_path}/both: 12 samples in 2 shards, .* \(2 linked\)\n", result.out)
    assert f"next: wds-tools verify {tmp_path}/both\n" in result.out
    assert call("verify", tmp_path / "both").code == 0
    again = call("merge", tmp_path / "0", tmp_path / "1", "-o", tmp_path / "both")
    assert again.out.startswith(f"{tmp_path}/both is already merged: 12 samples")
    other = call("merge", tmp_path / "0", "-o", tmp_path / "both")
    assert_one_line_error(other, 1, "holds another dataset", "--fresh")
    assert "(1 copied)" in call("merge", tmp_path / "0", "-o", tmp_path / "both", "--copy", "--fresh").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "out"], "Missing argument 'DATASET...'"),
        (["a"], "Missing option '-o'"),
        (["nowhere", "-o", "out"], "nowhere: no such folder"),
        (["nowhere", "-o", "s3://bucket/out"], "is not a local folder"),
    ],
)
def test_invalid_arguments_of_merge_are_one_line(call: Call, words: list[str], message: str) -> None:
    assert_one_line_error(call("merge", *words), 2, message)


def test_unpack_restores_the_packed_folder_and_prints_a_summary(call: Call, six_photos: Path, tmp_path: Path) -> None:
    call("pack", six_photos, tmp_path / "packed", "--workers", "1", "--images", "keep")
    result = call("unpack", tmp_path / "packed", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    assert re.match(rf"unpacked 6 samples into {tmp_path}/out: 6 files, [\d.]+ kB, in [\d.]+ s\n", result.out)
    files = {name.removeprefix(str(tmp_path / "out")): data for name, data in tree(tmp_path / "out").items()}
    assert files == {name.removeprefix(str(six_photos)): data for name, data in tree(six_photos).items()}
    next((tmp_path / "out").glob("*/*")).write_bytes(b"mine")
    assert_one_line_error(call("unpack", tmp_path / "packed", tmp_path / "out"), 1, "is not empty", "--overwrite")
    assert call("unpack", tmp_path / "packed", tmp_path / "out", "--overwrite").code == 0


def test_unpack_accepts_fields_and_a_layout(call: Call, foreign: Path, tmp_path: Path) -> None:
    call("index", foreign)
    assert call("unpack", foreign, tmp_path / "out", "--fields", "txt, cls").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.cls", "a.txt", "b.cls", "b.txt"]
    assert call("unpack", foreign, tmp_path / "deep", "--fields", "txt", "--layout", "shards").code == 0
    assert sorted(path.name for path in (tmp_path / "deep" / "train-000000").iterdir()) == ["a.txt", "b.txt"]
    assert_one_line_error(call("unpack", foreign, tmp_path / "x", "--fields", "mask"), 1, "has no 'mask'", "cls, txt")
    assert_one_line_error(call("unpack", foreign, tmp_path / "x", "--layout", "flat"), 2, "'flat' is not one of")
    assert_one_line_error(call("unpack", tmp_path, tmp_path / "x"), 2, "it holds the dataset foreign")
    assert not (tmp_path / "x").exists()


def test_an_interrupted_unpack_is_one_line_and_continues_when_run_again(packed_few: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal; from wds_tools import cli; from wds_tools.upkeep import restore\n"
        "put, left = restore.RestoreFolder.put, [5]\n"
        "def counting(self, *words):\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return put(self, *words)\n"
        "restore.RestoreFolder.put = counting\n"
        f"cli.main(['unpack', {str(packed_few)!r}, {str(tmp_path / 'out')!r}])"
    )
    assert_one_line_error(result_of(["-c", code]), 130, "finished files are kept")
    assert "existed already" in process("unpack", packed_few, tmp_path / "out").out
    assert not (tmp_path / "out" / ".unpacking").exists()
    assert len(list((tmp_path / "out").glob("*/*"))) == 40


def test_further_interrupts_do_not_change_message_and_exit_code() -> None:
    code = (
        "import os, signal, click; from wds_tools import cli\n"
        "interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "echo = click.echo\n"
        "click.echo = lambda *words, **options: (interrupt(), echo(*words, **options))\n"
        "cli.cli.invoke = interrupt\n"
        "try: cli.main(['doctor'])\n"
        "finally: interrupt()"
    )
    assert_one_line_error(result_of(["-c", code]), 130, "interrupted")


# --- errors and exit codes ---


def test_debug_shows_the_traceback_before_the_same_line(call: Call, tmp_path: Path) -> None:
    result = call("--debug", "info", tmp_path)
    assert result.code == 2
    assert result.err.startswith("Traceback (most recent call last)")
    assert result.err.splitlines()[-1] == call("info", tmp_path).err.strip()


def test_an_unexpected_error_is_one_line_with_its_type_and_exit_code_70(
    call: Call, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise ZeroDivisionError("a\ndefect")

    monkeypatch.setattr("wds_tools.inspection.stats.describe", fail)
    assert_one_line_error(call("info", packed), 70, "unexpected ZeroDivisionError: a defect; run `wds-tools --debug")
    assert "Traceback" in call("--debug", "info", packed).err


def test_an_interrupt_is_one_line_and_exit_code_130(call: Call, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wds_tools.inspection.stats.describe", interrupt)
    assert call("info", packed) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize("words", [["--help"], ["info"], ["verify", "--json"]])
def test_a_closed_output_ends_the_program_silently(packed: Path, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    result = process(*words, *([] if "--help" in words else [packed]), stdout=write)
    os.close(write)
    assert result == (141, "", "")


def test_a_broken_pipe_to_a_worker_is_an_error(call: Call, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise BrokenPipeError("to a worker")

    monkeypatch.setattr("wds_tools.inspection.stats.describe", fail)
    assert call("info", packed).code == 70


def test_sample_writes_a_contact_sheet(call: Call, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    result = call("sample", packed, "--out", out, "--count", "6", "--size", "32", "--view", "eval")
    assert result.code == 0
    assert result.out == f"wrote 6 samples of {packed} with view eval to {out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_an_error_of_sample_is_one_line(call: Call, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    assert_one_line_error(call("sample", tmp_path / "none", "--out", out), 2, "no such folder")
    assert_one_line_error(call("sample", packed, "--out", out, "--view", "odd"), 2, "one of 'train', 'eval', 'whole'")
    assert_one_line_error(call("sample", packed, "--out", tmp_path / "no" / "grid.png"), 2, "cannot write")
    assert not out.exists()


def test_bench_passes_its_options_on_prints_a_table_and_writes_json(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, given, signature = tmp_path / "bench.json", {}, inspect.signature(wds_tools.bench.bench)

    def measure(*arguments: object, **options: object) -> SimpleNamespace:  # bench/test_run.py measures
        given.update(signature.bind(*arguments, **options).arguments)
        given.pop("progress")("a line")
        return SimpleNamespace(to_text=lambda: "a table", to_dict=lambda: {"a": 1})

    monkeypatch.setattr("wds_tools.bench.bench", measure)
    words = ("--against", "hdf5, lmdb", "--view", "raw", "--rounds", "3", "--seconds", "0.2", "--workers", "2")
    words += ("--batch-size", "32", "--python", "dali=/x/python", "--stages", "--json", out)
    assert call("bench", "photos", *words) == (0, "a table\n", "a line\n")
    assert json.loads(out.read_text()) == {"a": 1}
    given.pop("remote")
    assert given == {
        "dataset": "photos",
        "against": ["hdf5", "lmdb"],
        "view": "raw",
        "rounds": 3,
        "seconds": 0.2,
        "workers": 2,
        "batch_size": 32,
        "pythons": {"dali": "/x/python"},
        "stages": True,
    }


def test_bench_refuses_an_unknown_peer(call: Call, packed: Path) -> None:
    assert_one_line_error(call("bench", packed, "--against", "nonsense"), 2, "nonsense", "imagefolder", "mosaic")


def test_the_message_names_the_signal_that_ended_the_program(
    call: Call, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        sys.exit(128 + signal.SIGTERM)  # as `bench` does after SIGTERM

    monkeypatch.setattr("wds_tools.bench.bench", end)
    assert call("bench", packed) == (143, "", "error: ended by SIGTERM\n")


def test_bench_refuses_invalid_options_before_it_starts(call: Call, packed: Path) -> None:
    assert_one_line_error(call("bench", packed, "--workers", "many"), 2, "'many'")
    assert_one_line_error(call("bench", packed, "--workers", "-1"), 2, "workers=-1; allowed are whole numbers of 1")
    assert_one_line_error(call("bench", packed, "--python", "dali"), 2, "NAME=PATH")
    assert_one_line_error(call("bench", packed / "nowhere", "--rounds", "1"), 2, "nowhere")


@pytest.mark.torture
def test_tune_prints_tables_and_a_call_that_runs(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "tune.json"
    words = ("tune", packed, "--view", "small", "--batch-size", "8", "--rounds", "1", "--seconds", "0.05")
    result = result_of(["-m", "wds_tools.cli", *words, "--json", out], preloaded.IMPORTS)
    assert result.code == 0, result.err
    assert result.err.startswith("warming up\nround 1 of 1: num_workers=0")
    values = json.loads(out.read_text())
    assert f"{values['reason']}." in result.out
    script = result.out[result.out.index("import wds_tools") :]
    end = "\nimages, labels = next(iter(loader))\nprint(loader.num_workers, tuple(images.shape))\nloader.close()\n"
    run = result_of(["-c", script + end], preloaded.IMPORTS)
    assert run == (0, f"{values['proposed']['num_workers']} (8, 3, 128, 128)\n", "")


def test_tune_refuses_invalid_options_before_it_starts(call: Call, packed: Path, tmp_path: Path) -> None:
    assert_one_line_error(call("tune", tmp_path), 2, "manifest")
    assert_one_line_error(call("tune", packed, "--view", "odd"), 2, "one of 'train', 'eval', 'small', 'raw'")
    assert_one_line_error(call("tune", packed, "--device", "abacus"), 1, "not a torch device")
    import torch

    if not torch.cuda.is_available():
        assert_one_line_error(call("tune", packed, "--device", "cuda"), 1, "sees 0 CUDA devices")


def test_plan_prints_a_forecast_of_an_epoch(call: Call, packed: Path) -> None:
    result = call("plan", packed, "--batch-size", "32", "--world-size", "2", "--size", "64")
    assert result.code == 0
    for words in (
        "400 samples in 7 shards",
        "6 of 64 samples",
        "16 samples dropped",
        "1.00 of a full shuffle",
        "of batch slots per rank",
    ):
        assert words in result.out, words
    as_json = json.loads(call("plan", packed, "--batch-size", "32", "--shuffle", "no", "--json").out)
    assert (as_json["steps"], as_json["window_samples"]) == (12, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "500"], "500 samples"),
        (["--shuffle", "odd"], "allowed are yes, no"),
        (["--shuffle", "1.5"], "allowed are True"),
        (["--tail", "odd"], "drop"),
        (["--world-size", "3", "--ranks-per-node", "2"], "must be a multiple of ranks_per_node"),
        (["--ranks-per-node", "0"], "ranks_per_node=0; allowed are whole numbers of 1 and more"),
        (["--num-workers", "-1"], "num_workers=-1; allowed are whole numbers of 0 and more"),
        (["--size", "-5"], "-5 is not in the range"),
    ],
)
def test_invalid_options_of_plan_are_one_line(call: Call, packed: Path, words: list[str], message: str) -> None:
    assert_one_line_error(call("plan", packed, *words), 2, message)


def test_plan_draws_the_shuffle(call: Call, packed: Path, tmp_path: Path) -> None:
    result = call("plan", packed, "--batch-size", "32", "--plot", tmp_path / "shuffle.svg")
    assert result.code == 0
    assert result.out.endswith(f"chart: {tmp_path / 'shuffle.svg'}\n")
    drawn = (tmp_path / "shuffle.svg").read_bytes()
    words = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"shuffled when packed", "measured on the labels", "this window"} <= {*words}
    as_json = call("plan", packed, "--batch-size", "32", "--plot", tmp_path / "shuffle.svg", "--json")
    assert json.loads(as_json.out)["steps"] == 12
    assert as_json.err == f"chart: {tmp_path / 'shuffle.svg'}\n"
    assert (tmp_path / "shuffle.svg").read_bytes() == drawn
    assert call("plan", packed, "--batch-size", "32", "--shuffle", "no", "--plot", tmp_path / "none.svg").code == 0
    assert "this window" not in (tmp_path / "none.svg").read_text()


def test_plan_draws_only_svg_and_only_in_an_existing_folder(call: Call, packed: Path, tmp_path: Path) -> None:
    assert_one_line_error(call("plan", packed, "--plot", tmp_path / "a.png"), 2, "a.png", ".svg")
    result = call("plan", packed, "--batch-size", "32", "--plot", tmp_path / "nowhere" / "a.svg")
    assert (result.code, result.err.startswith("error: cannot write")) == (2, True)
    assert list(tmp_path.iterdir()) == []
