"""What ranks exchange outside the steps' programs: the same list whatever their number, and costs that grow
with its logarithm, counted by bench_exchanges at 64 to 100,000 ranks."""

import math
import os
import subprocess
import sys

import programs

work = programs.folder("exchanges")
STEADY = ("a step, with its checks", "an evaluation", "a save", "an error, told to all")
BYTES_MAX = 10e6  # of a failure


def lines_of(ranks):
    """Of a run with replicas, evaluations and saves: activity, kind, among whom, how many, bytes."""
    path = work / f"of-{ranks}"
    mesh = ["--mesh", f"data={ranks // 2},fsdp=2", "--strategy", "hybrid", "--check-replicas", 2]
    programs.run("fsdp_train", "-s", 16, "-b", 1, "--max-steps", 4, "--wrap", "block",
                 "--eval-split", 0.002, "--eval-freq", 2, "--save-dir", work, "-e", f"run-{ranks}",
                 "--ckpt-freq", 2, *mesh, ranks=ranks,
                 env=os.environ | {"FSDP_EXCHANGES": str(path)}, status=0)
    return path, [line.split() for line in path.read_text().splitlines()]


def table_of(path, ranks):
    """Counts by what is counted and how, at the numbers of ranks in the first line."""
    command = [programs.BIN / "bench_exchanges", path, str(ranks)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in process.stdout.splitlines()]
    sizes, counts, what = [int(cell) for cell in rows[0][2:]], {}, ""
    for row in rows[2:]:
        what = row[0].rsplit(" (", 1)[0] or what
        counts[what, row[1]] = [int(cell) if cell else None for cell in row[2:]]
    return sizes, counts


def grows_with_the_logarithm(sizes, counts):
    """From 64 to 16,384 ranks as much with every doubling; 100,000 need no more than 131,072 would."""
    rounds = [math.log2(size) for size in sizes]
    each = (counts[1] - counts[0]) / (rounds[1] - rounds[0])
    for count, at in list(zip(counts, rounds))[:4]:
        assert count == counts[0] + each * (at - rounds[0]), (counts, sizes)
    # Where their number is no power of two, ranks lend each other theirs: two messages more of an exchange.
    assert counts[4] <= counts[0] + each * (17 - rounds[0]) + 2 * each, (counts, sizes)


if not programs.WITH_MPI:
    print("built without MPI: nothing to run")
    sys.exit()
_, few = lines_of(4)
path, many = lines_of(8)
# A rank's part in the batch decides how many evaluations' steps there are.
begun = [[line[:3] + line[4:] for line in lines if line[0] in ("start", "load")] for lines in (few, many)]
assert begun[0] == begun[1]
steps = [{(*line[:3], line[4]) for line in lines if line[0] == "step"} for lines in (few, many)]
assert steps[0] == steps[1], steps
running = [line for line in many if line[0] in ("step", "evaluate")]
assert len(running) > 4 and all(line[1] == "reduce" and int(line[4]) <= 64 for line in running), running
sizes, counts = table_of(path, 8)
assert sizes == [64, 256, 1024, 16384, 100000]
for what in STEADY:
    grows_with_the_logarithm(sizes, counts[what, "messages of a rank"])
    grows_with_the_logarithm(sizes, counts[what, "bytes of a rank"])
    # Whom it sends to is counted by threads: no more than a few a doubling.
    peers = counts[what, "ranks that one sends to"][:3]
    assert all(count <= 2 * math.log2(size) + 2 for count, size in zip(peers, sizes)), peers
assert max(counts["a lost rank", "bytes of memory of a rank"]) < BYTES_MAX
assert max(counts["the watch, twice a second", "messages of a node"]) <= 64
print(f"of {len(many)} exchanges those of steps, evaluations, saves and errors grow with the logarithm: "
      + "; ".join(f"{what} {counts[what, 'messages of a rank']}" for what in STEADY))
