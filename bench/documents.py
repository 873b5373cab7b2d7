"""Documents that benchmarks write."""
import sys


def write(lines, path):
    """One newline at the end; to standard output without a path."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    if not path:
        sys.stdout.write(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
