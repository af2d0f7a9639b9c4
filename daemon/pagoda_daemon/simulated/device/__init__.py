"""Devices that compute nothing: workers in the place of the real one, and how long a step would take."""
