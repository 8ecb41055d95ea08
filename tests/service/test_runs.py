"""Runs of the past: what is stored of reports, how long, who sees it, and what the page and the commands show."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest
from servers import IMPORTS, Running, in_thread, program, request
from test_live import REPORT, post
from waiting import wait_for

import wds_tools as wt
from wds_tools.options import RemoteOptions
from wds_tools.service import history as history_module
from wds_tools.service.history import FILE_NAME, POINT_SECONDS, Point, RunHistory, mean_of
from wds_tools.service.reports import Report, check_report
from wds_tools.service.tokens import create_token

START = {"name": "start", "time": 1_000_000.0, "epoch": 0, "step": 0}


def report(received: float, *, owner: str = "", **changes: Any) -> Report:
    values = check_report(json.dumps({**REPORT, "events": [START], **changes}).encode())
    return Report(owner, "127.0.0.1", received, values)


@pytest.fixture(scope="module")
def server(few: Path) -> Iterator[Running]:
    with program(few.parent) as running:
        yield running


@pytest.fixture
def history(tmp_path: Path) -> RunHistory:
    return RunHistory(tmp_path / "new" / "cache")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service of a thread store runs often."""
    monkeypatch.setattr(history_module, "POINT_SECONDS", 0.05)


def test_a_run_has_a_point_for_ten_seconds_over_all_ranks_and_its_events(history: RunHistory) -> None:
    now = time.time() // POINT_SECONDS * POINT_SECONDS
    for second in (0, 3, 10, 20):
        reports = [
            report(now + second, rank=rank, step=second, images_per_second=100.0, wait_share=share, errors=1)
            for rank, share in ((0, 0.2), (1, 0.4))
        ]
        history.add(reports, now=now + second)
    (run,) = history.runs()
    assert (run.name, run.dataset, run.world_size, run.status, run.errors) == ("job-1", "photos", 2, "running", 2)
    points = history.points(run)
    assert [(point.time - now, point.step) for point in points] == [(0, 3), (10, 10), (20, 20)]
    assert {point.images_per_second for point in points} == {200.0}
    assert points[0].wait_share == pytest.approx(0.3)
    assert points[0].waits == {"decoding": 0.31}
    assert [(event.name, event.time) for event in history.events(run)] == [("start", 1_000_000.0)]


def test_the_end_of_a_run_is_an_event_and_so_is_its_silence(history: RunHistory) -> None:
    now = time.time()
    history.add([report(now, run="a"), report(now, run="b")], now=now)
    history.add([report(now + 1, run="a", ended=True), report(now, run="b")], now=now + 30)
    ends = {run.name: (run.status, history.events(run)[-1].name) for run in history.runs()}
    assert ends == {"a": ("finished", "finished"), "b": ("stopped", "stopped")}


def test_a_run_that_goes_on_keeps_its_points_and_has_another_event(history: RunHistory) -> None:
    now = time.time()
    history.add([report(now - 500, step=5)], now=now - 500)
    resumed = {"name": "resume", "time": now - 20, "epoch": 3, "step": 6}
    history.add([report(now, step=9, events=[resumed])], now=now)
    (run,) = history.runs()
    assert [point.step for point in history.points(run)] == [5, 9]
    assert [event.name for event in history.events(run)] == ["start", "resume"]


def test_a_run_whose_service_was_killed_is_shown_as_stopped(history: RunHistory) -> None:
    history.add([report(time.time() - 3600)], now=time.time() - 3600)
    assert history.runs()[0].status == "stopped"


def test_points_of_90_days_are_kept_and_runs_without_points_are_removed(history: RunHistory) -> None:
    now = time.time()
    for days in (89, 91):
        history.add([report(now - days * 86400, run=f"{days} days")], now=now - days * 86400)
    history.prune(now=now)
    assert [run.name for run in history.runs()] == ["89 days"]


def test_a_file_that_is_too_large_loses_the_oldest_runs_of_whoever_has_most(history: RunHistory) -> None:
    now = time.time()
    events = [{**START, "time": float(index)} for index in range(32)]
    false = [report(now - 100 + index, run=f"false {index}", owner="flood", events=events) for index in range(60)]
    history.add(false, now=now)
    history.add([report(now - 200, run="real", owner="other")], now=now - 200)
    history.prune(now=now, max_bytes=history.path.stat().st_size * 3 // 4)
    names = [run.name for run in history.runs()]
    assert "real" in names
    assert "false 59" in names
    assert "false 0" not in names


def test_a_damaged_file_is_moved_aside_with_a_warning(history: RunHistory, caplog: pytest.LogCaptureFixture) -> None:
    history.add([report(time.time())])
    for suffix in ("-wal", "-shm"):
        history.path.with_name(history.path.name + suffix).unlink(missing_ok=True)
    history.path.write_bytes(b"not a database" * 1000)
    history.add([report(time.time(), run="job-2")])
    assert [run.name for run in history.runs()] == ["job-2"]
    assert history.path.with_suffix(".damaged").read_bytes().startswith(b"not a database")
    assert "is damaged: it was moved to" in caplog.text


def test_a_damaged_page_is_found_when_it_is_read(history: RunHistory) -> None:
    now = time.time()
    history.add([report(now, run=f"job-{index}") for index in range(300)], now=now)
    data = bytearray(history.path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    history.path.write_bytes(bytes(data))
    history.add([report(now + 400, run="next")], now=now + 400)  # damaged: the file is moved aside
    history.add([report(now + 410, run="next")], now=now + 410)
    assert [run.name for run in history.runs()] == ["next"]


def test_a_file_that_cannot_be_written_is_one_warning(
    history: RunHistory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(history_module.sqlite3, "connect", refuse)
    history.add([report(time.time())])
    history.add([report(time.time())])
    assert caplog.text.count("runs are not kept") == 1


WRITER = """
import json, sys, time
from pathlib import Path
from wds_tools.service.history import RunHistory
from wds_tools.service.reports import Report
history, values, second = RunHistory(Path(sys.argv[1])), json.loads(sys.argv[2]), time.time() - 100_000
while True:
    second += 10
    runs = [{**values, "run": f"job-{rank}", "rank": rank % 2} for rank in range(4)]
    history.add([Report("", "127.0.0.1", second, run) for run in runs], now=second)
"""


def test_a_writer_that_is_killed_leaves_a_file_that_is_intact(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    values = json.dumps(report(0.0).values)  # without the import of this module, which takes a second
    process = preloaded.Process(["-c", WRITER, tmp_path, values], imports=IMPORTS)
    try:
        wait_for(lambda: history.count() == 4 and len(history.points(history.runs()[0])) > 3)
    finally:
        process.kill()
        process.wait()
    before = len(history.points(history.runs()[0]))
    history.add([report(time.time(), run="job-0")])
    assert before > 3
    assert not history.path.with_suffix(".damaged").exists()
    assert history.count() == 4


def test_a_loader_stores_its_start_its_changes_of_weights_and_its_resume(few: Path, tmp_path: Path, soon: None) -> None:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "view": wt.CenterCrop(32), "shuffle": True}
    with in_thread(few.parent, remote=RemoteOptions.of(tmp_path)) as url:
        loader = wt.make_loader(few, report_to=url, **options)
        batches = iter(loader)
        next(batches)
        loader.reweight(classes={0: 2.0})
        next(batches)
        state = loader.state_dict()
        loader.close()
        resumed = wt.make_loader(few, report_to=url, **options)
        resumed.load_state_dict(state)
        next(iter(resumed))
        resumed.close()
        history = RunHistory(tmp_path)
        wait_for(lambda: len(history.runs()) == 2)
        events = [[event.name for event in history.events(run)] for run in history.runs()]
    assert sorted(names[:2] for names in events) == [["resume", "finished"], ["start", "reweight"]]


def test_a_change_of_weights_between_epochs_is_stored(few: Path, tmp_path: Path, soon: None) -> None:
    with in_thread(few.parent, remote=RemoteOptions.of(tmp_path)) as url:
        options: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "fields": ["cls"], "shuffle": True}
        with wt.make_loader(few, report_to=url, **options) as loader:
            for _ in range(2):
                list(loader)
                loader.reweight(classes={0: 2.0})
            next(iter(loader))
        history = RunHistory(tmp_path)
        wait_for(lambda: len(history.runs()) == 1 and history.runs()[0].status == "finished")
        events = [(event.name, event.epoch) for event in history.events(history.runs()[0])]
    assert events[:3] == [("start", 0), ("reweight", 1), ("reweight", 2)]


def test_points_of_an_epoch_count_as_long_as_their_steps_took() -> None:
    points = [Point(0, 0, 1, 140.0, 1.0, {"storage": 1.0}, 0.0, 0), Point(10, 0, 17, 10.0, 0.03, {}, 0.0, 0)]
    speed, wait, waits = mean_of(points)
    assert 10 < speed < 11
    assert 0.03 < wait < 0.04
    assert waits["storage"] < 0.01
    idle = [*points, Point(20, 0, 17, 0.0, 1.0, {"packing": 1.0}, 0.0, 0)]
    assert mean_of(idle)[1] > 0.4
    assert mean_of(idle[2:]) == (0.0, 1.0, {"packing": 1.0})


def test_a_token_sees_its_own_runs(few: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    secrets = {
        name: create_token(tokens, name=name, datasets=(pattern,))[1]
        for name, pattern in (("all", "*"), ("ann", "few"), ("bob", "few"))
    }
    history = RunHistory(tmp_path)
    owners = {token["name"]: token["id"] for token in json.loads(tokens.read_text())["tokens"]}
    history.add([report(time.time(), run=f"of {name}", owner=owners[name]) for name in ("ann", "bob")])
    ids = {run.name: run.id for run in history.runs()}
    with program(few.parent, "--token-file", str(tokens), "--cache-dir", str(tmp_path)) as running:

        def status(name: str, path: str) -> int:
            return request(running.url, path, Authorization=f"Bearer {secrets[name]}").status

        listed = request(running.url, "/runs/", Authorization=f"Bearer {secrets['ann']}").body.decode()
        assert "of ann" in listed
        assert "of bob" not in listed
        for path in ("/runs/", "/api/runs/"):
            assert status("ann", path + ids["of ann"]) == 200
            assert status("ann", path + ids["of bob"]) == 404
            assert status("all", path + ids["of bob"]) == 200
        other = request(
            running.url, f"/runs/{ids['of ann']}?with={ids['of bob']}", Authorization=f"Bearer {secrets['ann']}"
        ).body.decode()
        assert "of bob" not in other


@pytest.mark.parametrize(
    "events",
    [
        "start",
        [["start"]],
        [{"name": "<script>", "time": 1, "epoch": 0, "step": 0}],
        [{"name": "start", "time": -1, "epoch": 0, "step": 0}],
        [{"name": "start", "time": 1, "epoch": 0.5, "step": 0}],
        [START] * 33,
    ],
)
def test_events_with_another_schema_are_refused(server: Running, events: Any) -> None:
    assert post(server.url, {**REPORT, "events": events}) == 400


@pytest.mark.parametrize("path", ["/runs/zz", f"/runs/{'0' * 32}", f"/api/runs/{'0' * 32}", "/runs/../api"])
def test_a_run_that_does_not_exist_is_404(server: Running, path: str) -> None:
    assert request(server.url, path).status == 404


def test_the_page_of_a_run_has_charts_of_two_runs_and_escapes_their_names(few: Path, tmp_path: Path) -> None:
    now = time.time()
    history = RunHistory(tmp_path)
    for name, speed in (("<b>fast", 2000.0), ("slow & steady", 500.0)):
        for second in range(0, 100, 10):
            changes = {"images_per_second": speed, "waits": {"decoding": 0.2, "storage": 0.1}}
            history.add([report(now - 100 + second, run=name, **changes)], now=now - 100 + second)
    first, second = history.runs()
    with program(few.parent, "--cache-dir", str(tmp_path)) as running:
        page = request(running.url, f"/runs/{first.id}?with={second.id}").body.decode()
        alone = request(running.url, f"/runs/{first.id}?with=%3Cscript%3E").body.decode()
        points = json.loads(request(running.url, f"/api/runs/{first.id}").body)
    assert "<b>fast" not in page
    assert "&lt;b&gt;fast" in page
    assert page.count('class="line first"') == page.count('class="line second"') == 3
    assert {"cause-decoding", "cause-storage"} <= set(page.split('"'))
    assert re.findall(r'class="dot (\S+)"', page) == ["cause-storage", "cause-decoding"]
    assert "causes of slow &amp; steady:" in page
    assert 'class="line second"' not in alone
    assert [point["images_per_second"] for point in points["points"]] == [500.0] * len(points["points"])


def test_a_line_has_gaps_where_a_run_was_silent_and_a_single_point_is_drawn(few: Path, tmp_path: Path) -> None:
    history, now = RunHistory(tmp_path), time.time() // POINT_SECONDS * POINT_SECONDS
    for second in (2000, 1990, 1000, 0):
        history.add([report(now - second)], now=now - second)
    (run,) = history.runs()
    with in_thread(few.parent, remote=RemoteOptions.of(tmp_path)) as url:
        text = request(url, f"/runs/{run.id}").body.decode()
    lines = re.findall(r'class="line first" points="(.*?)"', text)
    ends = [(float(line.split(",")[0]), float(line.split()[-1].split(",")[0])) for line in lines[:3]]
    assert [start for start, _ in ends] == pytest.approx([48, 320, 592 - 2], abs=3)
    assert all(1 < stop - start < 6 for start, stop in ends[:2])
    assert len(lines) == 3 * 3


def test_the_commands_list_show_and_export_runs(tmp_path: Path) -> None:
    history, now = RunHistory(tmp_path), time.time()
    for second in (20, 10, 0):
        history.add([report(now - second, epoch=3, waits={"decoding": 0.25})], now=now - second)
    run = history.runs()[0]

    def output(*arguments: str) -> str:
        return preloaded.command("runs", *arguments, "--cache-dir", str(tmp_path)).stdout

    listed = output("list")
    assert run.id[:8] in listed
    assert "job-1  photos" in listed
    assert json.loads(output("list", "--json"))["runs"][0]["id"] == run.id
    shown = output("show", "job-1")
    assert "epoch 3: 1,234 images/s, waited 31 % of the time (decoding)" in shown
    rows = list(csv.DictReader(io.StringIO(output("export", run.id[:6]))))
    assert [row["wait_decoding"] for row in rows] == ["0.25"] * len(rows)
    assert len(rows) == len(history.points(run)) > 1
    assert len(json.loads(output("export", run.id, "--format", "json"))["points"]) == len(rows)
    missing = preloaded.command("runs", "show", "nothing", "--cache-dir", str(tmp_path))
    assert missing.returncode == 2
    assert "no run has the name or id nothing" in missing.stderr
    assert (tmp_path / FILE_NAME).exists()


def test_the_page_about_the_service_has_the_keys_of_the_list_as_json(tmp_path: Path) -> None:
    RunHistory(tmp_path).add([report(time.time())])
    found = json.loads(preloaded.command("runs", "list", "--json", "--cache-dir", str(tmp_path)).stdout)
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    before, _, rest = page.partition("| key of a run | value |\n|---|---|\n")
    stated = [row.split("|")[1] for row in rest.partition("\n\n")[0].splitlines()]
    assert re.findall(r"`(\w+)`", " ".join(stated)) == list(found["runs"][0])
    assert all(f"`{key}`" in before.splitlines()[-3] + before.splitlines()[-2] for key in found)
