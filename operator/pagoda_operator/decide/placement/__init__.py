"""Which accelerator entry and which devices a service gets."""
