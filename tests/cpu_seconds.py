"""Plugin of pytest: how much CPU time each test takes, in all processes, and the dearest ones at the end of a run.

It counts this process, the children that it has waited for, and the programs of `preloaded`. What a fixture of several
tests takes is part of the first one. Nothing fails because of it. A file of ``--junitxml`` has each test as the
property ``cpu_seconds``.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import preloaded
import pytest

SHOWN = 10
"""Number of tests at the end of a run."""
LEAST_SECONDS = 2.0
"""CPU time from which a test is shown: see CONTRIBUTING.md."""
_NAME = "cpu_seconds"
_start = pytest.StashKey[float]()


def _now() -> float:
    return sum(os.times()[:4]) + preloaded.cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note when a test begins."""
    item.stash[_start] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the property to the last report of a test."""
    if call.when == "teardown":
        item.user_properties.append((_NAME, round(_now() - item.stash[_start], 2)))
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the dearest tests."""
    reports = [one for group in terminalreporter.stats.values() for one in group if isinstance(one, pytest.TestReport)]
    found = {one.nodeid: seconds for one in reports for name, seconds in one.user_properties if name == _NAME}
    dearest = sorted((one for one in found.items() if one[1] >= LEAST_SECONDS), key=lambda one: -one[1])[:SHOWN]
    if dearest:
        terminalreporter.section(f"the dearest of {len(found):,} tests, of {sum(found.values()):,.0f} CPU-s")
        for name, seconds in dearest:
            terminalreporter.line(f"{seconds:6.1f} CPU-s {name}")
