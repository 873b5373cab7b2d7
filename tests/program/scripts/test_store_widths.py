"""The rules of tests/simt/check_resources.py: stores, on listings as nvdisasm prints them; products that wait
for each other, as ptxas says it; what is compiled for sm_90a."""

import sys

import programs

ROOT = programs.ROOT
sys.path.insert(0, str(ROOT / "tests" / "simt"))
import check_resources  # noqa: E402

WIDE_LOADS = """        /*02a0*/                   LDG.E.128 R4, desc[UR4][R16.64] ;
        /*02d0*/                   LDG.E.128.CONSTANT R8, desc[UR4][R10.64] ;
"""
PIECES = [f"        /*08a0*/                   STG.E desc[UR4][R4.64{at}], R3 ;\n"
          for at in ("", "+0x4", "+0x8", "+0xc")]
NARROW_LOAD = "        /*0390*/                   LDG.E R7, desc[UR4][R2.64+0x4] ;\n"


def stores_of(*lines):
    (result,) = check_resources.read_stores(".text.kernel:\n" + "".join(lines)).values()
    return dict(result[0]), result[1]


def test_vector_in_pieces():
    assert stores_of(WIDE_LOADS, *PIECES) == ({4: 4}, True)
    assert stores_of(WIDE_LOADS, PIECES[2], PIECES[0], PIECES[3], PIECES[1]) == ({4: 4}, True)
    below = "        /*05c0*/                   STG.E desc[UR4][R4.64+-0x4], R13 ;\n"
    assert stores_of(below, *PIECES[:3])[1]


def test_whole_vectors():
    whole = "        /*0180*/                   STG.E.128 desc[UR4][R4.64+0x10], R12 ;\n"
    assert stores_of(WIDE_LOADS, whole, whole) == ({16: 2}, False)
    narrow = "        /*0180*/                   STG.E.U16 desc[UR4][R4.64+0x2], R12 ;\n"
    assert stores_of(narrow, narrow, narrow, narrow) == ({2: 4}, False)


def test_single_elements():
    """An unrolled loop loads each before it stores the next; blocks and address registers are apart."""
    assert not stores_of(*[NARROW_LOAD + piece for piece in PIECES])[1]
    assert not stores_of(PIECES[0], PIECES[1], ".L_x_71:\n", PIECES[2], PIECES[3])[1]
    other = [piece.replace("R4.64", "R8.64") for piece in PIECES[2:]]
    assert not stores_of(*PIECES[:2], *other)[1]
    indexed = [piece.replace("R4.64", "R4.64+UR6") for piece in PIECES]
    assert stores_of(*indexed) == ({4: 4}, False)


def test_without_descriptors():
    """As sm_80 has it."""
    old = [piece.replace("desc[UR4]", "") for piece in PIECES]
    assert stores_of(WIDE_LOADS.replace("desc[UR4]", ""), *old) == ({4: 4}, True)


def test_products_that_wait():
    log = ("ptxas info    : (C7518) Potential Performance Loss: wgmma.mma_async instructions are serialized "
           "due to program dependence on compiler-inserted WG.DP in divergent path in the function "
           "'_Z6attendv'\n")
    found = ("_Z6attendv", "0", "0", "0", "168", ", used 1 barriers")

    def verdict(log):
        names = check_resources.SERIALIZED.findall(log)
        return check_resources.Kernel("a_hopper.cu", "90a", found, None, names).verdict

    assert verdict(log) == "SERIAL" and verdict("") == "ok" and verdict(log.replace("Z6", "Z7")) == "ok"


def test_architectures():
    def compiled(source):
        return [job[3] for name in check_resources.ALL
                for job in check_resources.jobs_of("nvcc", None, source, name)]

    assert compiled("attention_hopper_backward.cu") == ["90a"]
    assert compiled("attention_tensor.cu") == check_resources.ALL


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok      {name}")
