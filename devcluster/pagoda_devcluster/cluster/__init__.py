"""What a cluster is: its spec, processes as values, errors, and settings of this machine."""
