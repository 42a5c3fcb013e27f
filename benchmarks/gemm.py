"""The machine's peak rate of fp32 matrix products, to which benchmarks relate their shares."""

import time

import torch


def gemm_peak_gflops(threads: int, *, sizes: tuple[int, ...] = (1024, 1536, 2048), repeats: int = 5) -> float:
    """Best GFLOP/s of a square fp32 product over several sizes, with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return max(_gflops(size, repeats) for size in sizes)
    finally:
        torch.set_num_threads(before)


def _gflops(size: int, repeats: int) -> float:
    left, right, out = torch.randn(3, size, size)
    torch.mm(left, right, out=out)
    best_s = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        best_s = min(best_s, time.perf_counter() - start)
    return 2 * size**3 / best_s / 1e9


if __name__ == "__main__":
    for threads in (1, 2):
        print(f"{threads} thread(s): {gemm_peak_gflops(threads):.0f} GFLOP/s")
