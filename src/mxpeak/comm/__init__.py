"""How ranks talk: one protocol, several transports."""
