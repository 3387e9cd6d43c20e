"""How ranks talk: one protocol, several carriers."""
