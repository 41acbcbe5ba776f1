"""Runs the parts of the device script, each under a time limit, and prints one table last.

A part is a process that works through named items (`parts.py`) and writes a line of JSON for each.
If it crashes or an item takes too long, that item's row says so and a new process goes on with the
next: no failure loses what others have found."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from parts import PARTS

HERE = Path(__file__).resolve().parent
TOTAL_S = 470.0


def read(path: Path) -> list[dict]:
    """The lines that a part has written so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def stop(process: subprocess.Popen) -> None:
    """Ends a part and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def watch(process: subprocess.Popen, path: Path, end: float, item_s: float) -> str:
    """Waits for a part: '' if it ended by itself, else why it had to be stopped."""
    count, since = -1, time.monotonic()
    while process.poll() is None:
        now, lines = time.monotonic(), len(read(path))
        if lines != count:
            count, since = lines, now
        if now > end or now - since > item_s:
            stop(process)
            return "the part's time is over" if now > end else f"more than {item_s:.0f} s"
        time.sleep(0.1)
    code = process.returncode
    return "" if code == 0 else f"the process ended with {code}"


def run(part: str, out: Path, end: float, dry: bool) -> list[dict]:
    """The rows of a part."""
    _, item_s, names = PARTS[part]
    waiting, rows = list(names(dry)), list[dict]()
    while waiting and time.monotonic() < end:
        path = out / f"{part}.jsonl"
        path.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "parts.py"), str(path), *(["--dry"] * dry), part]
        with open(out / f"{part}.log", "ab") as log:
            process = subprocess.Popen([*command, *waiting], stdout=log, stderr=log,
                                       start_new_session=True)  # fmt: skip
            why = watch(process, path, end, item_s)
        found = read(path)
        done = [r for r in found if "start" not in r]
        begun = [r["start"] for r in found if "start" in r]
        if len(begun) > len(done) or not begun:
            lost = begun[-1] if begun else waiting[0]
            done.append({"part": part, "name": lost, "problem": why or "it wrote no result"})
        rows += done
        names_done = {r["name"] for r in done}
        waiting = [n for n in waiting if n not in names_done]
    rows += [{"part": part, "name": n, "problem": "no time left"} for n in waiting]
    return rows


def line(row: dict) -> str:
    """A row of the table."""
    ms, ours = row.get("ms", {}), row.get("ms", {}).get("luminal")

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}"

    ratios = [number(ms[p] / ours if ours and p in ms else None) for p in ("eager", "inductor")]
    share = row.get("predicted_ms", 0) / ours if ours and "predicted_ms" in row else None
    predicted = number(row.get("predicted_ms"))
    cells = [f"{row['part']}: {row['name']}", number(ours), *ratios, predicted, number(share),
             number(row.get("error")), row.get("problem", "") or row.get("note", "")]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--only", default="", help="one part")
    args = parser.parse_args()
    begin, rows = time.monotonic(), list[dict]()
    for part in PARTS:
        if args.only and part != args.only:
            continue
        limit_s = PARTS[part][0]
        end = min(time.monotonic() + limit_s, begin + TOTAL_S)
        rows += run(part, args.out, end, args.dry)
        for row in (r for r in rows if r["part"] == part):
            print(line(row), flush=True)
        (args.out / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    head = ["row", "luminal ms", "x eager", "x inductor", "predicted ms", "of the prediction",
            "error", ""]  # fmt: skip
    table = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *map(line, rows)]
    text = "\n".join([f"{time.monotonic() - begin:.0f} s in all\n", *table])
    (args.out / "table.md").write_text(text + "\n")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
