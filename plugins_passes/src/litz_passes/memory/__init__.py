"""A budget of memory for training: what a forward keeps for its backward, and what the backward computes again."""
