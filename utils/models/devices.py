"""Find the GPUs that torch can use. If a GPU is present but unusable, a run ends instead of using the CPU."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from utils.base.errors import UserError

OLDEST = 7.5  # lowest compute capability for which CUDA 13 compiles code and vLLM 0.32's wheel has kernels


def set_up_allocator() -> None:
    """Let torch's blocks of GPU memory grow, unless the user configured them. Call this before importing torch.

    With blocks of fixed size, batches of varying shapes leave gaps that cannot be used. vLLM's processes do not need
    this, because vLLM measures the free memory and takes its cache as one block.
    """
    if not any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def has_gpu() -> bool:
    """Return whether there is a GPU to compute on; UserError as in `check_devices`."""
    import torch

    check_devices()
    return torch.cuda.is_available()


def check_devices() -> None:
    """Check that torch can use this machine's GPUs, unless the user hides them all. Call this before loading weights.

    Also turn off cuDNN's attention in this process. In torch 2.13, it returns NaN gradients on Hopper and Blackwell if
    there is a mask (pytorch/pytorch#196678), and it makes a new plan for each new shape.

    Raises:
        UserError: a GPU is too old; or torch finds no GPU although this machine has one or SLURM assigned one, and
            CUDA_VISIBLE_DEVICES does not hide all GPUs.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
    if torch.cuda.is_available():
        for gpu, capability in find_capabilities().items():
            if capability < OLDEST:
                raise UserError(
                    f"{gpu} has compute capability {capability}, but torch and vLLM need at least {OLDEST}\n"
                    "  use a newer GPU (docs/gpu.md), or exclude this one with CUDA_VISIBLE_DEVICES"
                )
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # "" and "-1" hide all GPUs
    if (visible is None or re.match(r"\s*(\d|GPU-|MIG-)", visible)) and (gpu := _find_gpu()):
        raise UserError(
            f"{gpu}, but torch finds no GPU\n"
            f"  {_way_out(torch.version.cuda)}\n"
            '  to use the CPU, set CUDA_VISIBLE_DEVICES="" (or add --device cpu, if the script has it)'
        )


def has_bf16() -> bool:
    """Return whether the GPU (or the CPU, if there is no GPU) has native bfloat16; emulation would be slow."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    can = torch.cpu.get_capabilities()
    return bool(can.get("avx512_bf16") or can.get("bf16"))  # "bf16" is the ARM name


def settle_dtype(wanted: str) -> str:
    """Return the dtype to load: `wanted`, but float32 for `auto` on a CPU without bfloat16 (about 3 times as fast)."""
    import torch

    return "float32" if wanted == "auto" and not torch.cuda.is_available() and not has_bf16() else wanted


@contextmanager
def fitting(what: str, remedy: str) -> Iterator[None]:
    """Turn torch's out-of-memory error, on a GPU or a CPU, into a UserError."""
    import torch

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(f"out of memory: {what}\n  {remedy}") from error


def find_capabilities() -> dict[str, float]:
    """Return the compute capability of each visible GPU, by its name for messages; empty if nvidia-smi gives none."""
    lines = ask_nvidia_smi("index,name,compute_cap") or []
    rows = [re.fullmatch(r"(\d+), (.+), (\d+\.\d+)", line) for line in lines]
    return {f"GPU {row[1]} ({row[2]})": float(row[3]) for row in rows if row}


def ask_nvidia_smi(fields: str) -> list[str] | None:
    """Return nvidia-smi's line with these `fields` for each visible GPU; None if nvidia-smi is missing or fails."""
    query = [f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    return _call_nvidia_smi(*query)


def _call_nvidia_smi(*arguments: str) -> list[str] | None:
    if shutil.which("nvidia-smi") is None:
        return None
    answer = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True)
    return None if answer.returncode else answer.stdout.strip().splitlines()


def _find_gpu() -> str | None:
    """Describe the GPU that this machine has, or the GPUs that SLURM assigned; None if there are none."""
    listed = [line for line in _call_nvidia_smi("-L") or [] if line.startswith("GPU ")]
    if listed:
        return f"this machine has {listed[0].partition(' (UUID')[0]}"
    # According to their manuals, sbatch and srun set this variable for the step on its node. SLURM_JOB_GPUS is also set
    # in the shell that salloc opens on a login node, so it is not used.
    count = os.environ.get("SLURM_GPUS_ON_NODE", "0")
    return f"SLURM allocated GPUs to this job ({count})" if count not in ("", "0") else None


def _way_out(cuda: str | None) -> str:
    """Return the remedy for a GPU that torch does not see; `cuda` is torch's CUDA version, None for a CPU build."""
    if cuda is None:
        return "this is torch's CPU build; for the GPU run: make setup REQUIREMENTS=requirements.txt"
    driver = (_call_nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader") or ["unknown"])[0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        f"torch is built for CUDA {cuda}; CUDA 13 needs driver 580 or newer, or cuda-compat; "
        f"this driver: {driver}" + (f", CUDA_VISIBLE_DEVICES: {visible}" if visible else "") + " (see docs/gpu.md)"
    )
