"""What scripts/plot.py is made of."""
