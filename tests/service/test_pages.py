"""The web page: what it shows without JavaScript, hostile datasets, and `wds-tools view`."""

from __future__ import annotations

import asyncio
import html
import io
import os
import re
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import preloaded
import pytest
from img2dataset_layout import write_img2dataset
from pictures import encode
from PIL import Image
from servers import IMPORTS, PROGRAM, Reply, Running, copy_of, in_thread, program, request, started
from waiting import wait_for

import wds_tools as wt
from wds_tools.format.manifest import Manifest, to_json
from wds_tools.format.sample import Sample
from wds_tools.order.where import WhereError, parse
from wds_tools.packing.shard_file import ShardFile
from wds_tools.service.pages.helpers import HelperError, HelperPool
from wds_tools.service.pages.views import State

SCRIPT = "<script>alert(1)</script>"
HOSTILE_KEY = "<img src=x onerror=alert(1)>\"'"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, pixels: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def picture(colour: tuple[int, int, int], size: int = 40) -> bytes:
    return encode(Image.new("RGB", (size, size), colour), "PNG", pnginfo=None)


def write_dataset(folder: Path, samples: list[Sample], classes: tuple[str, ...] = ()) -> Path:
    """Write a dataset without the checks of the packer, as an attacker would."""
    folder.mkdir(parents=True)
    with ShardFile(folder / "s-000000.tar") as shard:
        for number, sample in enumerate(samples):
            shard.write(sample, label=number % len(classes) if classes else None)
    assert shard.entry
    fields = {name: 1 for sample in samples for name in sample.fields}
    (folder / "manifest.json").write_text(to_json(Manifest((shard.entry,), fields, classes)))
    return folder


@pytest.fixture(scope="module")
def root(few: Path, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    copy_of(few, root / "few")
    copy_of(packed, root / "deep er" / "photos")
    npy = io.BytesIO()
    np.save(npy, np.zeros((8, 8, 3), np.uint8))
    write_dataset(
        root / "hostile",
        [
            Sample("bomb", {"png": png(60_000, 60_000, zlib.compress(bytes(10**6), 9))}),
            Sample("cut", {"png": picture((1, 2, 3))[:60]}),
            Sample(HOSTILE_KEY, {"png": picture((255, 0, 0)), "txt": SCRIPT.encode(), f"{SCRIPT[:8]}.txt": b"x"}),
            Sample("html", {"jpg": b"<html>" + SCRIPT.encode()}),
            Sample("pixels", {"npy": npy.getvalue()}),
            Sample("zip", {"npy": b"PK\3\4" + bytes(100)}),
            Sample("good", {"png": picture((0, 255, 0))}),
        ],
        classes=(SCRIPT, "\u202ereversed", "a'\"b"),
    )
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    with program(root) as running:
        yield running


ROWS = [{"caption": f"a dog.*{SCRIPT}%", "similarity": 0.5}, {"caption": "cat", "similarity": 0.4}]
ROWS += [{"similarity": share} for share in (0.1, 0.2, 0.9)]


@pytest.fixture(scope="module")
def odd(few: Path, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a service of damaged datasets, and of one with the tables of img2dataset."""
    root = tmp_path_factory.mktemp("odd")
    write_img2dataset(root / "laion", ROWS, per_shard=3)
    wt.index_shards(f"{root}/laion/*.tar")
    for path in sorted(copy_of(packed, root / "partly").glob("*.parquet"))[:-2]:
        size = path.stat().st_size
        path.unlink()
        path.write_bytes(bytes(size))
    (copy_of(few, root / "missing") / "shard-000000.tar").unlink()
    shard = copy_of(few, root / "changed") / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1  # in the first field
    shard.unlink()
    shard.write_bytes(data)
    with in_thread(root) as url:
        yield url


class Parsed(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for name, attrs in self.elements if name == tag and attribute in attrs]


def page(server: Running | str, path: str, status: int = 200) -> str:
    reply = request(server if isinstance(server, str) else server.url, path)
    assert reply.status == status, reply.body[:500]
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    return reply.body.decode()


def counted(server: Running, path: str) -> str:
    """Return a page after the samples of all classes have been counted."""
    wait_for(lambda: "counted so far" not in page(server, path))
    return page(server, path)


def test_a_search_that_takes_long_is_shown_as_far_as_it_is(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wds_tools.service.pages.browse._AT_ONCE", 0)
    monkeypatch.setattr("wds_tools.service.pages.browse._FILTER_SECONDS", 0.0)
    with in_thread(few) as url:
        path = f"/datasets/{few.name}?where=width+%3E+0"
        first = page(url, path)
        assert re.search(r"<b>0</b> samples so far.*>0 of \d+ shards searched so far\.", first, re.DOTALL)
        assert re.search(r'data-live="samples">', first)
        wait_for(lambda: 'data-live="samples" data-final>' in page(url, path))
        assert "<b>40</b> samples where" in page(url, path)


def test_the_overview_lists_datasets_and_how_to_report(server: Running) -> None:
    text = page(server, "/")
    assert "No training reports to this server." in text
    assert '<a href="/datasets/deep%20er/photos">deep er/photos</a>' in text
    assert "report_to=&#34;http" in text or "report_to=" in text
    for value in ("Samples", "Classes", "400", "free of"):
        assert value in text


def test_a_dataset_has_class_bars_a_condition_a_grid_and_pages_without_javascript(server: Running) -> None:
    text = counted(server, "/datasets/deep%20er/photos")
    parsed = Parsed(text)
    links = parsed.all("a", "href")
    assert "/datasets/deep%20er/photos?class=0" in links
    assert "/datasets/deep%20er/photos?page=2" in links
    assert sum("/samples/" in link for link in links) == 60
    assert sum(source.startswith("/thumbnails/") for source in parsed.all("img", "src")) == 60
    assert re.search(r'class="number">50</span>', text)
    assert "400</b> samples" in text


def test_every_link_of_the_pages_leads_somewhere_and_to_this_server(server: Running) -> None:
    waiting, seen = ["/"], set[str]()
    while waiting and len(seen) < 60:
        path = waiting.pop(0)
        seen.add(path)
        reply = request(server.url, path)
        assert reply.status == 200, path
        if reply.headers["Content-Type"].startswith("text/html") and not path.startswith("/data/"):
            parsed = Parsed(reply.body.decode())
            found = [
                *parsed.all("a", "href")[:25],
                *parsed.all("img", "src")[:2],
                *parsed.all("script", "src"),
                *parsed.all("link", "href"),
            ]
            for link in found:
                assert not urlsplit(link).netloc
                if "tab=batches" in link:  # which imports torch: see test_batches_page.py
                    continue
                if link.startswith("/") and link not in seen and link not in waiting:
                    waiting.append(link)
            assert not [1 for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
            assert not parsed.all("div", "style")


def without_final(text: str) -> str:
    """Return a page as if its search were still running, which depends on the speed of the machine."""
    return text.replace(" data-final", "")


def test_the_url_holds_the_state(server: Running) -> None:
    where = "width >= 100 and label != 'fig'"
    first = f"/datasets/deep%20er/photos?class=2&where={quote(where)}"
    text = page(server, first)
    parsed = Parsed(text)
    values = {attrs.get("name"): attrs.get("value") for tag, attrs in parsed.elements if tag == "input"}
    assert (values["where"], values["class"]) == (where, "2")
    sample = next(link for link in parsed.all("a", "href") if "/samples/" in link)
    assert "class=2" in sample
    assert "where=width" in sample
    back = next(a["href"] for tag, a in Parsed(page(server, sample)).elements if tag == "a" and a.get("rel") == "up")
    assert without_final(page(server, back or "")) == without_final(text)


def test_state_survives_a_round_trip_and_invalid_values_are_the_defaults() -> None:
    state = State("samples", 3, "key == 'a&b=\u20ac'", 17, 2)
    query = dict(pair.split("=", 1) for pair in state.query[1:].split("&"))
    assert query["page"] == "17"
    assert State.of({"class": "-1", "page": "x", "tab": "<b>", "classes": "9" * 50}) == State()
    assert State.of({"page": "0"}).page == 1


def test_a_class_filter_shows_its_samples_only(server: Running, packed: Path) -> None:
    counted(server, "/datasets/deep%20er/photos")
    text = page(server, "/datasets/deep%20er/photos?class=2")
    loader = wt.make_loader(packed, batch_size=1, where="label == 2", fields=("__key__",), num_workers=0)
    keys = {batch.key[0] for batch in loader}
    shown = set(re.findall(r'class="key">([^<]+)<', text))
    assert shown == keys
    assert "50</b> samples" in text


def test_the_filter_knows_the_columns_of_the_tables_of_img2dataset(odd: str) -> None:
    expected = {
        "similarity > 0.3": {"000000000", "000000001", "000010001"},
        "caption == 'cat' and width == 32": {"000000001"},
        "'dog.*' in caption": {"000000000"},  # a text, and neither a pattern of SQL nor a regular expression
        f"'{SCRIPT}%' in caption": {"000000000"},
        "'d_g' in caption or 'c.t' in caption or '^a' in caption": set(),
        "'at' in caption or '' in caption and similarity < 0.45": {"000000001"},
        "'a' not in caption": set(),  # without a caption it is not known
        "similarity > 0.3 and smilarity < 1": set(),
    }
    for where in [*expected, *expected]:  # the helper has the index the second time
        text = page(odd, f"/datasets/laion?where={quote(where)}")
        assert set(re.findall(r'class="key">([^<]+)<', text)) == expected[where]
        assert ("<mark>smilarity</mark>" in text) == ("smilarity" in where)
        assert SCRIPT not in text
    for where in ("5 in caption", "caption in caption", "'a' in similarity", "'a' in 'b'", "'a' in label"):
        assert 'class="mistake"' in page(odd, f"/datasets/laion?where={quote(where)}")


def test_the_last_page_has_the_rest_and_a_page_behind_the_end_is_the_last(server: Running) -> None:
    last = page(server, "/datasets/deep%20er/photos?page=7")
    assert last.count("/samples/") == 40
    assert without_final(page(server, "/datasets/deep%20er/photos?page=999999999999")) == without_final(last)


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("widht > 3", "widht"),
        ("  width > 3 and label == 'cow'", "'cow'"),
        ("width >", " "),
        ("width > 3)", ")"),
        ("key == 'ä' and open('x')", "open('x')"),
        ("label in 3", "3"),
        ("width > 3 and __import__", "__import__"),
    ],
)
def test_a_mistake_in_a_condition_is_marked(server: Running, where: str, wrong: str) -> None:
    text = page(server, f"/datasets/few?where={quote(where)}")
    marked = re.search(r"<pre>(.*?)<mark>(.*?)</mark>(.*?)</pre>", text, re.DOTALL)
    assert marked
    assert html.unescape(marked[2]) == wrong
    assert html.unescape("".join(marked.groups())).strip() == where.strip()
    assert 'aria-invalid="true"' in text


@pytest.mark.parametrize("where", ["width == 'a'", "not width", "key + 1 > 2", "(" * 400, "-" * 900 + "1", "1" * 900])
def test_a_condition_that_cannot_be_applied_is_an_error_on_the_page(server: Running, where: str) -> None:
    assert 'class="mistake"' in page(server, f"/datasets/few?where={quote(where)}")


def test_the_error_of_a_condition_has_the_position_of_the_mistake() -> None:
    with pytest.raises(WhereError) as error:
        parse("label == 'a' or hieght < 3", columns=["label", "height"], classes=["a"])
    assert error.value.span == (16, 22)


def test_a_sample_shows_its_fields_checksums_and_code(server: Running, tmp_path: Path) -> None:
    text = page(server, "/datasets/few/samples/3")
    for value in ("jpg", "cls", "correct", "shard-000000.tar", "Next sample", "Previous sample"):
        assert value in text
    code = html.unescape(re.findall(r'<pre tabindex="0" id="code">(.*?)</pre>', text, re.DOTALL)[0])
    (tmp_path / "code.py").write_text(code + "print(batch.image[0].shape[0], int(batch.label[0]))\n")
    done = preloaded.run([tmp_path / "code.py"])
    assert (done.stdout.split()[:1], done.stderr) == (["3"], "")


def test_behind_a_proxy_with_tls_the_code_names_the_address_of_the_proxy(server: Running) -> None:
    text = request(server.url, "/datasets/few", Host="localhost:9443", X_Forwarded_Proto="https").body.decode()
    assert "https://localhost:9443/data/few" in text
    assert "http://" not in text


def test_the_code_of_a_small_selection_loads_all_of_it(server: Running) -> None:
    text = page(server, f"/datasets/deep%20er/photos?class=2&where={quote('id >= 0')}")
    code = html.unescape(re.findall(r'<pre tabindex="0" id="code">(.*?)</pre>', text, re.DOTALL)[0])
    names: dict[str, Any] = {}
    exec(code, names)
    with names["loader"] as loader:
        assert sum(len(batch.label) for batch in loader) == 50


def test_a_picture_is_encoded_again(server: Running, root: Path) -> None:
    reply = request(server.url, "/thumbnails/few/0")
    assert reply.headers["Content-Type"] == "image/jpeg"
    assert max(Image.open(io.BytesIO(reply.body)).size) <= 160
    large = request(server.url, "/thumbnails/few/0?size=1024")
    assert max(Image.open(io.BytesIO(large.body)).size) > 160
    again = request(server.url, "/thumbnails/few/0", If_None_Match=reply.headers["ETag"])
    assert (again.status, again.body) == (304, b"")


def thumbnail(server: Running, number: int) -> Reply:
    return request(server.url, f"/thumbnails/hostile/{number}")


def test_a_bomb_and_bad_images_get_a_placeholder_and_the_page_lives(server: Running) -> None:
    for number in (0, 1, 3, 5):
        reply = thumbnail(server, number)
        assert (reply.status, reply.headers["Content-Type"]) == (200, "image/svg+xml"), number
        assert b"no preview" in reply.body
    for number in (2, 4, 6):
        assert thumbnail(server, number).headers["Content-Type"] == "image/jpeg", number
    assert "good" in page(server, "/datasets/hostile")


def status_of(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_processes_that_decode_have_few_rights_and_cannot_read_the_service(server: Running) -> None:
    assert thumbnail(server, 6).headers["Content-Type"] == "image/jpeg"
    page(server, "/datasets/few")
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    helpers = [pid for pid in children if b"pages.helper" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(helpers) >= 2
    for pid in helpers:
        wait_for(lambda pid=pid: status_of(pid)["NoNewPrivs"] == "1")  # one may have been started just now
        status = status_of(pid)
        assert "0" not in status["Uid"].split()
        assert "0" not in [*status["Gid"].split(), *status["Groups"].split()]
        assert int(status["CapEff"], 16) == 0
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0  # of root, as it is not dumpable


DUMPABLE = """
import ctypes, os, pathlib, signal, sys
from wds_tools.service.config import ServeOptions
from wds_tools.service.server import serve

def started(_):
    print("dumpable", ctypes.CDLL(None).prctl(3))
    os.kill(os.getpid(), signal.SIGTERM)

serve(ServeOptions(roots=(pathlib.Path(sys.argv[1]),), port=0), on_start=started)
"""


def test_the_service_cannot_be_read_by_other_processes_of_its_user(root: Path) -> None:
    done = preloaded.run(["-c", DUMPABLE, root], imports=IMPORTS)
    assert done.stdout == "dumpable 0\n"


WITHOUT_CAPABILITIES = """
import ctypes, os, sys
for capability in range(41):  # also CAP_SETUID, so that root cannot become another user
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.torture
def test_a_kernel_that_refuses_to_take_rights_is_logged_once_and_images_are_shown(root: Path) -> None:
    with program(root, prefix=("-c", WITHOUT_CAPABILITIES)) as running:
        pages = [request(running.url, f"/thumbnails/{path}") for path in ("few/0", "few/1", "hostile/6")]
        assert "few" in page(running, "/datasets/few")
    assert {reply.headers["Content-Type"] for reply in pages} == {"image/jpeg"}
    assert running.errors.count("the kernel refuses to become the user nobody") == (os.geteuid() == 0)


def test_a_helper_that_takes_too_long_is_killed_and_replaced() -> None:
    large = png(4_000, 4_000, zlib.compress(bytes(4_000 * (4_000 * 3 + 1)), 1))

    async def main() -> None:
        pool = HelperPool("thumbnail", 1, 2 << 30, 0.02)
        with pytest.raises(HelperError, match="too much time"):
            await pool.ask({"field": "png", "size": 160, "is_mask": False}, large)
        pool.seconds = 60.0
        _, data = await pool.ask({"field": "png", "size": 160, "is_mask": False}, picture((0, 0, 255)))
        assert data.startswith(b"\xff\xd8")
        await pool.close()

    asyncio.run(main())


def test_a_helper_has_little_memory_and_survives_its_end() -> None:
    async def main() -> None:
        pool = HelperPool("thumbnail", 1, 200 << 20, 60.0)
        large = png(6_000, 6_000, zlib.compress(bytes(6_000 * (6_000 * 3 + 1)), 1))
        with pytest.raises(HelperError):
            await pool.ask({"field": "png", "size": 160, "is_mask": False}, large)
        _, data = await pool.ask({"field": "png", "size": 160, "is_mask": False}, picture((0, 0, 255)))
        assert data.startswith(b"\xff\xd8")
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "path", ["/", "/datasets/hostile", "/datasets/hostile/samples/2", "/datasets/hostile?tab=health"]
)
def test_keys_classes_and_fields_are_escaped(server: Running, path: str) -> None:
    counted(server, "/datasets/hostile")
    text = page(server, path)
    assert SCRIPT not in text
    assert "<img src=x" not in text
    assert "\u202e" not in text
    assert Parsed(text).all("script", "src") == ["/static/page.js"]
    if path == "/datasets/hostile/samples/2":
        assert html.escape(SCRIPT) in text
        assert "&lt;img src=x onerror" in text


@pytest.mark.parametrize(
    "path",
    [
        f"/datasets/few?where={quote(SCRIPT)}",
        f"/datasets/{quote(SCRIPT, safe='')}",
        f"/datasets/few?tab={quote(SCRIPT)}",
        f"/runs/?page={quote(SCRIPT)}",
        f"/runs/?page={'9' * 5000}",
        "/runs/?page=-1",
        "/runs/?page=%C2%B2",
    ],
)
def test_values_of_the_url_are_escaped(server: Running, path: str) -> None:
    reply = request(server.url, path)
    assert reply.status in (200, 404)
    assert SCRIPT not in reply.body.decode()


def test_a_stored_field_is_an_attachment(server: Running) -> None:
    reply = request(server.url, "/fields/hostile/3/jpg")
    assert reply.body == b"<html>" + SCRIPT.encode()
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Content-Disposition"] == 'attachment; filename="3.jpg"'
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    odd = request(server.url, f"/fields/hostile/2/{quote(SCRIPT[:8] + '.txt', safe='')}")
    assert odd.headers["Content-Disposition"] == 'attachment; filename="2._script_.txt"'


def test_the_content_security_policy_allows_our_own_files_only(server: Running) -> None:
    for path in ("/", "/datasets/few", "/static/page.js", "/thumbnails/few/0", "/nothing"):
        policy = request(server.url, path).headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'")
        assert "unsafe" not in policy


NOTHING = [
    "/datasets/none",
    "/datasets/few/samples/40",
    "/datasets/few/../../etc",
    "/datasets/%2e%2e/few",
    "/datasets/few%2fmanifest.json",
    "/datasets/few%00",
    "/datasets/%ff",
    "/thumbnails/few/40",
    "/thumbnails/none/0",
    "/fields/few/0/other",
    "/fields/few/0/..%2f..%2fmanifest.json",
    "/fields/few/99999999999/jpg",
    "/static/none",
    "/static/..%2ftemplates%2fbase.html",
    "/static/%2e%2e%2froutes.py",
]


def test_what_does_not_exist_is_404(server: Running) -> None:
    assert [path for path in NOTHING if request(server.url, path).status != 404] == []


def test_a_page_reads_the_index_of_its_own_shard_only(odd: str) -> None:
    assert 'class="grid"' in page(odd, "/datasets/partly?page=7")
    assert "does not match its checksum" in page(odd, "/datasets/partly", status=500)


def test_the_health_tab_names_a_missing_shard(server: Running, odd: str) -> None:
    assert "no problem found" in page(server, "/datasets/few?tab=health")
    text = page(odd, "/datasets/missing?tab=health")
    assert "1 problem" in text
    assert "shard-000000.tar: " in text


def test_a_changed_field_is_named(odd: str) -> None:
    assert "have changed since they were packed" in page(odd, "/datasets/changed/samples/0")
    assert request(odd, "/thumbnails/changed/0").headers["Content-Type"] == "image/svg+xml"


@pytest.mark.torture
def test_an_upstream_has_pages_too(server: Running) -> None:
    with in_thread(upstreams=(f"{server.url}/data/few",)) as url:
        wait_for(lambda: request(url, "/datasets/few").status == 200)
        assert 'class="grid"' in page(url, "/datasets/few")
        assert request(url, "/thumbnails/few/1").headers["Content-Type"] == "image/jpeg"
        assert "Egress saved" in page(url, "/")


def test_view_prints_the_address_of_the_dataset_and_ends_with_ctrl_c(few: Path) -> None:
    with started("view", few, "--no-browser") as running:
        url = urlsplit(running.line.split(" at ")[1].partition(";")[0])
        assert url.path == "/datasets/packed"
        assert url.hostname == "127.0.0.1"
        assert request(f"http://{url.netloc}", url.path).status == 200
        running.process.send_signal(signal.SIGINT)
        assert running.end() == (0, "stopped\n", "")


def test_view_of_something_else_names_the_remedy(tmp_path: Path) -> None:
    done = preloaded.command("view", tmp_path)
    assert done.returncode == 2
    assert "is empty; expected class folders with images" in done.stderr


def test_the_wheel_has_templates_and_static_files(tmp_path: Path) -> None:
    root = Path(wt.__file__).parent.parent
    config = (root / "pyproject.toml").read_text()
    assert '"wds_tools.service.pages" = ["templates/*.html", "static/*"]' in config
    code = (
        "from setuptools import Distribution\n"
        "d = Distribution({'script_name': 'setup.py'}); d.parse_config_files()\n"
        f"b = d.get_command_obj('build_py'); b.build_lib = {str(tmp_path)!r}; b.ensure_finalized()\n"
        "b.run_command = lambda *_: None\n"
        "print('\\n'.join(b.get_outputs(include_bytecode=False)))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(root / "wds_tools" / "images" / "csrc")}
    command = [PROGRAM[0], "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)
    packaged = {line.rpartition("pages/")[2] for line in done.stdout.splitlines() if "service/pages/" in line}
    folder = root / "wds_tools" / "service" / "pages"
    for path in (*folder.glob("templates/*"), *folder.glob("static/*")):
        assert str(path.relative_to(folder)) in packaged
