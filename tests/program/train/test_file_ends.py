"""Files at their ends: cut, followed by garbage, replaced by something else, too large for a limit, removed,
renamed, or of an older version. Each is one message with a status, or one note, and nothing half-written."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import time

import programs

work = programs.folder("file_ends")
os.chdir(work)
os.environ |= programs.MPI_ENVIRONMENT
RANKS = 2 if programs.WITH_MPI else None
TRAIN = ["-s", 32, "-b", 2, "--threads", 1]


def train(*arguments, **options):
    return programs.run("fsdp_train", *TRAIN, *arguments, **options)


def refused(process, program, *parts):
    assert process.returncode == 3, (process.returncode, process.stderr)
    programs.check_message(process, program, parts)


def limited(kilobytes, program, *arguments):
    """The program under a limit on the size of files."""
    command = " ".join([str(programs.BIN / program), *map(str, arguments)])
    return subprocess.run(["bash", "-c", f"ulimit -f {kilobytes}; exec {command}"], capture_output=True,
                          text=True, timeout=240)  # fmt: skip


def names_below(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir())


def a_limit_on_the_size_of_files():
    """The write fails, which is reported, and what was written is removed."""
    train("--max-steps", 2, "-e", "limit", "--ckpt-freq", 2, status=0)
    before = names_below(work)
    refused(limited(50, "fsdp_export", "outputs/limit", "--to", "exported"), "fsdp_export", "exported",
            "File too large")  # fmt: skip
    plan = ["fsdp_plan", "--ranks", 4, "--model", "tiny"]
    refused(limited(4, *plan, "--memory-profile", "memory.svg"), "fsdp_plan", "--memory-profile",
            "File too large")  # fmt: skip
    refused(limited(4, *plan, "--profile", "h100-sxm", "--trace", "trace.json"), "fsdp_plan", "--trace",
            "File too large")  # fmt: skip
    assert names_below(work) == before, names_below(work)


def what_cannot_be_completed():
    """Ranks' files are written, but a file of the model's folder is too large: each failure is told, that of
    a save behind the run's back too, by the step that it belongs to."""
    model = work / "model"
    shutil.copytree(programs.ROOT / "tests" / "golden" / "odd", model)
    (model / "merges.txt").write_bytes(bytes(8 << 20))
    # Every 2 steps, a save often begins before the last one is completed; every 400, hardly ever.
    for way, every, steps in (("on", 2, 7), ("on", 400, 1210), ("off", 2, 7)):
        folder = work / "outputs" / f"async-{way}-{every}"
        done = limited(4096, "fsdp_train", *TRAIN, "--model", model, "--tokenizer", "bytes", "--max-steps",
                       steps, "-e", folder.name, "--ckpt-freq", every, "--ckpt-async", way)  # fmt: skip
        told = [line for line in done.stderr.splitlines() if "warning: the checkpoint of step" in line]
        saves = [int(line.split(" step ")[1].split()[0]) for line in told]
        assert saves == [every, 2 * every, 3 * every], done.stderr
        assert all("merges.txt" in line and "File too large" in line for line in told), told
        assert done.returncode == 3 and f"training ended after step {steps}" in done.stderr, done.stderr
        assert not list(folder.glob("step-*")), names_below(folder)


def garbage_behind_a_manifest():
    """The newest checkpoint is damaged, and the one before it is used."""
    train("--max-steps", 4, "-e", "garbage", "--ckpt-freq", 2, status=0)
    manifest = work / "outputs" / "garbage" / "step-00000004" / "checkpoint.json"
    manifest.write_bytes(manifest.read_bytes() + b"\0\0garbage")
    refused(programs.run("fsdp_export", "outputs/garbage/step-00000004", "--inspect"), "fsdp_export",
            "step-00000004/checkpoint.json:", "not valid JSON")  # fmt: skip
    resumed = train("--max-steps", 6, "-e", "garbage", "--ckpt-freq", 0, status=0)
    assert "step-00000002, step 2" in resumed.stdout, resumed.stdout
    assert "step-00000004/checkpoint.json:" in resumed.stderr, resumed.stderr


def what_is_no_file():
    """A folder is called one, and a pipe is not waited for."""
    folder = work / "folder_model"
    (folder / "config.json").mkdir(parents=True)
    refused(train("--model", folder, "--max-steps", 1), "fsdp_train", "config.json: is a folder")
    (folder / "config.json").rmdir()
    os.mkfifo(folder / "config.json")
    refused(train("--model", folder, "--max-steps", 1), "fsdp_train", "config.json: is not a regular file")
    train("--max-steps", 4, "-e", "pipe", "--ckpt-freq", 2, status=0)
    manifest = work / "outputs" / "pipe" / "step-00000004" / "checkpoint.json"
    manifest.unlink()
    os.mkfifo(manifest)
    resumed = train("--max-steps", 6, "-e", "pipe", "--ckpt-freq", 0)
    assert resumed.returncode == 0 and "step-00000002, step 2" in resumed.stdout, resumed.stdout
    assert "checkpoint.json: is not a regular file" in resumed.stderr, resumed.stderr
    refused(train("--max-steps", 6, "-e", "pipe", "--resume", manifest.parent), "fsdp_train",
            "is not a regular file")  # fmt: skip
    file = next((work / "outputs" / "pipe" / "step-00000002").glob("rank-*"))
    file.unlink()
    os.mkfifo(file)
    refused(train("--max-steps", 6, "-e", "pipe", "--ckpt-freq", 0), "fsdp_train",
            "none of its 2 checkpoints", file.name, "is not a regular file")  # fmt: skip


def a_damaged_line_of_the_log():
    train("--max-steps", 6, "-e", "log", "--ckpt-freq", 6, status=0)
    log = work / "outputs" / "log" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 6, lines
    lines[2] = '{"global_step": 3, "lo\n'
    log.write_text("".join(lines))
    resumed = train("--max-steps", 8, "-e", "log", "--ckpt-freq", 0, status=0)
    assert resumed.stderr.count("log.jsonl: line 3 is damaged") == 1, resumed.stderr
    after = log.read_text().splitlines(keepends=True)
    assert after[:6] == lines and [json.loads(line)["global_step"] for line in after[6:]] == [7, 8], after


def a_renamed_checkpoint():
    train("--max-steps", 4, "-e", "renamed", "--ckpt-freq", 4, status=0)
    folder = work / "outputs" / "renamed"
    (folder / "step-00000004").rename(folder / "step-00000009")
    resumed = train("--max-steps", 5, "-e", "renamed", "--ckpt-freq", 0)
    assert "step-00000009 holds step 4: its folder was renamed" in resumed.stdout, resumed.stdout
    assert "step 5/5" in resumed.stdout, resumed.stdout


def wait_for(what, process, seconds=120):
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)


def begin(*arguments, ranks=None):
    return programs.start("fsdp_train", *TRAIN, *arguments, ranks=ranks)


def the_folder_removed_during_the_run():
    """One warning, however many saves fail; the run itself trains on, and its result is not on the disk."""
    folder = work / "outputs" / "removed"
    process = begin("--max-steps", 400, "-e", "removed", "--ckpt-freq", 20, "--ckpt-keep", 1)
    wait_for(lambda: (folder / "step-00000020").is_dir(), process)
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    done = programs.finish(process)
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert done.returncode == 3 and "done:" in done.stdout, (done.returncode, done.stderr)
    assert len(warnings) == 1 and "make" in warnings[0], warnings
    refused(done, "fsdp_train", "could not be saved", "was removed during the run", "make it again")


def data_cut_during_the_run():
    """Every rank reads on, and the run ends in order, with the file's name and nothing saved of it."""
    data = work / "cut.txt"
    data.write_bytes(b"What is cut from under a run is noticed. " * 20000)
    folder = work / "outputs" / "cut"
    process = begin("--data", data, "--max-steps", 1000000, "--epochs", 1000, "-e", "cut", "--ckpt-freq", 50,
                    ranks=RANKS)  # fmt: skip
    wait_for(lambda: (folder / "step-00000050").is_dir(), process)
    os.truncate(data, 0)
    done = programs.finish(process)
    refused(done, "fsdp_train", str(data), "was truncated while it was in use")
    assert "broken invariant" not in done.stderr, done.stderr


def an_older_version():
    """A checkpoint whose manifest lists the ranks' files (version 5), made by the program of then, continues
    the curve that that program continued, on any number of ranks."""
    golden = programs.ROOT / "tests" / "golden" / "checkpoint_v5"
    expected = json.loads((golden / "expected.json").read_text())
    for ranks in (None, 2, 3) if programs.WITH_MPI else (None,):
        folder = work / "outputs" / f"v5_{ranks}"
        shutil.copytree(golden / "step-00000004", folder / "step-00000004")
        done = programs.run("fsdp_train", "--model", golden / "m", "--init", "random", "--data",
                            golden / "d.bin", "-s", 8, "-b", 6 // (ranks or 1), "--max-steps", 8, "-e",
                            folder.name, "--ckpt-freq", 8, "--ckpt-keep", 1, "--threads", 1, "--lr", 1e-2,
                            "--lr-schedule", "constant", ranks=ranks, status=0)  # fmt: skip
        assert "step 4, saved by 3 ranks" in done.stdout, done.stdout
        assert "the data changed" not in done.stdout, done.stdout
        lines = programs.log_of(folder / "log.jsonl")
        assert [line["global_step"] for line in lines] == [5, 6, 7, 8], lines
        for line, loss, norm in zip(lines, expected["losses"], expected["norms"]):
            assert math.isclose(line["loss"], loss, rel_tol=1e-6), (line, loss)
            assert math.isclose(line["grad_norm"], norm, rel_tol=1e-5), (line, norm)
        # The old one is gone, with all its files.
        assert names_below(folder) == ["log.jsonl", "run.yaml", "step-00000008"], names_below(folder)
        programs.run("fsdp_export", folder, "--to", work / f"from_v5_{ranks}", status=0)


def bits_of_an_older_version():
    """A run with bf16 states says once that what it resumes from was rounded with other bits."""
    golden = programs.ROOT / "tests" / "golden" / "checkpoint_v5"
    folder = work / "outputs" / "bits"
    shutil.copytree(golden / "step-00000004", folder / "step-00000004")
    for steps, said in ((5, True), (6, False)):
        done = programs.run("fsdp_train", "--model", golden / "m", "--data", golden / "d.bin", "-s", 8,
                            "-b", 6, "--max-steps", steps, "-e", folder.name, "--ckpt-freq", 1,
                            "--master-dtype", "bf16", "--moment-dtype", "bf16", "--threads", 1,
                            status=0)  # fmt: skip
        assert ("bits of philox-4x32-7" in done.stdout) == said, done.stdout
        assert ("drew them from philox-4x32-10" in done.stdout) == said, done.stdout


programs.run_tests([a_limit_on_the_size_of_files, what_cannot_be_completed, garbage_behind_a_manifest,
                    what_is_no_file, a_damaged_line_of_the_log, a_renamed_checkpoint,
                    the_folder_removed_during_the_run, data_cut_during_the_run, an_older_version,
                    bits_of_an_older_version])
