"""Check the types of the package: that every public name has one, and that the code agrees with them.

python tools/check_types.py

The first check sees public names as editors and type checkers see them. Classes whose base is Keras' or a server's are
not held against it: those packages ship no types. The second check is as strict as `[tool.basedpyright]` in
pyproject.toml says. The exit status is 1 if either fails.
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


def pyright(*arguments):
    """Return what the type checker reports."""
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(f"The type checker failed: {done.stdout}{done.stderr}")


def untyped_names():
    """Print each public name without a type, and return their count."""
    symbols = pyright("--ignoreexternal", "--verifytypes", "vit_keras")["typeCompleteness"]["symbols"]
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
    return len(untyped)


def errors():
    """Print each error in the code, and return their count."""
    report = pyright()
    found = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    for each in found:
        line, rule = each["range"]["start"]["line"] + 1, each.get("rule", "error")
        print(f"{Path(each['file']).relative_to(ROOT)}:{line}: {rule}: {' '.join(each['message'].split())}")
    print(f"{report['summary']['filesAnalyzed']} files, {len(found)} errors")
    return len(found)


def main():
    sys.exit(bool(untyped_names() + errors()))


if __name__ == "__main__":
    main()
