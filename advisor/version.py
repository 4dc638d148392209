"""The version of the distribution; its one source."""

__version__ = "0.1.0"
