"""fsdp_train --auto: every rank takes rank 0's choice, what is given stays, and the run is that of the
options that it prints."""

import json
import re
import time

import cpu_profile
import programs

work = programs.folder("auto")
profile = cpu_profile.write(work / "two.yaml", 2)
RUN = ("--model", "tiny", "--seq-length", 64, "--max-steps", 3, "--log-freq", 1, "--threads", 1)


def train(*arguments, status=0):
    return programs.run("fsdp_train", *RUN, *arguments, ranks=2, status=status)


def losses(output):
    return re.findall(r"loss[ =:]+([0-9.]+)", output)


def runs_what_it_prints():
    auto = train("--auto", "--profile", profile, "--global-batch", 8).stdout
    line = re.search(r"^auto: .*2-cores:(.*)$", auto, re.MULTILINE)
    assert line, auto
    assert "predicted:" in auto, auto
    chosen = line.group(1).split()
    for name in ("--mesh", "--strategy", "--wrap", "--batch-size", "--grad-accum", "--prefetch"):
        assert name in chosen, (name, chosen)
    by_hand = train(*chosen).stdout
    assert losses(auto) and losses(auto) == losses(by_hand), (auto, by_hand)


def what_was_weighed_is_not_proposed():
    """Where each message takes long one unit is best, and no hint says that more would take less memory."""
    slow = work / "slow.yaml"
    slow.write_text(re.sub(r"1024: [23]0,", "1024: 40000,", re.sub(r"(1048576): (\d+)", r"\1: 4\g<2>0",
                                                                 profile.read_text())))  # fmt: skip
    fixed = ("-b", 1, "--mesh", "2,1", "--strategy", "full")
    auto = train("--auto", "--profile", slow, *fixed).stdout
    chosen = re.search(r"^auto: .*2-cores:(.*)$", auto, re.MULTILINE).group(1).split()
    by_hand = train(*fixed, *chosen).stdout
    assert "hint: unit" in by_hand and "hint: unit" not in auto, (auto, by_hand)


def given_stays():
    output = train("--auto", "--profile", profile, "--mesh", "2,1", "--strategy", "full").stdout
    line = re.search(r"^auto: .*$", output, re.MULTILINE).group(0)
    assert "--mesh" not in line and "--strategy" not in line, line


def without_margin():
    """What fits, but for the margin of a search, is chosen and said."""
    fixed = ("--auto", "--profile", profile, "--mesh", "2,1", "--strategy", "full", "--wrap", "block",
             "--recompute", "block", "-b", 1, "--grad-accum", 1, "--accumulate", "reduce", "--prefetch", 1,
             "--max-steps", 1)  # fmt: skip
    planned = programs.run("fsdp_plan", *RUN, *fixed[3:], "--backend", "cpu", "--ranks", 2, "--json")
    limit = ("--memory-limit", json.loads(planned.stdout)["memory"]["arena_bytes"])
    output = train(*fixed, *limit).stdout
    assert "chosen without a margin" in output, output
    given = train(*fixed, *limit, "--memory-margin", "3%", status=4)
    assert any("--memory-margin 0" in e for e in programs.errors(given, "fsdp_train")), given.stderr


def slow_is_not_stuck():
    """Ranks wait for a search that takes longer than they wait for one that does nothing."""
    if programs.SLOW:
        return
    began = time.monotonic()
    process = programs.run("fsdp_train", *RUN, "--auto", "--profile", profile, "--model", "llama2-7b",
                           "--comm-timeout", 3, "--dry-run", ranks=2)  # fmt: skip
    print(f"searched for {time.monotonic() - began:.1f} s")
    found = "auto: chosen for" in process.stdout or "no plan fits" in process.stderr
    assert found and process.returncode in (0, 4), (process.returncode, process.stdout, process.stderr)


def refused():
    unfit = train("--auto", "--profile", profile, "--memory-limit", "100kB", status=4)
    assert any("no plan fits" in e for e in programs.errors(unfit, "fsdp_train")), unfit.stderr
    for text, *options in (("without --auto", "--global-batch", 8),
                           ("--op-strategies", "--auto", "--op-strategies", profile),
                           ("a100-80 (command line) is of a GPU", "--auto", "--profile", "a100-80"),
                           ("a100-80 (command line) is of a GPU", "--profile", "a100-80")):
        wrong = train("--backend", "cpu", *options, status=2)
        assert any(text in e for e in programs.errors(wrong, "fsdp_train")), wrong.stderr
    missing = train("--auto", "--profile", work / "none.yaml", status=3)
    assert any("none.yaml" in e for e in programs.errors(missing, "fsdp_train")), missing.stderr


programs.run_tests([runs_what_it_prints, what_was_weighed_is_not_proposed, given_stays, without_margin,
                    slow_is_not_stuck, refused])
