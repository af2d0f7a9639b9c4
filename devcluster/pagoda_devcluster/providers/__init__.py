"""Makes, shows and removes clusters: native on this machine, or kind."""
