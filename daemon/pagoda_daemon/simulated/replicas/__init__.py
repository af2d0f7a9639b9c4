"""`pagoda-daemon simulate-fronts`: whole replicas in one process, each on an address of its own."""
