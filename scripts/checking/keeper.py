"""Outlives a check that is killed, and ends what it has left running, which would keep the GPU. Each line of
its input names a session that has begun (+ID) or ended (-ID); the input's end is the check's."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from checking import process  # noqa: E402


def main():
    running = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line[0] == "+":
            running.add(session)
        else:
            running.discard(session)
    process.end_sessions(running)


if __name__ == "__main__":
    main()
