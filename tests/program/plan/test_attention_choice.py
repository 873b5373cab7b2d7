"""Attention's kernel is a part of the plan: printed, hashed, priced, and chosen by the GPU, the dtype and the
heads; what is asked for by name and cannot run is refused with what to do."""

import json
import re

import programs

work = programs.folder("attention")
GPU = ("--backend", "cuda", "-s", 64, "-b", 1)
KERNELS = ("wgmma", "mma", "general")
OPS = {"attention", "attention_backward"}


def plan(*arguments, status=0):
    return programs.run("fsdp_plan", *arguments, status=status)


def model(name, **changes):
    folder = work / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(programs.CONFIG | changes))
    return ("--model", folder, "--init", "random")


def kernels_of(*arguments):
    """Of the printed program: {op: kernel}, and the hash. Both must be what --json says."""
    text = plan(*arguments, "--print-program").stdout
    found = dict(re.findall(r"^ *\d+ compute +((?:context_)?attention\w*)(\[\w+\])?", text, re.MULTILINE))
    program = json.loads(plan(*arguments, "--json").stdout)["program"]
    names = {name.strip("[]") for name in found.values()}
    assert len(names) == 1, found
    kernel = names.pop()
    assert program.get("kernels", {}).get("attention", "") == kernel, (program, kernel)
    assert (f"\nKernels: attention by {kernel}, products by the library\n" in text) == bool(kernel), text
    assert f"hash {program['hash']}" in text
    return set(found), kernel, program["hash"]


def each_kernel_is_another_program():
    heads = model("wide", hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
    hashes = {}
    for kernel in ("auto", *KERNELS):
        ops, printed, hashes[kernel] = kernels_of(*heads, *GPU, "--attention", kernel)
        assert ops == OPS and printed == ("wgmma" if kernel == "auto" else kernel), (ops, printed)
    assert hashes["auto"] == hashes["wgmma"] and len(set(hashes.values())) == 3, hashes
    assert kernels_of(*heads, *GPU)[2] == hashes["auto"]
    # A CPU has one kernel, without a name.
    assert kernels_of(*heads, "-s", 64)[:2] == (OPS, "")
    # Context parallelism's attention, too.
    ops, kernel, _ = kernels_of(*heads, *GPU, "--ranks", 2, "--context-parallel", 2, "--attention", "mma")
    assert ops == {"context_attention", "context_attention_backward"} and kernel == "mma", (ops, kernel)


def auto_takes_what_can_run():
    fits = model("fits", hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
    odd = model("odd", hidden_size=240, num_attention_heads=4, num_key_value_heads=2)  # heads of 60
    large = model("large", hidden_size=640, num_attention_heads=4, num_key_value_heads=2)  # of 160
    for arguments, kernel in (
        ((*fits, "--profile", "h200"), "wgmma"), ((*fits, "--profile", "a100-80"), "mma"),
        ((*fits, "--profile", "b200"), "mma"), ((*odd,), "general"), ((*large,), "general"),
        ((*fits, "--param-dtype", "fp32"), "general"),
    ):
        assert kernels_of(*arguments, *GPU)[1] == kernel, (arguments, kernel)


def what_cannot_run_is_refused():
    fits = model("fits", hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
    odd = model("odd", hidden_size=240, num_attention_heads=4, num_key_value_heads=2)
    large = model("large", hidden_size=640, num_attention_heads=4, num_key_value_heads=2)
    for arguments, words in (
        ((*fits, *GPU, "--profile", "a100-80", "--attention", "wgmma"),
         "--attention wgmma: those kernels run on compute capability 9.0 alone, and this GPU has 8.0: use "
         "--attention auto"),
        ((*fits, *GPU, "--param-dtype", "fp32", "--attention", "mma"),
         "--attention mma: those kernels compute in bf16, and this plan in fp32: use --param-dtype bf16"),
        ((*odd, *GPU, "--attention", "mma"), "heads of a multiple of 8 up to 128, and this model has 60"),
        ((*large, *GPU, "--attention", "wgmma"),
         "heads of a multiple of 8 up to 128, and this model has 160"),
        ((*fits, "-s", 64, "--attention", "mma"),
         "--attention mma (command line) is one of a GPU's kernels, and this plan is for a CPU"),
        ((*fits, *GPU, "--attention", "mna"),
         "--attention 'mna' (command line): use auto, wgmma, mma, general"),
    ):
        for more in ((), ("--search",) if "--profile" in arguments else ()):
            message = plan(*arguments, *more, status=2).stderr
            assert words in message and message.count("\n") == 1, message


def time_of(*arguments):
    command = ("--model", "llama3-8b", "-b", 1, "-s", 4096, "--wrap", "block", "--memory-limit", "1TB",
               *arguments, "--price")
    time = json.loads(plan(*command, "--json").stdout)["time"]
    return time, plan(*command).stdout


def the_price_is_of_what_runs():
    """Llama 3 8B's attention: 32 layers of 4096 x 4097 / 2 pairs, two gemms of 32 heads of 128 forward and
    five backward. Rates are the profile's at 4096; what runs beside takes a little of them."""
    pairs = 32 * 2 * 4096 * 4097 / 2 * 32 * 128
    for profile, kernel, forward, backward, estimated in (
        ("h100-sxm", "wgmma", 537.1e12, 362.9e12, False), ("h100-sxm", "mma", 312.3e12, 219.5e12, False),
        ("a100-80", "mma", 172.9e12, 99.8e12, True),
    )[:: programs.stride(2)]:
        time, text = time_of("--profile", profile, "--attention", kernel)
        wanted = 1e3 * pairs * (2 / forward + 5 / backward)
        assert 0 <= time["parts_ms"]["attention"] / wanted - 1 < 0.03, (time["parts_ms"], wanted)
        assert time["attention_kernel"] == f"fsdp-{kernel}"
        assert time["estimated_ms"] == (time["parts_ms"]["attention"] if estimated else 0)
        share = 100 * time["estimated_ms"] / time["step_ms"]
        said = (f"\nestimated, not measured: attention by fsdp-{kernel}, {time['estimated_ms']:.2f} ms, "
                f"{share:.1f}% of the step\n")
        assert (said in text) == estimated and ("estimated" in text) == estimated, text
    # A kernel of another program: measured, by the profile's choice.
    other = work / "cudnn.yaml"
    other.write_text("base: h100-sxm\nuse: {attention: cudnn}\n")
    time, text = time_of("--profile", other)
    wanted = 1e3 * pairs * (2 / 591e12 + 5 / 474e12)
    assert 0 <= time["parts_ms"]["attention"] / wanted - 1 < 0.03, time
    assert time["attention_kernel"] == "cudnn" and time["estimated_ms"] == 0 and "estimated" not in text, text


def a_search_keeps_the_kernel():
    """A plan found for a GPU whose kernel is not the one of a plan without a profile says so, and reads back
    as the same program."""
    saved = work / "saved.yaml"
    found = plan("--model", "tiny", "--search", "--profile", "a100-80", "-s", 64, "--save-plan", saved,
                 "--json")
    best = json.loads(found.stdout)["plans"][0]
    assert best["options"]["attention"] == "mma" and "--attention mma" in best["command"], best
    again = json.loads(plan("--config", saved, "--json").stdout)["program"]
    assert again["hash"] == best["hash"] and again["kernels"]["attention"] == "mma", (again, best)


def a_search_keeps_the_number_of_multiprocessors():
    """By which a group's heads are cut over blocks: 8 blocks of keys are enough for one multiprocessor, and
    not for 132."""
    saved, profile = work / "small.yaml", work / "one.yaml"
    profile.write_text("base: a100-80\nprocessors: 1\n")
    found = plan("--model", "tiny", "--search", "--profile", profile, "-s", 256, "-b", 1, "--json",
                 "--save-plan", saved)
    best = json.loads(found.stdout)["plans"][0]
    assert best["options"]["multiprocessors"] == "1" and "--multiprocessors 1" in best["command"], best
    hashes = [json.loads(plan("--config", saved, "--json", *more).stdout)["program"]["hash"]
              for more in ((), ("--multiprocessors", 132))]
    assert hashes[0] == best["hash"] != hashes[1], (hashes, best)
    message = plan("--model", "tiny", "--backend", "cpu", "--multiprocessors", 16, status=2).stderr
    assert "--multiprocessors" in message and "this plan is for a CPU" in message, message


def the_profile_says_what_lies_beside_the_arena():
    """A context, and a communicator for gathers and one for reductions where there are several ranks."""
    profile = work / "reserve.yaml"
    for ranks, reserve, told in ((1, "", "1.00 GB"), (1, "reserve: {context_gb: 0.5}\n", "500 MB"),
                                 (8, "reserve: {context_gb: 2, communicator_gb: 0.25}\n", "2.50 GB")):
        profile.write_text("base: a100-80\n" + reserve)
        message = plan("--model", "tiny", "--ranks", ranks, "--profile", profile, "--memory-limit", "300MB",
                       status=4).stderr
        assert f"{told} of it beside the arena" in message, message
        assert ("not measured" in message) == (not reserve), message


def another_reserve_moves_what_is_needed_by_as_much():
    """The arena stays; the page names what the profile does not say; without a profile it is an H100's."""
    profile, tiny = work / "own.yaml", ("--model", "tiny", "--ranks", 8, "--backend", "cuda")

    def memory(*arguments):
        return json.loads(plan(*tiny, *arguments, "--json").stdout)["memory"]

    none = memory("--profile", "h100-sxm")
    kept = ("reserve_bytes", "reserve_estimated", "peak_bytes")
    assert [memory()[key] for key in kept] == [none[key] for key in kept], none
    for reserve, context, communicator, estimated in (
        ("context_gb: 2", 2_000_000_000, 300_000_000, True),
        ("communicator_gb: 0.125", 1_000_000_000, 125_000_000, True),
        ("context_gb: 0.5, communicator_gb: 0.25", 500_000_000, 250_000_000, False),
    ):
        profile.write_text(f"base: h100-sxm\nreserve: {{{reserve}}}\n")
        own = memory("--profile", profile)
        assert own["reserve_bytes"] == context + 2 * communicator, own
        assert own["reserve_estimated"] == estimated, own
        same = {"reserve_bytes": none["reserve_bytes"], "reserve_estimated": True}
        assert own | same == none, (own, none)
        # Enough is the arena and just this reserve.
        least = re.search(r"needs ([0-9,]+) bytes", plan(*tiny, "--profile", profile, "--memory-limit", "1MB",
                                                         status=4).stderr)
        least = int(least.group(1).replace(",", ""))
        plan(*tiny, "--profile", profile, "--memory-limit", least)
        plan(*tiny, "--profile", profile, "--memory-limit", least - 1, status=4)
        assert none["peak_bytes"] <= least - own["reserve_bytes"] <= none["arena_bytes"], (least, own)
        page = plan(*tiny, "--profile", profile).stdout
        row = re.search(r"^  reserve(, not measured)? +[\d.]+ [GM]B", page, re.MULTILINE)
        assert bool(row.group(1)) == estimated, row.group()
    # An older profile: no reserve, no copies.
    profile.write_text("name: old\ndevice: cuda\nprocessors: 132\ncapability: 9.0\nmemory_gb: 80\n"
                       "memory_gbps: 2573\npeak_tflops: {bf16: 989}\n")
    assert memory("--profile", profile) == none
    page = plan(*tiny, "--profile", profile).stdout
    assert "\n  as the profile does not state them, context_gb, communicator_gb, copy_gbps are h100-" in page
    assert "does not state" not in plan(*tiny, "--profile", "a100-40").stdout
    assert "does not state" not in plan(*tiny).stdout


def the_rates_of_the_profile_choose_what_is_remade():
    """What is offloaded may be cheaper remade: the page says by how much, by the rates of memory and link."""
    profile = work / "link.yaml"
    command = ("--model", "llama-1b", "--ranks", 8, "--backend", "cuda", "--wrap", "block",
               "--offload-activations", "rmsnorm")
    ratios = {}
    for up in (None, 55.43, 554.3):
        if up:
            profile.write_text(f"base: h100-sxm\ncopy_gbps: {{up: {up}}}\n")
        page = plan(*command, *(("--profile", profile) if up else ())).stdout
        ratios[up] = float(re.search(r"rmsnorm:input_layernorm ([\d.]+)", page).group(1))
    # It reads and writes twice the bytes that would cross the link; without a profile, an H100's.
    ratio = 2573 / 55.43
    wanted = {None: 2 / ratio, 55.43: 2 / ratio, 554.3: 20 / ratio}
    assert all(abs(ratios[up] - wanted[up]) <= 0.0051 for up in wanted), (ratios, wanted)


def a_search_keeps_the_reserve():
    """A plan is packed for what the reserve leaves: its command names the profile if that is another one."""
    profile = work / "large.yaml"
    for reserve, named in (("{context_gb: 1}", False), ("{context_gb: 3}", True)):
        profile.write_text(f"base: a100-80\nreserve: {reserve}\n")
        found = plan("--model", "tiny", "--search", "--profile", profile, "-s", 64, "--ranks", 2, "--json")
        best = json.loads(found.stdout)["plans"][0]
        assert (f"--profile {profile}" in best["command"]) == named, best["command"]
        assert best["options"].get("profile") == (str(profile) if named else None), best["options"]
        options = best["command"].split("fsdp_train ")[1].split()
        again = json.loads(plan(*options, "--ranks", 2, "--json").stdout)
        assert again["program"]["hash"] == best["hash"], (again["program"], best)
        assert again["memory"]["reserve_bytes"] // 10**9 == (3 if named else 1), again["memory"]


programs.run_tests([each_kernel_is_another_program, auto_takes_what_can_run, what_cannot_run_is_refused,
                    the_price_is_of_what_runs, a_search_keeps_the_kernel,
                    a_search_keeps_the_number_of_multiprocessors, the_profile_says_what_lies_beside_the_arena,
                    another_reserve_moves_what_is_needed_by_as_much,
                    the_rates_of_the_profile_choose_what_is_remade, a_search_keeps_the_reserve])
