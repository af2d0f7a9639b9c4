"""Who may call what: principals, keys, tokens, and what a caller is trusted with."""
