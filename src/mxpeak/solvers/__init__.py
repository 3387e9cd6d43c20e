"""The algorithms as the papers tell them: no backend, no device, no message passing library is named here."""
