"""Simulators: a device that computes nothing, a trace on a virtual clock, and whole replicas in one process."""
