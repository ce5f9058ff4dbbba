"""The exception that a handler raised on another node, as this node raises it.

Names on the wire choose among our own error classes only; anything else becomes `RemoteError`.
"""

from __future__ import annotations

import kv.errors
from kv.errors import RemoteError, VersionMismatchError
from van.errors import PsliteError


def remote_error(node: str, kind: str, text: str) -> PsliteError:
    """An error of the same class as on `node` where that class is ours, else `RemoteError`."""
    known = getattr(kv.errors, kind, None)
    problem = f"{text} (on {node})" if known is not None else f"{kind}: {text}"
    if known is VersionMismatchError:
        problem = text  # it names worker and server itself
    if isinstance(known, type) and issubclass(known, PsliteError):
        error = known.__new__(known)  # the text is complete; constructors take the facts apart
        PsliteError.__init__(error, problem)
        error.__dict__["node"] = node
        return error
    return RemoteError(node, problem)
