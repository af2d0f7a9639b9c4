"""Replaying recorded or generated demand against a policy: `pagoda-replay`. No Kubernetes, a virtual clock."""
