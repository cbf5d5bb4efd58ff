-- The peer exchange of weights: each route and region has one ordered chain, to which a worker appends itself. The first
-- worker reads the store, every other one reads a worker before it. The receiver verifies what it reads, so a wrong answer
-- here costs time and never gives wrong weights.

local CHAIN_KEPT_MS = 3600000
local REPORTS_KEPT_MS = 600000
local REPORTS_MAX = 64
local ENOUGH_REPORTS = 2
local BLAMED_SHARE = 4
local REASONS = { 'bad', 'unreachable', 'dry' }
local UPSTREAMS_MAX = 8
local LOOK_BACK = 64
local LOOK_AT_ONCE = 16
local SWEPT_AT_ONCE = 8
local SWEEPS_MAX = 4

local function check_word(text, form, what)
  refuse_unless(#text <= WORD_MAX_BYTES and text:match(form), what)
  return text
end

-- The median of the region's known rates (bytes/s), the higher of the two in the middle; 0 if none is known.
local function usual_rate(run, region)
  local key = run.K['rates:' .. region]
  local known = redis.call('ZCOUNT', key, '(0', '+inf')
  if known == 0 then return 0 end
  local middle = redis.call('ZCARD', key) - known + math.floor(known / 2)
  return tonumber(redis.call('ZRANGE', key, middle, middle, 'WITHSCORES')[2])
end

-- Returns how many workers have lately reported this of the peer.
local function reporters_of(run, peer, reason)
  local reporters = 0
  for _, field in ipairs(redis.call('HKEYS', run.K['reports:' .. peer])) do
    if field:match('^(%a+) ') == reason then reporters = reporters + 1 end
  end
  return reporters
end

-- Returns for what the peer is blamed; nil if it is not. A single reporter may be the broken one.
local function blame_of(run, peer, region)
  local blamed = redis.call('ZSCORE', run.K['blamed:' .. region], peer)
  if not blamed or tonumber(blamed) < run.now then return nil end
  for _, reason in ipairs(REASONS) do
    if reporters_of(run, peer, reason) >= ENOUGH_REPORTS then return reason end
  end
end

-- Blames a peer that enough workers have reported. Workers share their rights, so one may forge the reports of others:
-- a quarter of a region is blamed at most, and at least one worker.
local function blame(run, peer)
  local region = redis.call('HGET', run.K['peer:' .. peer], 'region')
  if not region then return end
  local key = run.K['blamed:' .. region]
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. run.now)
  local most = math.max(1, math.floor(redis.call('ZCARD', run.K['rates:' .. region]) / BLAMED_SHARE))
  if redis.call('ZSCORE', key, peer) or redis.call('ZCARD', key) < most then
    redis.call('ZADD', key, run.now + REPORTS_KEPT_MS, peer)
    redis.call('PEXPIRE', key, REPORTS_KEPT_MS)
  end
end

-- Returns why no worker may fetch from this one, a leaf; or nil and its address if workers may.
local function leaf_reason(run, worker, usual)
  local known = redis.call('HMGET', run.K['peer:' .. worker], 'address', 'rate', 'leaf', 'region')
  if not (known[1] and known[2] and known[3] and known[4]) then return 'withdrawn' end
  if known[3] ~= '' then return known[3] end
  if known[1] == '' then return 'unreachable' end
  local rate = tonumber(known[2]) or 0
  if rate > 0 and rate < usual / 2 then return 'slow' end
  local reason = blame_of(run, worker, known[4])
  if reason then return reason end
  return nil, known[1]
end

local function lives(run, worker)
  return redis.call('EXISTS', run.K['worker:' .. worker]) == 1
end

-- Removes the dead workers among `names` from the region's rates. Returns how many these were.
local function forget_dead(run, key, names)
  local dead = 0
  for _, name in ipairs(names) do
    if not lives(run, name) then dead = dead + redis.call('ZREM', key, name) end
  end
  return dead
end

-- Removes killed workers, which never withdraw: at each call a few are checked, of the fastest and in a window that moves with
-- time.
local function sweep_rates(run, region)
  local key = run.K['rates:' .. region]
  for _ = 1, SWEEPS_MAX do
    if forget_dead(run, key, redis.call('ZRANGE', key, 0, SWEPT_AT_ONCE - 1, 'REV')) == 0 then break end
  end
  local begin = run.now % math.max(1, redis.call('ZCARD', key))
  forget_dead(run, key, redis.call('ZRANGE', key, begin, begin + SWEPT_AT_ONCE - 1))
end

-- Returns to whom the worker was sent first: a name, its place then, and the highest place among those that fed it directly or
-- through others; the places are 0 for the store.
local function edge_of(run, at, worker)
  local upstream, place, above = (redis.call('HGET', run.K['feeds:' .. at], worker) or ''):match('^(%S+) (%d+) (%d+)$')
  return upstream, tonumber(place or 0), tonumber(above or 0)
end

-- Returns the place of the worker in the chain, at whose end it is put if it has none. A worker that starts from scratch
-- (`anew`) under a name that was there also goes to the end, where the workers that have the whole route can feed it; it has
-- nothing to give, so those it fed no longer count.
local function take_place(run, at, worker, anew)
  local chain = run.K['chain:' .. at]
  local place = redis.call('ZSCORE', chain, worker)
  if place and not anew then return tonumber(place) end
  if place then redis.call('HDEL', run.K['fed:' .. at], worker .. ' ' .. place) end
  place = tonumber(redis.call('ZRANGE', chain, -1, -1, 'WITHSCORES')[2] or 0) + 1
  redis.call('ZADD', chain, place, worker)
  return place
end

-- Returns how many workers were sent to that upstream ("<name> <place>") first.
local function sent_to(run, at, upstream)
  return math.max(0, tonumber(redis.call('HGET', run.K['fed:' .. at], upstream) or 0) or 0)
end

-- Notes to whom the worker is sent first: { name, place } or nil for the store.
local function send_to(run, at, worker, chosen)
  local feeds, fed = run.K['feeds:' .. at], run.K['fed:' .. at]
  local upstream, place = edge_of(run, at, worker)
  local before, now = upstream and upstream .. ' ' .. place, chosen and chosen[1] .. ' ' .. chosen[4]
  if before ~= now then
    local others = before and sent_to(run, at, before) - 1
    if others and others >= 0 then redis.call('HSET', fed, before, others) end
    if now then redis.call('HSET', fed, now, sent_to(run, at, now) + 1) end
  end
  local _, _, above = edge_of(run, at, chosen and chosen[1] or '')
  redis.call('HSET', feeds, worker, now and now .. ' ' .. math.max(chosen[4], above) or 'store')
  for _, name in ipairs({ 'chain:', 'feeds:', 'fed:' }) do redis.call('PEXPIRE', run.K[name .. at], CHAIN_KEPT_MS) end
end

-- Returns those that may feed `worker`, looking back from `last`: those that feed the fewest first, then the nearest.
-- Nobody is fed by one that it feeds, directly or through others. Whoever feeds somebody is therefore fed only from before its
-- own place, by one whose own sources all are before that place too. Whoever feeds nobody may be fed by anyone.
local function upstreams_of(run, at, worker, place, last, usual, refused)
  local found, counts = {}, {}
  local feeds_others = sent_to(run, at, worker .. ' ' .. place) > 0
  local function look(name, its_place)
    if name == worker or refused[name] or not lives(run, name) then return end
    if feeds_others then
      local _, _, above = edge_of(run, at, name)
      if its_place > place or above >= place then return end
    end
    local leaf, address = leaf_reason(run, name, usual)
    if leaf then return end
    found[#found + 1] = { name, address, 0, its_place }
    counts[#counts + 1] = name .. ' ' .. its_place
  end
  for from = 0, LOOK_BACK - 1, LOOK_AT_ONCE do
    local rows = redis.call('ZRANGE', run.K['chain:' .. at], last, '-inf', 'BYSCORE', 'REV', 'LIMIT', from, LOOK_AT_ONCE, 'WITHSCORES')
    for row = 1, #rows, 2 do
      if #found < UPSTREAMS_MAX then look(rows[row], tonumber(rows[row + 1])) end
    end
    if #found == UPSTREAMS_MAX or #rows < 2 * LOOK_AT_ONCE then break end
  end
  if not found[1] then return found end
  local own, own_place = edge_of(run, at, worker)
  for row, children in ipairs(redis.call('HMGET', run.K['fed:' .. at], unpack(counts))) do
    local itself = found[row][1] == own and found[row][4] == own_place and 1 or 0
    found[row][3] = math.max(0, (tonumber(children or 0) or 0) - itself)
  end
  table.sort(found, function(one, other)
    if one[3] ~= other[3] then return one[3] < other[3] end
    return one[4] > other[4]
  end)
  return found
end

-- Returns whether the region has a worker that could be an upstream and has not joined this chain yet. Only the fastest
-- workers are checked.
local function head_to_come(run, region, chain, usual)
  for _, name in ipairs(redis.call('ZRANGE', run.K['rates:' .. region], 0, LOOK_BACK - 1, 'REV')) do
    if not redis.call('ZSCORE', chain, name) and lives(run, name) and not leaf_reason(run, name, usual) then return true end
  end
  return false
end

-- args: worker region route anew address rate leaf price, then the names of upstreams that the worker avoids.
-- A relay is fed by a worker before it in the chain; a leaf, which feeds no further worker, by any relay. No worker is fed
-- by one that it feeds, directly or through others: a leaf may have been a relay before, and no workers may wait in a circle.
local function join(keys, args)
  local run = open_run(keys)
  local K, worker = run.K, own_name(run, args[1])
  local region = check_word(args[2], '^[%w_.-]+$', 'that is no region')
  local route = check_word(args[3], '^[%w_./-]+$', 'that is no route')
  local address = check_word(args[5], '^[%w_.:%[%]-]*$', 'that is no address')
  local rate = whole(args[6], 'the rate')
  local own = check_word(args[7], '^%l*$', 'that is no reason to be a leaf')
  finite(args[8], 'the price')
  redis.call('HSET', K['peer:' .. worker], 'region', region, 'address', address, 'rate', rate, 'leaf', own,
    'usd_per_gb', args[8])
  redis.call('PEXPIRE', K['peer:' .. worker], CHAIN_KEPT_MS)
  sweep_rates(run, region)
  if own == 'leaving' then
    redis.call('ZREM', K['rates:' .. region], worker)
  else
    redis.call('ZADD', K['rates:' .. region], rate, worker)
  end
  redis.call('PEXPIRE', K['rates:' .. region], CHAIN_KEPT_MS)

  local at, refused = region .. ':' .. route, {}
  for position = 9, #args do refused[args[position]] = true end
  local place = take_place(run, at, worker, args[4] == '1')
  local usual = usual_rate(run, region)
  local leaf = leaf_reason(run, worker, usual) or ''
  local found = upstreams_of(run, at, worker, place, leaf == '' and '(' .. place or '+inf', usual, refused)
  send_to(run, at, worker, found[1])
  local hold = leaf ~= '' and not found[1] and head_to_come(run, region, K['chain:' .. at], usual)
  return { run.now, math.floor(usual), leaf, hold and 1 or 0, found }
end

-- args: worker peer reason (bad | unreachable | dry). Returns how many workers reported the same lately.
local function report(keys, args)
  local run = open_run(keys)
  local worker, peer = own_name(run, args[1]), check_worker(args[2])
  local known = false
  for _, reason in ipairs(REASONS) do known = known or reason == args[3] end
  refuse_unless(known, 'that is no reason to report a peer')
  local key = run.K['reports:' .. peer]
  if worker ~= peer and redis.call('HLEN', key) < REPORTS_MAX then
    redis.call('HSET', key, args[3] .. ' ' .. worker, run.now)
    redis.call('PEXPIRE', key, REPORTS_KEPT_MS)
    tally(run, 'peer_' .. args[3])
  end
  local reporters = reporters_of(run, peer, args[3])
  if reporters >= ENOUGH_REPORTS then blame(run, peer) end
  return reporters
end

-- args: worker. Removes a worker that is leaving as an upstream of others.
local function withdraw(keys, args)
  local run = open_run(keys)
  local worker = own_name(run, args[1])
  local region = redis.call('HGET', run.K['peer:' .. worker], 'region')
  if region then
    redis.call('ZREM', run.K['rates:' .. region], worker)
    redis.call('ZREM', run.K['blamed:' .. region], worker)
  end
  return redis.call('DEL', run.K['peer:' .. worker])
end

register('join', join)
register('report', report, 'allow-oom')
register('withdraw', withdraw, 'allow-oom')
