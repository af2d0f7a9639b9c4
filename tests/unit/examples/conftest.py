"""Puts the examples on the path before any of these modules is collected."""

from support.engine import tiny_model  # noqa: F401
