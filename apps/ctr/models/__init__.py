"""Networks by the name that `[net] model` gives: fnn, dssm, or a class of the user's own."""

from __future__ import annotations

import importlib
import inspect

from apps.ctr.errors import ModelError
from apps.ctr.inifile import suggestion
from apps.ctr.models.dssm import DSSM
from apps.ctr.models.fnn import FNN
from apps.ctr.models.network import BlockShape, Network

__all__ = ["NETWORKS", "BlockShape", "Network", "network_class"]

NETWORKS: dict[str, type[Network]] = {"fnn": FNN, "dssm": DSSM}


def network_class(name: str) -> type[Network]:
    """The class of `fnn`, `dssm` or `package.module:Class`.

    Raises:
        ModelError: there is none, or it is no `Network`.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    module_name, colon, class_name = name.partition(":")
    if not colon:
        hint = suggestion(name, NETWORKS)
        raise ModelError(f"[net] model = {name} is unknown{hint}, or package.module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise ModelError(f"[net] model = {name}: cannot import {module_name}: {error}") from error
    except AttributeError as error:
        raise ModelError(f"[net] model = {name}: no {class_name} in {module_name}") from error
    if not (inspect.isclass(found) and issubclass(found, Network)):
        raise ModelError(f"[net] model = {name} is no subclass of apps.ctr.models.Network")
    return found
