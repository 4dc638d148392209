"""Fine-tuning of pretrained models."""
