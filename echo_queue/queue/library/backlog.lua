-- The backlog: sets of prompts as cursors over their shards. The cost of a set does not depend on its size.

local AHEAD = 100

local function load_set(run, name)
  local set = hash(run.K['set:' .. name])
  for _, field in ipairs({ 'epochs', 'chunks', 'prompts', 'arrived', 'count', 'epoch', 'next' }) do
    set[field] = tonumber(set[field])
  end
  set.name = name
  return set
end

local function served(set)
  return set.epoch * set.count + set.next
end

-- Returns the number of prompts that the set's cursor has passed and that are not admitted yet (`curriculum`).
local function candidates(run, set)
  return redis.call('ZCARD', run.K['candidates:' .. set.name])
end

-- Returns the prompts in the backlog, and the prompts that have not been submitted yet (both × epochs).
local function backlog_left(run)
  local left, missing = redis.call('LLEN', run.K.redo), 0
  for _, name in ipairs(redis.call('ZRANGE', run.K.backlog, 0, -1)) do
    local set = load_set(run, name)
    left = left + set.count * set.epochs - served(set) + candidates(run, set)
    missing = missing + (set.prompts - set.count) * set.epochs
  end
  return left, missing
end

-- Returns the number of prompts that no learner holds yet: not submitted, in the backlog, in tasks, or ready.
local function outside(run)
  local K, left, missing = run.K, backlog_left(run)
  return left + missing + redis.call('XLEN', K.tasks) + redis.call('XLEN', K.retry) + redis.call('ZCARD', K.ready)
end

-- What the rounds of the shuffle below add, for the seed and epoch asked for last: a memo of at most 4·√size numbers, since
-- a Redis that was lost may have a million positions to pass.
local rounds = { of = '' }

local function rounds_of(seed, epoch)
  local of = seed .. ':' .. epoch
  if rounds.of ~= of then rounds = { of = of, {}, {}, {}, {} } end
  return rounds
end

-- A permutation of 0 … size − 1 keyed by seed and epoch: a Feistel network over a square of cells at least as
-- large, walked until it lands inside. Nothing is stored in Redis.
local function shuffled(position, size, seed, epoch)
  local side, known = math.ceil(math.sqrt(size)), rounds_of(seed, epoch)
  repeat
    local left, right = math.floor(position / side), position % side
    for round = 1, 4 do
      local added = known[round][right]
      if not added then
        added = tonumber(redis.sha1hex(known.of .. ':' .. round .. ':' .. right):sub(1, 8), 16)
        known[round][right] = added
      end
      left, right = right, (left + added) % side
    end
    position = left * side + right
  until position < size
  return position
end

-- Returns the shard that serves a position of the set; the one found last is remembered.
local function shard_at(run, set, at)
  local shard = set.shard
  if not shard or at < shard.low or at > shard.high then
    local found = redis.call('ZRANGEBYSCORE', run.K['shards:' .. set.name], at, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local first, size, object = found[1]:match('^(%d+) (%d+) (.+)$')
    shard = { first = tonumber(first), count = tonumber(size), object = object, high = tonumber(found[2]) }
    shard.low = shard.high - shard.count + 1
    set.shard = shard
  end
  return shard
end

-- Returns the set's next prompt as (index, position) and moves its cursor; nil if it has none to serve now.
local function next_prompt(run, set)
  local complete = set.arrived == set.chunks
  if set.order == 'shuffled' and not complete then return nil end
  if set.next == set.count then
    if not complete or set.epoch + 1 == set.epochs then return nil end
    set.epoch, set.next = set.epoch + 1, 0
  end
  local at = set.next
  set.next = at + 1
  if set.order == 'shuffled' then -- whose shards lie by prompt index
    at = shuffled(at, set.count, set.seed, set.epoch)
    return at, at
  end
  local shard = shard_at(run, set, at)
  return shard.first + at - shard.low, at
end

local function save_cursor(run, set)
  if not set.moved then return end
  redis.call('HSET', run.K['set:' .. set.name], 'epoch', set.epoch, 'next', set.next)
  if set.arrived == set.chunks and served(set) == set.count * set.epochs and candidates(run, set) == 0 then
    redis.call('ZREM', run.K.backlog, set.name)
  end
end

-- A group's tokens as one byte above the buckets, to 9 per cent: 64 … 255, eight to a factor of two.
local function length_byte(tokens)
  return math.min(255, BUCKETS + 1 + math.floor(8 * math.log(1 + tokens) / math.log(2)))
end

-- Returns the groups and the tokens that a bucket has recorded.
local function read_bucket(text)
  local groups, tokens = (text or ''):match('^(%d+) (%d+)$')
  if not groups or #groups > 15 or #tokens > 15 then return 0, 0 end
  return tonumber(groups), tonumber(tokens)
end

-- Returns the expected length of a prompt's next group as a byte: that of its last group, or else the mean of its bucket;
-- nil if neither is known.
local function known_length(run, name, index)
  local byte = redis.call('GETRANGE', run.K['lengths:' .. name], index, index):byte() or 0
  if byte > BUCKETS then return byte end
  local bucket = name .. ' ' .. byte
  run.buckets[bucket] = run.buckets[bucket] or { read_bucket(redis.call('HGET', run.K['buckets:' .. name], byte)) }
  local groups, tokens = unpack(run.buckets[bucket])
  if groups > 0 then return length_byte(tokens / groups) end
end

-- Sets the expected length of each task's group, as a byte. A task of which nothing is known gets the mean of the others of
-- its set.
local function predict_lengths(run, tasks)
  local sums, counts = {}, {}
  for _, task in ipairs(tasks) do
    local name = task.set
    task.length = known_length(run, name, task.index)
    if task.length then
      sums[name], counts[name] = (sums[name] or 0) + task.length, (counts[name] or 0) + 1
    end
  end
  for _, task in ipairs(tasks) do
    task.length = task.length or (counts[task.set] and sums[task.set] / counts[task.set]) or 0
  end
end

-- Marks the tasks that are expected to be at least twice as long as the mean of these tasks.
local function mark_long(tasks)
  local sum = 0
  for _, task in ipairs(tasks) do sum = sum + task.length end
  for _, task in ipairs(tasks) do
    if task.length >= sum / #tasks + LONG_STEPS then task.long = 1 end
  end
end

-- Appends the prompts that one call has admitted to tasks: the longest expected ones first, so that not everyone waits for
-- them at the end.
local function dispatch(run)
  local tasks = run.admitted
  if run.longest_first and #tasks > 1 then
    predict_lengths(run, tasks)
    mark_long(tasks)
    for place, task in ipairs(tasks) do task.place = place end
    table.sort(tasks, function(a, b)
      if a.length ~= b.length then return a.length > b.length end
      return a.place < b.place
    end)
  end
  run.admitted = {}
  put_all(run, 'tasks', tasks)
end

local function take_up(run, id, name, epoch, index, shard, min_pv)
  table.insert(run.admitted, {
    id = id, set = name, epoch = epoch, index = index,
    shard = shard.object, first = shard.first, count = shard.count,
    attempt = 0, late = 0, kept = 0, long = 0, pv = run.v, min_pv = min_pv, lineage = run.lineage, at = run.now,
  })
end

-- Counts an id as trained if a checkpoint holds it and no cursor had passed it. Returns whether that is so.
local function settled_before(run, id)
  if redis.call('SREM', run.K.settled_ids, id) == 0 then return false end
  count(run, 'trained')
  return true
end

-- Reads the set's next prompts, at most `most`, into `set.ahead` without moving its cursor. `settled` asks in one command
-- which of them checkpoints hold: a Redis that was lost may have a million of these to pass.
local function look_ahead(run, set, most, settled)
  local epoch, next_ = set.epoch, set.next
  local ahead, ids = {}, {}
  for place = 1, most do
    local index, at = next_prompt(run, set)
    if not index then break end
    ids[place] = string.format('%s/%d/%d', set.name, set.epoch, index)
    ahead[place] = { id = ids[place], epoch = set.epoch, next = set.next, index = index, at = at }
  end
  if settled and #ids > 0 then
    for place, held in ipairs(redis.call('SMISMEMBER', run.K.settled_ids, unpack(ids))) do
      ahead[place].settled = held == 1
    end
  end
  set.epoch, set.next = epoch, next_
  set.ahead, set.taken = ahead, 0
end

-- Moves the set's cursor past its next prompt and returns it; nil if the set has none. One that a checkpoint holds is trained
-- already.
local function pass_next(run, set, settled)
  if not set.ahead or set.taken == #set.ahead then look_ahead(run, set, settled and AHEAD or 1, settled) end
  local prompt = set.ahead[set.taken + 1]
  if not prompt then return nil end
  set.taken, set.moved = set.taken + 1, true
  set.epoch, set.next = prompt.epoch, prompt.next
  if prompt.settled then run.passed[#run.passed + 1] = prompt.id end
  return prompt
end

-- Makes the set's next prompt a task. Returns 1, or 0 if a checkpoint holds it, or nil if the set has none.
local function admit_next(run, set, min_pv, settled)
  local prompt = pass_next(run, set, settled)
  if not prompt then return nil end
  if prompt.settled then return 0 end
  take_up(run, prompt.id, set.name, prompt.epoch, prompt.index, shard_at(run, set, prompt.at), min_pv)
  return 1
end

-- Makes that prompt a task of which the curriculum expects most, among those that the cursor has passed. Returns 1, 0 or nil
-- as `admit_next`. A curriculum that was turned off has left candidates, which are served first.
local function admit_chosen(run, set, min_pv, settled)
  local key, count, passed = run.K['candidates:' .. set.name], candidates(run, set), nil
  local room = run.curriculum == 'off' and 0 or math.min(curriculum.TAKEN, run.curriculum_window - count)
  for _ = 1, curriculum.PASSED_MAX do
    local prompt = room > 0 and pass_next(run, set, settled)
    if not prompt then break end
    passed = 0
    if not prompt.settled then
      redis.call('ZADD', key, 0, string.format('%d/%d/%d', prompt.epoch, prompt.index, prompt.at))
      count, room = count + 1, room - 1
    end
  end
  if count == 0 then return passed end
  local member = curriculum.choose(run, set, count, served(set))
  local epoch, index, at = member:match('^(%d+)/(%d+)/(%d+)$')
  local id = set.name .. '/' .. epoch .. '/' .. index
  redis.call('ZREM', key, member)
  set.moved = true
  if settled_before(run, id) then return 0 end
  take_up(run, id, set.name, tonumber(epoch), tonumber(index), shard_at(run, set, tonumber(at)), min_pv)
  return 1
end

-- Counts the prompts that one call has passed as trained, because checkpoints hold them.
local function count_passed(run)
  if #run.passed > 0 then count(run, 'trained', redis.call('SREM', run.K.settled_ids, unpack(run.passed))) end
  run.passed = {}
end

-- Returns all shards of a set in the order of their prompts; they are read once per call.
local function shards_of(run, name)
  if not run.shards[name] then
    local shards = {}
    for place, member in ipairs(redis.call('ZRANGE', run.K['shards:' .. name], 0, -1)) do
      local first, size, object = member:match('^(%d+) (%d+) (.+)$')
      shards[place] = { first = tonumber(first), count = tonumber(size), object = object }
    end
    table.sort(shards, function(a, b) return a.first < b.first end)
    run.shards[name] = shards
  end
  return run.shards[name]
end

local function shard_of(run, name, index)
  local shards = shards_of(run, name)
  local low, high = 1, #shards
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if shards[middle].first <= index then low = middle else high = middle - 1 end
  end
  return shards[low]
end

-- Makes a prompt a task again that was trained in weights since left behind. Returns 1, 0 or nil as `admit_next`.
local function admit_again(run, min_pv)
  local id = redis.call('LPOP', run.K.redo)
  if not id then return nil end
  if settled_before(run, id) then return 0 end
  local name, epoch, index = id:match('^(.+)/(%d+)/(%d+)$')
  take_up(run, id, name, epoch, index, shard_of(run, name, tonumber(index)), min_pv)
  return 1
end

-- Moves backlog to tasks while bound and pace allow. With n groups admitted and untrained the next one is due at update
-- u = v + floor(n/B) and needs weights of u − S at least. Bound: those are published. Pace: n < w·B. Returns how many
-- were admitted, and whether the call ended at its own limit, so that another one may move more.
local function admit(run)
  if not run.published then return 0, false end
  local K = run.K
  local n = redis.call('XLEN', K.tasks) + redis.call('XLEN', K.retry) + redis.call('XLEN', K.replay) - run.uncommitted
  local admitted, looked, full = 0, 0, false
  local most = run.curriculum == 'off' and ADMIT_MAX or curriculum.ADMIT_MAX
  local function admit_from(source)
    repeat
      local min_pv = math.max(0, run.v + math.floor(n / run.batch) - run.s)
      full = min_pv > run.published or (run.pace and n >= run.window * run.batch) or looked == most
      local came = not full and source(min_pv)
      if came then n, admitted, looked = n + came, admitted + came, looked + 1 end
    until not came
  end
  admit_from(function(min_pv) return admit_again(run, min_pv) end)
  local settled = redis.call('EXISTS', K.settled_ids) == 1
  for _, name in ipairs(redis.call('ZRANGE', K.backlog, 0, -1)) do
    if full then break end
    local set = load_set(run, name)
    local chosen = run.curriculum ~= 'off' or candidates(run, set) > 0
    admit_from(function(min_pv)
      return chosen and admit_chosen(run, set, min_pv, settled) or admit_next(run, set, min_pv, settled)
    end)
    save_cursor(run, set)
  end
  count_passed(run)
  dispatch(run)
  if admitted > 0 then
    count(run, 'admitted', admitted)
    tell(run, 'admitted', admitted)
  end
  return admitted, looked == most
end

-- Returns whether a list of digests, separated by spaces, has that one.
local function lists(digests, digest)
  return (' ' .. digests .. ' '):find(' ' .. digest .. ' ', 1, true) ~= nil
end

-- Returns the digest of a set's prompts as they were declared last, and those of earlier declarations, in which chunks
-- could not be read; nil if nothing is known of that name.
local function digests_of(run, name)
  return redis.call('HGET', run.K.digests, name) or nil
end

register('admit', function(keys)
  local admitted, more = admit(open_run(keys))
  return { admitted, more and 1 or 0 }
end)
