"""What README.md, CONTRIBUTING.md and docs/ name is there: files, options, environment variables. And what
there is, they name: every option of the programs, every environment variable that code reads, and the arrows
of tests/tidy."""

import fnmatch
import importlib.machinery
import re
import subprocess
import sys

import documents
import programs

ROOT = programs.ROOT
CODE = (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh", ".slurm", ".cmake", ".txt", ".def")
# Options of programs that are not ours.
FOREIGN = set("""np hostfile quiet mca bind-to build preset prefix install test-dir list-presets
              output-on-failure nodes ntasks-per-node gpus-per-node gpus-per-task cpus-per-task cpu-bind mpi
              signal logdir local-dir""".split())
# Variables that are the system's or of other programs, and those that a test hands to what it starts itself.
FOREIGN_VARIABLES = re.compile(r"(CUDACXX|CUDA_HOME|CUDA_PATH|LD_LIBRARY_PATH|PATH|HOME|PYTHON\w*|"
                               r"TOKENIZERS_\w+|TORCHINDUCTOR_\w+|(OMP|MKL|OPENBLAS)_NUM_THREADS|"
                               r"MASTER_\w+|RANK|WORLD_SIZE|LOCAL_RANK)$")
SUFFIXES = "c|h|cu|cuh|cpp|py|sh|md|slurm|def|svg|mutants"
FILE = re.compile(rf"[\w.*-]+(?:/[\w.*{{}},-]+)*\.(?:{SUFFIXES})(?![\w.])")
ANY = re.compile(r"\b(NAME|FOLDER)\b|(?<=_)NAME(?=\.)")  # stand for a name


def tracked():
    """Files of the project, by path from the root."""
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith((".", "build", "outputs")):
            continue
        found += [file for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    return [str(file.relative_to(ROOT)) for file in found if "__pycache__" not in file.parts]


def prose(path):
    """(line number, line) outside of fenced blocks."""
    inside, lines = False, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            lines.append((number, line))
    return lines


def spelled(name):
    """a{b,c}d as two names."""
    match = re.match(r"(.*?)\{([^}]*)\}(.*)$", name)
    return [match[1] + piece + match[3] for piece in match[2].split(",")] if match else [name]


def check_files(files):
    """Paths in `code` and links exist, from the root or the document's folder; a bare name is some file's."""
    bare = {file.rsplit("/", 1)[-1] for file in files}
    bad, count = [], 0
    for path in documents.paths():
        for number, line in prose(path):
            for code in re.findall(r"`([^`]+)`", line) + re.findall(r"\]\(([^)#:]+)\)", line):
                names = [name for match in FILE.finditer(code) for name in spelled(match.group())]
                for name in (ANY.sub("*", name) for name in names):
                    if name.startswith(("outputs/", "build", "mine", "memory.", "FILE", "step", "bundle/")):
                        continue
                    count += 1
                    near = str(path.parent.relative_to(ROOT) / name).removeprefix("./")
                    within = files if "/" in name else bare
                    if near not in files and not fnmatch.filter(within, name):
                        bad.append(f"{path.relative_to(ROOT)}:{number}: there is no {name}")
            for folder in re.findall(r"`((?:[\w-]+/)+)`", line):
                count += 1
                if not folder.startswith(("build", "outputs")) and not any(
                        f.startswith(folder) or f"/{folder}" in f for f in files):
                    bad.append(f"{path.relative_to(ROOT)}:{number}: there is no folder {folder}")
    return bad, count


def help_of(program):
    text = subprocess.run([programs.BIN / program, "--help"], capture_output=True, text=True).stdout
    return set(re.findall(r"(?<![\w-])--([a-z][\w-]+)", text))


def check_options(sources):
    """Documents name no option that nothing has, and usage.md or debugging.md every option of ours."""
    ours = help_of("fsdp_train") | help_of("fsdp_plan") | help_of("fsdp_eval") | help_of("fsdp_profile")
    known = ours | help_of("fsdp_export") | FOREIGN
    for name, text in sources.items():
        if name.endswith((".py", ".sh", ".c")) or name == "tests/tidy":
            known |= set(re.findall(r"(?<![\w-])--([a-z][\w-]+)", text))
            known |= set(re.findall(r'^ *\{"([a-z][\w-]+)",', text, re.M))  # tables of options and aliases
    bad, seen = [], set()
    for path in documents.paths():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            line = re.sub(r"<!--|-->", "", line)
            for option in re.findall(r"(?<![\w-])--([a-z][\w-]+)", line):
                if path.name in ("usage.md", "debugging.md"):
                    seen.add(option)
                if option not in known:
                    bad.append(f"{path.relative_to(ROOT)}:{number}: nothing has an option --{option}")
    for option in sorted(ours - seen - {"batch_size", "help", "version"}):
        bad.append(f"docs/usage.md, docs/debugging.md: neither names --{option}")
    return bad, len(seen)


def variables_read(sources):
    """Environment variables that code reads, with one file that does."""
    read = {}
    for name, text in sources.items():
        patterns = [r'getenv\("(\w+)"\)', r'(?:setting|is_set)\("(\w+)"']
        if name.endswith(".py"):
            patterns += [r'environ(?:ment)?(?:\.get|\.setdefault)?[(\[]"(\w+)"']
        if name.startswith("scripts/"):
            patterns += [r"\$\{([A-Z][A-Z_]+):-"]
        for pattern in patterns:
            for variable in re.findall(pattern, text):
                if not FOREIGN_VARIABLES.match(variable):
                    read.setdefault(variable, name)
    return read


def check_variables(sources):
    """docs/debugging.md's tables have every variable that is read, and no other."""
    text = (ROOT / "docs" / "debugging.md").read_text()
    named = set(re.findall(r"\b(?:FSDP|DEMO|BUILD)_[A-Z_]+\b", text))
    named |= set(re.findall(r"`([A-Z_]+)[`=]", text))
    families = tuple(re.findall(r"`([A-Z]+_)\*`", text))
    read = variables_read(sources)
    bad = [f"{name}: reads {variable}, which docs/debugging.md does not name"
           for variable, name in sorted(read.items())
           if variable not in named and not variable.startswith(families)]
    everything = "\n".join(sources.values())
    bad += [f"docs/debugging.md: nothing reads {variable}" for variable in sorted(named)
            if not re.search(rf"\b{variable}\b", everything)]
    return bad, len(read)


def check_folders():
    """CONTRIBUTING.md's table of folders has the arrows of tests/tidy."""
    sys.dont_write_bytecode = True
    tidy = importlib.machinery.SourceFileLoader("tidy", str(ROOT / "tests" / "tidy")).load_module()
    table = re.findall(r"^\| (`.*?) \| .* \| (.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    rows = {name.rstrip("/"): uses for names, uses in table for name in re.findall(r"`([^`]+)/`", names)}
    bad = []
    for folder, allowed in tidy.MAY_INCLUDE.items():
        named = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", rows.get(folder, ""))}
        named |= tidy.PLAN if "runtime/plan" in named else set()
        if folder not in rows:
            bad.append(f"CONTRIBUTING.md: no row for {folder}/")
        elif folder in tidy.LIBRARY and named - {folder} != allowed - {folder, "runtime/base"}:
            bad.append(f"CONTRIBUTING.md: {folder}/ may use {sorted(allowed - {folder})}, says tests/tidy")
    return bad, len(rows)


def main():
    files = tracked()
    sources = {name: (ROOT / name).read_text(errors="replace") for name in files
               if (name.endswith(CODE) or name == "tests/tidy") and not name.startswith("tests/golden/")}
    bad = []
    for what, (found, count) in {"names of files": check_files(files), "options": check_options(sources),
                                 "variables": check_variables(sources), "folders": check_folders()}.items():
        assert count > 0, what
        print(f"{count} {what}, {len(found)} wrong")
        bad += found
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
