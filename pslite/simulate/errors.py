"""What can go wrong around a simulation.

PsliteError
    SimulateError    a file cannot be written, or there is nothing to draw with
"""

from __future__ import annotations

from van.errors import PsliteError


class SimulateError(PsliteError):
    """What was found cannot be shown or kept as was asked."""
