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
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from zlib import crc32

import msgspec

from contracts.errors import ArtifactError, InputError
from contracts.release import UpdatePosition
from indexing.redis_connect import PREFIX, Connection
from indexing.update_log import UpdateLog
from indexing.update_record import Update, check_update, decode_update, encode_update

log = logging.getLogger(__name__)

STREAM, META = f"{PREFIX}updates", f"{PREFIX}updates-log"
BATCH = 1000
GRACE_S = 2.0
LEAP = 1 << 20

# KEYS: log, stream; ARGV: id, run, then payload and checksum of each. What was lost at a restart must come back first.
_APPEND = """
local known = redis.call('HMGET', KEYS[1], 'id', 'seq', 'run')
if known[1] ~= ARGV[1] then return 'other' end
if known[3] ~= ARGV[2] then return 'restarted' end
local seq = tonumber(known[2])
for place = 3, #ARGV, 2 do
  seq = seq + 1
  redis.call('XADD', KEYS[2], string.format('%.0f-0', seq), 'u', ARGV[place], 'c', ARGV[place + 1])
end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq))
return string.format('%.0f', seq)
"""

# KEYS: log, stream; ARGV: id, floor, then number, payload and checksum of each. Never takes anything away.
_RESTORE = """
local id = redis.call('HGET', KEYS[1], 'id')
if id and redis.call('EXISTS', KEYS[2]) == 0 and tonumber(redis.call('HGET', KEYS[1], 'seq')) > 0 then id = false end
if not id then redis.call('HSET', KEYS[1], 'id', ARGV[1], 'seq', '0', 'floor', ARGV[2], 'run', '') end
if id and id ~= ARGV[1] then return 'other' end
local seq = tonumber(redis.call('HGET', KEYS[1], 'seq'))
for place = 3, #ARGV, 3 do
  if tonumber(ARGV[place]) > seq then
    seq = tonumber(ARGV[place])
    redis.call('XADD', KEYS[2], ARGV[place] .. '-0', 'u', ARGV[place + 1], 'c', ARGV[place + 2])
  end
end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq))
return 'done'
"""

# KEYS: log; ARGV: id, run, leap
_GO_ON = """
local known = redis.call('HMGET', KEYS[1], 'id', 'seq', 'run')
if known[1] ~= ARGV[1] or known[3] == ARGV[2] then return 0 end
local seq, leap = tonumber(known[2]), tonumber(ARGV[3])
if seq > 0 then seq = (math.floor(seq / leap) + 1) * leap end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq), 'run', ARGV[2])
return 1
"""


class State(msgspec.Struct, frozen=True):
    """What Redis says of the log; ``id`` is None where it holds none."""

    id: str | None
    seq: int
    floor: int
    run: str


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

    def follow(self) -> None:
        """Bring the mirror up to the end of the stream, in order; and back into Redis what it lost.

        Raises:
            RedisError: Redis failed; what came before stays.
        """
        with self._connection.naming("reading updates"):
            state, end = self._state(), self._mirror.end
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

    def append(self, updates: Sequence[Update]) -> UpdatePosition:
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
            position = self._append([encode_update(msgspec.structs.replace(update, seq=0)) for update in updates])
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
        folded = list(self._mirror.read())
        aside = f"{STREAM}:{secrets.token_hex(8)}"
        client = self._connection.client
        with self._connection.naming("compacting updates"):
            before = client.xlen(STREAM)
            if before <= len(folded):
                return 0
            try:
                for batch in _batches(folded):
                    pipeline = client.pipeline(transaction=False)
                    for update in batch:
                        pipeline.xadd(aside, _fields(encode_update(update)), id=f"{update.seq}-0")
                    pipeline.expire(aside, 600)
                    pipeline.execute()
                with client.pipeline() as transaction:
                    transaction.watch(META, STREAM)
                    state = _parse(transaction.hmget(META, "id", "seq", "floor", "run"))
                    if state.id != end.log:
                        return 0
                    newer = transaction.xrange(STREAM, min=f"{end.seq + 1}-0")
                    transaction.multi()
                    for name, fields in newer:
                        transaction.xadd(aside, fields, id=name)
                    if folded or newer:
                        transaction.persist(aside)
                        transaction.rename(aside, STREAM)
                    transaction.hset(META, "floor", max(state.floor, manifest.floor))
                    transaction.execute()
            except redis.WatchError:  # somebody appended; the next prune will do
                return 0
            finally:
                client.delete(aside)
            return before - len(folded) - len(newer)

    def _state(self) -> State:
        state = _parse(self._connection.client.hmget(META, "id", "seq", "floor", "run"))
        lost = state.id is not None and state.seq > 0 and not self._connection.client.exists(STREAM)
        return State(None, 0, 0, "") if lost else state

    def _run(self) -> str:
        return str(self._connection.client.info("server")["run_id"])

    def _append(self, payloads: list[bytes]) -> UpdatePosition:
        script = self._connection.client.register_script(_APPEND)
        fields = [part for payload in payloads for part in (payload, _checksum(payload))]
        for _ in range(5):
            end = self._mirror.end
            known = end.log if end is not None else self._begin()
            answer = script(keys=[META, STREAM], args=[known, self._run(), *fields])
            if answer == b"restarted":
                self._go_on(known)
            elif answer != b"other":
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
        client.register_script(_RESTORE)(keys=[META, STREAM], args=[new, 0])
        client.register_script(_GO_ON)(keys=[META], args=[new, self._run(), LEAP])
        return new

    def _go_on(self, known: str) -> None:
        log.warning("%s was restarted: updates that it lost are awaited for %g s", self._connection.name, self._grace_s)
        time.sleep(self._grace_s)
        self.follow()
        self._connection.client.register_script(_GO_ON)(keys=[META], args=[known, self._run(), LEAP])

    def _restore(self, after: int) -> None:
        manifest = self._mirror.manifest()
        if manifest is None:
            return
        log.warning("%s lost updates after number %d: they are uploaded again", self._connection.name, after)
        script = self._connection.client.register_script(_RESTORE)
        for batch in _batches(self._mirror.read(UpdatePosition(log=manifest.log, seq=after))):
            records = [part for update in batch for part in (update.seq, *_payload(update))]
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
            end = _seq(entries[-1][0]) if entries else state.seq  # numbers leap at a restart
            self._passed = log_id, end

    def _decoded(self, name: bytes, fields: dict[bytes, bytes]) -> Update | None:
        payload = fields.get(b"u", b"")
        try:
            if fields.get(b"c", b"").decode() != _checksum(payload):
                raise ValueError("wrong checksum")
            return msgspec.structs.replace(decode_update(payload), seq=_seq(name))
        except (ValueError, msgspec.DecodeError) as error:
            log.error("%s: update %d is damaged and skipped: %s", self._connection.name, _seq(name), error)
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
            records = [part for update in stops.values() for part in _payload(update)]
            client.register_script(_APPEND)(keys=[META, STREAM], args=[new, self._state().run, *records])
        state = self._state()
        updates = [update for entry in client.xrange(STREAM) if (update := self._decoded(*entry)) is not None]
        self._mirror.append_mirrored(updates, log=str(state.id), floor=state.floor)


def stopping(updates: Iterator[Update]) -> dict[str, Update]:
    """What keeps an ad from being served for ever, by ad: its takedown or its used-up budget in effect."""
    takedowns: dict[str, bool] = {}
    budgets: dict[str, Any] = {}
    times: dict[str, int] = {}
    for update in updates:
        times[update.ad_id] = update.at
        if update.takedown is not None:
            takedowns[update.ad_id] = update.takedown
        if update.budget is not msgspec.UNSET:
            budgets[update.ad_id] = update.budget
    stops = {}
    for ad_id, at in times.items():
        budget = budgets.get(ad_id)
        used_up = budget is not None and budget <= 0
        if takedowns.get(ad_id) or used_up:
            takedown = True if takedowns.get(ad_id) else None
            stops[ad_id] = Update(ad_id=ad_id, at=at, takedown=takedown, budget=budget if used_up else msgspec.UNSET)
    return stops


def _parse(values: list[bytes | None]) -> State:
    name, seq, floor, run = (None if value is None else value.decode() for value in values)
    return State(name, int(seq or 0), int(floor or 0), run or "")


def _seq(name: bytes) -> int:
    return int(name.split(b"-")[0])


def _checksum(payload: bytes) -> str:
    return f"{crc32(payload):08x}"


def _payload(update: Update) -> tuple[bytes, str]:
    payload = encode_update(msgspec.structs.replace(update, seq=0))
    return payload, _checksum(payload)


def _fields(payload: bytes) -> dict[str, bytes | str]:
    return {"u": payload, "c": _checksum(payload)}


def _batches(updates: Any) -> Iterator[list[Update]]:
    updates = iter(updates)
    while batch := list(islice(updates, BATCH)):
        yield batch
