"""The log of updates in Redis: a stream whose entry ids are the numbers that Redis gives, mirrored by every host.

    {adsieve}:updates        stream; the entry SEQ-0 holds ``u``, one update as JSON, and ``c``, its CRC-32
    {adsieve}:updates-log    hash: id of the log, seq (last number given), floor (of compaction), run (of the server)

Mirrors are what brings updates back that Redis lost. Whoever sees that its mirror holds more than Redis of the same
log, or that Redis holds none, uploads the difference. A server that was restarted, or replaced by a replica, has
another run id: whoever appends first then waits a moment for the mirrors of running hosts, and goes on at a number that
was never given before, so that no host takes a new update for one that it has. Where a log was begun anew all the same,
a host carries the takedowns and used-up budgets of its own over before it follows: nothing revives an ad.
"""

import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from contracts.errors import AdsieveError, ArtifactError, InputError
from contracts.release import UpdatePosition
from indexing.lost_log import note_log
from indexing.redis_connect import Connection
from indexing.redis_stream import (
    BATCH,
    GO_ON,
    META,
    RESTORE,
    STREAM,
    State,
    append,
    batches,
    decode_entry,
    fields_of,
    parse_state,
    payload_of,
    seq_of,
    stopping,
)
from indexing.update_log import UpdateLog
from indexing.update_record import Update, Updates, check_update, encode_update

log = logging.getLogger(__name__)

GRACE_S = 2.0
LEAP = 1 << 20


class UpdateStream:
    """The stream and the mirror's log, kept equal.

    Args:
        connection: To Redis.
        mirror: The local log; used by this object alone in its thread.
        grace_s: How long the mirrors of running hosts have to bring back what a restarted Redis lost.
    """

    def __init__(self, connection: Connection, mirror: UpdateLog, *, grace_s: float = GRACE_S) -> None:
        self._connection, self._mirror, self._grace_s = connection, mirror, grace_s
        self._passed = ("", 0)
        self._noted: str | None = None

    def follow(self) -> None:
        """Bring the mirror up to the end of the stream, in order; and back into Redis what it lost.

        Raises:
            RedisError: Redis failed; what came before stays.
        """
        with self._connection.naming("reading updates"):
            end = self._mirror.end  # first: another process may mirror what Redis numbers meanwhile
            state = self._state()
            if end is not None and (state.id is None or (state.id == end.log and state.seq < end.seq)):
                self._restore(after=state.seq if state.id == end.log else 0)
                state = self._state()
            if state.id is None:
                return
            if end is None:
                self._mirror.append_mirrored([], log=state.id, floor=state.floor)
            if end is not None and end.log != state.id:
                self._begin_anew(end.log, state.id)
            else:
                self._read_on(state, end.seq if end is not None else 0)
        self._note()

    def _note(self) -> None:
        """Note in the mirror that there is a log; where that cannot be written, at the next call."""
        known = self._mirror.id
        if known is not None and known != self._noted:
            with suppress(OSError, AdsieveError):
                note_log(self._mirror.directory.parent, known)
                self._noted = known

    def trace(self) -> str | None:
        """What is left in Redis of a log whose updates are gone, in words; None where nothing is."""
        with self._connection.naming("reading updates"):
            left = parse_state(self._connection.client.hmget(META, "id", "seq", "floor", "run"))
            if left.id is None or self._state().id is not None:
                return None
        return f"the log of updates {left.id}, of which {self._connection.name} had numbers up to {left.seq}, is gone"

    def append(self, updates: Updates) -> UpdatePosition:
        """Append updates, all or none; in Redis when this returns, and as a rule in the mirror.

        Raises:
            InputError: An update holds a value that no reader could use.
            RedisError: Redis failed. Where it did so while it answered, the updates may be there all the same.
        """
        for place, update in enumerate(updates):
            try:
                check_update(update)
            except InputError as error:
                raise InputError(f"updates[{place}]: {error}") from None
        self.follow()
        with self._connection.naming("appending updates"):
            position = self._append(updates)
        try:
            self.follow()
        except ArtifactError as error:
            log.error("updates up to %d are in Redis, but not in the mirror: %s", position.seq, error)
        return position

    def compact(self) -> int:
        """Replace what the mirror's log has folded together; return by how many entries the stream became shorter."""
        import redis

        manifest, end = self._mirror.manifest(), self._mirror.end
        if manifest is None or end is None:
            return 0
        num_folded = sum(1 for _ in self._up_to(end.seq))
        aside = f"{STREAM}:{secrets.token_hex(8)}"
        client = self._connection.client
        with self._connection.naming("compacting updates"):
            before = client.xlen(STREAM)
            if before <= num_folded:
                return 0
            try:
                for batch in batches(self._up_to(end.seq)):
                    pipeline = client.pipeline(transaction=False)
                    for update in batch:
                        pipeline.xadd(aside, fields_of(encode_update(update)), id=f"{update.seq}-0")
                    pipeline.expire(aside, 600)
                    pipeline.execute()
                with client.pipeline() as transaction:
                    transaction.watch(META, STREAM)
                    state = parse_state(transaction.hmget(META, "id", "seq", "floor", "run"))
                    if state.id != end.log:
                        return 0
                    newer = transaction.xrange(STREAM, min=f"{end.seq + 1}-0")
                    transaction.multi()
                    for name, fields in newer:
                        transaction.xadd(aside, fields, id=name)
                    if num_folded or newer:
                        transaction.persist(aside)
                        transaction.rename(aside, STREAM)
                    transaction.hset(META, "floor", max(state.floor, manifest.floor))
                    transaction.execute()
            except redis.WatchError:  # somebody appended; the next prune will do
                return 0
            finally:
                client.delete(aside)
            return before - num_folded - len(newer)

    def _up_to(self, seq: int) -> Iterator[Update]:
        """The mirror's updates; another process may append newer ones to it meanwhile."""
        return (update for update in self._mirror.read() if update.seq <= seq)

    def _state(self) -> State:
        state = parse_state(self._connection.client.hmget(META, "id", "seq", "floor", "run"))
        lost = state.id is not None and state.seq > 0 and not self._connection.client.exists(STREAM)
        return State(None, 0, 0, "") if lost else state

    def _run(self) -> str:
        return str(self._connection.client.info("server")["run_id"])

    def _append(self, updates: Updates) -> UpdatePosition:
        for _ in range(5):
            end = self._mirror.end
            known = end.log if end is not None else self._begin()
            answer = append(self._connection.client, known, self._run(), updates)
            if answer == b"restarted":
                self._go_on(known)
            elif answer not in (b"other", b"lost"):
                return UpdatePosition(log=known, seq=int(answer))
            self.follow()
        raise ArtifactError(f"{self._connection.name}: the log of updates is replaced again and again")

    def _begin(self) -> str:
        """Begin a log, unless a running host brings back one meanwhile; return its id."""
        time.sleep(self._grace_s)
        self.follow()
        end = self._mirror.end
        if end is not None:
            return end.log
        new = secrets.token_hex(8)
        client = self._connection.client
        client.register_script(RESTORE)(keys=[META, STREAM], args=[new, 0])
        client.register_script(GO_ON)(keys=[META], args=[new, self._run(), LEAP])
        return new

    def _go_on(self, known: str) -> None:
        log.warning("%s was restarted: updates that it lost are awaited for %g s", self._connection.name, self._grace_s)
        time.sleep(self._grace_s)
        self.follow()
        self._connection.client.register_script(GO_ON)(keys=[META], args=[known, self._run(), LEAP])

    def _restore(self, after: int) -> None:
        manifest = self._mirror.manifest()
        if manifest is None:
            return
        log.warning("%s lost updates after number %d: they are uploaded again", self._connection.name, after)
        script = self._connection.client.register_script(RESTORE)
        for batch in batches(self._mirror.read(UpdatePosition(log=manifest.log, seq=after))):
            records = [part for update in batch for part in (update.seq, *payload_of(update))]
            if script(keys=[META, STREAM], args=[manifest.log, manifest.floor, *records]) == b"other":
                return

    def _read_on(self, state: State, end: int) -> None:
        """Mirror what comes after ``end``, or after damaged entries there that were passed over before."""
        log_id = str(state.id)
        if self._passed[0] == log_id:
            end = max(end, self._passed[1])
        while end < state.seq:
            entries = self._connection.client.xrange(STREAM, min=f"{end + 1}-0", count=BATCH)
            updates = [update for entry in entries if (update := self._decoded(*entry)) is not None]
            self._mirror.append_mirrored(updates, log=log_id, floor=state.floor)
            end = seq_of(entries[-1][0]) if entries else state.seq  # numbers leap at a restart
            self._passed = log_id, end

    def _decoded(self, name: bytes, fields: dict[bytes, bytes]) -> Update | None:
        try:
            return decode_entry(name, fields)
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            log.error("%s: update %d is damaged and skipped: %s", self._connection.name, seq_of(name), error)
            return None

    def _begin_anew(self, old: str, new: str) -> None:
        """Follow a log that was begun in place of the mirror's, once what must outlive that one is appended to it."""
        log.error(
            "%s: the log of updates was begun anew (%s, here %s): takedowns and used-up budgets are carried over, bids "
            "and statuses are as the indexes have them",
            *(self._connection.name, new, old),
        )
        client, stops = self._connection.client, stopping(self._mirror.read())
        for name, fields in client.xrange(STREAM):
            if (update := self._decoded(name, fields)) is not None:
                stops.pop(update.ad_id, None)  # what is said since counts
        if stops:
            append(client, new, self._state().run, stops.values())
        state = self._state()
        updates = [update for entry in client.xrange(STREAM) if (update := self._decoded(*entry)) is not None]
        self._mirror.append_mirrored(updates, log=str(state.id), floor=state.floor)
