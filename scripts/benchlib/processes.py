"""How the bench ends what it has started."""

import subprocess

PATIENCE_S = 30


def stop_process(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for one that does not heed it: a llama-server sometimes waits for itself when it stops."""
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
