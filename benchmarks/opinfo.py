"""PyTorch's OpInfo database under torch.compile(backend="luminal", fullgraph=True), by operator.

`python benchmarks/opinfo.py --dtypes float32,int64,bool --limit 6 --results build/opinfo.jsonl`
runs what the results file lacks, in a worker process that may crash or hang, prints a table and
writes docs/aten.md with --write. Outcomes of a sample: compiled; fallback (right, but some operator
ran in eager); wrong; crash (hang, or an exception that aot_eager does not raise); refused (eager or
Dynamo itself raises, not counted).
"""

import argparse
import json
import os
import select
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ("compiled", "fallback", "wrong", "crash")
Key = tuple[str, str, str]


class Worker:
    """A process that runs samples; replaced when it dies or takes too long."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.process: subprocess.Popen[bytes] | None = None
        self.buffer = b""

    def send(self, job: dict[str, object]) -> None:
        if self.process is None:
            command = [sys.executable, str(HERE / "opinfo_worker.py")]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self.buffer = b""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, object] | None:
        """The next line, or None if the process died or is late (it is killed then)."""
        assert self.process is not None and self.process.stdout is not None
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], self.timeout_s)
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                self.process.kill()
                self.process.wait()
                self.process = None
                return None
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)


def run(worker: Worker, key: Key, limit: int) -> Iterator[dict[str, object]]:
    """The outcomes of one operator and dtype, across crashes of the worker."""
    first = 0
    while True:
        name, variant, dtype = key
        worker.send(
            {"name": name, "variant": variant, "dtype": dtype, "first": first, "limit": limit}
        )
        current: int | None = None
        while (line := worker.receive()) is not None:
            if line.get("done"):
                return
            if "started" in line:
                current = line["started"]
            else:
                yield line
        if current is None:
            yield {"sample": -1, "outcome": "crash", "detail": "no sample could be made"}
            return
        yield {"sample": current, "outcome": "crash", "detail": "the process died or was late"}
        first = current + 1


def keys(dtypes: list[str], only: str) -> list[Key]:
    """Every operator, variant and dtype that the database has for CPUs."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        (info.name, info.variant_test_name, dtype)
        for dtype in dtypes
        for info in op_db
        if info.supports_dtype(getattr(torch, dtype), "cpu")
        and (not only or info.name in only.split(","))
    ]


def read(path: Path) -> dict[Key, list[dict[str, object]]]:
    """The results so far; the last of several entries for one key counts."""
    found: dict[Key, list[dict[str, object]]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            found[tuple(entry["key"])] = entry["results"]
    return found


def collect(arguments: argparse.Namespace, wanted: list[Key]) -> dict[Key, list[dict[str, object]]]:
    """Runs what the results file lacks."""
    path = Path(arguments.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = read(path)
    worker = Worker(arguments.timeout)
    with path.open("a") as out:
        for key in wanted:
            known = found.get(key)
            bad = known is not None and any(r["outcome"] in arguments.again for r in known)
            if known is not None and not bad:
                continue
            results = list(run(worker, key, arguments.limit))
            found[key] = results
            counts = Counter(r["outcome"] for r in results)
            print(" ".join(filter(None, key)), dict(counts), flush=True)
            print(json.dumps({"key": key, "results": results}), file=out, flush=True)
    return {k: found[k] for k in wanted if k in found}


def rates(found: dict[Key, list[dict[str, object]]]) -> dict[str, int]:
    """Totals: samples by outcome, and operators all of whose samples compiled."""
    counts = Counter(r["outcome"] for rs in found.values() for r in rs)
    by_name = defaultdict(set)
    for key, results in found.items():
        by_name[key[:2]] |= {r["outcome"] for r in results} - {"refused"}
    judged = {n: o for n, o in by_name.items() if o}
    return {
        "samples": sum(counts[k] for k in KINDS),
        **{k: counts[k] for k in (*KINDS, "refused")},
        "operators": len(judged),
        "all samples compiled": sum(o == {"compiled"} for o in judged.values()),
        "some sample compiled": sum("compiled" in o for o in judged.values()),
    }


def table(found: dict[Key, list[dict[str, object]]]) -> list[str]:
    """Markdown rows, one an operator."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    causes: dict[str, dict[str, None]] = defaultdict(dict)
    for (name, variant, _), results in found.items():
        title = f"{name} ({variant})" if variant else name
        for result in results:
            rows[title][result["outcome"]] += 1
            causes[title].update(dict.fromkeys(result.get("fallback", ())))
    lines = ["| operator | compiled | fallback | wrong | crash | ran in eager |"]
    lines.append("|---|--:|--:|--:|--:|---|")
    for title in sorted(rows):
        numbers = " | ".join(str(rows[title][k] or "") for k in KINDS)
        eager = ", ".join(n.removeprefix("aten.") for n in causes[title])
        lines.append(f"| {title} | {numbers} | {eager} |")
    return lines


def write(arguments: argparse.Namespace, totals: dict[str, int], rows: list[str]) -> None:
    """Writes docs/aten.md."""
    from opinfo_page import page

    count, names = totals["samples"], totals["operators"]
    right, whole = totals["compiled"] + totals["fallback"], totals["compiled"]
    lines = [
        f"samples: {count}; right {right} ({right / count:.1%}), wrong {totals['wrong']}, "
        f"crashes {totals['crash']}",
        f"samples compiled without any fallback: {whole} ({whole / count:.1%})",
        *(
            f"operators with {k}: {totals[k]} of {names} ({totals[k] / names:.1%})"
            for k in ("all samples compiled", "some sample compiled")
        ),
    ]
    text = page(arguments.dtypes, arguments.limit, totals["refused"], lines, rows)
    (HERE.parent / "docs" / "aten.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,int64,bool")
    parser.add_argument(
        "--limit", type=int, default=6, help="samples an operator and dtype, 0: all"
    )
    parser.add_argument("--results", default=str(HERE.parent / "build" / "opinfo.jsonl"))
    parser.add_argument("--only", default="", help="operators, separated by commas")
    parser.add_argument("--again", default="", help="outcomes to run again, e.g. wrong,crash")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a sample")
    parser.add_argument("--quiet", action="store_true", help="totals only")
    parser.add_argument("--write", action="store_true", help="write docs/aten.md")
    arguments = parser.parse_args()
    arguments.again = [a for a in arguments.again.split(",") if a]
    found = collect(arguments, keys(arguments.dtypes.split(","), arguments.only))
    if not arguments.quiet:
        print("\n".join(table(found)))
    totals = rates(found)
    for name, value in totals.items():
        print(f"{name}: {value}")
    if arguments.write:
        write(arguments, totals, table(found))


if __name__ == "__main__":
    main()
