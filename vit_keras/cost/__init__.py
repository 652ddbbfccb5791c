"""Compute the cost of a model without building it: parameters, products, memory and communication.

Everything is computed from a `ViTConfig`: no weights, no backend. Parameters are exact. Products are exact too, and one
multiplication with its addition counts as two. Memory is what PyTorch keeps; `benchmarks/lab/cost.py` compares it with
measurements, and `docs/cost.md` has the tables.
"""

from .step import Cost, cost

__all__ = ["Cost", "cost"]
