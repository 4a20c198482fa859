"""Which split an author's questions are in. Pure."""

import hashlib

SPLITS = ("train", "validation", "test")


def split_of(author: str, seed: int, validation_share: float, test_share: float) -> str:
    """Drawn by a hash of seed and author: it hangs on no other author, so it stays where data are added."""
    found = hashlib.sha256(f"{seed}:{author}".encode()).digest()
    drawn = int.from_bytes(found[:8], "big") / 2**64
    if drawn < test_share:
        return "test"
    return "validation" if drawn < test_share + validation_share else "train"
