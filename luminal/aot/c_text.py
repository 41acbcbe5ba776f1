"""The C header of a built model, and an example program.

In: an Interface and the names of its inputs. Out: C text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from luminal.aot.library import ERRORS, Interface
from luminal.ir.plan import Buffer
from luminal.runtime.signature import array_shape

__all__ = ["example", "header"]

_TYPES = {
    "f64": "double", "f32": "float", "f16": "uint16_t (half)", "bf16": "uint16_t (bfloat16)",
    "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t",
    "bool": "uint8_t (0 or 1)",
}  # fmt: skip

_HEADER = """\
/* The model {name}, compiled by luminal. Tensors are dense and row-major.

   A handle serves one thread at a time; load several to run at once. They share the
   weights and a pool of threads, whose number the first load that asks for more than
   one decides. The library is never unloaded once that pool exists.
{tensors}*/
#ifndef LUMINAL_{upper}_H
#define LUMINAL_{upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {name}_model {name}_model;

enum {{
{numbers}
}};

enum {{ /* what {name}_load and {name}_run return */
{errors}
}};

/* Opens the model. `weights` is the path of {weights}.
   `threads`: 0 for all cores. The handle is stored in *model. */
int {name}_load(const char *weights, int threads, {name}_model **model);

/* Computes the outputs. `dims` holds the {dims} sizes that may vary (it may be NULL if
   there are none), `inputs` and `outputs` the addresses of the tensors. */
int {name}_run({name}_model *model, const int64_t *dims, const void *const *inputs,
    void *const *outputs);

void {name}_free({name}_model *model);

/* Bytes of a tensor for these dims, -1 if there is none or the dims do not fit. */
int64_t {name}_input_bytes(int number, const int64_t *dims);
int64_t {name}_output_bytes(int number, const int64_t *dims);

/* The meaning of an error, as text. */
const char *{name}_error(int code);

#ifdef __cplusplus
}}
#endif
#endif
"""

_EXAMPLE = """\
/* Runs the model {name} once:
       {name}_example [-w WEIGHTS] DIM... [INPUT...]
   with {dims} dims ({dim_names}), and one file of raw bytes for each of its {inputs} inputs
   (zeros where there is none). Output i goes to the file output<i>.bin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "{name}.h"

static int fail(const char *what, const char *why) {{
    fprintf(stderr, "%s: %s\\n", what, why);
    return 1;
}}

int main(int argc, char **argv) {{
    const char *weights = NULL;
    int next = 1, code;
    if (argc > 2 && strcmp(argv[1], "-w") == 0) {{
        weights = argv[2];
        next = 3;
    }}
    if (argc < next + {upper}_DIMS)
        return fail(argv[0], "too few dims");
    int64_t dims[{upper}_DIMS + 1] = {{0}};
    for (int i = 0; i < {upper}_DIMS; i++)
        dims[i] = atoll(argv[next++]);

    {name}_model *model;
    if ((code = {name}_load(weights, 0, &model)) != {upper}_OK)
        return fail("load", {name}_error(code));
    void *inputs[{upper}_INPUTS + 1], *outputs[{upper}_OUTPUTS + 1];
    for (int i = 0; i < {upper}_INPUTS; i++) {{
        int64_t bytes = {name}_input_bytes(i, dims);
        if (bytes < 0)
            return fail("dims", {name}_error({upper}_DIMS_ERROR));
        inputs[i] = calloc(1, bytes + 1);
        FILE *file = next < argc ? fopen(argv[next], "rb") : NULL;
        if (next < argc && (!file || fread(inputs[i], 1, bytes, file) != (size_t)bytes))
            return fail(argv[next], "cannot be read, or is too short");
        if (file)
            fclose(file);
        next++;
    }}
    for (int i = 0; i < {upper}_OUTPUTS; i++)
        outputs[i] = malloc({name}_output_bytes(i, dims) + 1);

    code = {name}_run(model, dims, (const void *const *)inputs, outputs);
    if (code != {upper}_OK)
        return fail("run", {name}_error(code));
    for (int i = 0; i < {upper}_OUTPUTS; i++) {{
        char path[32];
        snprintf(path, sizeof path, "output%d.bin", i);
        FILE *file = fopen(path, "wb");
        if (!file)
            return fail(path, "cannot be written");
        fwrite(outputs[i], 1, {name}_output_bytes(i, dims), file);
        fclose(file);
        printf("%s: %lld bytes\\n", path, (long long){name}_output_bytes(i, dims));
        free(outputs[i]);
    }}
    for (int i = 0; i < {upper}_INPUTS; i++)
        free(inputs[i]);
    {name}_free(model);
    return 0;
}}
"""


def header(interface: Interface, names: Sequence[str]) -> str:
    """The header: functions, numbers of dims and tensors, and what each tensor is."""
    plan, upper = interface.executor.program.plan, interface.name.upper()
    tensors = [_tensor("input", n, name, plan.buffer(b))
               for n, (name, b) in enumerate(zip(names, plan.inputs, strict=True))]  # fmt: skip
    tensors += [_tensor("output", n, "", b) for n, b in enumerate(interface.outputs)]
    tensors += [f"     dims[{n}]: {v.name}, {v.lo} to {v.hi}" for n, v in enumerate(plan.dims)]
    numbers = {"DIMS": len(plan.dims), "INPUTS": len(plan.inputs),
               "OUTPUTS": len(interface.outputs)}  # fmt: skip
    numbers |= {f"DIM_{_word(v.name)}": n for n, v in enumerate(plan.dims)}
    errors = [f"    {upper}_{_error(n)} = {code}, /* {text} */"
              for code, (n, text) in enumerate(ERRORS)]  # fmt: skip
    return _HEADER.format(
        name=interface.name, upper=upper, dims=len(plan.dims), errors="\n".join(errors),
        tensors="".join(f"{line}\n" for line in tensors),
        numbers="\n".join(f"    {upper}_{n} = {value}," for n, value in numbers.items()),
        weights="NULL: the weights are inside" if interface.embedded else
        f"{interface.name}.weights, which was built with this header",
    )  # fmt: skip


def example(interface: Interface, names: Sequence[str]) -> str:
    """A program that runs the model once on files."""
    plan = interface.executor.program.plan
    listed = ", ".join(v.name for v in plan.dims) or "none"
    return _EXAMPLE.format(name=interface.name, upper=interface.name.upper(), dims=len(plan.dims),
                           dim_names=listed, inputs=len(names))  # fmt: skip


def _tensor(kind: str, number: int, name: str, buffer: Buffer) -> str:
    shape = ", ".join(map(str, array_shape(buffer)))
    called = f" {name}:" if name else ""
    return f"     {kind}s[{number}]:{called} {_TYPES.get(buffer.dtype.name, 'uint8_t')} [{shape}]"


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _error(name: str) -> str:
    return "OK" if name == "OK" else f"{name}_ERROR"
