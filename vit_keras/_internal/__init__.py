"""What every part of the package uses, and nobody else should: none of it is API.

Checks of arguments, limits on what a file may cost, atomic writes, progress, HTML pages, imports on first use.
"""
