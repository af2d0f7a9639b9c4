"""Frozen types and errors that every folder of the daemon shares. Imports nothing else of the daemon."""
