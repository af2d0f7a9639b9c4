"""Triton's interpreter, made honest: tests of GPU ops run in it where no GPU is."""
