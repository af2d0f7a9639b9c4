"""What a cluster takes from this machine: processes, control groups, links, packages, images, slots."""
