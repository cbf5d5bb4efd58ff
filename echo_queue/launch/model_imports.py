"""What need not be imported with a model of transformers."""

import sys


def spare_scipy() -> None:
    """Makes transformers take scipy for missing in this process, which saves 0.7 s of a core with the first model.

    transformers imports hundreds of scipy's modules where it is installed, for the losses of object detection. Call
    this before any model is imported. What imports scipy by itself afterwards gets it.
    """
    from transformers.utils.import_utils import is_scipy_available

    if "scipy" in sys.modules:
        return
    # None says that there is no such package (the language reference, "The module cache").
    sys.modules["scipy"] = None  # type: ignore[assignment]
    try:
        is_scipy_available()  # remembers its answer
    finally:
        del sys.modules["scipy"]
