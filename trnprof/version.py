"""The one place that holds the version: pyproject.toml reads it, and so does every JSON envelope."""

__version__ = "0.1.0"
