"""The command `luminal`: run, chat, bench, explain, build, devices, cache.

In: command-line arguments. Out: text or one JSON object on standard output, progress and problems
on standard error. A problem of the user's is one line and exit code 2, never a traceback; an
interrupt is exit code 130. What a command needs is loaded when it runs, so that help is quick and
an interrupt is caught from the first moment. Must not hold logic that a Python user would call.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from luminal.config import from_environment
from luminal.errors import LuminalError

__all__ = ["main"]

_EXIT_PROBLEM, _EXIT_BUG, _EXIT_INTERRUPTED = 2, 70, 130


class _UsageError(Exception):
    """Arguments that do not parse."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 a problem of the user's, 130 interrupted."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  (it may be closed)
    try:
        options = _parser().parse_args(arguments)
        options.command(options)
        sys.stdout.flush()
    except (LuminalError, _UsageError) as error:
        _stop(str(error), _EXIT_PROBLEM)
    except KeyboardInterrupt:
        _stop("interrupted", _EXIT_INTERRUPTED)
    except OSError as error:  # of standard output: what else fails is a LuminalError
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        _stop(f"cannot write: {error.strerror or error}. Try another output", _EXIT_PROBLEM)
    except MemoryError:
        _stop("not enough memory. Try a smaller --n-ctx or a smaller model", _EXIT_PROBLEM)
    except Exception as error:
        if os.environ.get("LUMINAL_DEBUG", "0") not in ("", "0"):
            raise
        kind = type(error).__name__
        _stop(f"bug in luminal: {kind}: {error}. LUMINAL_DEBUG=1 shows more", _EXIT_BUG)


def _stop(message: str, code: int) -> NoReturn:
    print("luminal: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


def _parser() -> _Parser:
    parser = _Parser(prog="luminal", description="Run language models and inspect the compiler.")
    choices = parser.add_subparsers(required=True, metavar="COMMAND")
    run = _add(choices, "run", "complete a text", _run)
    run.add_argument("-p", "--prompt", required=True, help="text to continue, without a template")
    run.add_argument("-n", "--tokens", type=_count, default=128, help="tokens to generate (128)")
    run.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-text token")
    run.add_argument("--json", action="store_true", help="print one JSON object")
    chat = _add(choices, "chat", "talk to a chat model; an empty line or Ctrl-D ends it", _chat)
    chat.add_argument("-n", "--tokens", type=_count, default=512, help="tokens per answer (512)")
    chat.add_argument("--system", help="system message")
    bench = _add(choices, "bench", "measure prompt and generation speed", _bench)
    bench.add_argument("--pp", type=_count, default=256, help="prompt tokens (256)")
    bench.add_argument("--tg", type=_count, default=64, help="tokens to generate (64)")
    bench.add_argument("--repeat", type=_count, default=3, help="runs; the median counts (3)")
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    explain = _add(choices, "explain", "show what was found for a model, and why", _explain)
    explain.add_argument("--html", help="also write a page for a browser to this file")
    explain.add_argument(
        "--prompt", action="store_true", help="the prompt step (that of one token)"
    )
    for command in (run, chat, bench, explain):
        _add_model_options(command)
    for command in (run, chat):
        _add_sampling_options(command)
    build = _add(choices, "build", "make a C library of a model that luminal.export wrote", _build)
    build.add_argument("model", help="file written by luminal.export")
    build.add_argument("-o", "--output", help="object or library to write (by the model's name)")
    build.add_argument("--shared-library", action="store_true", help="link it too")
    build.add_argument("--name", help="prefix of the C functions (by the model's name)")
    build.add_argument("--weights", choices=("embed", "file"), default="embed",
                       help="inside the library, or in a file that is mapped")  # fmt: skip
    build.add_argument("--target", help="another machine, such as aarch64-linux")
    devices = _add(choices, "devices", "list the devices that luminal can use", _devices)
    devices.add_argument("--json", action="store_true", help="print one JSON object")
    cache = _add(choices, "cache", "show or clear the cache of plans and machine code", _cache)
    cache.add_argument("action", choices=("info", "clear"))
    cache.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add(
    choices: Any, name: str, text: str, command: Callable[..., None]
) -> argparse.ArgumentParser:
    parser = choices.add_parser(name, help=text, description=text)
    parser.set_defaults(command=command)
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--n-ctx", type=_count, help="context in tokens (that of the model)")
    parser.add_argument("--threads", type=_count, help="threads (all cores)")
    parser.add_argument("--numerics", choices=("exact", "relaxed", "fast"), default="exact")
    parser.add_argument("--search", help="off, fast, full or seconds (fast)")


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--min-p", type=float, default=0.05)
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="makes sampling repeatable")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < 1 << 31:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a whole number from 1 up")
    return value


def _sampling(options: argparse.Namespace) -> Any:
    make = import_module("luminal.llm.sampling").Sampling
    if options.greedy:
        return make(repetition_penalty=options.repetition_penalty, seed=options.seed)
    return make(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )


def _model(options: argparse.Namespace) -> Any:
    return _commands().open_model(
        options.model, options.n_ctx, options.numerics, options.threads, options.search
    )


def _commands() -> Any:
    return import_module("luminal.llm.commands")


def _run(options: argparse.Namespace) -> None:
    sampling, commands = _sampling(options), _commands()
    result = commands.complete(
        _model(options),
        options.prompt,
        options.tokens,
        sampling,
        stop_at_eos=not options.ignore_eos,
        write=None if options.json else commands.write_text,
    )
    if options.json:
        print(json.dumps(result))


def _chat(options: argparse.Namespace) -> None:
    sampling = _sampling(options)
    _commands().converse(_model(options), options.tokens, sampling, options.system)


def _bench(options: argparse.Namespace) -> None:
    _show(_commands().bench(_model(options), options.pp, options.tg, options.repeat), options.json)


def _explain(options: argparse.Namespace) -> None:
    program = _model(options).program(options.prompt)
    step = "prompt" if options.prompt else "decode"
    title = f"{os.path.basename(options.model)}, {step} step"
    explain = import_module("luminal.explanation").explain
    print(explain(program, options.html, title=title))


def _build(options: argparse.Namespace) -> None:
    build = import_module("luminal.aot.building").build
    for path in build(
        options.model, options.output, shared_library=options.shared_library, name=options.name,
        weights=options.weights, target=options.target,
    ):  # fmt: skip
        print(path)


def _devices(options: argparse.Namespace) -> None:
    _show(_device_table(), options.json)


def _cache(options: argparse.Namespace) -> None:
    _show(_cache_table(options.action == "clear"), options.json)


def _device_table() -> dict[str, Any]:
    target = import_module("luminal.runtime.device").host_target()
    return {
        "device": target.kind,
        "cpu": target.cpu,
        "cores": target.cores,
        "vector_bits": target.vector_bits,
        "l1_bytes": target.l1_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.l3_bytes,
    }


def _cache_table(clear: bool) -> dict[str, Any]:
    """Where the cache lies and what it holds; `clear` removes its entries first."""
    cache = import_module("luminal.search.cache").Cache(from_environment().cache_dir)
    removed = cache.clear() if clear else 0
    sizes = [size for _, size, _ in cache.entries()]
    table: dict[str, Any] = {
        "folder": str(cache.directory or "off"),
        "files": len(sizes),
        "size_bytes": sum(sizes),
    }
    return table | ({"removed": removed} if clear else {})


def _show(table: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(table))
        return
    width = max(map(len, table), default=0)
    for name, value in table.items():
        print(
            f"{name:{width}}  {value:.2f}"
            if isinstance(value, float)
            else f"{name:{width}}  {value}"
        )


if __name__ == "__main__":
    main()
