"""Scores parts in several processes. A process that dies costs its part alone: the others finish theirs.

Parent and worker speak lines of JSON: the worker reads a :class:`Job`, then parts, and answers with rows as they are
done and with ``done`` or an error. When the parent dies, the worker reads the end of its input and stops.
"""

import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from contracts.errors import AdsieveError, InputError
from contracts.progress import Advance
from contracts.records import LogPaths
from heavy_ranker.score_parts import Part
from heavy_ranker.score_rows import PartScorer
from heavy_ranker.score_store import ScoreStore
from heavy_ranker.series import Teacher

Worker = subprocess.Popen[bytes]
Parts = queue.SimpleQueue[Part]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker scores with.

    Args:
        teacher: Its bundles are verified already.
        log: The log.
        store: Directory of its encoded requests and ads.
        threads: Of the graphs.
    """

    teacher: Teacher
    log: LogPaths
    store: str
    threads: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a worker: rows that are done since the last, whether the part is, or what went wrong."""

    rows: int = 0
    done: bool = False
    error: str | None = None
    exit_code: int = AdsieveError.exit_code


def run_workers(job: Job, parts: list[Part], workers: int, advance: Advance) -> None:
    """Score parts in at most ``workers`` processes; each takes the next part when it is done with one.

    Raises:
        InputError: The log breaks its contract.
        AdsieveError: A worker failed or died; the others have finished all other parts.
    """
    waiting: Parts = queue.SimpleQueue()
    for part in parts:
        waiting.put(part)
    lock = threading.Lock()

    def advance_safely(amount: int, *, note: str = "") -> None:
        with lock:
            advance(amount, note=note)

    processes = [_start(job) for _ in range(min(workers, len(parts)))]
    with ThreadPoolExecutor(len(processes)) as threads:
        try:
            failures = list(threads.map(lambda process: _drive(process, waiting, advance_safely), processes))
        finally:  # first, so that no thread is left waiting for an answer
            for process in processes:
                process.kill()
                process.wait()
    for failure in filter(None, failures):
        raise failure
    if not waiting.empty():
        raise AdsieveError("every worker ended before all parts were scored; call again to go on")


def _start(job: Job) -> Worker:
    environment = os.environ | {"OMP_NUM_THREADS": str(job.threads)}
    command = [sys.executable, "-m", "heavy_ranker.score_workers"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    )
    _send(process, job)
    return process


def _drive(process: Worker, waiting: Parts, advance: Advance) -> AdsieveError | None:
    """Hand parts to one worker until none is waiting; what went wrong with a part, if anything did."""
    while True:
        try:
            part = waiting.get_nowait()
        except queue.Empty:
            return None
        _send(process, part)
        answer = _until_done(process, advance)
        if answer is None:
            code = process.wait()
            ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            name = Path(part.target).name
            return AdsieveError(
                f"the worker that scored {name} ended {ended}; the other parts are kept, call again to go on"
            )
        if answer.error is not None:
            return (InputError if answer.exit_code == InputError.exit_code else AdsieveError)(answer.error)


def _send(process: Worker, message: msgspec.Struct) -> None:
    """A line to a worker; one that has died is found out when its answer is read."""
    if process.stdin is not None:
        try:
            process.stdin.write(msgspec.json.encode(message) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return


def _until_done(process: Worker, advance: Advance) -> Answer | None:
    """The last answer for a part; None where the worker has died."""
    for line in process.stdout or ():
        answer = msgspec.json.decode(line, type=Answer)
        if answer.done or answer.error is not None:
            return answer
        advance(answer.rows)
    return None


def main() -> None:
    """What a worker process runs."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer

    def answer(**fields: object) -> None:
        answers.write(msgspec.json.encode(msgspec.convert(fields, Answer)) + b"\n")
        answers.flush()

    scorer: PartScorer | None = None
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    for line in sys.stdin.buffer:
        try:
            scorer = scorer or PartScorer(job.teacher, ScoreStore(Path(job.store), job.log), threads=job.threads)
            scorer.score(msgspec.json.decode(line, type=Part), lambda amount, *, note="": answer(rows=amount))
            answer(done=True)
        except AdsieveError as error:
            answer(error=str(error), exit_code=error.exit_code)


if __name__ == "__main__":
    main()
