"""Leaf nouns: what the parts of the daemon say to one another, and its errors. Imports nothing else of the daemon."""
