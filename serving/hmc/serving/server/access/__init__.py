"""Who may call what, and how much: tokens, client certificates, scopes, rates, sizes, and paths of reloads."""
