"""What answers a StepPlan: the `Worker` protocol, the torch worker, the simulated one. The only user of `model`."""
