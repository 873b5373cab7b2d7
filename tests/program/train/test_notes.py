"""What the trainer says of itself: the device, what is saved and what is not, options that look like a
mistake, and whom it waits for."""

import atexit
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import programs

work = programs.folder("notes")
RANKS = 2 if programs.WITH_MPI else None


def train(*arguments, ranks=None, status=0):
    return programs.run("fsdp_train", "-s", "32", "--backend", "cpu", *arguments, ranks=ranks, status=status)


def notes(process):
    return [line[len("note:      ") :] for line in process.stdout.splitlines() if line.startswith("note: ")]


def the_device():
    process = train("--max-steps", 1, "--threads", 1, ranks=RANKS)
    line = "\ndevice:    cpu, 1 thread per rank; --backend cpu (command line)\n"
    assert process.stdout.count(line) == 1, process.stdout
    if os.environ.get("FSDP_WITH_CUDA") == "ON" or list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        return
    process = programs.run("fsdp_train", "-s", "32", "--max-steps", "1")
    assert re.search(r"^device:    cpu, \d+ threads? per rank; this ", process.stdout, re.M), process.stdout
    assert "this build has no CUDA" in process.stdout


def data_that_looks_like_a_mistake():
    """Evaluation data that is trained on; uint16 tokens for a model with more tokens."""
    text = b"It is a truth universally acknowledged. " * 20
    for name in ("a_1.txt", "a_2.txt", "b.txt"):
        (work / name).write_bytes(text)
    (work / "x.bin").write_bytes(text)
    data = ["--max-steps", 1, "--data", work / "a_*.txt"]
    assert not programs.warnings(train(*data, "--eval-data", work / "b.txt"))
    for name, said in (("a_2.txt", f"1 file of --eval-data ({work}/a_2.txt) is in --data too"),
                       ("?_*.txt", f"2 files of --eval-data ({work}/a_1.txt, ...) are in --data too")):
        found = programs.warnings(train(*data, "--eval-data", work / name, ranks=RANKS))
        assert len(found) == 1 and said in found[0], found
    twice = ["--max-steps", 1, "--data", f"{work}/a_1.txt,{work}/b.txt,{work}/a_1.txt"]
    process = train(*twice)
    said = f"--data has {work}/a_1.txt more than once: an epoch learns it as often"
    assert not programs.warnings(process) and notes(process).count(said) == 1, process
    process = train(*data, "--eval-split", 2)
    assert not programs.warnings(process) and "--eval-split" not in process.stdout, process
    assert "--eval-split 1 (command line) holds out 1 sample: a fraction is below 1" in \
        notes(train(*data, "--eval-split", "1.0"))
    (found,) = programs.warnings(train(*twice, "--eval-split", 2, ranks=RANKS))
    assert f"--data has {work}/a_1.txt more than once" in found and "--eval-split" in found, found
    for vocabulary in (65536, 65537):
        model = programs.make_model(work / str(vocabulary), programs.CONFIG | {"vocab_size": vocabulary},
                                    weights=False)  # fmt: skip
        found = programs.warnings(train("--model", model, "--data", work / "x.bin", "--max-steps", 1))
        assert len(found) == vocabulary - 65536 and all("uint16" in line for line in found), found
    # The text, as pairs of letters, has "a " and no 9.
    separated = ["--model", work / "65536", "--max-steps", 1, "--document-separator"]
    assert not programs.warnings(train(*separated, 0x2061, "--data", work / "x.bin"))
    (found,) = programs.warnings(train(*separated, 9, "--data", work / "x.bin"))
    assert f"{work}/x.bin: has no token 9, so it is one document" in found, found
    note = notes(train("--document-separator", 9, *data))[-1]
    assert note.startswith("--document-separator 9 (command line) has no effect"), note


def what_has_no_effect():
    """A stop that no evaluation can bring about, a vocabulary that need not grow, a file without options."""
    held = ["--eval-split", 4, "--max-steps", 4, "--stop-after", 1]
    told = "--stop-after 1 (command line) cannot end this run: --eval-freq "
    for more, is_told in ((["--eval-freq", 10], True), (["--eval-freq", 2], True),
                          (["--eval-freq", 1], False),
                          (["--eval-freq", 2, "--eval-at-start"], False)):  # fmt: skip
        process = train(*held, *more, "--lr", "1e-3")
        assert any(note.startswith(told) for note in notes(process)) == is_told, (more, process.stdout)
    (work / "empty.yaml").write_text("# nothing\n")
    empty = ["--config", work / "empty.yaml", "--max-steps", 1, "--resize-embeddings"]
    found = notes(train(*empty, 256))
    for told in ("--resize-embeddings 256 (command line) has no effect",
                 f"--config {work}/empty.yaml (command line) sets no option"):  # fmt: skip
        assert any(line.startswith(told) for line in found), (told, found)
    (work / "empty.yaml").write_text("seq-length: 32\n")
    found = notes(train(*empty, 260))
    assert not any("sets no option" in line for line in found), found
    assert "the vocabulary grows from 256 to 260 tokens (--resize-embeddings)" in found, found


def a_rank_has_its_share_of_cores():
    """The cores are divided among a node's ranks, at least one each; more --threads are warned of."""
    if not programs.WITH_MPI:
        return
    for ranks in (1, 2, 3):
        process = train("--max-steps", 1, "--threads", 99, ranks=ranks)
        cores = int(re.search(r"^placement: 1 node, (\d+) cores? each", process.stdout, re.M).group(1))
        share = max(cores // ranks, 1)
        (warning,) = programs.warnings(process)
        cores = f"the {share} core{'s' * (share > 1)} of a rank"
        assert f"--threads 99 (command line) is more than {cores}" in warning, warning


def what_is_saved():
    process = train("--max-steps", 1, ranks=RANKS)
    assert notes(process).count("nothing will be saved: name the experiment with -e NAME") == 1
    common = ["--save-dir", work, "-e", "kept", "--ckpt-freq"]
    process = train("--max-steps", 1, *common, 0, ranks=RANKS)
    assert "nothing will be saved: --ckpt-freq 0 (command line)" in notes(process)
    assert "\nsaved: " not in process.stdout
    for way in ("on", "off"):
        anew = ["--resume", "off", "--overwrite", "--ckpt-async", way]
        process = train("--max-steps", 5, *common, 2, *anew, ranks=RANKS)
        assert not notes(process), process.stdout
        saved = re.findall(r"^saved:     (.*), ([\d.]+) MB in \d+\.\d s$", process.stdout, re.M)
        folders = [work / "kept" / f"step-{step:08d}" for step in (2, 4, 5)]
        assert [folder for folder, _ in saved] == list(map(str, folders)), process.stdout
        for folder, megabytes in saved:  # three digits of the size on the disk, but for the manifest
            size = sum(path.stat().st_size for path in pathlib.Path(folder).glob("*.safetensors"))
            assert abs(float(megabytes) * 1e6 - size) <= 0.006 * size, (megabytes, size)
        shutil.rmtree(work / "kept")


def options_that_look_like_a_mistake():
    process = train("--max-steps", 4, "--warmup-steps", 16, "--lr", 1e-3)
    (warning,) = programs.warnings(process)
    assert "--warmup-steps 16" in warning and "4 steps" in warning and "ends at 0.00025," in warning, warning
    assert not programs.warnings(train("--max-steps", 4, "--warmup-steps", 4))
    wsd = ["--max-steps", 10, "--lr-schedule", "wsd", "--warmup-ratio", "75%", "--lr-decay-ratio"]
    assert not programs.warnings(train(*wsd, "25%"))  # 8 steps, and 2.5 that are 3
    (warning,) = programs.warnings(train(*wsd, "30%"))
    assert "--lr-decay-ratio 30% (command line)" in warning and "the 2 behind the warm-up" in warning, warning
    (warning,) = programs.warnings(train("--max-steps", 1, "--threads", 4000))
    assert "--threads 4000 (command line)" in warning and "core" in warning, warning
    _, note = notes(train("--max-steps", 1, "--accumulate", "local"))
    assert "--accumulate local (command line) has no effect" in note, note
    assert len(notes(train("--max-steps", 1, "--accumulate", "local", "--grad-accum", 2))) == 1
    shown = train("--max-steps", 1, "--wrap", "none").stdout
    for part in ("done:      1 step in ", ", 1 unit, ", "steps:     1 of 32 tokens, "):
        assert part in shown, (part, shown)
    if not RANKS:
        return
    _, note = notes(train("--max-steps", 1, "--strategy", "hybrid", ranks=2))
    assert "hybrid" in note and "is the same as full here" in note, note
    assert "2 ranks" in note and "--mesh" in note, note
    shown = train("--max-steps", 1, "--strategy", "hybrid", "--mesh", "data=2,fsdp=1", ranks=2).stdout
    assert "is the same as full here" not in shown
    process = programs.run("fsdp_plan", "--strategy", "hybrid", "--ranks", "8")
    assert "is the same as full here" in process.stderr and "8 ranks" in process.stderr, process.stderr
    assert not programs.run("fsdp_plan", "--strategy", "hybrid", "--ranks", "16").stderr


def whom_it_waits_for():
    command = [str(programs.BIN / "fsdp_train"), "-s", "32", "--backend", "cpu", "--save-dir", str(work),
               "-e", "one", "--max-steps"]  # fmt: skip
    first = subprocess.Popen([*command, "1000000", "--num-epochs", "1000000"], stdout=subprocess.DEVNULL)
    atexit.register(first.kill)  # it would not end by itself
    while not (work / "one" / "log.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.02)
    second = subprocess.Popen([*command, "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = second.stderr.readline()  # at once: the first run is not ended before it is there
    held = rf"^fsdp_train: note: .* in use by process {first.pid} on host \S+: waiting up to 15 s"
    assert re.search(held, line), line
    first.send_signal(signal.SIGUSR1)
    assert first.wait(timeout=60) == 143
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0 and "resumed: " in out and not err, (second.returncode, out, err)
    assert not (work / "one" / ".lock").exists()


programs.run_tests([the_device, a_rank_has_its_share_of_cores, data_that_looks_like_a_mistake,
                    what_has_no_effect, what_is_saved,
                    options_that_look_like_a_mistake, whom_it_waits_for])
