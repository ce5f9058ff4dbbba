"""The one place with options for Numba.

`cache` does not notice a change here: remove the caches (`__pycache__/*.nbi`) after one.
"""

from __future__ import annotations

import numba

# no fastmath and no parallel: the same result everywhere, and threads of others are left alone
kernel = numba.njit(nogil=True, cache=True, error_model="numpy")
