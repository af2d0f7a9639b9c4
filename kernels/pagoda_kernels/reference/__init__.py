"""What GPU ops compute, plainly, in float64: the judge of their tests. By the op's own name."""
