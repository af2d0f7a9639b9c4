"""Conditions and status fields."""
