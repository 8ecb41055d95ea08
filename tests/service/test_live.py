"""Live reports: loaders and packers post them, the page and the API show them, and nothing disturbs the training."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import logging
import os
import re
import shutil
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bad_server
import preloaded
import pytest
import torch
from fake_cuda import Gpu, SlowCopyDriver
from PIL import Image
from servers import Running, in_thread, program, request
from waiting import wait_for

import wds_tools as wt
from wds_tools.errors import LoaderError, OptionError
from wds_tools.reporting import Reporter, dataset_label
from wds_tools.service.config import Limits
from wds_tools.service.reports import (
    CAUSES,
    MAX_REPORTS,
    InvalidReportError,
    ReportTable,
    check_report,
    packs_of,
    runs_of,
    verdict,
)
from wds_tools.service.tokens import create_token

VIEW = wt.CenterCrop(32, resize=40)
REPORT: dict[str, Any] = {
    "format": 1,
    "kind": "loader",
    "run": "job-1",
    "host": "node1",
    "loader": 0,
    "rank": 0,
    "world_size": 2,
    "dataset": "photos",
    "epoch": 3,
    "step": 7,
    "steps": 100,
    "images_per_second": 1234.5,
    "wait_share": 0.31,
    "waits": {"decoding": 0.31},
    "main_cause": "decoding",
    "advice": "decoding: the loop waited 31 % of the time (decoding 31 %); 4 more workers would cover it",
    "remedy": "4 more workers would cover it",
    "workers": 4,
    "idle_seconds": 0.1,
    "ended": False,
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no report fail, and no last one be left out, because the machine is busy."""
    monkeypatch.setattr("wds_tools.reporting._TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr("wds_tools.reporting._JOIN_SECONDS", 60.0)


@pytest.fixture(scope="module")
def server(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with program(few.parent) as running:
        yield running


@pytest.fixture(scope="module")
def own_server(few: Path) -> Iterator[Running]:
    """Return a server that gets no reports of other tests, so that its verdict is about one run."""
    with program(few.parent) as running:
        yield running


def post(url: str, report: Any, **headers: str) -> int:
    body = report if isinstance(report, bytes) else json.dumps(report).encode()
    headers = {"Content_Type": "application/json", **headers}
    return request(url, "/api/reports", "POST", body, **headers).status


def runs(url: str) -> dict[str, Any]:
    found = json.loads(request(url, "/api/runs").body)
    assert isinstance(found, dict)
    return found


def run_named(url: str, name: str) -> dict[str, Any] | None:
    return next((run for run in runs(url)["runs"] if run["run"] == name), None)


def slow_transform(image: Any) -> Any:
    time.sleep(0.1)
    return image


@pytest.fixture(scope="module")
def large_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset whose images take long to decode."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "images").mkdir()
    Image.effect_noise((1500, 1500), 80).convert("RGB").save(folder / "images" / "0.jpg")
    for number in range(1, 8):
        shutil.copy(folder / "images" / "0.jpg", folder / "images" / f"{number}.jpg")
    wt.pack(folder / "images", folder / "large", images="keep", workers=1)
    return folder / "large"


def slow_storage(answered: bad_server.Request) -> None:
    if answered.path.endswith(".tar"):
        time.sleep(0.7)
    bad_server.good(answered)


@pytest.fixture
def slow_store(few: Path) -> Iterator[str]:
    """Return the URL of a dataset on a server that waits before it sends a range of a shard."""
    store = bad_server.BadServer({f"/few/{path.name}": path.read_bytes() for path in few.iterdir()})
    store.default = slow_storage
    with store.running():
        yield f"{store.url}/few"


@pytest.fixture
def slow_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the loader use a model of a GPU with slow copies; return the name of the device."""
    gpu = Gpu(copy_seconds=0.1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpu.count)
    monkeypatch.setattr("wds_tools.loading.pipeline.pipeline.CudaDriver", lambda device: SlowCopyDriver(gpu, device))
    return "cuda:0"


@pytest.fixture
def injected(cause: str, few: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return options of a loader that waits for this cause."""
    if cause == "storage":
        return {"dataset": request.getfixturevalue("slow_store"), "cache_bytes": 1}  # every epoch reads it again
    if cause == "decoding":
        return {"dataset": request.getfixturevalue("large_images")}
    if cause == "transform":
        return {"dataset": few, "transform": slow_transform}
    if cause == "copy":
        return {"dataset": few, "device": request.getfixturevalue("slow_gpu")}
    return {"dataset": few}


@pytest.mark.parametrize("cause", ["storage", "decoding", "transform", "copy", "step"])
@pytest.mark.torture_except("decoding", "step")
def test_the_verdict_names_an_injected_cause(
    own_server: Running, cause: str, injected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_name = f"injected-{cause}"
    monkeypatch.setattr("wds_tools.reporting.REPORT_SECONDS", 0.5)
    monkeypatch.setenv("WDS_TOOLS_RUN", run_name)
    options = {**injected, "fields": ("image",), "batch_size": 4, "view": VIEW, "num_workers": 1}
    loader = wt.make_loader(**options, report_to=own_server.url)
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            for _ in loader:
                time.sleep(0.5 if cause == "step" else 0)  # a hundred times as long as a worker takes for a batch
                if stop.is_set():
                    break

    def is_named() -> bool:
        """Return whether run and page name the cause; the first reports are about the start of the worker."""
        run = run_named(own_server.url, run_name)
        if run is None or (run["main_cause"], run["status"]) != (cause, "running") or not run["images_per_second"]:
            return False
        (sentence,) = re.findall(r'<h1 class="verdict[^>]*>(.*)</h1>', request(own_server.url, "/").body.decode())
        waits = run["wait_share"] > 0.5
        return (
            waits == (cause != "step") and (f" %: {cause}" if waits else "fed, the loader is fast enough") in sentence
        )

    with loader:
        thread = threading.Thread(target=train)
        thread.start()
        try:
            wait_for(is_named)
        finally:
            stop.set()
            thread.join()
    finished = run_named(own_server.url, run_name)
    assert finished
    assert finished["status"] == "finished"


def no_shards(answered: bad_server.Request) -> None:
    (bad_server.no_answer if answered.path.endswith(".tar") else bad_server.good)(answered)


@pytest.mark.parametrize(("cause", "workers"), [("storage", 1), ("transform", 1), ("transform", 0)])
@pytest.mark.torture_except("transform-1")
def test_the_verdict_names_the_cause_of_a_wait_that_does_not_end(
    own_server: Running, few: Path, cause: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_name = f"waits-{cause}-{workers}"
    monkeypatch.setattr("wds_tools.reporting.REPORT_SECONDS", 0.5)
    monkeypatch.setenv("WDS_TOOLS_RUN", run_name)
    ended = threading.Event()
    options: dict[str, Any] = {"batch_size": 4, "view": VIEW, "num_workers": workers, "report_to": own_server.url}
    store = bad_server.BadServer({f"/few/{path.name}": path.read_bytes() for path in few.iterdir()})
    store.default = no_shards

    def is_named() -> bool:
        run = run_named(own_server.url, run_name)
        if run is None or (run["main_cause"], run["wait_share"], run["images_per_second"]) != (cause, 1, 0):
            return False
        return f"waits 100 %: {cause}." in request(own_server.url, "/").body.decode()

    with store.running():
        if cause == "storage":
            loader = wt.make_loader(f"{store.url}/few", **options)
        else:
            loader = wt.make_loader(few, transform=lambda image: ended.wait(60) and image, **options)

        def train() -> None:
            with contextlib.suppress(LoaderError):
                list(loader)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            wait_for(is_named)
        finally:
            ended.set()
            loader.close()
            thread.join()


def test_the_page_shows_the_runs_of_all_ranks_the_slowest_first(server: Running) -> None:
    assert post(server.url, {**REPORT, "run": "two", "rank": 0, "wait_share": 0.1}) == 204
    assert post(server.url, {**REPORT, "run": "two", "rank": 1}) == 204
    run = run_named(server.url, "two")
    assert run
    assert [rank["rank"] for rank in run["ranks"]] == [1, 0]
    assert run["images_per_second"] == 2469.0
    text = request(server.url, "/").body.decode()
    assert "photos waits 31 %: decoding; 4 more workers would cover it" in text
    assert text.index("rank 1") < text.index("rank 0")
    assert "2,469" in text


def test_a_report_cannot_put_html_into_the_page(server: Running) -> None:
    hostile = "<script>alert(1)</script>"
    assert post(server.url, {**REPORT, "run": hostile, "dataset": hostile, "host": hostile, "advice": hostile}) == 204
    text = request(server.url, "/").body.decode()
    assert hostile not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"kind": "other"},
        {"run": ""},
        {"run": "x" * 201},
        {"run": "a\nb"},
        {"run": 3},
        {"host": "\u202e"},
        {"rank": -1},
        {"rank": 2},
        {"rank": True},
        {"rank": 1.5},
        {"images_per_second": "fast"},
        {"images_per_second": -1},
        {"images_per_second": 1e300},
        {"waits": {"other": 0.1}},
        {"waits": [0.1]},
        {"waits": {"decoding": None}},
        {"main_cause": "magic"},
        {"advice": "x" * 601},
        {"step": 10**30},
    ],
    ids=str,
)
def test_a_report_with_another_schema_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidReportError):
        check_report(json.dumps({**REPORT, **change}).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 60_000, b'{"format": NaN}', b"\xff\xfe", b"1" * 5000])
def test_a_report_that_is_not_json_is_refused(server: Running, body: bytes) -> None:
    assert post(server.url, body) == 400


def test_unknown_keys_of_a_report_are_not_kept() -> None:
    values = check_report(json.dumps({**REPORT, "more": "x" * 1000}).encode())
    assert "more" not in values
    assert set(values["waits"]) == set(CAUSES)


def test_a_report_must_be_small_and_of_this_origin(server: Running) -> None:
    assert post(server.url, json.dumps(REPORT).encode() + b" " * 65536) == 413
    assert post(server.url, REPORT, Content_Type="text/plain") == 415
    assert post(server.url, REPORT, Origin="http://evil.example") == 403
    assert post(server.url, REPORT, Sec_Fetch_Site="cross-site") == 403


@pytest.mark.parametrize(
    "body", [json.dumps(REPORT).encode(), gzip.compress(bytes(60 << 20), 1)], ids=["plain", "bomb"]
)
def test_a_report_marked_as_compressed_is_refused_without_a_message_in_the_log(
    few: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with in_thread(few) as url:
        for coding in ("gzip", "deflate", "br"):
            assert post(url, body, Content_Encoding=coding) == 400
        assert post(url, REPORT, Content_Encoding="identity") == 204
    assert not caplog.records


def test_a_report_that_is_sent_slowly_is_cut_off(few: Path) -> None:
    with (
        in_thread(few, limits=Limits(report_seconds=0.3)) as url,
        socket.create_connection(("127.0.0.1", urlsplit(url).port)) as connection,
    ):
        head = "POST /api/reports HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        connection.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100)[:12] in (b"", b"HTTP/1.1 408")


def test_false_runs_do_not_lock_out_a_real_one() -> None:
    table, values = ReportTable(), check_report(json.dumps(REPORT).encode())
    table.add("", "10.0.0.8", {**values, "run": "elsewhere"})
    for number in range(MAX_REPORTS + 100):
        table.add("", "10.0.0.7", {**values, "run": str(number)})
        if number % 50 == 0:  # a real one on the same machine, which reports again and again
            table.add("", "10.0.0.7", {**values, "run": "real", "step": number})
    shown = {report.values["run"] for report in table.reports()}
    assert len(table.reports()) == MAX_REPORTS
    assert {"real", "elsewhere", str(MAX_REPORTS + 99)} <= shown
    assert "0" not in shown


def test_the_reports_of_one_token_do_not_displace_those_of_others() -> None:
    table, values = ReportTable(), check_report(json.dumps(REPORT).encode())
    table.add("quiet", "10.0.0.7", values)
    for number in range(MAX_REPORTS + 1):
        table.add("loud", f"10.0.{number % 200}.7", {**values, "run": str(number)})
    assert [report.owner for report in table.reports()].count("quiet") == 1


def test_a_run_without_reports_for_ten_seconds_has_stopped() -> None:
    table = ReportTable()
    table.add("", "10.0.0.7", check_report(json.dumps(REPORT).encode()))
    pack = {"format": 1, "kind": "pack", "run": "p", "host": "h", "dataset": "d", "done": 1, "total": 4}
    table.add(
        "", "10.0.0.7", check_report(json.dumps({**pack, "images_per_second": 2.0, "seconds_left": 1.5}).encode())
    )
    reports = table.reports()
    assert [run["status"] for run in runs_of(reports)] == ["running"]
    later = time.time() + 10.5
    assert [run["status"] for run in runs_of(reports, now=later)] == ["stopped"]
    assert [one["status"] for one in packs_of(reports, now=later)] == ["stopped"]
    assert verdict(runs_of(reports, now=later)) == "No training runs; 1 stopped without finishing."


def test_the_verdict_counts_the_runs_that_are_fed() -> None:
    table = ReportTable()
    for run, cause, share in (("a", "step", 0.01), ("b", "step", 0.02), ("c", "decoding", 0.31)):
        report = {**REPORT, "run": run, "dataset": f"imagenet-{run}", "main_cause": cause, "wait_share": share}
        table.add("", "10.0.0.7", check_report(json.dumps(report).encode()))
    expected = "3 runs: 2 fed, imagenet-c waits 31 %: decoding; 4 more workers would cover it."
    assert verdict(runs_of(table.reports())) == expected


def test_the_verdict_needs_no_remedy_and_takes_none_out_of_the_sentence() -> None:
    report = {**REPORT, "advice": "the disk; it is slow"}
    del report["remedy"]  # as loaders of older versions send it
    table = ReportTable()
    table.add("", "10.0.0.7", check_report(json.dumps(report).encode()))
    assert verdict(runs_of(table.reports())).endswith(" waits 31 %: decoding.")


def test_a_token_sees_the_runs_that_reported_with_it(few: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    _, every = create_token(file, name="all")
    _, limited = create_token(file, name="limited", datasets=["other"])
    with in_thread(few.parent, token_file=file) as url:
        assert post(url, REPORT, Authorization=f"Bearer {every}") == 204
        assert post(url, {**REPORT, "run": "own"}, Authorization=f"Bearer {limited}") == 204
        seen = json.loads(request(url, "/api/runs", Authorization=f"Bearer {limited}").body)
        assert [run["run"] for run in seen["runs"]] == ["own"]
        page = request(url, "/", Authorization=f"Bearer {limited}").body
        assert (b"own" in page, b"job-1" in page) == (True, False)
        seen = json.loads(request(url, "/api/runs", Authorization=f"Bearer {every}").body)
        assert {run["run"] for run in seen["runs"]} == {"own", "job-1"}
        check_subprocess(few, url, {"WDS_TOOLS_TOKEN": f"{url}={every}", "WDS_TOOLS_RUN": "with-token"})
        assert wait_for(lambda: run_of(url, every, "with-token"))["status"] == "finished"


def run_of(url: str, token: str, name: str) -> dict[str, Any] | None:
    found = json.loads(request(url, "/api/runs", Authorization=f"Bearer {token}").body)
    return next((run for run in found["runs"] if run["run"] == name), None)


def check_subprocess(dataset: Path, url: str, env: dict[str, str]) -> None:
    """Iterate over a loader in another process, which reports by its environment and ends without close()."""
    code = (
        "import sys, wds_tools as wt, wds_tools.reporting\n"
        "wds_tools.reporting._JOIN_SECONDS = 60\n"
        "loader = wt.make_loader(sys.argv[1], batch_size=8, view=wt.CenterCrop(32, resize=40), num_workers=0)\n"
        "list(loader)"
    )
    env = {**os.environ, "WDS_TOOLS_REPORT_TO": url, **env}
    done = preloaded.run(["-c", code, dataset], env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_on_one_port_share_reports_and_metrics_and_end_with_the_one_that_started_them(few: Path) -> None:
    with program(few.parent, "--processes", "2") as running:
        for number in range(6):
            assert post(running.url, {**REPORT, "run": f"run-{number}"}) == 204
        answers = []

        def all_runs_were_shown() -> bool:
            answers.append(len(runs(running.url)["runs"]))
            return answers[-6:] == [6] * 6  # whichever process answered

        wait_for(all_runs_were_shown)
        # A process counts a request when it has sent the answer, so the client may be earlier.
        counted = f'wds_tools_requests_total{{route="runs",status="200"}} {len(answers)}.0'.encode()
        wait_for(lambda: counted in request(running.url, "/metrics").body)
        running.kill()
        wait_for(lambda: not accepts_connections(running.url))


def accepts_connections(url: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", urlsplit(url).port)):
        return True
    return False


class _Silent(http.server.BaseHTTPRequestHandler):
    received: list[str] = []  # noqa: RUF012 - a subclass per test has its own

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append(str(self.headers["Authorization"]))
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:9/other")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def redirecting() -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (_Silent,), {"received": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler.received
        server.shutdown()
        thread.join()


def test_the_token_of_another_server_is_not_sent_and_redirects_are_not_followed(
    few: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WDS_TOOLS_TOKEN", "http://127.0.0.1:1=wdst_secret")
    with redirecting() as (url, received):
        with wt.make_loader(few, batch_size=8, view=VIEW, num_workers=0, report_to=url) as loader:
            list(loader)
            wait_for(lambda: caplog.records)
        assert set(received) == {"None"}
    assert "status 302" in caplog.text


def test_a_dead_server_costs_one_warning_and_the_batches_are_the_same(
    few: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [batch.label.tolist() for batch in wt.make_loader(few, batch_size=8, view=VIEW, num_workers=0)]
    with wt.make_loader(few, batch_size=8, view=VIEW, num_workers=0, report_to="http://127.0.0.1:9") as loader:
        for _ in range(2):
            assert [batch.label.tolist() for batch in loader] == expected
        wait_for(lambda: caplog.records)
        started = time.monotonic()
    assert time.monotonic() - started < 10
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "does not accept reports" in caplog.text


def test_reports_are_sent_over_tls(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trusted, _ = bad_server.certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(trusted))
    with in_thread(few.parent, tls_cert=tmp_path / "server.pem") as url:

        def statuses() -> list[str]:
            with urllib.request.urlopen(f"{url}/api/runs", context=context) as reply:
                return [run["status"] for run in json.load(reply)["runs"]]

        reporter = Reporter(url, lambda: REPORT)
        with monkeypatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(trusted))
            reporter.start()
            wait_for(lambda: statuses() == ["running"])
        reporter.stop()  # sends the last report; the certificates are read once
        wait_for(lambda: statuses() == ["finished"])
        assert not caplog.records
        distrustful = Reporter(url, lambda: REPORT)
        distrustful.start()
        wait_for(lambda: "does not accept reports" in caplog.text)
        distrustful.stop()


@pytest.mark.parametrize("url", ["node1:8080", "http://", "ftp://node1", "http://user:secret@node1", "http://node1/x"])
def test_an_invalid_server_is_an_error_of_make_loader(few: Path, url: str) -> None:
    with pytest.raises(OptionError, match="WDS_TOOLS_REPORT_TO") as error:
        wt.make_loader(few, batch_size=8, report_to=url)
    assert "secret" not in str(error.value)


def test_a_dataset_is_reported_without_secrets() -> None:
    assert dataset_label("http://node1:8080/data/imagenet/train") == "imagenet/train"
    assert dataset_label("s3://bucket/photos/manifest.json?X-Signature=abc") == "photos"
    assert dataset_label("photos") == "photos"


def test_pack_reports_its_progress_and_its_end(server: Running, few_photos: Path, tmp_path: Path) -> None:
    words = ["pack", few_photos, tmp_path / "reported", "--workers", "1", "--images", "keep"]
    done = preloaded.command(*words, env={**os.environ, "WDS_TOOLS_REPORT_TO": server.url})
    assert done.returncode == 0, done.stderr
    (pack,) = (one for one in runs(server.url)["packs"] if one["dataset"].endswith("reported"))
    assert (pack["status"], pack["done"], pack["total"]) == ("finished", 40, 40)
    done = preloaded.command(
        *("reshard", tmp_path / "reported", "--in-place", "--images", "crop-ready"),
        env={**os.environ, "WDS_TOOLS_REPORT_TO": server.url},
    )
    assert done.returncode == 0, done.stderr
    packs = [one for one in runs(server.url)["packs"] if one["dataset"].endswith("reported")]
    (rewritten,) = (one for one in packs if one["work"] == "making crop-ready")
    assert (rewritten["status"], rewritten["done"], rewritten["total"]) == ("finished", 40, 40)
    assert re.search(r"reported</b> making crop-ready\s+<span", request(server.url, "/").body.decode())


@pytest.mark.usefixtures("forked_packers")
def test_a_background_pass_over_the_images_is_shown_at_the_run(
    server: Running, few_photos: Path, tmp_path: Path
) -> None:
    options = {"pack_to": tmp_path / "then", "report_to": server.url, "batch_size": 16, "fields": ["label"]}
    with wt.make_loader(few_photos, num_workers=0, pack={"then": "crop-ready"}, **options) as loader:
        assert len([*loader]) == 2

        def is_done() -> bool:
            run = next((run for run in runs(server.url)["runs"] if run["dataset"].endswith("then")), None)
            pack = run["pack"] if run else None
            return bool(pack) and (pack["work"], pack["status"], pack["done"]) == ("making crop-ready", "finished", 40)

        wait_for(is_done)
    assert wt.describe(tmp_path / "then").crop_ready > 30  # all JPEGs


@pytest.mark.usefixtures("forked_packers")
def test_a_pack_and_the_training_that_has_started_it_are_one_run(
    server: Running, few_photos: Path, tmp_path: Path
) -> None:
    options = {"pack_to": tmp_path / "trained", "report_to": server.url, "batch_size": 16, "fields": ["label"]}
    with wt.make_loader(few_photos, num_workers=0, **options) as loader:
        assert len([*loader]) == 2
        wait_for(lambda: mine(server.url) and mine(server.url)[0]["pack"])
        (run,) = mine(server.url)
        assert (run["pack"]["run"], run["pack"]["total"], run["pack"]["done"]) == (run["run"], 40, 40)
        assert run["pack"]["status"] == "finished"
        assert not [one for one in runs(server.url)["packs"] if one["dataset"].endswith("trained")]
        page = request(server.url, "/").body.decode()
        assert re.search(r"packing\s+<span class=.badge plain.>finished</span>.*\s.*value=.40", page)


def mine(url: str) -> list[dict[str, Any]]:
    return [run for run in runs(url)["runs"] if run["dataset"].endswith("trained")]
