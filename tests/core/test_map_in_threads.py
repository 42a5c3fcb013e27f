"""Work shared by threads."""

import torch

from homespun.core.threads import map_in_threads


def test_results_are_in_the_order_of_items():
    assert map_in_threads(lambda number: number**2, range(20), threads=3) == [number**2 for number in range(20)]


def test_each_thread_computes_with_one_thread_of_torch():
    before = torch.get_num_threads()
    assert map_in_threads(lambda _: torch.get_num_threads(), range(4), threads=2) == [1] * 4
    assert torch.get_num_threads() == before
