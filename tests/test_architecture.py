"""Imports between the modules: each imports only modules that come before it in the reading order."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wds_tools

PACKAGE = Path(wds_tools.__file__).parent
# Folders, and the modules of each, in reading order. A module imports only what comes before it.
READING_ORDER = {
    "": "errors wording terminal stages lru_cache storage_options options reporting",
    "format": """jpeg pages sample tar codecs label_lists label label_source field_classes objects account manifest
        index index_builder index_edit dots totals""",
    "storage": """base failures retry client_base tls_socket http_pool http_requests http_client object_options
        object_client s3_client fsspec_client clients schemes listing maps cache commit lock unfinished patterns
        upload local fetcher fetcher_process remote stream""",
    "sources": """base optional_dependencies pixels protobuf urls columns files remote_files compressed added_fields
        array_contents array_kinds array_roles arrays roles arrow_columns streams layouts row_names trees annotations
        coco yolo voc masks tree object_classes objects text_table table image_tables tabled record_values
        record_roles records tfrecord batches arrow matlab hdf5 lmdb_keys lmdb numpy_files parquet tensors zarrs
        webdataset index_file other_formats detect annotated chunks litdata mds""",
    "order": "keyed_random where selection tally sequence mixture saved_state ban buckets planner history quality",
    "images": "views buckets schedule decode resize native",
    "reading": "locations names shardset keys reader requested_fields read_ahead select banned stored_samples",
    "packing": """encode plan shard_file snippet transcode card config work_folder destination geometry estimate
        writer_lock remote_destination shard_writer worker ray_engine preview run packer append splits""",
    "loading": """field_checks fields arguments autoscale bad_samples columns reused_memory padded collate ranks
        shared_memory messages worker_process part batch_padding slots recipe user_functions pixel_values
        image_values frame_values object_values albumentations sample_transform assemble delivery_check numa
        workers request batch_steps handover augment rand_augment ring advice cleanup cuda copier pacing epochs sheet
        explanation tasks pools statistics diagnosis stats_output ceiling dataset web_source web_dataset pipeline bridge
        loader factory""",
    "upkeep": """members export_formats energon_database checksums shard_scan shard_table index_folder indexer merger
        copier resealer restore exporter field_source spool field_adder content_check verifier unpacker""",
    ".": "webdataset",  # at the top level too, after what it imports
    "inspection": "svg machine doctor datacheck stats forecast forecast_chart contact_sheet saved_step",
    "service": """limits tokens config ranges contents catalogue local_files metrics blocks upstream libraries answers
        access connections sending access_log data listing reports verifications live rights pages.frames
        pages.thumbnails pages.indexes
        pages.helper pages.helpers pages.browse pages.state pages.thumbnail_cache pages.views pages.routes app process
        server""",
    "bench": """procfs registry workloads dataset limit ours process report timing crop_ready stages child tune_report
        start scaling session run tune""",
    "cli": "common cache create inspect measure serve shards transfer",
}
MODULES = [f"{folder}.{name}".strip(".") for folder, names in READING_ORDER.items() for name in names.split()]
LOADS_TORCH_WHEN_USED = {
    "sources.tensors",
    "images.resize",
    "inspection.contact_sheet",
    "inspection.saved_step",
    "bench.stages",
}
MAY_IMPORT_TORCH = {"loading", "bench"}
NO_INPUT_OR_OUTPUT = {"format", "order", "images"}
MAX_LINES = 600
CSRC = PACKAGE / "images" / "csrc"
NATIVE = "images._native"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if CSRC not in path.parents)


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path):
    """Return the modules of the package that a file imports, also in functions, and the top-level names of others."""
    ours, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, rest = node.module.partition(".")
            if package == "wds_tools":
                inside = {f"{rest}.{alias.name}".strip(".") for alias in node.names}
                ours |= inside & {*MODULES, NATIVE} or {rest}
            else:
                others.add(package)
        elif isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
    return ours - {""}, others


def test_the_reading_order_lists_every_module_and_no_other():
    found = {name_of(path) for path in FILES if not path.name.startswith("__")}
    assert {name for name in found if not name.startswith("bench.peers.")} == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_modules_before_it(name):
    ours, _ = imports(PACKAGE / f"{name.replace('.', '/')}.py")
    folders = list(READING_ORDER)
    for other in ours - {NATIVE}:
        if other in MODULES:
            assert MODULES.index(other) < MODULES.index(name), f"{name} imports {other}, which comes later"
        else:  # what a folder itself exports
            folder, own = other.partition(".")[0], name.partition(".")[0]
            assert folders.index(folder) < folders.index(own), f"{name} imports {other}, which comes later"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_loading_and_bench_import_torch_at_the_top_level(path):
    name = name_of(path)
    if name in LOADS_TORCH_WHEN_USED or name.partition(".")[0] in MAY_IMPORT_TORCH:
        return  # inside a function; test_imports_without_a_loader_do_not_load_torch checks this
    assert not imports(path)[1] & {"torch", "torchvision"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_module_is_longer_than_the_limit(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES, "one file, one job: split it"


@pytest.mark.parametrize("name", [name for name in MODULES if name.partition(".")[0] in NO_INPUT_OR_OUTPUT])
def test_the_format_the_order_and_the_images_do_no_input_or_output(name):
    _, others = imports(PACKAGE / f"{name.replace('.', '/')}.py")
    if name == "order.mixture":
        others.remove("os")  # os.PathLike, as a type
    assert not others & {"os", "pathlib", "shutil", "socket", "fsspec", "time", "threading", "multiprocessing"}


@pytest.mark.parametrize(
    "statement",
    [
        "import wds_tools",
        "import wds_tools.packing.packer, wds_tools.sources.tensors, wds_tools.inspection.stats",
        "import wds_tools.upkeep.indexer, wds_tools.upkeep.verifier",
        "import wds_tools.packing.shard_writer, wds_tools.upkeep.merger, wds_tools.upkeep.unpacker",
        "import wds_tools.cli",
        "from wds_tools import pack, RandomResizedCrop",
    ],
)
def test_imports_without_a_loader_do_not_load_torch(statement):
    check = f"import sys; {statement}; sys.exit(any(name in sys.modules for name in ('torch', 'torchvision')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_command_line_starts_without_the_heavy_libraries():
    check = (
        "import sys, wds_tools.cli; "
        "print([n for n in ('torch', 'pyarrow', 'numpy', 'PIL', 'fsspec') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_map_beside_the_code_names_every_module():
    text = (PACKAGE / "README.md").read_text()
    missing = [name for name in MODULES if f"`{name.rpartition('.')[2]}`" not in text]
    assert not missing


def test_the_tests_mirror_the_folders():
    folders = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    assert folders == set(READING_ORDER) - {"", "."}


def test_test_files_have_different_names():
    """pytest imports them as top-level modules, so a second file of the same name cannot be collected."""
    names = [path.name for path in Path(__file__).parent.glob("**/test_*.py")]
    assert len(names) == len(set(names))
