"""Nodes, devices and model sizes as parsed facts."""
