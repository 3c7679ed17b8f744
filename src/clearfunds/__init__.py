"""Debt-accounting flow control for pub/sub servers in Trio."""
