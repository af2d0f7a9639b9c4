"""Many replicas in one process, for clusters whose nodes only pretend: real fronts and schedulers, devices that compute nothing."""
