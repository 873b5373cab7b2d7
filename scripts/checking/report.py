"""The results of a check so far, on the terminal and in files.

  gpu_check.txt    the table: one row per step, then the measurements
  gpu_check.json   the same for programs
  gpu_check.log    everything that the steps printed, as they did

The table and the JSON file are replaced after every step (written beside, then renamed); the log grows line
by line. So a check that is cut off leaves complete files.
"""
import json
import os
import sys
import time


def write_whole(path, text):
    """Replaces a file, so that a reader finds the old one or the new one."""
    part = path + ".part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


class Report:
    def __init__(self, folder):
        self.folder = folder
        self.begin = time.monotonic()
        self.rows, self.notes, self.facts = [], [], {}
        os.makedirs(folder, exist_ok=True)
        self.log_file = open(self.path("gpu_check.log"), "w", encoding="utf-8")

    def path(self, name):
        return os.path.join(self.folder, name)

    def say(self, text):
        """A line on the terminal and in the log, at once."""
        print(text, flush=True)
        self.log(text)

    def log(self, text):
        self.log_file.write(f"{time.monotonic() - self.begin:7.1f}  {text}\n")
        self.log_file.flush()

    def note(self, text):
        """A line of what was measured: printed now, and kept below the table."""
        self.notes.append(text)
        self.say(text)

    def row(self, name, result, seconds, note):
        self.rows.append({"step": name, "result": result, "seconds": round(seconds, 1), "note": note})
        self.save()
        self.say(self.row_text(self.rows[-1]))

    @staticmethod
    def row_text(row):
        return f"{row['step']:<32} {row['result']:<8} {row['seconds']:6.1f} s  {row['note']}"

    def failed(self):
        return [row["step"] for row in self.rows if row["result"] not in ("ok", "skipped")]

    def save(self):
        table = [self.row_text(row) for row in self.rows]
        write_whole(self.path("gpu_check.txt"), "\n".join([*table, "", *self.notes, ""]))
        whole = {"seconds": round(time.monotonic() - self.begin, 1), "steps": self.rows, **self.facts}
        write_whole(self.path("gpu_check.json"), json.dumps(whole, indent=1) + "\n")

    def finish(self):
        print("\n== Result", file=sys.stdout)
        for row in self.rows:
            print(self.row_text(row))
        sys.stdout.flush()
        self.save()
