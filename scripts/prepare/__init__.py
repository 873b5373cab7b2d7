"""What scripts/prepare_data.py is made of."""
