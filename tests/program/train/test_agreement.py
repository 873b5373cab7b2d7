"""Ranks that read different files: refused before the first step, with one message that names what differs,
the file and two ranks with their hosts; none waits for another. Ranks in another folder stand for another
node."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

import programs
from prepared import FIXTURES, ROOT, SKIPPED

work = programs.folder("agreement")
TEXT = (ROOT / "runtime" / "data" / "builtin_text.txt").read_bytes()
GOLDEN = ROOT / "tests" / "golden"
TIMEOUT_S = 120
failures = []


def start(counts, folders, arguments):
    """The finished job of counts[i] ranks in folders[i]; a job that hangs is an error."""
    command = ["mpirun"]
    for count, folder in zip(counts, folders):
        command += [":"] if len(command) > 1 else []
        command += ["-np", str(count), "-wdir", str(folder), str(programs.BIN / "fsdp_train")]
        command += ["-s", "64", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def folders(name):
    """Two empty folders."""
    pair = [work / name / half for half in ("a", "b")]
    for folder in pair:
        folder.mkdir(parents=True)
    return pair


def refused(name, pair, arguments, *parts, counts=(1, 1), status=3):
    process = start(counts, pair, arguments)
    messages = programs.errors(process, "fsdp_train")
    wrong = []
    if process.returncode != status:
        wrong.append(f"exit status {process.returncode}, expected {status}")
    if len(messages) != 1:
        wrong.append(f"{len(messages)} messages, expected 1")
    ranks = [f"rank {number} (host " for number in (0, counts[0])]
    wrong += [f"no {part!r}" for part in (*parts, *ranks) if not any(part in m for m in messages)]
    if "step " in process.stdout:
        wrong.append("it trained")
    if wrong:
        failures.append(name)
        print(f"FAILED {name}: {'; '.join(wrong)}\n{process.stdout}{process.stderr}")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def data_of_two_sizes():
    pair = folders("sizes")
    for folder, count in zip(pair, (20_000, 30_000)):
        (folder / "d.txt").write_bytes(TEXT[:count])
    refused("data of two sizes", pair, ["--data", "d.txt", "-b", 4], "data files differ", f"{pair[0]}/d.txt",
            f"{pair[1]}/d.txt", "20000 bytes", "30000")  # fmt: skip
    # One of them is too small for a step: still a difference, not that rank's fault alone.
    (pair[1] / "d.txt").write_bytes(TEXT[:100])
    refused("data too small on one", pair, ["--data", "d.txt", "-b", 4], "data files differ", "100")
    (pair[1] / "d.txt").unlink()
    refused_alone("data missing on one", pair, ["--data", "d.txt"],
                  "--data d.txt (command line) cannot be read (No such file")  # fmt: skip
    os.mkfifo(pair[1] / "d.txt")
    refused("data a pipe on one", pair, ["--data", "d.txt"], "d.txt", "not a regular file")


def data_of_one_size():
    pair = folders("bytes")
    for folder in pair:
        (folder / "d.txt").write_bytes(TEXT[:20_000])
        (folder / "e.txt").write_bytes(TEXT[:5_000])
        shutil.copy(FIXTURES / "bytes.tok", folder)
    good = start((1, 1), pair, ["--data", "d.txt,bytes.tok", "--eval-data", "e.txt", "--max-steps", 1])
    assert good.returncode == 0, good.stderr  # copies are equal
    flip(pair[1] / "d.txt", 12_345)
    refused("one byte of the data", pair, ["--data", "bytes.tok,d.txt"], "data files differ", "d.txt",
            "contents")  # fmt: skip
    # Ranks that read the same sequences, or parts of them.
    for axis in ("tensor", "context"):
        refused(f"one byte over {axis}", pair, ["--data", "d.txt", f"--{axis}-parallel", 2],
                "data files differ", "d.txt", "contents")  # fmt: skip
    flip(pair[1] / "e.txt", 4_999)
    refused("the last byte of the evaluation data", pair, ["--eval-data", "e.txt"],
            "evaluation data files differ", "e.txt")  # fmt: skip
    flip(pair[1] / "bytes.tok", 300)
    refused("one token", pair, ["--data", "bytes.tok", "-b", 1], "data files differ", "bytes.tok")
    # Two ranks a copy share its slices of 16 MiB; the byte is in the last, which is the third.
    for folder in pair:
        (folder / "large.txt").write_bytes(TEXT * 90)
    size = (pair[1] / "large.txt").stat().st_size
    assert 2 * 16 << 20 < size < 3 * 16 << 20, size
    flip(pair[1] / "large.txt", size - 2)
    large = ["--data", "large.txt", "--max-steps", 1]
    refused("a byte of a large file", pair, large, "large.txt", "contents", counts=(2, 3))
    shallow = start((2, 3), pair, [*large, "--set", "compare-files=sizes"])
    assert shallow.returncode == 0, shallow.stderr
    # Links to one file are one file.
    for folder in pair:
        (folder / "link.txt").symlink_to(pair[0] / "d.txt")
    good = start((1, 1), pair, ["--data", "link.txt", "--max-steps", 1])
    assert good.returncode == 0, good.stderr


def patterns():
    """What a pattern matches is compared before anything is read."""
    pair = folders("patterns")
    for folder in pair:
        for i in range(3):
            (folder / f"d_{i}.txt").write_bytes(TEXT[i * 3_000 : i * 3_000 + 3_000])
    both = ["--data", "d_*.txt", "--eval-data", "d_[02].txt"]
    good = start((1, 1), pair, [*both, "--max-steps", 1])
    assert good.returncode == 0 and "d_*.txt, 3 files, as bytes: 9,000 tokens" in good.stdout, good.stderr
    assert "2 files of --eval-data (d_0.txt, ...) are in --data too" in good.stderr, good.stderr
    (pair[1] / "d_1.txt").unlink()
    refused("a file less on one", pair, both, "reads data d_1.txt", "reads data d_2.txt")
    (pair[1] / "d_1.txt").write_bytes(TEXT[:2_999])
    refused("a shorter file on one", pair, both, "data files differ", "d_1.txt", "has 2999 on")
    (pair[0] / "d_3.txt").write_bytes(TEXT[:3_000])
    refused("a file more on one", pair, ["--data", "d_*.txt"], "reads data d_3.txt", "reads no further file")
    (pair[1] / "d_2.txt").unlink()
    refused("evaluation data of two lists", pair, ["--eval-data", "d_[02].txt"],
            "reads evaluation data d_2.txt", "reads no further file")  # fmt: skip
    (pair[1] / "d_0.txt").unlink()
    (pair[1] / "d_1.txt").unlink()
    refused_alone("no file at all on one", pair, ["--data", "d_*.txt"], "no file matches", str(pair[1]))


def weights():
    pair = folders("weights")
    for folder in pair:
        shutil.copytree(GOLDEN / "llama3_rope", folder / "m")
        (folder / "t.bin").write_bytes(b"".join((i * 7 % 96).to_bytes(2, "little") for i in range(500)))
    base = ["--model", "m", "--data", "t.bin", "--max-steps", 1, "-s", 16]
    good = start((1, 1), pair, base)
    assert good.returncode == 0, good.stderr
    last = pair[1] / "m" / "model-00002-of-00002.safetensors"
    whole = last.read_bytes()
    flip(last, len(whole) - 1)
    refused("one byte of one tensor", pair, base, "weights files differ", "model-00002-of-00002.safetensors")
    last.write_bytes(whole[:-4])
    refused_alone("weights cut off on one", pair, base, "model-00002-of-00002.safetensors")
    last.write_bytes(whole)
    index = pair[1] / "m" / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text + " ")
    refused("the index", pair, base, "weights index files differ", "model.safetensors.index.json")
    index.write_text(text)
    last.unlink()
    refused_alone("a shard missing on one", pair, base, "model-00002-of-00002.safetensors", "No such file")
    last.write_bytes(whole)
    for path in (pair[1] / "m").glob("*.safetensors*"):
        path.unlink()
    refused("no weights on one", pair, base, "reads weights index m/model.safetensors.index.json",
            "reads no further file")  # fmt: skip


def refused_alone(name, pair, arguments, *parts):
    """What only rank 1 finds wrong."""
    process = start((1, 1), pair, arguments)
    messages = programs.errors(process, "fsdp_train")
    good = process.returncode == 3 and len(messages) == 1
    if not good or not all(part in messages[0] for part in (*parts, "(rank 1 (host ")):
        failures.append(name)
        print(f"FAILED {name}: {process.returncode}\n{process.stdout}{process.stderr}")


def configurations_and_tokenizers():
    pair = folders("model")
    config = programs.CONFIG | {"vocab_size": 42}
    for folder in pair:
        programs.make_model(folder / "m", config, weights=False)
        shutil.copy(FIXTURES / "tokenizer.json", folder / "m")
        shutil.copy(FIXTURES / "alpaca.tok", folder)
    base = ["--model", "m", "--data", "alpaca.tok", "-s", 8, "--max-steps", 1]
    good = start((1, 1), pair, base)
    assert good.returncode == 0, good.stderr
    other = pair[1] / "m" / "config.json"
    # The step program is the same in all of these but the first.
    for key, value, said in (("num_hidden_layers", 1, "num_hidden_layers 2 → 1"),
                             ("rope_theta", 5e5, "rope_theta 10000.0 → 500000.0"),
                             ("rms_norm_eps", 1e-6, "rms_norm_eps 1e-5 → 1e-6"),
                             ("initializer_range", 0.1, "initializer_range 0.02 → 0.1")):  # fmt: skip
        other.write_text(json.dumps(config | {key: value}))
        refused(f"configuration: {key}", pair, base, "m/config.json", said)
    other.write_text("{")
    refused_alone("a configuration that one cannot read", pair, base, "config.json", "not valid JSON")
    other.write_text(json.dumps(config))
    tokenizer = pair[1] / "m" / "tokenizer.json"
    text = tokenizer.read_text()
    tokenizer.write_text(text + " ")
    refused("the tokenizer", pair, base, "tokenizer files differ", "tokenizer.json")
    tokenizer.unlink()
    refused("no tokenizer on one", pair, base, "reads tokenizer m/tokenizer.json")


def profiles():
    pair = folders("profiles")
    for folder, rate in zip(pair, (10, 11)):
        (folder / "p.yaml").write_text("base: q.yaml\nname: a\n")
        (folder / "q.yaml").write_text("name: b\ndevice: cpu\nprocessors: 2\nmemory_gb: 16\n"
                                       f"memory_gbps: {rate}\n")
    base = ["--profile", "p.yaml", "--max-steps", 1]
    refused("a rate of the profile's base", pair, base, "--profile p.yaml: the ranks' profiles differ",
            'has "memory_gbps: 10"', '"memory_gbps: 11"')  # fmt: skip
    (pair[1] / "p.yaml").unlink()
    refused_alone("no profile on one", pair, base, 'unknown profile "p.yaml"')


def checkpoints():
    """The manifest of rank 0 has the checksums of the files that rank 1 reads."""
    pair = folders("checkpoints")
    base = ["-s", 32, "-b", 1, "--wrap", "block", "-e", "run", "--ckpt-freq", 1, "--lr", "1e-3"]
    both = start((2,), pair[:1], [*base, "--max-steps", 2])
    assert both.returncode == 0, both.stderr
    shutil.copytree(pair[0] / "outputs", pair[1] / "outputs")
    base += ["--ckpt-freq", 0]  # rank 1 has no folder that it could save into
    good = start((1, 1), pair, [*base, "--max-steps", 3])
    assert good.returncode == 0 and "step 2" in good.stdout, good.stderr
    named = [*base, "--max-steps", 5, "--resume", "outputs/run/step-00000001"]
    for file in (pair[1] / "outputs" / "run" / "step-00000001").glob("rank-*"):
        flip(file, 60_000)
    process = start((1, 1), pair, named)
    messages = programs.errors(process, "fsdp_train")
    assert process.returncode == 3 and len(messages) == 1, process.stderr
    named = re.search(r"step-00000001/rank-0000\d\.safetensors.*\(rank 1 \(host ", messages[0])
    assert named, messages


def options():
    """Also those by which a rank would answer, or open files together with the others, before it trains."""
    eval_of = ["fsdp_eval", "--model", "tiny", "--init", "random", "-s", 32, "--data", work / "options.txt"]
    (work / "options.txt").write_bytes(TEXT)
    train = ["fsdp_train", "-s", 32, "--max-steps", 1]
    cases = [(train, ["--lr", 1e-3], ["--lr", 2e-3], "--lr="), (train, [], ["--help"], "--seq-length="),
             (train, [], ["--rank-logs", work / "logs"], "--rank-logs="),
             (train, ["--dry-run"], [], "--dry-run="), (train, ["--dry-run"], ["--nonsense"], "--nonsense"),
             (eval_of, ["--rank-logs", work / "logs"], [], "--rank-logs=")]  # fmt: skip
    for command, first, second, named in cases:
        program = programs.BIN / command[0]
        words = ["mpirun", "-np", 1, program, *command[1:], *first, ":", "-np", 1, program]
        words += second if second == ["--help"] else [*command[1:], *second]
        process = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                                 timeout=TIMEOUT_S)  # fmt: skip
        messages = programs.errors(process, command[0])
        assert process.returncode == 2 and len(messages) == 1, (words, process.stdout, process.stderr)
        assert named in messages[0] and "rank 1 (host " in messages[0], messages


def main():
    if not programs.WITH_MPI:
        print("SKIPPED: built without MPI, so that there is one rank")
        return SKIPPED
    cases = [data_of_two_sizes, data_of_one_size, patterns, weights, configurations_and_tokenizers,
             profiles, checkpoints, options]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for case, result in [(case, pool.submit(case)) for case in cases]:
            result.result()
            print(f"done    {case.__name__}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
