"""Warnings that point to the user's own line."""

from .._internal.warn import warn_caller

__all__ = ["warn_caller"]
