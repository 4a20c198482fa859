"""Check that this machine can compute, with short programs that do not use the project.

  python tests/gpu/first_minute.py matmul|attention|gradients|all_reduce cuda|cpu

A failure here means a fault of the machine, its driver or the installed packages.
"""

import os
import sys
import tempfile

import torch

HEADS, LENGTH, WIDTH = 4, 96, 64
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 5e-2}  # of the largest value; TF32 is off


def matmul(device: str) -> None:
    """Compare products in fp32 and bf16 with fp64 on the CPU."""
    torch.manual_seed(0)
    left, right = torch.randn(512, 512, dtype=torch.float64), torch.randn(512, 512, dtype=torch.float64)
    exact = left @ right
    for dtype, rounding in ROUNDING.items():
        found = left.to(device, dtype) @ right.to(device, dtype)
        error = ((found.cpu().double() - exact).abs().max() / exact.abs().max()).item()
        print(f"FIGURE {dtype}: off by {error:.1e} of the largest value")
        assert error < rounding, f"{dtype} matrix product: off by {error:.1e}"
    if device == "cuda":
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        print(f"FIGURE torch sees {names}; CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")


def attention(device: str) -> None:
    """Compare attention with left padding, forward and backward, with fp64, by torch's choice without cuDNN.

    cuDNN's has faults in torch 2.13, and the project turns it off; it and each other backend are only reported.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    inputs = [torch.randn(2, HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(3)]
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    mask[1, :, :, :17] = False  # the second row's padding; what looks from there sees at least itself
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    exact = attend(inputs, mask, "cpu", torch.float64)

    def compare(name: str) -> tuple[bool, float]:
        found = attend(inputs, mask, device, torch.bfloat16)
        error = max((ours - theirs).abs().max().item() for ours, theirs in zip(found, exact, strict=True))
        finite = all(part.isfinite().all() for part in found)
        print(f"FIGURE {name}: {'finite' if finite else 'NOT FINITE'}, off by {error:.1e}")
        return finite, error

    torch.backends.cuda.enable_cudnn_sdp(False)
    own = inputs[0].to(device, torch.bfloat16)
    chosen = SDPBackend(torch._fused_sdp_choice(own, own, own, mask.to(device)))
    finite, error = compare(f"torch's choice ({chosen.name})")
    assert finite and error < 0.2, f"attention is wrong by torch's choice, {chosen.name}"
    for name, backend in SDPBackend.__members__.items():
        if name in ("ERROR", "OVERRIDEABLE"):
            continue
        try:
            with sdpa_kernel(backend):
                compare(name)
        except RuntimeError as error:  # it has no kernel for this
            print(f"FIGURE {name}: {str(error).splitlines()[0]}")


def gradients(device: str) -> None:
    """Gradients of scores far below 0 under a mask: cuDNN of torch 2.13 makes them NaN on Hopper; it is turned off."""
    for name, on in {"the project's": False, "cuDNN's": True}.items():
        torch.backends.cuda.enable_cudnn_sdp(on)
        found = [steep_gradients(length, device) for length in (64, 192, 704)]  # 64 more than a multiple of 128
        print(f"FIGURE {name} attention: {'finite' if all(found) else 'NOT FINITE'} gradients")
        assert all(found) or on, "attention's gradients are not finite"


def steep_gradients(length: int, device: str) -> bool:
    """Return whether gradients are finite if e to a score is 0 in fp32, and e to its negative infinite."""
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, length, WIDTH, device=device) / 8 for _ in range(3))
    queries[..., 0], keys[..., 0] = 1.0, -120 * WIDTH**0.5
    parts = [part.to(torch.bfloat16).requires_grad_() for part in (queries, keys, values)]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
    torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask).sum().backward()
    return all(bool(part.grad.isfinite().all()) for part in parts)


def attend(inputs, mask, device, dtype):
    """Return output and gradients in fp64."""
    parts = [part.to(device, dtype).detach().requires_grad_() for part in inputs]
    output = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask.to(device))
    output.sum().backward()
    return [part.detach().cpu().double() for part in (output, *(part.grad for part in parts))]


def all_reduce(device: str) -> None:
    """Sum over all GPUs, or over two processes on a CPU."""
    count = torch.cuda.device_count() if device == "cuda" else 2
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(add_up, (count, device, f"file://{folder}/meeting"), count)
    version = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if device == "cuda" else "Gloo"
    print(f"FIGURE {version} added up over {count} processes")


def add_up(rank: int, count: int, device: str, meeting: str) -> None:
    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    backend = "nccl" if device == "cuda" else "gloo"
    more = {"device_id": place} if device == "cuda" else {}
    torch.distributed.init_process_group(backend, init_method=meeting, world_size=count, rank=rank, **more)
    value = torch.full((1 << 20,), float(rank + 1), device=place)
    torch.distributed.all_reduce(value)
    assert (value == count * (count + 1) / 2).all(), "the sum over all GPUs is wrong"
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    name, device = sys.argv[1:]
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    assert device == "cpu" or torch.cuda.is_available(), f"torch {torch.__version__} finds no GPU"
    {"matmul": matmul, "attention": attention, "gradients": gradients, "all_reduce": all_reduce}[name](device)
