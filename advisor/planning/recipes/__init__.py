"""First studies for language models, one study file each. Their leading comments are copied to the user's file."""
