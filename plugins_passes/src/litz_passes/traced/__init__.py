"""Passes of stage "traced", over what dynamo traced: tensors that are written in place keep their strides."""
