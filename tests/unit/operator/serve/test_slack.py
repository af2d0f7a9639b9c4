"""Free memory between used memory goes back to the kernel, from time to time and off the loop."""

import asyncio
import subprocess
import sys
import threading

import pytest
from pagoda_operator.slack import keep_small, trimmer

# 64 MB in pieces of 4 KB, of which every 64th stays: nothing at the end is free.
PEAK = """
from pathlib import Path
from pagoda_operator.slack import trimmer

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

pieces = [bytearray(b"x" * 4096) for _ in range(16384)]
kept = pieces[::64]
del pieces
before = resident()
trimmer()()
print(before - resident())
"""


@pytest.mark.skipif(trimmer() is None, reason="the C library has no malloc_trim")
def test_what_a_peak_left_between_what_is_used_is_given_back():
    told = subprocess.run([sys.executable, "-P", "-c", PEAK], capture_output=True, text=True, check=True, timeout=300)
    assert int(told.stdout) > 32 << 20


async def test_it_comes_again_and_again_and_never_on_the_loops_thread():
    threads: list[int] = []
    again = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        threads.append(threading.get_ident())
        if len(threads) == 3:
            loop.call_soon_threadsafe(again.set)

    task = asyncio.create_task(keep_small(trim, every=0.001))
    await asyncio.wait_for(again.wait(), 300)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threading.get_ident() not in threads
