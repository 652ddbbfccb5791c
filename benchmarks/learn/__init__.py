"""How well libraries fine-tune a Vision Transformer in a given processor time: `python -m benchmarks learn`."""
