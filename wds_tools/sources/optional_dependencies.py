"""Libraries that only some sources need: imported at first use."""

from __future__ import annotations

import importlib
from typing import Any

from wds_tools.errors import OptionError


def import_optional(library: str, what: str) -> Any:
    """Import a library of the extra ``sources``.

    Args:
        library: Name of the module.
        what: Name of the format that needs it, for the error message.

    Raises:
        OptionError: The library is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise OptionError(
            f'{what} needs the package {library}, which is not installed: pip install "wds-tools[sources]"'
        ) from error
