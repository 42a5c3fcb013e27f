"""The machine's peak rate of fp32 matrix products, to which benchmarks relate their shares.

That of `torch.mm`, as most programs compute them, and that of `products.mm`, which on some CPUs is twice as fast.
"""

import time
from collections.abc import Callable

import torch

from homespun.models import products


def gemm_peak_gflops(
    threads: int,
    *,
    sizes: tuple[int, ...] = (1024, 1536, 2048),
    repeats: int = 5,
    mm: Callable[..., torch.Tensor] = torch.mm,
) -> float:
    """Best GFLOP/s of a square fp32 product over several sizes, with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return max(_gflops(size, repeats, mm) for size in sizes)
    finally:
        torch.set_num_threads(before)


def fastest_peak_gflops(threads: int) -> float:
    """The same by the fastest product that homespun uses."""
    return gemm_peak_gflops(threads, mm=products.mm)


def _gflops(size: int, repeats: int, mm: Callable[..., torch.Tensor]) -> float:
    left, right, out = torch.randn(3, size, size)
    mm(left, right, out=out)
    best_s = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        mm(left, right, out=out)
        best_s = min(best_s, time.perf_counter() - start)
    return 2 * size**3 / best_s / 1e9


if __name__ == "__main__":
    for threads in (1, 2):
        ordinary, fastest = gemm_peak_gflops(threads), fastest_peak_gflops(threads)
        print(f"{threads} thread(s): {ordinary:.0f} GFLOP/s by torch.mm, {fastest:.0f} by products.mm")
