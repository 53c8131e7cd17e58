"""Helpers that several tests share: ``from support.third_party import ...``."""
