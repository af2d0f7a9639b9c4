"""A cluster's command lines and files. Pure."""
