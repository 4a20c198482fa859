"""A kernel that doubles numbers in place: Triton reads its source from a file."""

import triton
import triton.language as tl


@triton.jit
def double(values, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(values + places, 2 * tl.load(values + places, mask=inside), mask=inside)
