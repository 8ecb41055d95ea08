"""Progress is shown on a terminal, but not in a CI job, and whenever the caller requests it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from terminals import Stream

import wds_tools
from wds_tools.terminal import shows_progress


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("terminal", "variables", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"CI": "true"}, False),
        (True, {"CI": "1"}, False),
        (True, {"CI": "false"}, True),
        (True, {"CI": ""}, True),
        (True, {"NO_COLOR": "1"}, True),  # a bar has no colours
    ],
)
def test_progress_needs_a_terminal_that_is_not_dumb_and_no_ci(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], expected: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", Stream(terminal=terminal))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert shows_progress() is expected


@pytest.mark.parametrize("terminal", [True, False])
def test_an_explicit_choice_of_progress_overrides_the_detection(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", Stream(terminal=terminal))
    assert shows_progress(True)
    assert not shows_progress(False)


def test_a_closed_or_missing_stderr_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Stream(terminal=True)
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert not shows_progress()


def test_no_other_module_decides_about_terminals() -> None:
    package = Path(wds_tools.__file__).parent
    decides = re.compile(r"""isatty\(|["'](TERM|CI|NO_COLOR|FORCE_COLOR)["']""")
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if decides.search(path.read_text())}
    assert found == {"terminal.py"}
