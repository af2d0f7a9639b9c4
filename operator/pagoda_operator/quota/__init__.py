"""How many devices a tenant's replicas may hold together, over namespaces: what each service is charged, and what it is granted."""
