"""Addresses, listings, limits and errors: values without I/O."""
