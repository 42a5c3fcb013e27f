"""Products of matrices: oneDNN's and MKL's agree, and small ones are torch's own."""

import pytest
import torch

from homespun.models import products


@pytest.fixture(params=[False, True])
def onednn(request, monkeypatch):
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN")
    monkeypatch.setattr(products, "prefers_onednn", lambda: request.param)


def views(rows: int, columns: int) -> list[torch.Tensor]:
    """The same matrix as it is, transposed in memory, and as a part of a wider one."""
    whole = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    wider = torch.zeros(rows, columns + 3)
    wider[:, :columns] = whole
    return [whole, whole.T.contiguous().T, wider[:, :columns]]


@pytest.mark.usefixtures("onednn")
def test_products_equal_those_in_double_precision():
    for left in views(64, 200):
        for right in views(200, 300):
            expected = (left.double() @ right.double()).float()
            torch.testing.assert_close(products.mm(left, right), expected, rtol=1e-5, atol=1e-4)
            out = torch.empty(64, 300)
            assert products.mm(left, right, out=out) is out
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
            bias = torch.arange(300.0)
            torch.testing.assert_close(products.addmm(bias, left, right), expected + bias, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_each_product_of_a_batch_is_its_own():
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(3, 64, 200, generator=generator), torch.randn(3, 300, 200, generator=generator).mT
    expected = (left.double() @ right.double()).float()
    torch.testing.assert_close(products.bmm(left, right), expected, rtol=1e-5, atol=1e-4)
    same, expected = left[:1].expand(3, -1, -1), (left[:1].double() @ right.double()).float()
    torch.testing.assert_close(products.bmm(same, right), expected, rtol=1e-5, atol=1e-4)


def test_parts_of_a_wider_matrix_are_copied_first(monkeypatch):
    """oneDNN's kernel for rows with gaps between them is a thousand times slower."""
    seen = []
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products.torch.ops.mkldnn, "_linear_pointwise", lambda *given: seen.append(given) or given[0])
    wider = torch.zeros(400, 228)
    products.mm(torch.zeros(64, 400), wider[:, :100])
    products.mm(torch.zeros(251, 100), wider[:, :100].T)
    for inputs, weight, *_ in seen:
        assert inputs.is_contiguous() and (weight.is_contiguous() or weight.T.is_contiguous())
    assert len(seen) == 2


def test_onednn_computes_large_products_of_float32_only(monkeypatch):
    calls = []
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "_linear", lambda left, right, bias: calls.append(left.shape) or left @ right.T)
    large, few_rows, small = torch.zeros(64, 256), torch.zeros(15, 256), torch.zeros(16, 64)
    products.mm(large, torch.zeros(256, 128))  # 2^21 products
    assert calls == [(64, 256)]
    products.mm(few_rows, torch.zeros(256, 4096))
    products.mm(small, torch.zeros(64, 64))
    products.mm(large.double(), torch.zeros(256, 128, dtype=torch.float64))
    products.bmm(small[None], torch.zeros(1, 64, 64))
    assert calls == [(64, 256)]
