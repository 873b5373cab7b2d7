"""What benchmarks share that run the programs on CPU ranks: calls, models, logs, and pages."""
import json
import os
import subprocess
import sys

# What Open MPI requires of root and of more ranks than cores.
ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_rmaps_base_oversubscribe": "1",
                            "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


def call(command, statuses=(0,), ranks=1, **environment):
    """What a command prints, under mpirun where it has several ranks; ends the benchmark if it fails."""
    words = [str(word) for word in command]
    if ranks > 1:
        words = ["mpirun", "-np", str(ranks), *words]
    process = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT | environment)
    if process.returncode not in statuses:
        sys.exit(f"{process.stdout[-2000:]}{process.stderr}failed: {' '.join(words)}")
    return process.stdout


def measure_profile(build, ranks, path, *more):
    """Profiles this machine into `path`, for plans of so many ranks; returns the path."""
    call(["mpirun", "-np", ranks, build / "bin/fsdp_profile", "--backend", "cpu", "--output", path, *more])
    return path


def llama(**sizes):
    """A configuration with what a benchmark does not vary."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "initializer_range": 0.02, **sizes}


def log_of(path):
    """The lines of a run's log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(lines, path):
    """One newline at the end; to standard output without a path."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    if not path:
        sys.stdout.write(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
