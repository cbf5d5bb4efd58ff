-- The backlog: sets of prompts as cursors over their shards. The cost of a set does not depend on its size.

-- Bits that one command sets: each takes four words of it, for which Lua's stack has room.
local BITS_AT_ONCE = 500
-- The order of a set that is never trained.
local HELD_OUT = 'held_out'

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

-- Returns the prompts of a set that are in the backlog, and those that have not been submitted yet (both × epochs).
local function left_of(run, name)
  local set = load_set(run, name)
  return set.count * set.epochs - served(set) + candidates(run, set), (set.prompts - set.count) * set.epochs
end

-- Returns the same of all sets, with the prompts that were trained in weights left behind.
local function backlog_left(run)
  local left, missing = redis.call('LLEN', run.K.redo), 0
  for _, name in ipairs(redis.call('ZRANGE', run.K.backlog, 0, -1)) do
    local of_set, of_set_missing = left_of(run, name)
    left, missing = left + of_set, missing + of_set_missing
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

-- Returns whether the cursor of the set has a prompt to serve now.
local function has_next(set)
  local complete = set.arrived == set.chunks
  if set.order == 'shuffled' and not complete then return false end
  return set.next < set.count or (complete and set.epoch + 1 < set.epochs)
end

-- Returns whether a chunk of the set is on its way.
local function is_awaited(set)
  return set.arrived + (tonumber(set.failed) or 0) < set.chunks
end

-- Returns the set's next prompt as (index, position) and moves its cursor; nil if it has none to serve now.
local function next_prompt(run, set)
  if not has_next(set) then return nil end
  if set.next == set.count then set.epoch, set.next = set.epoch + 1, 0 end
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
  if #tasks > 1 and run.longest_first then
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

-- Returns the task of a prompt that nobody has had yet, with the versions that it is tagged with.
local function fresh_task(run, id, name, epoch, index, shard, pv, min_pv, lineage)
  return {
    id = id, set = name, epoch = epoch, index = index,
    shard = shard.object, first = shard.first, count = shard.count,
    attempt = 0, late = 0, kept = 0, long = 0, pv = pv, min_pv = min_pv, lineage = lineage, at = run.now,
  }
end

local function take_up(run, id, name, epoch, index, shard, min_pv)
  table.insert(run.admitted, fresh_task(run, id, name, epoch, index, shard, run.v, min_pv, run.lineage))
end

-- Returns the epoch of a task's set as `settled` names it, and the index of its prompt.
local function prompt_of(id)
  local epoch, index = id:match('^(.+/%d+)/(%d+)$')
  return epoch, tonumber(index)
end

-- Adds the index of a prompt to those of its epoch.
local function note_index(indices, epoch, index)
  local of_epoch = indices[epoch] or {}
  of_epoch[#of_epoch + 1], indices[epoch] = index, of_epoch
end

-- Sets the bits of these prompts of an epoch in `settled`. Returns how many of them changed.
local function set_bits(run, epoch, indices, bit)
  local key, changed = run.K['settled:' .. epoch], 0
  for first = 1, #indices, BITS_AT_ONCE do
    local words = {}
    for place = first, math.min(first + BITS_AT_ONCE - 1, #indices) do
      local at = #words
      words[at + 1], words[at + 2], words[at + 3], words[at + 4] = 'SET', 'u1', indices[place], bit
    end
    for _, before in ipairs(redis.call('BITFIELD', key, unpack(words))) do
      if before ~= bit then changed = changed + 1 end
    end
  end
  if changed == 0 then return 0 end
  local left = redis.call('HINCRBY', run.K.settled, epoch, bit == 1 and changed or -changed)
  if left == 0 then
    redis.call('DEL', key)
    redis.call('HDEL', run.K.settled, epoch)
  end
  return changed
end

-- Returns whether a prompt's bit in `settled` is set.
local function holds(run, epoch, index)
  return run.settled[epoch] and redis.call('GETBIT', run.K['settled:' .. epoch], index) == 1
end

-- Returns whether checkpoints hold a prompt that is about to be admitted; it is trained then, which `count_passed` counts.
local function settled_before(run, epoch, index)
  if not holds(run, epoch, index) then return false end
  note_index(run.passed, epoch, index)
  run.to_pass = run.to_pass - 1
  return true
end

-- Moves the set's cursor past its next prompt. Returns its index and position, and whether it is trained already; nil if the
-- set has none.
local function pass_next(run, set)
  local index, at = next_prompt(run, set)
  if not index then return nil end
  set.moved = true
  return index, at, next(run.settled) and settled_before(run, set.name .. '/' .. set.epoch, index)
end

-- Makes the set's next prompt a task, and passes those before it that are trained already. Returns 1; 0 if it may not pass
-- any more in this call; nil if the set has none.
local function admit_next(run, set, min_pv)
  while run.to_pass > 0 do
    local index, at, settled = pass_next(run, set)
    if not index then return nil end
    if not settled then
      local id = string.format('%s/%d/%d', set.name, set.epoch, index)
      take_up(run, id, set.name, set.epoch, index, shard_at(run, set, at), min_pv)
      return 1
    end
  end
  return 0
end

-- Makes that prompt a task of which the curriculum expects most, among those that the cursor has passed. Returns 1, 0 or nil
-- as `admit_next`. A curriculum that was turned off has left candidates, which are served first.
local function admit_chosen(run, set, min_pv)
  local key, count, passed = run.K['candidates:' .. set.name], candidates(run, set), nil
  local room = run.curriculum == 'off' and 0 or math.min(curriculum.TAKEN, run.curriculum_window - count)
  while room > 0 and run.to_pass > 0 do
    local index, at, settled = pass_next(run, set)
    if not index then break end
    passed = 0
    if not settled then
      redis.call('ZADD', key, 0, string.format('%d/%d/%d', set.epoch, index, at))
      count, room = count + 1, room - 1
    end
  end
  if count == 0 then return passed end
  local member = curriculum.choose(run, set, count, served(set))
  local epoch, index, at = member:match('^(%d+)/(%d+)/(%d+)$')
  redis.call('ZREM', key, member)
  set.moved = true
  local of_set = set.name .. '/' .. epoch
  if settled_before(run, of_set, tonumber(index)) then return 0 end
  local shard = shard_at(run, set, tonumber(at))
  take_up(run, of_set .. '/' .. index, set.name, tonumber(epoch), tonumber(index), shard, min_pv)
  return 1
end

-- Counts the prompts that one call has passed as trained, because checkpoints hold them.
local function count_passed(run)
  for epoch, indices in pairs(run.passed) do count(run, 'trained', set_bits(run, epoch, indices, 0)) end
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
  local id = redis.call('LINDEX', run.K.redo, 0)
  if not id then return nil end
  local name, epoch, index = id:match('^(.+)/(%d+)/(%d+)$')
  local shard = shard_of(run, name, tonumber(index))
  local settled = settled_before(run, name .. '/' .. epoch, tonumber(index))
  redis.call('LPOP', run.K.redo) -- only now: what cannot be read leaves no prompt behind
  if settled then return 0 end
  take_up(run, id, name, epoch, index, shard, min_pv)
  return 1
end

-- Returns a set of the backlog, and notes whether prompts wait there for a choice.
local function open_set(run, name)
  local set = load_set(run, name)
  set.chosen = run.curriculum ~= 'off' or candidates(run, set) > 0
  return set
end

-- Makes a prompt of the set a task. Returns 1, 0 or nil as `admit_next`.
local function admit_of(run, set, min_pv)
  return set.chosen and admit_chosen(run, set, min_pv) or admit_next(run, set, min_pv)
end

-- Returns the set that serves a component's next prompt; nil if none has one now. Notes whether one is awaited.
local function serving(run, component)
  while component.place <= #component.sets do
    local set = component.set or open_set(run, component.sets[component.place])
    component.set = set
    if not set.spent and (has_next(set) or (set.chosen and candidates(run, set) > 0)) then return set end
    component.waits = component.waits or is_awaited(set)
    save_cursor(run, set)
    component.set, component.place = nil, component.place + 1
  end
end

-- Makes a prompt a task of the component whose turn it is. Returns 1, 0 or nil as `admit_next`; nil also if the prompts of that
-- component are on their way.
local function admit_by_weight(run, components, takes_part, min_pv)
  while true do
    local component = mixture.choose(components, takes_part)
    local set = component and serving(run, component)
    if not set then return nil end
    local came = admit_of(run, set, min_pv)
    if came then return came end
    set.spent = true
  end
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
  local components = mixture.is_set(run) and mixture.open(run)
  local function takes_part(component)
    return serving(run, component) ~= nil or component.waits
  end
  local function admit_from(source)
    repeat
      local min_pv = math.max(0, run.v + math.floor(n / run.batch) - run.s)
      full = min_pv > run.published or (run.pace and n >= run.window * run.batch) or looked == most or run.to_pass <= 0
      local came = not full and source(min_pv)
      if came then n, admitted, looked = n + came, admitted + came, looked + 1 end
      if components and came == 1 then
        mixture.charge(run, components, takes_part, run.admitted[#run.admitted].set)
      end
    until not came
  end
  admit_from(function(min_pv) return admit_again(run, min_pv) end)
  if components then
    admit_from(function(min_pv) return admit_by_weight(run, components, takes_part, min_pv) end)
    for _, component in ipairs(components) do
      if component.set then save_cursor(run, component.set) end
    end
    if admitted > 0 then mixture.save(run, components) end
  else
    for _, name in ipairs(redis.call('ZRANGE', K.backlog, 0, -1)) do
      if full then break end
      local set = open_set(run, name)
      admit_from(function(min_pv) return admit_of(run, set, min_pv) end)
      save_cursor(run, set)
    end
  end
  dispatch(run)
  count_passed(run)
  if admitted > 0 then
    count(run, 'admitted', admitted)
    tell(run, 'admitted', admitted)
  end
  return admitted, looked == most or run.to_pass <= 0
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
