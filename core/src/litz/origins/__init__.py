"""Origins: the line of the user's that an operation comes from, and the plugin that a function belongs to."""
