"""The CPU model of CUDA: compiles the .cu files of cuda/ with the host's C++ compiler and runs them on CPU memory.

    rewrite.py          launches and shared variables -> plain C++
    include/            headers under CUDA's names; cpu_model.h is what they stand on
    runtime.cpp         threads that meet, shared memory, errors; fiber.h: how one host thread runs many
    sanitize.py         the same kernels under AddressSanitizer, UBSan and ThreadSanitizer (sanitize_main.cpp)

It proves arithmetic, indexing, barriers and bounds. It says nothing of speed.
"""
