"""Who may call what: principals, keys, tokens, and what is believed of a caller."""
