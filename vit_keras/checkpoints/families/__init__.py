"""Families of checkpoints: names in, canonical names out. Nothing in here touches Keras.

The canonical name of a weight is its name in Google's original .npz files, for example
`Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel`.
"""
