"""`python -m sample` is `pslite-sample`."""

from sample.cli import main

if __name__ == "__main__":
    main()
