"""Numbers of the device profiles that rows are priced with: shipped ones, and those beside this file."""
import math
import os
import re

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDER = os.path.join(ROOT, "runtime", "plan", "price", "profiles")
HERE = os.path.dirname(os.path.abspath(__file__))


def base_of(name):
    """As a profile's `base`: the path of one beside this file, or a shipped one's name."""
    path = os.path.join(HERE, name + ".yaml")
    return path if os.path.exists(path) else name


def _find(name, what, pattern):
    """The first match in a profile or in one of its bases."""
    base = base_of(name)
    with open(base if base != name else os.path.join(FOLDER, name + ".yaml"), encoding="utf-8") as file:
        text = file.read()
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    base = re.search(r"^base: *(\S+)", text, re.MULTILINE)
    if not match and not base:
        raise ValueError(f"profile {name}: has no {what}")
    return match or _find(base[1], what, pattern)


def number(name, key):
    """A number at the top, in the file's units."""
    return float(_find(name, key, rf"^{key}: *(?:\{{value: *)?([0-9.e+-]+)")[1])


def product_tflops(name):
    """The first rate of products in bf16."""
    return float(_find(name, "product in bf16", r"dtype: bf16, form: any,[^\n]*?tflops: ([0-9.]+)")[1])


def collective_curve(name, kind, ranks):
    """[(bytes, seconds)] of a collective inside a node, ascending."""
    what = f"{kind} of {ranks} ranks in a node"
    points = _find(name, what, rf"kind: {kind}, link: node, ranks: {ranks},.*?us: \{{(.*?)\}}")[1]
    pairs = [point.split(":") for point in points.split(",")]
    return [(float(size), 1e-6 * float(us)) for size, us in pairs]


def collective_seconds(curve, size):
    """Straight in logarithms between points; below the first as there, beyond the last at its rate."""
    if size >= curve[-1][0]:
        return curve[-1][1] * size / curve[-1][0]
    if size <= curve[0][0]:
        return curve[0][1]
    at = next(i for i, (points_size, _) in enumerate(curve) if points_size > size)
    (low, low_s), (high, high_s) = curve[at - 1:at + 1]
    return low_s * (high_s / low_s) ** (math.log(size / low) / math.log(high / low))
