"""Kernels: fused ops for the devices the daemon runs on. Knows tensors, nothing of requests."""
