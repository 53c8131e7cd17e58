"""Origins: the line of the user's that an operation comes from, the plugin of a function, the owner of a
file."""
