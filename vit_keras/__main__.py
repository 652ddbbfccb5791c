"""Run the command `vit-keras` by `python -m vit_keras`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
