"""The ahead-of-time gate: compiles what the GPU ops export for GPUs that are not there, and judges the binaries."""
