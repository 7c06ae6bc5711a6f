"""What the stream of updates in Redis consists of: keys, entries, and the scripts that change it in one step."""

import secrets
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from zlib import crc32

import msgspec

from indexing.redis_connect import PREFIX
from indexing.update_record import Update, decode_update, encode_update

STREAM, META = f"{PREFIX}updates", f"{PREFIX}updates-log"
BATCH = 1000

# KEYS: log, stream, list of payload and checksum of each; ARGV: id, run, length of the list. What was lost at a restart
# must come back first. The list, since Redis before version 7 takes a million arguments at most.
_APPEND = """
local known = redis.call('HMGET', KEYS[1], 'id', 'seq', 'run')
if known[1] ~= ARGV[1] then return 'other' end
if known[3] ~= ARGV[2] then return 'restarted' end
local seq, length = tonumber(known[2]), redis.call('LLEN', KEYS[3])
if length ~= tonumber(ARGV[3]) then return 'lost' end
for first = 0, length - 1, 1000 do
  local part = redis.call('LRANGE', KEYS[3], first, first + 999)
  for place = 1, #part, 2 do
    seq = seq + 1
    redis.call('XADD', KEYS[2], string.format('%.0f-0', seq), 'u', part[place], 'c', part[place + 1])
  end
end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq))
redis.call('DEL', KEYS[3])
return string.format('%.0f', seq)
"""
_STAGED_S = 600

# KEYS: log, stream; ARGV: id, floor, then number, payload and checksum of each. Never takes anything away.
RESTORE = """
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
GO_ON = """
local known = redis.call('HMGET', KEYS[1], 'id', 'seq', 'run')
if known[1] ~= ARGV[1] or known[3] == ARGV[2] then return 0 end
local seq, leap = tonumber(known[2]), tonumber(ARGV[3])
if seq > 0 then seq = (math.floor(seq / leap) + 1) * leap end
redis.call('HSET', KEYS[1], 'seq', string.format('%.0f', seq), 'run', ARGV[2])
return 1
"""


def append(client: Any, log: str, run: str, updates: Iterable[Update]) -> bytes:
    """Append to the stream, all or nothing.

    Returns:
        The last number; ``other`` where the log is another one, ``restarted`` where the server runs anew, ``lost``
        where it does not have what was just sent to it.
    """
    aside, length = f"{STREAM}:{secrets.token_hex(8)}", 0
    for batch in batches(updates):
        pipeline = client.pipeline(transaction=False)
        pipeline.rpush(aside, *(part for update in batch for part in payload_of(update)))
        pipeline.expire(aside, _STAGED_S)  # what a writer that died left goes by itself
        pipeline.execute()
        length += 2 * len(batch)
    return bytes(client.register_script(_APPEND)(keys=[META, STREAM, aside], args=[log, run, length]))


class State(msgspec.Struct, frozen=True):
    """What Redis says of the log; ``id`` is None where it holds none."""

    id: str | None
    seq: int
    floor: int
    run: str


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


def parse_state(values: list[bytes | None]) -> State:
    name, seq, floor, run = (None if value is None else value.decode() for value in values)
    return State(name, int(seq or 0), int(floor or 0), run or "")


def seq_of(name: bytes) -> int:
    return int(name.split(b"-")[0])


def checksum(payload: bytes) -> str:
    return f"{crc32(payload):08x}"


def payload_of(update: Update) -> tuple[bytes, str]:
    payload = encode_update(msgspec.structs.replace(update, seq=0))
    return payload, checksum(payload)


def fields_of(payload: bytes) -> dict[str, bytes | str]:
    return {"u": payload, "c": checksum(payload)}


def batches(updates: Any) -> Iterator[list[Update]]:
    updates = iter(updates)
    while batch := list(islice(updates, BATCH)):
        yield batch


def decode_entry(name: bytes, fields: dict[bytes, bytes]) -> Update:
    """The update of one entry; a ValueError where it is damaged."""
    payload = fields.get(b"u", b"")
    if fields.get(b"c", b"").decode("utf-8", "replace") != checksum(payload):
        raise ValueError("wrong checksum")
    return msgspec.structs.replace(decode_update(payload), seq=seq_of(name))
