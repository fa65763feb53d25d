"""Safetensors files by hand, with the standard library alone, and runs of the tool on them."""
import json
import os
import struct
import subprocess
import sys
import tempfile

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}
COMMANDS = ("bench", "decode", "demo", "info", "pack", "plan", "unpack")
INT_FORMAT = {"I32": "i", "I64": "q"}


def count(shape):
    product = 1
    for dim in shape:
        product *= dim
    return product


class Tensor:
    """dtype, shape and the bytes; `data` may be a list of whole numbers of an integer dtype."""

    def __init__(self, dtype, shape, data=None):
        self.dtype, self.shape = dtype, list(shape)
        if data is None:
            data = bytes(count(shape) * ITEM_BYTES[dtype])
        elif not isinstance(data, (bytes, bytearray)):
            data = struct.pack("<%d%s" % (len(data), INT_FORMAT[dtype]), *data)
        self.data = bytes(data)


def file_bytes(tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values())


def read_file(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    data = content[8 + length:]
    tensors = {}
    for name, entry in json.loads(content[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = Tensor(entry["dtype"], entry["shape"], data[begin:end])
    return tensors


class Tool:
    """The binary under test and a folder that goes when the test is over."""

    def __init__(self, binary):
        self.binary = binary
        self.folder = tempfile.TemporaryDirectory(prefix="mla_test_")
        self.failures = self.checks = 0

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def run(self, *arguments, **options):
        """The CPU computes, also where there is a GPU, unless the arguments say otherwise."""
        if arguments and arguments[0] in COMMANDS and "--backend" not in arguments:
            arguments = (*arguments, "--backend", "cpu")
        done = subprocess.run([self.binary, *arguments], capture_output=True, text=True,
                              timeout=300, **options)
        return done.returncode, done.stdout, done.stderr

    def check(self, name, right, detail=""):
        self.checks += 1
        if not right:
            self.failures += 1
            print("FAILED %s: %s" % (name, detail))

    def finish(self):
        print("%d checks, %d failed" % (self.checks, self.failures))
        sys.exit(1 if self.failures else 0)
