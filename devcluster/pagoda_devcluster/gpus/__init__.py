"""GPUs that are not there: a layout file parsed into frozen types, and what a cluster shows of it."""
