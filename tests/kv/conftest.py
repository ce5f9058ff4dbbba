"""Hypothesis here: the same examples in each run, and no deadline (the first compiles a kernel)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kv", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kv")
