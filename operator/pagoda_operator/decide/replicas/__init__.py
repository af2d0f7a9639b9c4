"""How many pods each Deployment has now, and which pods leave."""
