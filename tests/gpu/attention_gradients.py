"""Check that attention's gradients are finite on this machine; the project is used in no way.

  python tests/gpu/attention_gradients.py cuda|cpu

cuDNN's, in torch 2.13, are not for scores far below 0 under a mask on Hopper and Blackwell (PyTorch's issue 196678);
the project turns it off, so it is only reported.
"""

import sys

import torch

WIDTH = 64


def main(device: str) -> None:
    assert device == "cpu" or torch.cuda.is_available(), f"torch {torch.__version__} finds no GPU"
    for name, on in {"the project's": False, "cuDNN's": True}.items():
        torch.backends.cuda.enable_cudnn_sdp(on)
        lengths = (64, 192, 704)  # 64 more than a multiple of 128
        are_finite = all(has_finite_gradients(length, device) for length in lengths)
        print(f"FIGURE {name} attention: {'finite' if are_finite else 'NOT FINITE'} gradients")
        assert are_finite or on, "attention's gradients are not finite"


def has_finite_gradients(length: int, device: str) -> bool:
    """Return whether gradients are finite if e to a score is 0 in fp32, and e to its negative infinite."""
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, length, WIDTH, device=device) / 8 for _ in range(3))
    queries[..., 0], keys[..., 0] = 1.0, -120 * WIDTH**0.5
    parts = [part.to(torch.bfloat16).requires_grad_() for part in (queries, keys, values)]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
    torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask).sum().backward()
    return all(bool(part.grad.isfinite().all()) for part in parts)


if __name__ == "__main__":
    main(sys.argv[1])
