"""Triton kernels of the augmentations: one program per image, so that its random choices are real branches.

Each kernel's `supports(augmentation)` says what it accepts; everything else runs the plain version. Draws and the
operations of AutoAugment and RandAugment equal the plain version bit for bit; resized and recoloured pixels differ in
the last bits of a float. `aag.kernels.enabled` says where kernels run.
"""
