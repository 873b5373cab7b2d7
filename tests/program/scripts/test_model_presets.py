"""The tables of presets and of published runs in docs/usage.md are what fsdp_plan says: parameters, units,
and memory within 3%. Rows that differ are printed as they should be."""

import json
import re
import sys

import programs


def plan(name, *options):
    done = programs.run("fsdp_plan", "--backend", "cuda", "--model", name, "--ranks", 8, *options, "--json")
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


def published_row(line):
    """The row of a published run as it should be."""
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    name, offload, batch = (cell.strip("`") for cell in cells[:3])
    states = ["--master-dtype", "bf16", "--moment-dtype", "bf16", "--reduce-dtype", "bf16"]
    for index, wrap in ((4, ["--numel-to-wrap", "1e8"]), (5, ["--wrap", "block"])):
        memory = plan(name, "-s", 1024, "-b", batch, "--cpu-offload", offload, *states, *wrap)["memory"]
        cells[index] = f"{size(memory['valley_bytes'])} / {size(memory['peak_bytes'])}"
    return "| " + " | ".join(cells) + " |"


def agree(line, expected):
    """Whether two rows agree; whoever saves a percent of memory need not correct a document."""
    sizes = re.compile(r"([0-9.]+) ([kMGT]?B)\b")
    if sizes.sub("SIZE", line) != sizes.sub("SIZE", expected):
        return False
    pairs = zip(sizes.findall(line), sizes.findall(expected))
    return all(a[1] == b[1] and abs(float(a[0]) / float(b[0]) - 1) <= 0.03 for a, b in pairs)


def main():
    text = programs.run("fsdp_plan", "--help", "all").stdout.partition("Presets of --model")[2]
    names = re.findall(r"^  (\S+) +[0-9.]+ [mb]illion$", text, re.M)
    document = (programs.ROOT / "docs/usage.md").read_text()
    table = document.partition("| preset | parameters |")[2].partition("\n\n")[0].splitlines()[2:]
    rows, wrong = [row(name) for name in names], len(table) - len(names)
    published = document.partition("| published valley")[2].partition("\n\n")[0].splitlines()[2:]
    wrong += len(published) != 3
    table = (table + ["| none |"] * len(rows))[: len(rows)] + published
    rows += [published_row(line) for line in published]
    for line, expected in zip(table, rows):
        if not agree(line, expected):
            print(f"docs/usage.md has: {line}\n        but it is: {expected}")
            wrong += 1
    sys.exit(wrong != 0)


main()
