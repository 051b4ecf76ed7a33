"""The augmentations as Triton kernels: one program for each image, in which its choices are real branches.

Draws are the torch code's, bit for bit, and so are the operations of AutoAugment and RandAugment; resized and
recoloured pixels differ in the last bits of a float. `aag.kernels` says when they are used.
"""
