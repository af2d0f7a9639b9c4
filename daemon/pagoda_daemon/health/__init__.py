"""Whether this replica is alive, ready, draining and right."""
