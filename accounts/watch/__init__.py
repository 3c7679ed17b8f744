"""The watch over slow consumers: patience, rings, slow waits, the largest debts, metrics."""
