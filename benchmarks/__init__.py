"""Speed and memory of vit_keras beside its peers, measured in one run: `python -m benchmarks`."""
