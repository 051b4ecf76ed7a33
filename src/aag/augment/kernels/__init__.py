"""Triton kernels of the augmentations: one program per image, so that its random choices are real branches.

Each kernel's `supports(augmentation)` says what it accepts; everything else runs the plain version. Draws and the
operations of AutoAugment and RandAugment equal the plain version bit for bit; resized and recoloured pixels differ in
the last bits of a float. `aag.kernels.enabled` says where kernels run.
"""

import logging
from collections.abc import Mapping

from aag.augment.base import Augmentation

log = logging.getLogger("aag.augment")
_logged: set[type] = set()


def is_unchanged(augmentation: Augmentation, known_fields: Mapping[type[Augmentation], frozenset[str]]) -> bool:
    """Return whether an augmentation is exactly what a kernel knows: the class, its fields and its methods.

    Otherwise log the reason, once per class.
    """
    reason = _changed_reason(augmentation, known_fields)
    if reason and type(augmentation) not in _logged:
        _logged.add(type(augmentation))
        log.warning("%s runs without its Triton kernel: %s", type(augmentation).__name__, reason)
    return not reason


def _changed_reason(augmentation: Augmentation, known_fields: Mapping[type[Augmentation], frozenset[str]]) -> str:
    cls = type(augmentation)
    if cls not in known_fields:
        known = [parent.__name__ for parent in cls.__mro__ if parent in known_fields]
        return f"the kernel knows {' or '.join(known or [c.__name__ for c in known_fields])}, not its subclasses"
    if unknown := vars(augmentation).keys() ^ known_fields[cls]:
        return f"the kernel does not know the fields {', '.join(sorted(unknown))}"
    replaced = [name for name, method in cls._defined_methods.items() if getattr(cls, name, None) is not method]
    return f"its method {replaced[0]} was replaced" if replaced else ""
