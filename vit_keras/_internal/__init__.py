"""Helpers for every part of the package. None of them is public.

Checks of arguments, limits on what a file may cost, atomic writes, progress, HTML pages, imports on first use.
"""
