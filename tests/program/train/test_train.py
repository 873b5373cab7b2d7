"""fsdp_train end to end: the log, the terminal, equal losses over ranks, model folders, signals."""

import math
import re
import signal
import time
import xml.etree.ElementTree

import programs

work = programs.folder("train")
RANKS = 2 if programs.WITH_MPI else None
FIELDS = """global_step loss running_loss lr grad_norm epoch epoch_progress num_batches_remaining
tokens_per_s real_tokens learned_tokens real_tokens_per_s learned_tokens_per_s timestamp
mfu time/total time/data time/forward time/backward time/update
time/exposed_comm curr_alloc_gb
peak_alloc_gb curr_resv_gb peak_resv_gb valley_bytes peak_bytes planned_valley_bytes
planned_peak_bytes arena_bytes host_bytes""".split()


def train(*arguments, ranks=None, status=0, **options):
    return programs.run("fsdp_train", *arguments, ranks=ranks, **options, status=status)


def losses(name, *arguments, ranks=None):
    path = work / f"{name}.jsonl"
    train("--log", path, *arguments, ranks=ranks)
    return [line["loss"] for line in programs.log_of(path)]


def close(a, b, tolerance):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b))


def the_log_and_the_terminal():
    path = work / "log.jsonl"
    process = train("--wrap", "block", "-s", "64", "-b", "4", "--max-steps", "40", "--lr", "3e-3",
                    "--warmup-steps", "5", "--log", path, "--memory-profile", work / "memory.svg",
                    "--log-freq", "20", ranks=RANKS)
    lines = programs.log_of(path)
    assert [line["global_step"] for line in lines] == list(range(1, 41))
    for line in lines:
        assert not [field for field in FIELDS if field not in line], line
        peak = line["peak_bytes"]
        assert line["valley_bytes"] == line["planned_valley_bytes"] and peak == line["planned_peak_bytes"]
        assert line["mfu"] is None and peak <= line["arena_bytes"] <= max(1.02 * peak, peak + 65536)
        assert line["time/forward"] + line["time/backward"] <= line["time/total"] * 1.5 + 5
        assert line["time/exposed_comm"] >= 0
        assert line["epoch"] == 0 and 0 < line["epoch_progress"] <= 1
        assert math.isclose(line["curr_alloc_gb"], line["valley_bytes"] / 1e9)
    # Of one step it covers the time from the end of the updates before: not quite that of time/total.
    exposed = sum(line["time/exposed_comm"] for line in lines)
    assert (exposed > 0) == bool(RANKS) and exposed < sum(line["time/total"] for line in lines)
    # Warm-up, then the first step of the cosine.
    assert math.isclose(lines[0]["lr"], 6e-4) and lines[5]["lr"] == 3e-3
    remaining = [line["num_batches_remaining"] for line in lines]
    assert remaining == list(range(remaining[0], remaining[0] - 40, -1))
    assert sum(l["loss"] for l in lines[-5:]) / 5 < 0.8 * lines[0]["loss"]
    shown = [line for line in process.stdout.splitlines() if line.startswith("step ")]
    assert len(shown) == 3, shown  # the first, 20 and 40
    for part in ("epoch 0.", "loss", "lr", "norm", "tokens/s", "left"):
        assert part in shown[-1]
    assert "measured valley" in process.stdout and not programs.errors(process, "fsdp_train")
    xml.etree.ElementTree.parse(work / "memory.svg")


def epochs_end_the_run():
    text = work / "text.txt"
    text.write_text("".join(chr(97 + i % 26) for i in range(64 * 10 + 1)))
    path = work / "epochs.jsonl"
    train("--data", text, "-s", "64", "-b", "3", "--num-epochs", "2", "--log", path)
    lines = programs.log_of(path)  # 10 samples, 3 steps of 3 per epoch
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1]
    assert [line["num_batches_remaining"] for line in lines] == [2, 1, 0, 2, 1, 0]


def the_same_batch_gives_the_same_losses():
    common = ["-s", "32", "--max-steps", "5", "--lr", "1e-3", "--seed", "3"]
    one = losses("one", "-b", "4", *common)
    if programs.stride(2) == 1:  # what a sanitizer would only see again
        assert one == losses("again", "-b", "4", *common)  # a run repeats to the bit
        assert one != losses("seed", "-b", "4", *common[:-1], "4")
    assert close(losses("accumulated", "-b", "1", "--grad-accum", "4", *common), one, 1e-5)
    if not RANKS:
        return
    assert close(losses("full", "-b", "2", "--wrap", "block", *common, ranks=2), one, 1e-5)
    zero1 = ["-b", "2", "--wrap", "block", "--strategy", "SHARD_OPTIMIZER", "--grad-clip", "0"]
    assert close(losses("zero1", *zero1, *common, ranks=2), losses("unclipped", "-b", "4", "--grad-clip", "0",
                                                                   *common), 1e-5)  # fmt: skip
    no = ["-b", "1", "--strategy", "ddp", "--grad-accum", "2"]
    assert close(losses("no", *no, *common, ranks=2), one, 1e-5)
    hybrid = ["-b", "1", "--strategy", "hybrid", "--mesh", "data=2,fsdp=2", "--cpu-offload"]
    assert close(losses("hybrid", *hybrid, *common, ranks=4), one, 1e-5)


def model_folders():
    folder = programs.make_model(work / "model")
    common = ["--tokenizer", "bytes", "-s", "32", "--max-steps", "2", "--lr", "1e-3"]
    loaded = losses("loaded", "--model", folder, "-b", "2", *common)
    drawn = losses("drawn", "--model", folder, "--init", "random", "-b", "2", *common)
    assert abs(loaded[0] - drawn[0]) > 1e-4
    if RANKS:
        shards = losses("shards", "--model", folder, "-b", "1", "--wrap", "block", *common, ranks=2)
        assert close(shards, loaded, 1e-5)


def what_is_printed_on_demand():
    config = work / "run.yaml"
    config.write_text("strategy: zero2\nmax-steps: 3\nseq-length: 32\nprint-model: on\nwrap: block\n")
    process = train("--config", config, "--max-steps", "1", ranks=RANKS)
    assert process.stdout.startswith("FullyShardedDataParallel(") and "step 1/1" in process.stdout
    assert process.stdout.count("(_fsdp_wrapped_module): LlamaForCausalLM") == 1  # once, not once a rank
    process = train("--dry-run", "-s", "32", ranks=RANKS)
    assert "Verified: yes" in process.stdout and "step 1" not in process.stdout
    process = train("--print-program", "--dry-run", "-s", "32")
    assert "linear_backward_weight" in process.stdout
    for option, text in (("--help", "--numel-to-wrap"), ("--version", "fsdp_train ")):
        assert train(option, ranks=RANKS).stdout.count(text) == 1
    train("--max-steps", "2", "-s", "32", "-e", "run", "--save-dir", work / "out", "--ckpt-freq", "0")
    assert len(programs.log_of(work / "out" / "run" / "log.jsonl")) == 2


def a_lone_rank_has_the_whole_node():
    if not programs.WITH_MPI:
        return
    process = train("--max-steps", "1", "-s", "32", ranks=1)
    cores = int(re.search(r"(\d+) cores? each", process.stdout).group(1))
    assert cores == 1 or not re.search(r"rank 0: \d+ \(hwloc\)", process.stdout), process.stdout


def signals_end_the_run_after_a_step():
    for number, status, ranks in (
        (signal.SIGTERM, 143, None),
        (signal.SIGHUP, 143, None),
        (signal.SIGINT, 130, None),
        (signal.SIGUSR1, 143, RANKS),
    ):
        path = work / f"signal{int(number)}.jsonl"
        process = programs.start("fsdp_train", "-s", "32", "--num-epochs", "1000", "--log", path, ranks=ranks)
        while not path.exists() or path.stat().st_size == 0:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == status, (number, process.returncode, out, err)
        assert out.count(f"stopped by {signal.Signals(number).name} after step") == 1, out
        assert "\nstopped:   " in out and "done:" not in out, out
        lines = programs.log_of(path)
        assert [line["global_step"] for line in lines] == list(range(1, len(lines) + 1))
        assert f"after step {len(lines)}\n" in out


def memory_stays_within_the_arenas():
    if programs.SLOW:
        return  # sanitizers have memory of their own
    sizes = []
    for sequence in ("64", "1024"):
        path = work / "memory.jsonl"
        resident = programs.resident("fsdp_train", "-s", sequence, "-b", 4, "--max-steps", 2, "--log", path)
        line = programs.log_of(path)[-1]
        sizes.append((resident, line["arena_bytes"] + line["host_bytes"]))
    growth = sizes[1][0] - sizes[0][0], sizes[1][1] - sizes[0][1]
    assert growth[0] <= growth[1] + 32e6, sizes  # what grows is the arena
    alone = programs.resident_alone()
    assert all(resident <= arenas + alone + 48e6 for resident, arenas in sizes), (alone, sizes)


programs.run_tests([the_log_and_the_terminal, epochs_end_the_run, the_same_batch_gives_the_same_losses,
                    model_folders, what_is_printed_on_demand, a_lone_rank_has_the_whole_node,
                    signals_end_the_run_after_a_step, memory_stays_within_the_arenas])
