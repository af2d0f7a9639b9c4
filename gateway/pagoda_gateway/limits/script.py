"""The store's script: what ledger.py does, in Lua, so that Redis or Valkey does it at once for all gateways. Pure: text and its arguments.

One script, one verb per call. A call that is repeated because its answer was lost changes nothing more. All keys of a tenant have one
hash tag. Times are the store's own, so that clocks of gateways do not matter.

    pagoda:{T}:running            hash    quota → requests under way
    pagoda:{T}:w:QUOTA:LEN:START  hash    r, t: requests and tokens of a window; ends with the window
    pagoda:{T}:gateways           zset    gateway → end of its lease
    pagoda:{T}:open:GATEWAY       hash    request → its record
    pagoda:{T}:reaped             hash    records of gateways that lost their lease; ends an hour after the last
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pagoda_gateway.limits.ledger import Ask, Verdict

Verb = Literal["reserve", "force", "adjust", "settle", "renew"]

SCRIPT: Final = """
local T, verb, gateway, now, lease, id = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local tokens, claim = tonumber(ARGV[6]), tonumber(ARGV[7])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
local function whole(number) return string.format('%.0f', number) end
local function add(record, more)
  for _, window in ipairs(record.w) do
    if redis.call('EXISTS', window[1]) == 1 then redis.call('HINCRBY', window[1], 't', whole(more)) end
  end
end
local function close(record, used)
  add(record, used - record.t)
  for _, quota in ipairs(record.c) do redis.call('HINCRBY', T .. ':running', quota, -1) end
end
local function late(used)
  local text = redis.call('HGET', T .. ':reaped', id)
  if not text then return end
  local record = cjson.decode(text)
  if used > record.k then
    add(record, used - record.k)
    record.k = used
    redis.call('HSET', T .. ':reaped', id, cjson.encode(record))
  end
end
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', T .. ':gateways', '-inf', whole(now))) do
  local open = redis.call('HGETALL', T .. ':open:' .. dead)
  for at = 1, #open, 2 do
    local record = cjson.decode(open[at + 1])
    close(record, record.k)
    redis.call('HSET', T .. ':reaped', open[at], open[at + 1])
  end
  if #open > 0 then redis.call('PEXPIRE', T .. ':reaped', 3600000) end
  redis.call('DEL', T .. ':open:' .. dead)
  redis.call('ZREM', T .. ':gateways', dead)
end
local mine = T .. ':open:' .. gateway
if verb == 'renew' then
  redis.call('ZADD', T .. ':gateways', whole(now + lease), gateway)
  return {1, whole(now)}
end
if verb == 'settle' or verb == 'adjust' then
  local text = redis.call('HGET', mine, id)
  if verb == 'settle' then
    if text then
      redis.call('HDEL', mine, id)
      close(cjson.decode(text), tokens)
    else
      late(tokens)
      redis.call('HDEL', T .. ':reaped', id)
    end
    return {1, whole(now)}
  end
  if not text then
    late(claim)
    return {1, whole(now)}
  end
  local record = cjson.decode(text)
  local more = tokens - record.t
  if more > 0 then
    for _, window in ipairs(record.w) do
      local taken = redis.call('HGET', window[1], 't')
      if taken and tonumber(taken) + more > window[2] then return {0, whole(now)} end
    end
  end
  add(record, more)
  record.t, record.k = tokens, math.min(claim, tokens)
  redis.call('HSET', mine, id, cjson.encode(record))
  return {1, whole(now)}
end
local again = redis.call('HEXISTS', mine, id) == 1
local limits, used, full = {}, {}, false
for at = 8, #ARGV, 4 do
  local limit = {quota = ARGV[at], kind = ARGV[at + 1], most = tonumber(ARGV[at + 2]), length = tonumber(ARGV[at + 3]), need = 1}
  if limit.kind == 't' then limit.need = tokens end
  local taken
  if limit.kind == 'c' then
    taken = redis.call('HGET', T .. ':running', limit.quota)
  else
    limit.left = limit.length - now % limit.length
    limit.key = T .. ':w:' .. limit.quota .. ':' .. whole(limit.length) .. ':' .. whole(now + limit.left - limit.length)
    taken = redis.call('HGET', limit.key, limit.kind)
  end
  taken = tonumber(taken or '0')
  if taken + limit.need > limit.most then full = true end
  limits[#limits + 1] = limit
  used[#used + 1] = taken
end
local answer = {1, whole(now)}
if again or (full and verb ~= 'force') then
  if not again then answer[1] = 0 end
  for _, taken in ipairs(used) do answer[#answer + 1] = whole(taken) end
  return answer
end
local windows, quotas = {}, {}
for at, limit in ipairs(limits) do
  if limit.kind == 'c' then
    redis.call('HINCRBY', T .. ':running', limit.quota, 1)
    quotas[#quotas + 1] = limit.quota
  else
    redis.call('HINCRBY', limit.key, limit.kind, whole(limit.need))
    redis.call('PEXPIRE', limit.key, whole(limit.left))
    if limit.kind == 't' then windows[#windows + 1] = {limit.key, limit.most} end
  end
  answer[#answer + 1] = whole(used[at] + limit.need)
end
redis.call('HSET', mine, id, cjson.encode({t = tokens, k = math.min(claim, tokens), w = windows, c = quotas}))
redis.call('ZADD', T .. ':gateways', whole(now + lease), gateway)
return answer
"""


def key(tenant: str) -> str:
    """Returns the script's one key, the beginning of all keys of a tenant."""
    return f"pagoda:{{{tenant}}}"


def arguments(verb: Verb, ask: Ask, gateway: str, lease_ms: int, now_ms: int = 0) -> list[str | int]:
    """Returns the script's arguments. `now_ms` 0: the store's own time."""
    limits = (word for slot in ask.slots for word in (slot.rule, slot.kind[0], slot.limit, slot.length_ms))
    return [verb, gateway, now_ms, lease_ms, ask.id, ask.tokens, ask.claim, *(limits if verb in ("reserve", "force") else ())]


def verdict(answer: Sequence[int | bytes | str]) -> Verdict:
    """Returns what the script said."""
    granted, now_ms, *used = map(int, answer)
    return Verdict(granted == 1, tuple(used), now_ms)
