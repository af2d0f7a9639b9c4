"""Experts: who computes which token, and their grouped products."""
