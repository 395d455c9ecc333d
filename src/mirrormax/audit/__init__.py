"""What a trained model selects."""
