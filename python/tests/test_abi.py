"""The ctypes mirrors against the header, as a C compiler lays it out."""

import ctypes
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT
from libmla import abi

HEADER = ROOT / "include" / "mla.h"


def _compiler():
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not found or not HEADER.exists():
        pytest.skip("no C compiler, or no header beside the tests")
    return found


def _run_c(tmp_path, body):
    source = tmp_path / "layout.c"
    source.write_text("#include <mla.h>\n#include <stdio.h>\nint main(void)\n{\n" + body +
                      "    return 0;\n}\n")
    program = tmp_path / "layout"
    subprocess.run([_compiler(), "-std=c11", f"-I{HEADER.parent}", source, "-o", program],
                   check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def test_layouts(tmp_path):
    body, want = "", []
    for struct, name in abi.C_NAMES.items():
        body += f'    printf("{name} %zu\\n", sizeof({name}));\n'
        want.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            body += (f'    printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                     f"sizeof((({name} *)0)->{field}));\n")
            place = getattr(struct, field)
            want.append(f"{name}.{field} {place.offset} {place.size}")
    assert _run_c(tmp_path, body).splitlines() == want


def test_every_field_and_struct_is_mirrored():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    structs = dict(re.findall(r"typedef struct (mla_\w+) \{(.*?)\} \1;", text, flags=re.S))
    structs = {name: len(re.findall(r"[;,]", re.sub(r"\[[^]]*\]", "", body)))
               for name, body in structs.items()}
    assert structs == {name: len(struct._fields_) for struct, name in abi.C_NAMES.items()}


def test_every_function_is_declared():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    assert set(re.findall(r"MLA_API[^;(]*?(mla_\w+)\(", text)) == set(abi.PROTOTYPES)


def test_constants(tmp_path):
    names = [name for name in vars(abi) if re.match(r"(ERR|BACKEND|ISA|OP|DTYPE|KV)_|OK$", name)]
    body = "".join(f'    printf("%d\\n", (int)MLA_{name});\n' for name in names)
    got = [int(line) for line in _run_c(tmp_path, body).split()]
    assert got == [getattr(abi, name) for name in names]
    assert "MLA_BLOCK_TOKENS = 64" in HEADER.read_text() and abi.BLOCK_TOKENS == 64
