"""What dispatchers, workers and the scheduler say to each other about load.

dispatcher to worker, a request: `number` and `spill` in the body. The worker is to go past the
dispatcher (`spill`), or to come back; of several wishes the one with the greatest number counts.
"""

BALANCE_APP = (1 << 32) + 105
"""Application id."""

STATUS = "balance"
"""What nodes tell the scheduler of it with their heartbeats has this name, and what others ask."""
