"""The children of a service as manifests. Pure: rendered objects in, nothing sent."""
