"""One download, from an address to a model on the volume."""
