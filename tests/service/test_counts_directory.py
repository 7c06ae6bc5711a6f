"""What a killed service leaves of its counts is removed; what belongs to one that lives, or to others, is not."""

import os
import subprocess
import sys
import time

from service.counts_directory import COUNTS_PREFIX, held, remove_abandoned

HOLD = (
    "import sys, time; from pathlib import Path; from service.counts_directory import held\n"
    "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def test_directories_of_killed_services_are_removed(tmp_path):
    def made(name):
        directory = tmp_path / f"{COUNTS_PREFIX}{name}"
        directory.mkdir()
        (directory / "counter_1.db").write_bytes(b"counts")
        return directory

    killed, lives, just_made, old = map(made, ("killed", "lives", "just_made", "old"))
    os.utime(old, (time.time() - 3_600,) * 2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / f"{COUNTS_PREFIX}link"
    link.symlink_to(elsewhere)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(killed)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        with held(lives):
            remove_abandoned(tmp_path)
            assert all(path.exists() for path in (killed, lives, just_made, link, elsewhere))
            assert not old.exists()
            process.kill()
            process.wait()
            remove_abandoned(tmp_path)
            assert not killed.exists()
            assert lives.exists()
    finally:
        process.kill()
        process.wait()
