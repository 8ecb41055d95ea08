"""Everything that a user can set or read is documented: options, environment variables, metrics."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import wds_tools
from wds_tools import cli, options
from wds_tools.service.metrics import Metrics

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path: path.read_text() for path in DOCS.glob("*.md")}
NAMES = [
    name
    for name in wds_tools.__all__
    if name[0].islower() or name in ("ShardWriter", "StreamingDataset", "WebDataset")  # errors and values have few
]


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a public function or class, as `help` shows them."""
    return dict(inspect.signature(getattr(wds_tools, name)).parameters)


def documented_in(name: str) -> set[str]:
    """Return the arguments that a docstring describes."""
    text = inspect.getdoc(getattr(wds_tools, name)) or ""
    section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^    (\w+): \S", section, re.MULTILINE))


def others_in(name: str) -> set[str]:
    """Return the arguments of the function that a docstring refers to for all others."""
    text = inspect.getdoc(getattr(wds_tools, name)) or ""
    referred = re.search(r"`(\w+)` describes the arguments that are not listed here", text)
    return documented_in(referred[1]) if referred else set()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_every_option_is_documented_and_every_documented_one_exists(name: str) -> None:
    parameters = parameters_of(name)
    assert set(parameters) - documented_in(name) - others_in(name) == set()
    assert documented_in(name) - set(parameters) == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_function_is_on_a_page_of_the_api(name: str) -> None:
    pages = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    assert f"::: wds_tools.{name}\n" in pages


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_parameters_have_types_and_the_names_of_options_objects_are_not_among_them(name: str) -> None:
    parameters = parameters_of(name)
    assert "options" not in parameters or parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())


def test_every_environment_variable_is_documented() -> None:
    read = set(re.findall(r"\"(WDS_TOOLS_\w+)\"", inspect.getsource(options)))
    assert len(read) > 5
    table = PAGES[DOCS / "how-it-works.md"].partition("### Environment variables")[2]
    assert read == set(re.findall(r"^\| `(WDS_TOOLS_\w+)`", table, re.MULTILINE))


def test_every_metric_is_documented() -> None:
    exported = set(re.findall(r"^# TYPE (\w+)", Metrics().text().decode(), re.MULTILINE))
    assert len(exported) > 5
    assert exported == set(re.findall(r"^\| `(wds_tools_\w+)`", PAGES[DOCS / "serve.md"], re.MULTILINE))


def test_pages_name_only_commands_that_exist() -> None:
    paths = [*PAGES, *Path(wds_tools.__file__).parent.rglob("*.html"), *Path(wds_tools.__file__).parent.rglob("*.py")]
    texts = [path.read_text() for path in paths]
    named = {
        name for text in texts for name in re.findall(r"(?:`|<code>|^)wds-tools ([a-z][a-z-]*)", text, re.MULTILINE)
    }
    assert len(named) > 20
    assert named <= set(cli.cli.commands)
