"""Everything that knows the inside of a framework: Keras' private names, PyTorch, TensorFlow, JAX and OpenVINO.

The rest of the package computes with Keras' public API. It looks the same on every backend because of what is here.
`patches.py` lists what is replaced in a framework at run time.
"""
