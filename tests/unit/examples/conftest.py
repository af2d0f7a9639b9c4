"""Puts the examples on the path before any of these modules is collected."""

import tiny_model  # noqa: F401
