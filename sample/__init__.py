"""Raw advertising logs to samples.

    sample.generate.generate   a seeded generator of raw logs in the Taobao format
    sample.join.join           the four raw files to samples of 77 columns, correct in time
    sample.SCHEMA              the names of those columns, in order
    sample.errors              every error of this package, rooted in `SampleError`

On the command line: `pslite-sample generate` and `pslite-sample join` (or `python -m sample`).
This package stands alone: it knows nothing of the parameter server.
"""

from sample.schema import SCHEMA

__all__ = ["SCHEMA"]
