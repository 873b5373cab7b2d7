#!/usr/bin/env python3
"""Prices of steps against measured runs that others published.

    bench/simulator.py [--rows FILE] [--build build] [--jobs N] [--parts] [ID...]

Each row of bench/published/published.tsv (published.md says where they are from and what to know of them)
becomes a model, a mesh and a machine: fsdp_plan --price on a shipped profile with the row's network,
attention kernel, and what its framework moves beyond our program (simulating/frameworks.py: counted, never
fitted). It prints `id predicted_ms published_ms error` for each row, with the reason where a row has no
score; then the median and the 90th percentile of errors by source, by scale and in all; ratios of tokens/s
within a source, between neighbours (`ratio`) and rows with others between them (`distant`); and memory beside
what rows state. IDs (or their beginnings) choose rows.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from simulating import frameworks, profiles, rows as published, scores  # noqa: E402


class Result:
    """A row with its price: predicted_ms is None where it has none, error where it has no score."""

    def __init__(self, row):
        self.row, self.reason = row, row.unscored()
        if not frameworks.framework_of(row):
            self.reason = f"framework '{row.framework}' is not known ({', '.join(frameworks.KNOWN)})"
        self.predicted_ms = self.error = self.tok_s_gpu = self.peak_gb = None
        self.parts, self.added = {}, {}

    def set(self, answer, added):
        time = answer["time"]
        self.predicted_ms = time["step_ms"] + 1e3 * sum(added.values())
        self.parts, self.added = time["parts_ms"], added
        self.tok_s_gpu = self.row.tok_s_gpu * self.row.step_ms / self.predicted_ms
        self.peak_gb = answer["memory"]["peak_bytes"] / 1e9
        if self.reason is None:
            self.error = self.predicted_ms / self.row.step_ms - 1


def written(text, folder, name):
    """The path of a new file."""
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def run_plan(command, folder):
    """What fsdp_plan prints as JSON; or why it does not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout), None
    said = done.stderr.strip().removeprefix("fsdp_plan: error: ").replace(folder + os.sep, "")
    return None, said or f"fsdp_plan ended with {done.returncode}"


def plan_memory(result, plan, folder):
    """Of a row without a price that states its memory: the plan's, which no rate enters."""
    command = published.plan_command(result.row, plan, folder)
    answer, why = run_plan(command + ["--json"], folder)
    if why:
        result.reason += f"; memory: {why}"
    else:
        result.peak_gb = answer["memory"]["peak_bytes"] / 1e9


def gather_seconds(profile, ranks, size):
    return profiles.collective_seconds(profiles.collective_curve(profile, "all_gather", ranks), size)


def price(row, plan, folder):
    result = Result(row)
    model = tempfile.mkdtemp(dir=folder)
    written(json.dumps(published.config_of(row)), model, "config.json")
    if result.reason not in (None, published.RATIOS_ONLY.get(row.gpu)):
        if row.mem_gb and row.plannable():
            plan_memory(result, plan, model)
        return result
    base = published.profile_of(row)
    memory_gbps = profiles.number(base, "memory_gbps")
    kernel, rates = frameworks.attention_kernel(row), frameworks.op_rates(row, memory_gbps)
    profile = written(published.profile_text(row, kernel, rates), model, "profile.yaml")
    command = published.plan_command(row, plan, model)
    answer, why = run_plan(command + ["--profile", profile, "--price", "--json"], model)
    if why:
        result.reason = why
        return result
    added = frameworks.added_seconds(row, memory_gbps, 1e12 * profiles.product_tflops(base))
    added.update(frameworks.added_communication(row, memory_gbps, functools.partial(gather_seconds, base)))
    result.set(answer, added)
    return result


# ---- Output

def print_rows(results, out):
    for r in results:
        if r.predicted_ms is None:
            print(f"{r.row.id} - {r.row.step_ms:.1f} - # {r.reason}", file=out)
        else:
            error = f"{100 * (r.predicted_ms / r.row.step_ms - 1):+.1f}%"
            note = f" # not scored: {r.reason}" if r.reason else ""
            print(f"{r.row.id} {r.predicted_ms:.1f} {r.row.step_ms:.1f} {error}{note}", file=out)


def print_groups(results, out):
    print(f"\n{'':28} {'rows':>5} {'median':>7} {'90%':>7} {'mean':>7} {'within 25%':>11}", file=out)
    for name, errors in scores.groups(results):
        count, median, ninety, mean, within = scores.summary(errors)
        print(f"{name:28} {count:5} {100 * median:6.1f}% {100 * ninety:6.1f}% {100 * mean:+6.1f}% "
              f"{100 * within:10.0f}%", file=out)


def print_ratios(results, out):
    pairs = scores.ratios(results)
    print(f"\n{'ratios within a source':28} {'pairs':>5} {'median':>7} {'90%':>7}  {'all pairs':>9} "
          f"{'median':>7} {'90%':>7}", file=out)
    for factor in scores.FACTORS + ("all",):
        every = [p for p in pairs if factor in (p.factor, "all")]
        columns = []
        for chosen in ([p for p in every if p.neighbours], every):
            errors = [abs(p.error) for p in chosen]
            columns += [len(errors), 100 * statistics.median(errors), 100 * scores.quantile(errors, 0.9)
                        ] if errors else []
        if columns:
            print(f"{factor:28} {{:5}} {{:6.1f}}% {{:6.1f}}%  {{:9}} {{:6.1f}}% {{:6.1f}}%".format(*columns),
                  file=out)
    for p in sorted(pairs, key=lambda p: not p.neighbours):
        print(f"{'ratio' if p.neighbours else 'distant'} {p.factor} {p.first} {p.second} {p.predicted:.3f} "
              f"{p.published:.3f} {100 * p.error:+.1f}%", file=out)


def print_memory(results, out):
    stated = [r for r in results if r.row.mem_gb]
    if stated:
        print("\nmemory in GB: id predicted, with the framework's whole logits, stated", file=out)
    for r in stated:
        row = r.row
        if r.peak_gb is None:
            print(f"memory {row.id} - - {row.mem_gb:.1f} # {r.reason}", file=out)
            continue
        note = "" if row.compute_dtype == "bf16" else f" # planned in bf16, run in {row.compute_dtype}"
        print(f"memory {row.id} {r.peak_gb:.1f} {r.peak_gb + frameworks.logits_gb(row):.1f} {row.mem_gb:.1f}"
              f"{note}", file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--rows", default=os.path.join(ROOT, "bench", "published", "published.tsv"))
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--parts", action="store_true", help="also what each predicted step consists of")
    args = parser.parse_args()
    plan = os.path.join(args.build, "bin", "fsdp_plan")
    if not os.path.exists(plan):
        parser.error(f"--build {args.build}: no {plan}; build it, or name the build folder")
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: give 1 or more")
    try:
        rows = published.read_rows(args.rows)
    except (OSError, ValueError) as error:
        parser.error(f"--rows: {error}")
    if args.ids:
        rows = [row for row in rows if any(row.id.startswith(name) for name in args.ids)]
    if not rows:
        begins = f" that begins with {' or '.join(args.ids)}" if args.ids else ""
        parser.error(f"--rows: {args.rows} has no row{begins}")
    with tempfile.TemporaryDirectory(prefix="fsdp-simulator-") as folder:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda row: price(row, plan, folder), rows))
    print_rows(results, sys.stdout)
    if args.parts:
        for r in results:
            if r.predicted_ms:
                parts = {**r.parts, **{what: 1e3 * seconds for what, seconds in r.added.items()}}
                print("parts", r.row.id, ", ".join(f"{k} {v:.1f}" for k, v in parts.items() if v >= 0.05))
    if any(r.error is not None for r in results):
        print_groups(results, sys.stdout)
        print_ratios(results, sys.stdout)
    print_memory(results, sys.stdout)


if __name__ == "__main__":
    main()
