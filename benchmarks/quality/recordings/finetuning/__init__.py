"""Small trainings of language models by rewards and by further text: each cause can be switched on and off."""
