"""What does a model read of a conversation? Templates and what they may use up. Imports `llama`."""
