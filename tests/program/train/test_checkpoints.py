"""Checkpoints end to end: resuming on other ranks and strategies, damage, full disks, signals, and the way to
Hugging Face and back. Kills are in test_kills.py."""

import json
import re
import resource
import shutil
import signal
import subprocess
import time

import programs

work = programs.folder("ckpt")
MPI = programs.WITH_MPI
SEQUENCES = programs.size(24, 4)  # of a global batch
COMMON = ["-s", "32", "--lr", "1e-3", "--seed", "3", "--log-freq", "100", "--save-dir", work,
          "--tokenizer", "bytes"]  # fmt: skip


def train(*arguments, ranks=None, status=0, **options):
    return programs.run("fsdp_train", *COMMON, *arguments, ranks=ranks, **options, status=status)


def refused(*arguments, status=3, **options):
    return programs.refused("fsdp_train", *COMMON, *arguments, status=status, **options)


def losses(name):
    return programs.losses(work / name / "log.jsonl")


def steps(name):
    return sorted(int(p.name[5:]) for p in (work / name).glob("step-????????"))


def copy(source, name, *but):
    shutil.rmtree(work / name, ignore_errors=True)
    shutil.copytree(work / source, work / name)
    for step in but:
        shutil.rmtree(work / name / f"step-{step:08d}")
    return name


def base():
    """An uninterrupted run that others are compared with: 12 steps, saved at 6 and 12."""
    ranks, batch = (4, SEQUENCES // 4) if MPI else (None, SEQUENCES)
    train("-b", batch, "--wrap", "block", "--max-steps", 12, "-e", "base", "--ckpt-freq", 6, ranks=ranks)
    assert steps("base") == [6, 12] and not list((work / "base").glob("*.tmp"))
    train("-b", batch, "--wrap", "block", "--max-steps", 12, "-e", "plain", "--ckpt-freq", 0, ranks=ranks)
    assert losses("base") == losses("plain"), "saving changes the run"


def resumes_anywhere():
    uninterrupted = losses("base")
    cases = [
        (4, ["-b", SEQUENCES // 4, "--wrap", "block"]),
        (1, ["-b", SEQUENCES, "--wrap", "none"]),
        (2, ["-b", 12, "--strategy", "no"]),
        (4, ["-b", 6, "--strategy", "zero1", "--wrap", "block"]),
        (3, ["-b", 8, "--strategy", "grad_op", "--cpu-offload", "--wrap", "size", "--numel-to-wrap", "1e5"]),
        (8, ["-b", 3, "--strategy", "hybrid", "--mesh", "data=2,fsdp=4", "--ckpt-async", "off"]),
        (2, ["-b", 6, "--grad-accum", 2, "--wrap", "module:LlamaMLP", "--cpu-offload"]),
    ]
    for ranks, options in cases[:2] if MPI and programs.SLOW else cases if MPI else cases[1:2]:
        copy("base", "on", 12)
        process = train("--max-steps", 12, "-e", "on", *options, ranks=ranks if MPI else None)
        resumed = r"^resumed: .*step-00000006, step 6, saved by \d ranks? \(data=1, fsdp=\d\) under full"
        assert re.search(resumed, process.stdout, re.M), process.stdout
        found = losses("on")
        if ranks == 4 or not MPI:  # the same sums, in whichever place
            assert found == uninterrupted, (options, found, uninterrupted)
        assert found[:6] == uninterrupted[:6]
        assert all(abs(a - b) <= 1e-5 * b for a, b in zip(found, uninterrupted)), (options, found)
        assert steps("on") == [6, 12]


def megabytes_read(pattern, process):
    return float(re.search(pattern + r" ([\d.]+) MB read", process.stdout).group(1)) * 1e6


def bytes_are_read_about_once():
    if not MPI or programs.SLOW:
        return
    state = 3 * 4 * 803968
    for ranks, options in ((2, ["-b", 12, "--wrap", "block"]), (4, ["-b", 6, "--wrap", "block"])):
        copy("base", "read", 12)
        process = train("--max-steps", 7, "-e", "read", "--ckpt-freq", 0, *options, ranks=ranks)
        read = megabytes_read(r"resumed: .*;", process)
        # Pads, headers and checksums; a chunk of 16 KiB at either end of what a rank reads of a file.
        assert state <= read <= 1.01 * state + 3 * 7 * ranks * 2 * 16384, (ranks, read, state)
    # Weights to the byte, but for the header, which every rank reads, and three digits of the message.
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2}
    folder = programs.make_model(work / "weights", programs.CONFIG | shape)
    header, data = programs.header_of(programs.CONFIG | shape)
    header = len(json.dumps(header)) + 8
    for ranks, options in (
        (8, ["--wrap", "block"]),
        (8, ["--strategy", "no", "--wrap", "block"]),
        (6, ["--strategy", "hybrid", "--mesh", "data=3,fsdp=2"]),
        (3, ["--strategy", "grad_op", "--cpu-offload"]),
        (4, ["--strategy", "zero1", "--mesh", "data=2,fsdp=2"]),
    ):
        process = train("--model", folder, "-b", 1, "--max-steps", 1, *options, ranks=ranks)
        read = megabytes_read("weights from its folder,", process)
        assert abs(read - data - ranks * header) <= 0.005 * data, (options, read, data, header)


def stays_with_the_newest():
    train("-b", 1, "--max-steps", 10, "-e", "keep", "--ckpt-freq", 2, "--ckpt-keep", 2)
    assert steps("keep") == [8, 10]
    process = train("-b", 1, "--max-steps", 10, "-e", "keep", "--ckpt-freq", 2)
    assert "already finished: 10 steps\n" in process.stdout and len(losses("keep")) == 10
    process = train("-b", 1, "--max-steps", 4, "-e", "keep", "--ckpt-freq", 2)
    assert "already finished: 10 steps, and --max-steps and --num-epochs, which count" in process.stdout
    train("-b", 1, "--max-steps", 9, "-e", "keep", "--resume", "step-8", "--ckpt-freq", 2)
    assert len(losses("keep")) == 9 and steps("keep") == [9, 10]
    process = train("-b", 1, "--max-steps", 11, "-e", "keep", "--ckpt-freq", 20, "--ckpt-keep", 0)
    assert "step-00000009, step 9" in process.stdout, process.stdout  # the newest, not the furthest
    process = train("-b", 1, "--max-steps", 12, "-e", "keep", "--resume", work / "keep/step-00000010")
    assert "step 10," in process.stdout
    train("-b", 1, "--max-steps", 2, "-e", "never", "--ckpt-freq", 0)
    assert steps("never") == []


def damage(name, how):
    folder = work / name / "step-00000012"
    ranks = sorted(folder.glob("rank-*.safetensors"))
    data = bytearray(ranks[-1].read_bytes())
    if how == "missing":
        ranks[-1].unlink()
    elif how == "truncated":
        ranks[-1].write_bytes(data[:-1000])
    elif how == "manifest":
        text = (folder / "checkpoint.json").read_text()
        (folder / "checkpoint.json").write_text(text.replace('"step": 12', '"step": 13'))
    elif how == "no manifest":
        (folder / "checkpoint.json").unlink()
    else:
        middle = len(data) // 2
        places = {"flipped in the header": 40, "flipped in the data": middle, "flipped at the end": -5}
        data[places[how]] ^= 1
        ranks[-1].write_bytes(data)


def damage_is_told():
    uninterrupted = losses("base")
    ways = ["flipped in the data", "missing", "manifest"]
    if not programs.SLOW:
        ways += ["truncated", "no manifest", "flipped in the header", "flipped at the end"]
    for how in ways:
        ranks, batch = (2, SEQUENCES // 2) if MPI and how == "flipped in the data" else (None, SEQUENCES)
        copy("base", "hurt")
        damage("hurt", how)
        process = train("-b", batch, "--max-steps", 12, "-e", "hurt", "--ckpt-freq", 0, ranks=ranks)
        told = programs.warnings(process)
        assert len(told) == 1 and "step-00000012" in told[0], (how, told)
        assert "step-00000006, step 6" in process.stdout, (how, process.stdout)
        assert all(abs(a - b) <= 1e-5 * b for a, b in zip(losses("hurt"), uninterrupted)), how
        copy("base", "hurt")
        damage("hurt", how)
        # Named, or the only one: an error.
        path = work / "hurt" / "step-00000012"
        refused("-b", 1, "--max-steps", 13, "-e", "hurt2", "--resume", path, ranks=ranks)
        shutil.rmtree(work / "hurt" / "step-00000006")
        refused("-b", 1, "--max-steps", 13, "-e", "hurt", ranks=ranks, parts=["--resume off"])
        if how != "flipped in the data":  # those are moments, which are not exported
            process = programs.run("fsdp_export", path, "--to", work / "hurt_hf")
            assert process.returncode == 3 and not list(work.glob("hurt_hf*")), (how, process)


def other_models_are_refused():
    folder = programs.make_model(work / "model")
    refused("--model", folder, "-b", 1, "--max-steps", 13, "-e", "base",
            parts=["a different model", "vocab_size 256 → 257", "); use its --model tiny, a different -e"])
    assert steps("base") == [6, 12] and len(losses("base")) == 12
    # The same shapes, but a different rotary embedding: every key that differs is named, with both values.
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}
    config = programs.CONFIG | {"vocab_size": 256, "rope_scaling": scaling}
    folder = programs.make_model(work / "rope", config, weights=False)
    train("--model", folder, "-b", 1, "--max-steps", 1, "-e", "rope")
    for key, value in (("factor", 4.0), ("high_freq_factor", 2.0), ("low_freq_factor", 2.0),
                       ("original_max_position_embeddings", 32)):
        programs.make_model(folder, config | {"rope_scaling": scaling | {key: value}}, weights=False)
        refused("--model", folder, "-b", 1, "--max-steps", 2, "-e", "rope",
                parts=[f"rope_scaling.{key} {scaling[key]} → {value})"])
    # What changes no number may change.
    unused = {"max_position_embeddings": 8, "initializer_range": 1.0}
    programs.make_model(folder, config | unused, weights=False)
    train("--model", folder, "-b", 1, "--max-steps", 2, "-e", "rope")


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000_000, 8_000_000))


def a_full_disk_is_told():
    """A limit on file sizes (above what Open MPI needs itself), and a small tmpfs where one may be mounted:
    both fail in the middle of a write."""
    arguments = ["-b", 1, "--max-steps", 4, "-e", "full", "--ckpt-freq", 2]
    process = train(*arguments, status=3, preexec_fn=limit_file_size)
    # The save after step 2 costs itself alone; the run's result, which is not saved, is its last word.
    (warning,), (error,) = programs.warnings(process), programs.errors(process, "fsdp_train")
    assert "step 2" in warning and "after step 4" in error, process.stderr
    assert "done: " in process.stdout and len(losses("full")) == 4
    assert not list((work / "full").glob("step-*"))
    disk = work / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], capture_output=True)
    if mount.returncode != 0:
        print("  no tmpfs may be mounted here: only the limit on file sizes was tested")
        return
    try:
        ranks = 2 if MPI else None
        for way in ("on", "off"):
            arguments = ["-b", 1, "--save-dir", disk, "-e", way, "--ckpt-freq", 2, "--ckpt-keep", 1,
                         "--ckpt-async", way]  # fmt: skip
            train("--max-steps", 2, *arguments, ranks=ranks)  # 9.6 MB
            process = train("--max-steps", 4, *arguments, ranks=ranks, status=3)
            assert not programs.warnings(process), process.stderr
            (told,) = programs.errors(process, "fsdp_train")
            assert "newest checkpoint is" in told and "step-00000002" in told, told
            assert sorted(p.name for p in (disk / way).glob("step-*")) == ["step-00000002"]
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            process = train("--max-steps", 4, *arguments, ranks=ranks)
            assert "step 2," in process.stdout
            shutil.rmtree(disk / way)
            subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
    finally:
        subprocess.run(["umount", disk], check=True)


def snapshots_are_of_their_step():
    """A checkpoint written beside the next steps is the same as one for which the run stops."""
    saved = {}
    for way in ("off", "on"):
        arguments = ["-b", 1, "--max-steps", 4, "-e", f"snapshot_{way}", "--ckpt-freq", 1, "--ckpt-keep", 0]
        train(*arguments, "--ckpt-async", way)
        saved[way] = [
            # but for the checksum at the end, which is of this save too
            (work / f"snapshot_{way}" / f"step-{step:08}" / "rank-00000.safetensors").read_bytes()[:-16]
            for step in range(1, 5)
        ]
    for step in range(4):
        assert saved["on"][step] == saved["off"][step], f"the checkpoint of step {step + 1} is torn"


def copies_follow_a_load():
    """If bf16 copies of the masters are kept between steps, they are made again from what was loaded: the
    first loss after a load is the undisturbed run's, to the bit."""
    setups = [("no", None, ["--strategy", "no"]), ("offload", None, ["--cpu-offload"])]
    if MPI:
        setups += [("no2", 2, ["--strategy", "no"]), ("offload2", 2, ["--cpu-offload"]),
                   ("hybrid", 4, ["--strategy", "hybrid", "--mesh", "data=2,fsdp=2", "--cpu-offload"]),
                   ("zero1", 3, ["--strategy", "zero1"]),
                   ("zero1-offload", 2, ["--strategy", "zero1", "--cpu-offload"])]
    for name, ranks, options in setups[:: programs.stride(3)]:
        common = ["-b", 2, "--wrap", "block", "--param-dtype", "bf16", "--max-steps", 4, *options]
        train(*common, "-e", name, "--ckpt-freq", 2, ranks=ranks)
        train(*common, "-e", copy(name, f"{name}-resumed", 4), ranks=ranks)
        assert losses(f"{name}-resumed") == losses(name), (losses(f"{name}-resumed"), losses(name))


def signals_save_and_stop():
    ranks = 2 if MPI else None
    for number, status in ((signal.SIGUSR1, 143), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
        name = f"signal{int(number)}"
        arguments = ["-b", 1, "--max-steps", 100000, "-e", name]
        process = programs.start("fsdp_train", *COMMON, *arguments, start_new_session=True,
                                 ranks=ranks if number == signal.SIGUSR1 else None)
        log = work / name / "log.jsonl"
        while not log.exists() or len(log.read_text().splitlines()) < 5:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == status, (number, process.returncode, out, err)
        done = int(re.search(r"after step (\d+)", out).group(1))
        assert steps(name) == [done] and len(losses(name)) == done
        process = train("-b", 1, "--max-steps", done + 2, "-e", name, ranks=ranks)
        assert f"step {done}, saved" in process.stdout and len(losses(name)) == done + 2


def resident(*arguments):
    """Bytes that a lone rank had resident at most."""
    return programs.resident("fsdp_train", *COMMON, *arguments)


def memory_does_not_grow_with_the_state():
    """Saving and loading take a few megabytes beside the arenas: blocks, windows and checksums (1/2048 of the
    data), so less than 16 MB for the tenth of a gigabyte here as for 10 GB a rank. A snapshot is as large
    as the state, and the log counts it."""
    if programs.SLOW:
        return  # sanitizers have memory of their own
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "vocab_size": 8192}
    folder = programs.make_model(work / "larger", programs.CONFIG | shape, weights=False)
    arguments = ["--model", folder, "-b", 1, "--wrap", "block"]
    plain = resident(*arguments, "--max-steps", 2, "-e", "none", "--ckpt-freq", 0)
    saving = resident(*arguments, "--max-steps", 2, "-e", "heavy", "--ckpt-freq", 1, "--ckpt-async", "off")
    loading = resident(*arguments, "--max-steps", 3, "-e", "heavy", "--ckpt-freq", 0)
    state = sum(p.stat().st_size for p in (work / "heavy" / "step-00000002").glob("*"))
    assert state > 120e6 and saving - plain < 16e6, (state, plain, saving)
    assert loading - plain < 16e6, (state, plain, loading)
    train(*arguments, "--max-steps", 1, "-e", "snapshot", "--ckpt-async", "on")
    with_snapshot, without = (
        json.loads((work / name / "log.jsonl").read_text().splitlines()[0])["host_bytes"]
        for name in ("snapshot", "none")
    )
    assert abs(with_snapshot - without - state) < 0.01 * state, (with_snapshot, without, state)


def a_checkpoints_model_has_no_weights():
    """Its folder looks like a model's: to train new weights is refused, with the ways to those saved."""
    folder = programs.make_model(work / "described", weights=False)
    train("--model", folder, "-b", 1, "--max-steps", 1, "-e", "kept")
    described = work / "kept" / "step-00000001" / "model"
    again = ["--model", described, "-b", 1, "--max-steps", 2]
    saved = described.parent
    remedies = [f"--resume {saved} ", f"fsdp_export {saved} --to DIR", "--init random"]
    refused(*again, "-e", "other", status=2, parts=remedies)
    assert not list((work / "other").glob("step-*"))
    out = train(*again, "-e", "other", "--resume", described.parent).stdout
    assert "weights from the checkpoint" in out, out
    assert "new weights" in train(*again, "--init", "random").stdout


def a_snapshot_that_does_not_fit():
    """`auto` saves without one, straight from the state; `on` refuses, naming what would help."""
    little = ["-b", 1, "--max-steps", 1, "--host-memory-limit", "1MB"]
    for name, way in (("little", []), ("little-off", ["--ckpt-async", "off"])):
        process = train(*little, "-e", name, *way)
        assert steps(name) == [1] and not process.stderr, process.stderr
    refused(*little, "-e", "little-on", "--ckpt-async", "on", status=4,
            parts=["--ckpt-async on (command line) needs ", "use --ckpt-async off"])
    assert steps("little-on") == []


def to_hugging_face_and_back():
    """Weights that nobody trained come out of a checkpoint as they went in."""
    digits = {"rms_norm_eps": 1.2345678901234567e-05, "rope_theta": 12345.678901234567, "own": [1 / 3, 0.02]}
    source = programs.CONFIG | digits | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    kind = source.pop("model_type")
    folder = programs.make_model(work / "source", source)
    (folder / "additional_chat_templates").mkdir()
    others = ("generation_config.json", "tokenizer_config.json", "additional_chat_templates/tool_use.jinja")
    for name in others:
        (folder / name).write_text(json.dumps({"name": name}))
    ranks = 3 if MPI else None
    idle = ["--model", folder, "--lr", 0, "--weight-decay", 0, "--max-steps", 1, "-b", 1]
    train(*idle, "-e", "idle", ranks=ranks)
    out = work / "exported"
    programs.run("fsdp_export", work / "idle", "--to", out, status=0)
    assert (out / "model.safetensors").stat().st_size > 0
    for name in others:
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    config = json.loads((out / "config.json").read_text())
    source.pop("torch_dtype")
    assert config == source | {"dtype": "float32", "model_type": kind}, config
    tensors = programs.read_safetensors(out / "model.safetensors")
    assert tensors == programs.read_safetensors(folder / "model.safetensors")
    pieces = work / "pieces"
    programs.run("fsdp_export", work / "idle", "--to", pieces, "--max-shard-size", "100kB", status=0)
    index = json.loads((pieces / "model.safetensors.index.json").read_text())
    gathered = {}
    for file in sorted(set(index["weight_map"].values())):
        part = programs.read_safetensors(pieces / file)
        assert all(index["weight_map"][name] == file for name in part)
        gathered |= part
    total = sum(len(data) for _, _, data in tensors.values())
    assert gathered == tensors and index["metadata"]["total_size"] == total
    train("--model", pieces, "-b", 1, "--max-steps", 1, "-e", "again", "--ckpt-freq", 0)
    process = programs.run("fsdp_export", work / "idle", "--inspect")
    assert "1 step," in process.stdout and "strategy full" in process.stdout, process
    given = {"model": str(folder), "lr": "0", "weight-decay": "0", "max-steps": "1",
             "experiment-name": "idle", "seq-length": "32", "seed": "3", "tokenizer": "bytes",
             "log-freq": "100", "save-dir": str(work)}  # fmt: skip
    shown = dict(re.findall(r"^option:     --(\S+) (.*)$", process.stdout, re.M))
    assert shown == given, shown  # not the defaults, of which -b 1 is one
    for arguments, status in (
        (["--to", out], 2),
        ([work / "idle"], 2),
        ([work / "idle", "--to", out], 3),
        ([work / "none", "--inspect"], 3),
        ([work / "idle", "--inspect", "--dtype", "fp8"], 2),
    ):
        programs.refused("fsdp_export", *arguments, status=status)


programs.run_tests([base, resumes_anywhere, bytes_are_read_about_once, stays_with_the_newest, damage_is_told,
                    other_models_are_refused, snapshots_are_of_their_step, copies_follow_a_load,
                    a_full_disk_is_told, signals_save_and_stop, memory_does_not_grow_with_the_state,
                    a_checkpoints_model_has_no_weights, a_snapshot_that_does_not_fit,
                    to_hugging_face_and_back])
