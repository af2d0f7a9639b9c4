"""Where a replica fits: nodes, devices and model sizes as parsed facts, and the choice among the entries of a service."""
