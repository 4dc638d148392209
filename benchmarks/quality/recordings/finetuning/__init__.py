"""Small fine-tuning trainings of language models, by rewards and by further text, in which each cause can be switched on or off."""
