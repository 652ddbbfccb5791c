"""Check that every public name of the package has a type, as editors and type checkers see it.

python tools/check_types.py

The exit status is 1 if one has none. Classes whose base is Keras' or a server's are not held against it: those packages
ship no types.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_OTHERS = ("Type of base class", "Type of metaclass")


def is_gap(symbol, message):
    """Return whether a message tells of a public name without a type, and does not repeat what a class lacks."""
    repeats = "partially unknown" in message and "Unknown" not in message
    return "._" not in symbol and not message.startswith(OF_OTHERS) and not repeats


def main():
    command = [sys.executable, "-m", "basedpyright", "--ignoreexternal", "--verifytypes", "vit_keras", "--outputjson"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    if not symbols:
        sys.exit("The package was not found.")
    untyped = {
        (symbol["name"], each["message"])
        for symbol in symbols
        for each in symbol["diagnostics"]
        if each["severity"] == "error" and is_gap(symbol["name"], each["message"])
    }
    for name, message in sorted(untyped):
        print(f"{name}: {' '.join(message.split())}")
    print(f"{len(symbols):,} names, {len(untyped)} without a type")
    sys.exit(bool(untyped))


if __name__ == "__main__":
    main()
