"""Compare speed and memory of vit_keras and its peers, measured in one run: `python -m benchmarks`."""
