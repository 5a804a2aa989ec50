"""The operation table."""
