"""`python -m pslite` is the command `pslite`."""

from __future__ import annotations

from pslite.cli import main

main()
