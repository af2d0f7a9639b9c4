"""Nodes that pretend: their pods become Ready after a drawn time and can be made to fail."""
