-- The peer exchange of weights: each route and region has one ordered chain, to which a worker appends itself. The first
-- worker reads the store, every other one reads a worker before it. The receiver verifies what it reads, so a wrong answer
-- here costs time and never gives wrong weights.

local CHAIN_KEPT_MS = 3600000
local REPORTS_KEPT_MS = 600000
local REPORTS_MAX = 64
local ENOUGH_REPORTS = 2
local UPSTREAMS_MAX = 8
local LOOK_BACK = 64
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
  return tonumber(redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES', 'LIMIT', math.floor(known / 2), 1)[2])
end

-- Returns whether several workers have reported this of the peer. A single reporter may be the broken one.
local function reported(reports, reason)
  local reporters = 0
  for _, field in ipairs(reports) do
    if field:match('^(%a+) ') == reason then reporters = reporters + 1 end
  end
  return reporters >= ENOUGH_REPORTS
end

-- Returns why no worker may fetch from this one, a leaf; nil if workers may.
local function leaf_reason(run, worker, usual)
  local known = redis.call('HMGET', run.K['peer:' .. worker], 'address', 'rate', 'leaf')
  if not known[1] then return 'withdrawn' end
  if known[3] ~= '' then return known[3] end
  if known[1] == '' then return 'unreachable' end
  local rate = tonumber(known[2])
  if rate > 0 and rate < usual / 2 then return 'slow' end
  local reports = redis.call('HKEYS', run.K['reports:' .. worker])
  if reported(reports, 'bad') then return 'bad' end
  if reported(reports, 'unreachable') then return 'unreachable' end
  if reported(reports, 'dry') then return 'dry' end
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

-- Removes killed workers, which never withdraw: the fastest are checked at each call, the others by a window that moves
-- with time.
local function sweep_rates(run, region)
  local key = run.K['rates:' .. region]
  for _ = 1, SWEEPS_MAX do
    if forget_dead(run, key, redis.call('ZRANGE', key, 0, LOOK_BACK - 1, 'REV')) == 0 then break end
  end
  local begin = run.now % math.max(1, redis.call('ZCOUNT', key, '-inf', '+inf'))
  forget_dead(run, key, redis.call('ZRANGE', key, begin, begin + LOOK_BACK - 1))
end

-- Returns the upstream that each worker was sent to first. A worker that starts from scratch (`anew`) has nothing to give,
-- so its children count as sent to the store.
local function feeds_of(key, worker, anew)
  local feeds = hash(key)
  for child, upstream in pairs(feeds) do
    if anew and upstream == worker then
      redis.call('HSET', key, child, 'store')
      feeds[child] = 'store'
    end
  end
  return feeds
end

-- Returns how many workers were sent to each upstream, apart from `worker` itself.
local function children_of(feeds, worker)
  local children = {}
  for child, upstream in pairs(feeds) do
    if child ~= worker then children[upstream] = (children[upstream] or 0) + 1 end
  end
  return children
end

-- Returns name -> whether that worker is fed by `worker`, directly or through others. Each name is visited once.
local function descendants_of(feeds, worker)
  local known = { [worker] = true }
  for child in pairs(feeds) do
    local path, name = {}, child
    while name and known[name] == nil do
      known[name] = false
      path[#path + 1] = name
      name = feeds[name]
    end
    if name and known[name] then
      for _, one in ipairs(path) do known[one] = true end
    end
  end
  return known
end

-- Returns those of chain[1 … last] that may feed `worker`: the ones that feed the fewest first, then the nearest.
local function upstreams_of(run, worker, chain, last, usual, refused, feeds)
  local found, children, fed_by_it = {}, children_of(feeds, worker), descendants_of(feeds, worker)
  for place = last, math.max(1, last - LOOK_BACK + 1), -1 do
    local name = chain[place]
    if not fed_by_it[name] and not refused[name] and lives(run, name) and not leaf_reason(run, name, usual) then
      found[#found + 1] = { name, redis.call('HGET', run.K['peer:' .. name], 'address'), children[name] or 0, place }
      if #found == UPSTREAMS_MAX then break end
    end
  end
  table.sort(found, function(one, other)
    if one[3] ~= other[3] then return one[3] < other[3] end
    return one[4] > other[4]
  end)
  return found
end

-- Returns whether the region has a worker that could be an upstream and has not joined this chain yet. Only the fastest
-- workers are checked.
local function head_to_come(run, region, joined, usual)
  for _, name in ipairs(redis.call('ZRANGE', run.K['rates:' .. region], 0, LOOK_BACK - 1, 'REV')) do
    if not joined[name] and lives(run, name) and not leaf_reason(run, name, usual) then return true end
  end
  return false
end

-- Appends the worker, unless it is in the chain. A worker that starts from scratch (`anew`) under a name that was there goes
-- to the end, where the workers that have the whole route can feed it. Returns the chain, the worker's place in it, and the
-- place of each name.
local function append(key, worker, anew)
  if anew then redis.call('LREM', key, 0, worker) end
  local chain, joined = redis.call('LRANGE', key, 0, -1), {}
  for place, name in ipairs(chain) do joined[name] = place end
  if not joined[worker] then
    redis.call('RPUSH', key, worker)
    chain[#chain + 1] = worker
    joined[worker] = #chain
  end
  redis.call('PEXPIRE', key, CHAIN_KEPT_MS)
  return chain, joined[worker], joined
end

-- args: worker region route anew address rate leaf price, then the names of upstreams that the worker avoids.
-- A relay is fed by a worker before it in the chain; a leaf, which feeds no further worker, by any relay. No worker is fed
-- by one that it feeds, directly or through others: a leaf may have been a relay before, and no workers may wait in a circle.
local function join(keys, args)
  local run = open_run(keys)
  local K, worker = run.K, check_worker(args[1])
  local region = check_word(args[2], '^[%w_.-]+$', 'that is no region')
  local route = check_word(args[3], '^[%w_./-]+$', 'that is no route')
  local address = check_word(args[5], '^[%w_.:%[%]-]*$', 'that is no address')
  local rate = whole(args[6], 'the rate')
  local own = check_word(args[7], '^%l*$', 'that is no reason to be a leaf')
  refuse_unless(#args[8] <= WORD_MAX_BYTES and tonumber(args[8]), 'the price is no number')
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

  local chain, place, joined = append(K['chain:' .. region .. ':' .. route], worker, args[4] == '1')
  local refused = {}
  for position = 9, #args do refused[args[position]] = true end
  local usual = usual_rate(run, region)
  local leaf = leaf_reason(run, worker, usual) or ''
  local key = K['feeds:' .. region .. ':' .. route]
  local feeds = feeds_of(key, worker, args[4] == '1')
  local found = upstreams_of(run, worker, chain, leaf == '' and place - 1 or #chain, usual, refused, feeds)
  redis.call('HSET', key, worker, found[1] and found[1][1] or 'store')
  redis.call('PEXPIRE', key, CHAIN_KEPT_MS)
  local hold = leaf ~= '' and not found[1] and head_to_come(run, region, joined, usual)
  return { run.now, math.floor(usual), leaf, hold and 1 or 0, found }
end

-- args: worker peer reason (bad | unreachable | dry). Returns how many workers reported the same lately.
local function report(keys, args)
  local run = open_run(keys)
  local worker, peer = check_worker(args[1]), check_worker(args[2])
  refuse_unless(args[3] == 'bad' or args[3] == 'unreachable' or args[3] == 'dry', 'that is no reason to report a peer')
  local key = run.K['reports:' .. peer]
  if worker ~= peer and redis.call('HLEN', key) < REPORTS_MAX then
    redis.call('HSET', key, args[3] .. ' ' .. worker, run.now)
    redis.call('PEXPIRE', key, REPORTS_KEPT_MS)
    tally(run, 'peer_' .. args[3])
  end
  local reporters = 0
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if field:match('^(%a+) ') == args[3] then reporters = reporters + 1 end
  end
  return reporters
end

-- args: worker. Removes a worker that is leaving as an upstream of others.
local function withdraw(keys, args)
  local run = open_run(keys)
  local worker = check_worker(args[1])
  local region = redis.call('HGET', run.K['peer:' .. worker], 'region')
  if region then redis.call('ZREM', run.K['rates:' .. region], worker) end
  return redis.call('DEL', run.K['peer:' .. worker])
end

register('join', join)
register('report', report, 'allow-oom')
register('withdraw', withdraw, 'allow-oom')
