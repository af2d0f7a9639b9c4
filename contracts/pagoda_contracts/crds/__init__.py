"""Resource models to CRDs, and what the API server would say to an object."""
