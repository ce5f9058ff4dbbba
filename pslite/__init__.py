"""pslite: a parameter server for sparse models."""

__version__ = "0.1.0"
