"""A plugin that lives in a folder of its own, as pip would install it, and gets some ops wrong."""

from pathlib import Path

MODULE = "throwaway_chip"

SOURCE = '''
import ctypes
import os
import signal
import threading
from pathlib import Path

import torch

from sglk.backends import moe_ops, quantised_linear, quantised_moe, reference, sampling_ops
from sglk.backends.constraints import multiple_of
from sglk.backends.cpu import CpuBackend
from sglk.backends.ops import Constraint, Op


def spoilt(value):
    """Turn the first number of what an op came to into another."""
    if isinstance(value, tuple):
        return (spoilt(value[0]), *value[1:])
    value = value.clone()
    flat = value.view(-1)
    flat[0] = flat[0] + 1 if value.dtype is torch.int64 else flat[0] + 10
    return value


def wrong(op, repaired):
    def run(*arguments):
        result = op.reference(*arguments)
        if repaired:
            return result
        if result is not None:
            return spoilt(result)
        # The pool's last slot, or the first logit.
        written = arguments[2] if op.name == "store_kv" else arguments[0]
        if written.is_floating_point():
            written.view(torch.uint8).view(-1)[-1:].add_(3) if op.name == "store_kv" else written.view(-1)[:1].add_(9)
        else:
            written.view(-1)[-1:].add_(3)

    return run


def breaks(x_TE, weight_OE, bias_O):
    raise RuntimeError("the kernel found no\\nworkspace")


def ends(x_T2F):
    raise SystemExit(3)


def loud(x_TE, weight_E, eps):
    print("a kernel speaks")
    return reference.rms_norm.reference(x_TE, weight_E, eps)


class Tires:
    """Works once."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x_TE, weight_E, eps):
        self.calls += 1
        if self.calls % 2 == 0:
            raise RuntimeError("no handle is left")
        return reference.rms_norm.reference(x_TE, weight_E, eps)


def crashes(x_TND, cos_TD, sin_TD):
    ctypes.string_at(0)


def leaves(x_TE, residual_TE, weight_E, eps):
    print("no licence for this kernel")
    os._exit(7)


def killed(x_T2F):
    os.kill(os.getpid(), signal.SIGKILL)


ruined = []


def ruins(x_TE, residual_TE, weight_E, eps):
    ruined.append(True)
    raise RuntimeError("device-side assert triggered")


def shouts(x_TE, weight_E, eps):
    print("x" * 100_000, flush=True)
    return reference.rms_norm.reference(x_TE, weight_E, eps)


def hanging(begun):
    def hangs(logits_TX, top_k, renormalise):
        Path(begun).touch()
        threading.Event().wait()

    return hangs


class ThrowawayBackend(CpuBackend):
    name = "throwaway"
    api_version = 1

    def __init__(self, **options):
        broken, repaired = options.pop("broken", ""), options.pop("repaired", False)
        begun, busy = options.pop("begun", None), options.pop("busy", 0)
        if busy:
            with Path(begun).open("a+") as openings:
                openings.write("o")
                openings.seek(0)
                if 1 < len(openings.read()) <= busy:
                    raise RuntimeError("device is busy")
        if broken == "opening":
            ctypes.string_at(0)
        super().__init__(**options)
        for module in (reference, quantised_linear, moe_ops, quantised_moe, sampling_ops):
            for op in vars(module).values():
                if isinstance(op, Op) and broken == op.name:
                    self.ops.register(op, "throwaway", wrong(op, repaired))
        if broken == "crashing":
            self.ops.register(reference.rope, "throwaway", crashes)
            self.ops.register(reference.add_rms_norm, "throwaway", leaves)
            self.ops.register(reference.silu_and_mul, "throwaway", killed)
        if broken == "ruining":
            self.ops.register(reference.add_rms_norm, "throwaway", ruins)
        if broken == "refusing":
            self.ops.register(reference.rope, "throwaway", crashes, Constraint("none", lambda t: ctypes.string_at(0)))
        if broken == "shouting":
            self.ops.register(reference.rms_norm, "throwaway", shouts)
        if broken == "hanging":
            self.ops.register(moe_ops.route, "throwaway", hanging(begun))
        if broken == "loud":
            self.ops.register(reference.rms_norm, "throwaway", loud)
        if broken == "ending":
            self.ops.register(reference.silu_and_mul, "throwaway", ends)
            self.ops.register(reference.rms_norm, "throwaway", Tires())
        if broken == "raising":
            self.ops.register(reference.linear, "throwaway", breaks, multiple_of("out_features", 64))

    def copy(self, src, dst):
        if ruined:
            raise RuntimeError("device-side assert triggered")
        super().copy(src, dst)

    def num_devices(self, ranks):
        return 1
'''


def install(folder: Path) -> Path:
    """Write the plugin and its metadata into `folder`, which then goes to the path of Python."""
    (folder / f"{MODULE}.py").write_text(SOURCE)
    metadata = folder / "throwaway_chip-0.3.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: throwaway-chip\nVersion: 0.3\n")
    (metadata / "entry_points.txt").write_text(f"[sglk.backends]\nthrowaway = {MODULE}:ThrowawayBackend\n")
    (metadata / "RECORD").write_text(f"{MODULE}.py,,\n")
    return folder
