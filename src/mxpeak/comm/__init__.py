"""Communicate between ranks: one protocol, several transports."""
