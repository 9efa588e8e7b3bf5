"""From a start to a trained model."""
