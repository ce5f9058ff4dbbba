"""What a job that is to repeat does not do while it runs."""

from __future__ import annotations

import pytest

from kv.errors import KVError
from kv.placement_app import PlacementApp
from postoffice.head import SchedulerOffice
from postoffice.postoffice import ClusterShape
from van.loopback import LoopbackNetwork


def test_its_scheduler_moves_no_rows_to_other_servers() -> None:
    shape = ClusterShape(servers=2, workers=1, scheduler="scheduler")
    office = SchedulerOffice(LoopbackNetwork(1).van(), shape, incarnation=1)
    app = PlacementApp(office, why_fixed="it is recorded")
    app._has_started = True

    with pytest.raises(KVError, match="this job cannot be scaled: it is recorded"):
        app.scale(3)
