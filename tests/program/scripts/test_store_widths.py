"""The rule of tests/simt/check_resources.py about stores, on listings as nvdisasm prints them."""

import os
import pathlib
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


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok      {name}")
