"""The same operation in CUDA C++ and in Triton, compared: lines, correctness, speed, and the Ninja Gap.

`compare.softmax`, `compare.vector_add` and `compare.add_relu` are the public operations (compare.operations);
`python -m compare softmax` is the harness. Importing this package imports neither torch nor triton.
"""

from typing import Any

__all__ = ["add_relu", "call", "run_on", "softmax", "vector_add"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from compare import operations

        return getattr(operations, name)
    raise AttributeError(f"module 'compare' has no attribute {name!r}")
