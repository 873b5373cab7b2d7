"""The table of presets in docs/usage.md is what fsdp_plan says: parameters, units, peaks. Rows that differ
are printed as they should be."""

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


def main():
    text = programs.run("fsdp_plan", "--help").stdout.partition("Presets of --model")[2]
    names = re.findall(r"^  (\S+) +[0-9.]+ [mb]illion$", text, re.M)
    document = (programs.ROOT / "docs/usage.md").read_text()
    table = document.partition("| preset | parameters |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [row(name) for name in names]
    for line in rows:
        if line not in table:
            print(f"docs/usage.md lacks: {line}")
    for line in table:
        if line not in rows:
            print(f"docs/usage.md has: {line}")
    sys.exit(table != rows)


main()
