"""What a forward saves for its backward: passes of the stages "joint" and "partitioned"."""
