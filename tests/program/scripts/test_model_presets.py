"""The table of presets in docs/usage.md is what fsdp_plan says: parameters, units, and peaks within 3%. Rows
that differ are printed as they should be."""

import json
import re
import sys

import programs


def plan(name, *options):
    options = ["--backend", "cuda", "--model", name, "--ranks", 8, *options, "--json"]
    done = programs.run("fsdp_plan", *options)
    assert done.returncode in (0, 4), done.stderr  # 4: larger than the default limit
    return json.loads(done.stdout)


def size(count):
    unit, name = next((u, n) for u, n in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if count >= u)
    return f"{float(f'{count / unit:.3g}'):g} {name}"


def row(name):
    by_size, by_block = plan(name), plan(name, "--wrap", "block")
    cells = (f"`{name}`", f"{by_size['model']['parameters']:,}", len(by_size["units"]),
             size(by_size["memory"]["peak_bytes"]), size(by_block["memory"]["peak_bytes"]))  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def agree(line, expected):
    """Whether two rows agree; whoever saves a percent of memory need not correct a document."""
    cells, wanted = ([cell.strip() for cell in row.split("|")[1:-1]] for row in (line, expected))
    for cell, right in zip(cells[3:], wanted[3:]):
        (number, unit), (right_number, right_unit) = cell.split(), right.split()
        if unit != right_unit or abs(float(number) / float(right_number) - 1) > 0.03:
            return False
    return cells[:3] == wanted[:3]


def main():
    text = programs.run("fsdp_plan", "--help").stdout.partition("Presets of --model")[2]
    names = re.findall(r"^  (\S+) +[0-9.]+ [mb]illion$", text, re.M)
    document = (programs.ROOT / "docs/usage.md").read_text()
    table = document.partition("| preset | parameters |")[2].partition("\n\n")[0].splitlines()[2:]
    rows, wrong = [row(name) for name in names], len(table) - len(names)
    for line, expected in zip(table + ["| none | 0 | 0 | 0 B | 0 B |"] * len(rows), rows):
        if not agree(line, expected):
            print(f"docs/usage.md has: {line}\n        but it is: {expected}")
            wrong += 1
    sys.exit(wrong != 0)


main()
