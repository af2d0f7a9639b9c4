"""A worker for CUDA: fused ops, CUDA graphs for decode, no wait for the device within a step. Chosen by `runner.load`."""
