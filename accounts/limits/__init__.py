"""Limits on debt: marks, moving limits, rates, shares, alarms, and quotas of standing state."""
