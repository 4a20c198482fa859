"""The demo, which is the README's first command: its table comes, on one GPU of those that are here."""

import pytest


def test_the_demo_ends_with_its_table(machine, tmp_path, figure):
    if not machine.num_gpus:
        pytest.skip("on a CPU `make demo` is this check")
    printed = machine.run("utils/demo.sh", program="sh", DEMO_OUT=str(tmp_path))
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    figure(f"{len(rows) - 1} systems are judged")
    assert len(rows) == 6 and "=== 5/5" in printed
