"""Tools that test litz itself. They need torch's own test utilities (`pip install expecttest`)."""
