"""Scripts that show one failure of an implementation again, without sglk's engine, configuration or command line."""

import hashlib
import pprint
import re
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglk.backends.base import DeviceBackend
from sglk.backends.ops import Implementation
from sglk.errors import RunError
from sglk.operators.calling import form_problem, implementation_outputs, on_host, reference_outputs
from sglk.operators.cases import OPS, OpCase
from sglk.operators.comparison import wide_dtype
from sglk.operators.inlining import import_block, inline
from sglk.operators.side_effects import side_effect

_TEMPLATE = '''\
"""Op {op} of {provider} against its definition, which is copied below; the function is

    {where}

Run it with `python {file}`. It needs torch, numpy and the plugin, with the contract that
plugins are written for (sglk.backends). Written by `sglk ops test`, which saw:

    {problem}

Exit code 0 = no longer so.
"""

{imports}
{path}
SHAPE = {shape}
SEED = {seed}
OPTIONS = {options}
"""Keywords of the backend, as in backend.options."""


{definitions}


def main() -> int:
    backend = {factory}(**OPTIONS)
    offers = backend.ops.implementations(op_named({op!r}))
    implementation = next(offer for offer in offers if name_of(offer) == {name!r})
    arguments = {make}(SHAPE, torch.Generator().manual_seed(SEED))
    expected = reference_outputs({op}, arguments, {in_place!r}, {widen!r})
    outputs = implementation_outputs(implementation, arguments, {in_place!r}, backend)
    if (problem := form_problem(expected, outputs, {dtype}, backend.device)) is not None:
        print(problem)
        return 1
    actual = [on_host(output, backend) for output in outputs]
    problem = (
        {judge}(SHAPE, arguments, expected, actual)
        or side_effect(implementation, arguments, {written!r}, backend)
    )
    for want, got in zip(expected, actual):
        print("expected", want.flatten()[:8])
        print("actual  ", got.flatten()[:8])
    print(problem or "no problem")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
'''

_CALLS = (reference_outputs, implementation_outputs, form_problem, on_host, side_effect)


@dataclass(frozen=True)
class Failure:
    """An implementation that is wrong in one case."""

    case: OpCase
    implementation: Implementation[Any, Any]
    problem: str


def name_of(offer: Implementation[Any, Any]) -> str:
    """Return the name of an implementation's function, for people and to find it again."""
    function = offer.function
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{offer.provider}: {module}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def write_script(failure: Failure, backend: DeviceBackend, options: dict[str, Any], folder: Path) -> Path:
    """Write the script that shows `failure` again into `folder` and return it; a case has one file, whenever tested.

    `options` are those that `backend` was made with. Raises RunError where it cannot be written.
    """
    case = failure.case
    digest = hashlib.sha256(f"{name_of(failure.implementation)} {case} {case.seed}".encode()).hexdigest()[:8]
    provider = re.sub(r"\W+", "_", failure.implementation.provider)
    path = folder / f"{case.op}-{provider}-{case.shape['dtype']}-{digest}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(script(failure, backend, options, path.name), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write to {str(folder)!r}: {error.strerror}; choose another ops.failures") from error
    return path


def script(failure: Failure, backend: DeviceBackend, options: dict[str, Any], file: str) -> str:
    """Return the text of the script."""
    case, recipe = failure.case, failure.case.recipe
    parts = (OPS[case.op].reference, recipe.make, recipe.judge)
    inlined = inline((*parts, name_of, *_CALLS))
    factory = type(backend)
    imports = inlined.imports | {"import sys", "import torch", "from sglk.backends.ops import op_named"}
    return _TEMPLATE.format(
        op=case.op,
        provider=failure.implementation.provider,
        where=name_of(failure.implementation).partition(": ")[2],
        file=file,
        problem=failure.problem,
        imports=import_block(imports),
        path=_import_of(factory),
        shape=pprint.pformat(dict(case.shape), sort_dicts=False, width=100),
        seed=case.seed,
        options=pprint.pformat(options),
        definitions="\n\n\n".join(inlined.definitions.values()),
        factory=factory.__name__,
        name=name_of(failure.implementation),
        make=recipe.make.__name__,
        judge=recipe.judge.__name__,
        in_place=recipe.in_place,
        written=(*recipe.in_place, *recipe.overwrites),
        widen=recipe.widen,
        dtype=wide_dtype(case),
    )


def _import_of(factory: type) -> str:
    """Return the lines that import the backend's class, from where it was found."""
    line = f"\nfrom {factory.__module__} import {factory.__qualname__}\n"
    file = getattr(sys.modules[factory.__module__], "__file__", None)
    if file is None:
        return line
    root = Path(file).resolve().parents[factory.__module__.count(".")]
    if Path(file).name == "__init__.py":
        root = root.parent
    installed = {Path(folder).resolve() for folder in (*site.getsitepackages(), *sysconfig.get_paths().values())}
    if root in installed:
        return line
    return f"\nsys.path.append({str(root)!r})  # where the plugin was found\n{line}"
