"""The Lease: one process works."""
