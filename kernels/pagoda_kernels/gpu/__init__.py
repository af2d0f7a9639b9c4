"""The GPU's ops, in Triton: one op per file, with its host function and what it exports."""
