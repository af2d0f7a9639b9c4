"""What answers a StepPlan: the `Worker` protocol, the model worker, the simulated one. The only user of `model`."""
