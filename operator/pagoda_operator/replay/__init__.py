"""Replaying recorded or generated demand against a policy: `pagoda-operator replay`. No Kubernetes, a virtual clock."""
