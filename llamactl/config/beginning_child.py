"""The child that takes the first bytes of model files for the supervisor, which opens none.

How many bytes is its argument. Names of files come on standard input, each ended by NUL; for each a line goes to
standard output, in the same order: hexadecimal digits, or `-` where it cannot be read. What they mean is nothing to it.
The standard library alone, and little of that: every start of a supervisor waits for it.
"""

import os
import stat
import sys


def main() -> int:
    """Take the first bytes of the files on standard input, a line of digits for each."""
    n_bytes = int(sys.argv[1])
    for path in sys.stdin.buffer.read().split(b"\0")[:-1]:
        sys.stdout.write(read_beginning(path, n_bytes) + "\n")
        sys.stdout.flush()  # of one that hangs, what was read before counts
    return 0


def read_beginning(path: bytes, n_bytes: int) -> str:
    """The digits of a regular file's first bytes, or `-`. Never waits for a FIFO's other end."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return "-"
    try:
        return os.read(file, n_bytes).hex() if stat.S_ISREG(os.fstat(file).st_mode) else "-"
    except OSError:
        return "-"
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main())
