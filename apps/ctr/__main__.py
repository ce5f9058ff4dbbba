"""`python -m apps.ctr` is `pslite-ctr`."""

from apps.ctr.cli import main

main(prog_name="pslite-ctr")
