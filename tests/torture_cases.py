"""Plugin of pytest: parametrized tests of which `make test` runs only some cases.

``@pytest.mark.torture_except("2-fork", "0")`` marks all cases of a test `torture`, except the named ones. A name is
what stands in the brackets of the id of a test.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases."""
    unknown: dict[str, set[str]] = {}
    for item in items:
        if mark := item.get_closest_marker("torture_except"):
            name, _, case = item.nodeid.partition("[")
            unknown.setdefault(name, set(mark.args)).discard(case[:-1])
            if case[:-1] not in mark.args:
                item.add_marker(pytest.mark.torture)
    wrong = [f"{name}: {sorted(cases)}" for name, cases in unknown.items() if cases]
    if wrong and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"torture_except names cases that do not exist: {'; '.join(wrong)}")
