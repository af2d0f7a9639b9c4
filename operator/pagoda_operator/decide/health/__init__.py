"""Which unhealthy replicas are replaced."""
