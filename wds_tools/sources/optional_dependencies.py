"""Libraries that only some sources need: asked for when they are, by the name of the extra that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from wds_tools.errors import OptionError


def load(library: str, what: str) -> Any:
    """Import a library of the extra ``sources``.

    Raises:
        OptionError: It is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise OptionError(
            f'{what} needs the package {library}, which is not installed: pip install "wds-tools[sources]"'
        ) from error
