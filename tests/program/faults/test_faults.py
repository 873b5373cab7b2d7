"""Ranks of one host killed and stopped at random moments (faults.py): every job ends in time with one
message that names the rank, and the restart continues the undisturbed curve. FSDP_TEST_ALL=1 takes more.
And --rank-logs: what every rank printed, and the error file of other failures."""

import json
import os
import shutil

import faults
import programs

FAULTS = 20 if os.environ.get("FSDP_TEST_ALL") else 2


def rank_logs(work):
    def run(status, *options):
        logs = work / "of" / "ranks"
        ranks = 2 if programs.WITH_MPI else None
        always = ["-s", 32, "-b", 2, "--max-steps", 3, "--rank-logs", logs]
        process = programs.run("fsdp_train", *always, *options, ranks=ranks)
        assert process.returncode == status, (process.returncode, process.stdout, process.stderr)
        return logs, process

    logs, process = run(0)
    assert "done:" in process.stdout and "done:" in (logs / "rank-0.log").read_text(), process.stdout
    assert not (logs / "error.json").exists()
    # Another start adds to it; a failure that all know of is the one's that found it.
    for status, options in ((3, ["--data", work / "none.txt"]), (4, ["--memory-limit", "1MB"])):
        logs, process = run(status, *options)
        failure = json.loads((logs / "error.json").read_text())
        assert failure["status"] == status and failure["rank"] == 0 and failure["step"] == 0, failure
        assert programs.errors(process, "fsdp_train") == [f"fsdp_train: error: {failure['message']}"], failure
        text = (logs / "rank-0.log").read_text()
        assert failure["message"] in text and "done:" in text, text
    run(0)
    assert not (logs / "error.json").exists()
    _, process = run(3, "--rank-logs", "/proc/none")
    assert "--rank-logs" in programs.errors(process, "fsdp_train")[0], process.stderr


def main():
    work, rows = faults.make_folder("fsdp_faults_"), []
    rank_logs(work)
    if not programs.WITH_MPI or programs.SLOW:
        print("built without MPI, or with a sanitizer: nothing to run")
        shutil.rmtree(work)
        return
    faults.faults(None, FAULTS, work, rows.append, timeout_s=5)
    faults.report(rows)
    stopped = [row["status"] for row in rows if row.get("kind") == "stop"]
    assert all(status == 5 for status in stopped), stopped
    assert sum("kind" in row for row in rows) == FAULTS and sum("curve" in row for row in rows) >= 1, rows
    shutil.rmtree(work)


main()
