"""Gateways and daemons: streams in, orders out."""
