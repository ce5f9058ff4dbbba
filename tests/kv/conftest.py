"""Hypothesis here: the same examples in each run, and no deadline (the first compiles a kernel).

`pytest --hypothesis-profile=thorough` tries many more, others each time.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kv",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
if settings.get_current_profile_name() != "thorough":
    settings.load_profile("kv")
