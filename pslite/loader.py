"""Objects that settings name as `module:name`, such as `[server] app`."""

from __future__ import annotations

import importlib
from typing import Any

from van.errors import ConfigError


def load_object(reference: str, *, section: str, key: str) -> Any:
    """What `MODULE:NAME` names; NAME may have dots.

    Raises:
        ConfigError: the module cannot be imported, or has no such name; it names section and key.
    """
    module_name, _, path = reference.partition(":")

    def wrong(problem: str) -> ConfigError:
        return ConfigError(f"{reference}: {problem}", section=section, key=key)

    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        raise wrong(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise wrong(f"{module_name} has no {path}") from None
    return found


def load_function(reference: str, *, section: str, key: str) -> Any:
    """As `load_object`, for something that can be called."""
    found = load_object(reference, section=section, key=key)
    if not callable(found):
        problem = f"{reference}: expected a function, found {type(found).__name__}"
        raise ConfigError(problem, section=section, key=key)
    return found
