"""Passes over what dynamo traced: attention in a form that torch has a fused kernel for."""
