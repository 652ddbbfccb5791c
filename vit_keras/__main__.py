"""`python -m vit_keras` is the command `vit-keras`."""

import sys

from .cli import main

sys.exit(main())
