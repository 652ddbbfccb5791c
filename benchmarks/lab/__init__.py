"""The scripts behind numbers in the documentation: `python -m benchmarks.lab.NAME --help`."""
