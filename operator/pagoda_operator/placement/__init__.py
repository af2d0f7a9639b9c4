"""Which of `accelerators[]` a service runs on, and why not on the others. Pure: nodes, pods and slices in, a Placement out."""
