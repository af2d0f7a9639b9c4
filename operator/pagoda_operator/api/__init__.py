"""Nouns that every layer shares: errors, the observed state, orders, readers."""
