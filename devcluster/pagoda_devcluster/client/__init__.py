"""The API server as this tool sees it: calls, watches, certificates, the audit log, schemas."""
