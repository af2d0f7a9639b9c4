"""Quotas at run time: the ledger's keeper and the writers of quota status."""
