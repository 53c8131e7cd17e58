"""Passes of stage "traced", over what dynamo traced: of tensors that are written in place."""
