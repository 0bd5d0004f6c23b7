"""Whose consent stands, and what happens when somebody withdraws it."""
