"""`python -m feature_extract` is `pslite-features`."""

from feature_extract.cli import main

if __name__ == "__main__":
    main()
