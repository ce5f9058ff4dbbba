"""pslite: a parameter server for sparse models, modelled on ps-lite.

    with pslite.connect() as worker:
        emb = worker.sparse_table("user", dim=8, optimizer=pslite.Adagrad(lr=0.05))
        rows = emb.pull(keys)
        emb.push(keys, grads)

Names are loaded when first used: `import pslite` alone needs neither NumPy nor Numba nor ZeroMQ.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "pslite.session": ("connect", "local_cluster"),
    "kv.checkpoint.collective": ("Checkpoints", "Resumed"),
    "kv.checkpoint.errors": (
        "CheckpointError",
        "CheckpointWriteError",
        "NoCheckpointError",
        "DamagedCheckpointError",
        "CheckpointMismatchError",
    ),
    "kv.protocols": ("Worker", "SparseTable", "DenseTable"),
    "kv.clipping": ("Clipping",),
    "kv.worker": ("KVWorker",),
    "kv.pairs": ("KVPairs", "KVMeta"),
    "kv.server": ("KVServer", "KVServerDefaultHandle"),
    "kv.consistency.settings": ("Async", "DCAsync", "SSP", "Sync", "SemiSync"),
    "kv.optimizers": (
        "SGD",
        "Momentum",
        "Nesterov",
        "Adagrad",
        "RowwiseAdagrad",
        "Adam",
        "AdamW",
        "RMSprop",
        "Adadelta",
        "FTRL",
    ),
    "kv.schedules": (
        "ConstantRate",
        "Warmup",
        "StepDecay",
        "ExponentialDecay",
        "CosineDecay",
        "LinearDecay",
        "InverseSqrt",
    ),
    "kv.policies": ("AfterSightings", "WithProbability", "ByAge", "ByScore"),
    "kv.initializers": ("Zeros", "Constant", "Uniform", "Normal", "Xavier", "He"),
    "van.errors": (
        "PsliteError",
        "ConfigError",
        "VanError",
        "CodecError",
        "ProtocolVersionError",
        "AddressError",
        "HandshakeError",
        "UnreachablePeerError",
    ),
    "postoffice.errors": (
        "PostofficeError",
        "ClusterStartError",
        "RegistrationError",
        "BarrierError",
        "RequestTimeoutError",
        "ClusterStoppedError",
        "DeadNodeError",
        "FencedNodeError",
        "SchedulerLostError",
        "JournalError",
    ),
    "kv.errors": (
        "KVError",
        "UnsortedKeysError",
        "KeyValueShapeError",
        "SettingError",
        "RankError",
        "WouldWaitError",
        "KeyListError",
        "ValueShapeError",
        "LatePushError",
        "VersionMismatchError",
        "ArenaFullError",
        "LeaseError",
        "TableError",
        "TableConflictError",
        "UnknownTableError",
        "MissingKeyError",
        "NonFiniteError",
        "RemoteError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "FTRL",
    "SGD",
    "SSP",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "AddressError",
    "AfterSightings",
    "ArenaFullError",
    "Async",
    "BarrierError",
    "ByAge",
    "ByScore",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointWriteError",
    "Checkpoints",
    "Clipping",
    "ClusterStartError",
    "ClusterStoppedError",
    "CodecError",
    "ConfigError",
    "Constant",
    "ConstantRate",
    "CosineDecay",
    "DCAsync",
    "DamagedCheckpointError",
    "DeadNodeError",
    "DenseTable",
    "ExponentialDecay",
    "FencedNodeError",
    "HandshakeError",
    "He",
    "InverseSqrt",
    "JournalError",
    "KVError",
    "KVMeta",
    "KVPairs",
    "KVServer",
    "KVServerDefaultHandle",
    "KVWorker",
    "KeyListError",
    "KeyValueShapeError",
    "LatePushError",
    "LeaseError",
    "LinearDecay",
    "MissingKeyError",
    "Momentum",
    "Nesterov",
    "NoCheckpointError",
    "NonFiniteError",
    "Normal",
    "PostofficeError",
    "ProtocolVersionError",
    "PsliteError",
    "RMSprop",
    "RankError",
    "RegistrationError",
    "RemoteError",
    "RequestTimeoutError",
    "Resumed",
    "RowwiseAdagrad",
    "SchedulerLostError",
    "SemiSync",
    "SettingError",
    "SparseTable",
    "StepDecay",
    "Sync",
    "TableConflictError",
    "TableError",
    "Uniform",
    "UnknownTableError",
    "UnreachablePeerError",
    "UnsortedKeysError",
    "ValueShapeError",
    "VanError",
    "VersionMismatchError",
    "Warmup",
    "WithProbability",
    "Worker",
    "WouldWaitError",
    "Xavier",
    "Zeros",
    "__version__",
    "connect",
    "local_cluster",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'pslite' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _refuse_shadows() -> None:
    """Packages with names as short as `kv` are easily hidden by a file of the user's."""
    ours = Path(__file__).resolve().parent.parent
    for name in ("van", "postoffice", "kv"):
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"package {name!r} is missing beside pslite in {ours}; reinstall it")
        places = [*(spec.submodule_search_locations or []), *([spec.origin] if spec.origin else [])]
        if not any(Path(place).resolve().is_relative_to(ours / name) for place in places):
            found = spec.origin or ", ".join(places)
            raise ImportError(
                f"{found} hides the package {name!r} of pslite (in {ours}); "
                f"rename it, or start Python from another folder"
            )


_refuse_shadows()

if TYPE_CHECKING:
    from kv.checkpoint.collective import Checkpoints, Resumed
    from kv.checkpoint.errors import (
        CheckpointError,
        CheckpointMismatchError,
        CheckpointWriteError,
        DamagedCheckpointError,
        NoCheckpointError,
    )
    from kv.clipping import Clipping
    from kv.consistency.settings import SSP, Async, DCAsync, SemiSync, Sync
    from kv.errors import (
        ArenaFullError,
        KeyListError,
        KeyValueShapeError,
        KVError,
        LatePushError,
        LeaseError,
        MissingKeyError,
        NonFiniteError,
        RankError,
        RemoteError,
        SettingError,
        TableConflictError,
        TableError,
        UnknownTableError,
        UnsortedKeysError,
        ValueShapeError,
        VersionMismatchError,
        WouldWaitError,
    )
    from kv.initializers import Constant, He, Normal, Uniform, Xavier, Zeros
    from kv.optimizers import (
        FTRL,
        SGD,
        Adadelta,
        Adagrad,
        Adam,
        AdamW,
        Momentum,
        Nesterov,
        RMSprop,
        RowwiseAdagrad,
    )
    from kv.pairs import KVMeta, KVPairs
    from kv.policies import AfterSightings, ByAge, ByScore, WithProbability
    from kv.protocols import DenseTable, SparseTable, Worker
    from kv.schedules import (
        ConstantRate,
        CosineDecay,
        ExponentialDecay,
        InverseSqrt,
        LinearDecay,
        StepDecay,
        Warmup,
    )
    from kv.server import KVServer, KVServerDefaultHandle
    from kv.worker import KVWorker
    from postoffice.errors import (
        BarrierError,
        ClusterStartError,
        ClusterStoppedError,
        DeadNodeError,
        FencedNodeError,
        JournalError,
        PostofficeError,
        RegistrationError,
        RequestTimeoutError,
        SchedulerLostError,
    )
    from pslite.session import connect, local_cluster
    from van.errors import (
        AddressError,
        CodecError,
        ConfigError,
        HandshakeError,
        ProtocolVersionError,
        PsliteError,
        UnreachablePeerError,
        VanError,
    )
