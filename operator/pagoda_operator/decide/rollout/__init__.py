"""How requests and replicas move from one revision to the next."""
