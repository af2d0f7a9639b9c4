"""What the operator and the gateway share of Kubernetes: a cache of one kind of objects, and the reflector that keeps it right."""
