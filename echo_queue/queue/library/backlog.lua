-- The backlog: sets of prompts as cursors over their shards. The cost of a set does not depend on its size.

local SET_NAME, SET_NAME_MAX = '^[a-z0-9][a-z0-9_.-]*$', 64
local AHEAD = 100
local PRIORITY_STEP = 1000000000

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

-- Returns the prompts in the backlog, and the prompts that have not been submitted yet (both × epochs).
local function backlog_left(run)
  local left, missing = redis.call('LLEN', run.K.redo), 0
  for _, name in ipairs(redis.call('ZRANGE', run.K.backlog, 0, -1)) do
    local set = load_set(run, name)
    left = left + set.count * set.epochs - served(set)
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
  if set.arrived == set.chunks and served(set) == set.count * set.epochs then
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
  for _, task in ipairs(tasks) do put(run, 'tasks', task) end
  run.admitted = {}
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

-- Makes the set's next prompt a task. Returns 1, or 0 if a checkpoint holds it, so that it is trained already, or nil if
-- the set has none.
local function admit_next(run, set, min_pv, settled)
  if not set.ahead or set.taken == #set.ahead then look_ahead(run, set, settled and AHEAD or 1, settled) end
  local prompt = set.ahead[set.taken + 1]
  if not prompt then return nil end
  set.taken, set.moved = set.taken + 1, true
  set.epoch, set.next = prompt.epoch, prompt.next
  if prompt.settled then
    run.passed[#run.passed + 1] = prompt.id
    return 0
  end
  take_up(run, prompt.id, set.name, prompt.epoch, prompt.index, shard_at(run, set, prompt.at), min_pv)
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
  local function admit_from(source)
    repeat
      local min_pv = math.max(0, run.v + math.floor(n / run.batch) - run.s)
      full = min_pv > run.published or (run.pace and n >= run.window * run.batch) or looked == ADMIT_MAX
      local came = not full and source(min_pv)
      if came then n, admitted, looked = n + came, admitted + came, looked + 1 end
    until not came
  end
  admit_from(function(min_pv) return admit_again(run, min_pv) end)
  local settled = redis.call('EXISTS', K.settled_ids) == 1
  for _, name in ipairs(redis.call('ZRANGE', K.backlog, 0, -1)) do
    if full then break end
    local set = load_set(run, name)
    admit_from(function(min_pv) return admit_next(run, set, min_pv, settled) end)
    save_cursor(run, set)
  end
  count_passed(run)
  dispatch(run)
  if admitted > 0 then
    count(run, 'admitted', admitted)
    tell(run, 'admitted', admitted)
  end
  return admitted, looked == ADMIT_MAX
end

-- Returns the fields of a chunk's mark: state, first, count, digest, and the rest (ticket, object or reason, by state).
local function chunk_of(run, name, number)
  local mark = redis.call('HGET', run.K['chunks:' .. name], number)
  if not mark then fail_with('EQSET', name .. ': chunk ' .. number .. ' was never declared') end
  local state, first, size, digest, rest = mark:match('^(%a+) (%d+) (%d+) (%S*) (.*)$')
  return { state = state, first = first, count = size, digest = digest, rest = rest }
end

local function mark_chunk(run, name, number, ...)
  redis.call('HSET', run.K['chunks:' .. name], number, table.concat({ ... }, ' '))
end

-- The names of sets are part of task ids, of lists of ids and of object names.
local function check_set_name(name)
  if #name > SET_NAME_MAX or not name:match(SET_NAME) then
    fail_with('EQSET', 'a set cannot have this name: at most ' .. SET_NAME_MAX .. ' of a-z, 0-9, "_", "." and "-"')
  end
  return name
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

local function note_digest(run, name, digest)
  local digests = { digest }
  for known in (digests_of(run, name) or ''):gmatch('%S+') do
    if known ~= digest then digests[#digests + 1] = known end
  end
  redis.call('HSET', run.K.digests, name, table.concat(digests, ' '))
end

-- Refuses a name under which checkpoints hold the ids of other prompts: these would count as trained and never be seen.
local function check_digest(run, name, digest)
  local known = digests_of(run, name)
  if known and known:match('^%S+') ~= digest then
    fail_with('EQSET', name .. ': checkpoints of this run hold other prompts under this name as trained')
  end
end

-- Refuses what may not change of a known set. Without shuffling, the seed means nothing to it.
local function check_same(known, declared, fields)
  if declared.order == 'shuffled' then fields[#fields + 1] = 'seed' end
  for _, field in ipairs(fields) do
    if known[field] ~= declared[field] then
      fail_with('EQSET', declared.name .. ': ' .. field .. ' is ' .. known[field] .. ', not ' .. declared[field])
    end
  end
end

-- Moves a known set to its place among the sets of the priority that it has now.
local function prioritise(run, known, declared)
  if known.priority == declared.priority then return end
  redis.call('HSET', run.K['set:' .. declared.name], 'priority', declared.priority)
  local place = redis.call('ZSCORE', run.K.backlog, declared.name)
  if place then
    redis.call('ZADD', run.K.backlog, place + (known.priority - declared.priority) * PRIORITY_STEP, declared.name)
  end
end

-- Declares a known set again, with its chunks. It must be the same, except for its priority, and that a failed chunk may
-- have been fixed and then waits again.
local function declare_again(run, known, declared, chunks)
  local K, name = run.K, declared.name
  check_same(known, declared, { 'epochs', 'order', 'prompts', 'chunks' })
  local fixed = {}
  for number, chunk in ipairs(chunks) do
    local was = chunk_of(run, name, number - 1)
    if was.state == 'failed' then
      fixed[#fixed + 1] = number
    elseif was.digest ~= chunk.digest then
      fail_with('EQSET', name .. ': it holds other prompts, of ' .. known.source)
    end
  end
  for _, number in ipairs(fixed) do
    local chunk = chunks[number]
    mark_chunk(run, name, number - 1, 'waiting', chunk.first, chunk.count, chunk.digest, chunk.ticket)
  end
  if #fixed > 0 then
    note_digest(run, name, declared.digest)
    reopen(run)
  end
  redis.call('HSET', K['set:' .. name], 'source', declared.source, 'feature', declared.feature, 'failed', 0)
  prioritise(run, known, declared)
end

-- args: name source epochs priority order seed feature digest, then first count digest ticket of each chunk. Without
-- chunks, a set that is known keeps its prompts, whatever its source has become. 1 if the set is new.
local function declare(keys, args)
  local run = open_run(keys)
  local K, name = run.K, check_set_name(args[1])
  local chunks, prompts = {}, 0
  for place = 9, #args, 4 do
    chunks[#chunks + 1] = { first = args[place], count = args[place + 1], digest = args[place + 2], ticket = args[place + 3] }
    prompts = prompts + args[place + 1]
  end
  local declared = { name = name, source = args[2], epochs = args[3], priority = args[4], order = args[5], seed = args[6],
                     feature = args[7], digest = args[8], chunks = tostring(#chunks), prompts = tostring(prompts) }
  local known = hash(K['set:' .. name])
  if known.source and #chunks == 0 then
    check_same(known, declared, { 'epochs', 'order' })
    prioritise(run, known, declared)
    return 0
  elseif known.source then
    declare_again(run, known, declared, chunks)
    return 0
  elseif #chunks == 0 then
    fail_with('EQSET', name .. ': it was never declared')
  end
  check_digest(run, name, declared.digest)
  note_digest(run, name, declared.digest)
  redis.call('HSET', K['set:' .. name], 'source', args[2], 'epochs', args[3], 'priority', args[4], 'order', args[5],
    'seed', args[6], 'feature', args[7], 'chunks', declared.chunks, 'prompts', declared.prompts, 'arrived', 0, 'failed', 0, 'count', 0,
    'epoch', 0, 'next', 0)
  for number, chunk in ipairs(chunks) do
    mark_chunk(run, name, number - 1, 'waiting', chunk.first, chunk.count, chunk.digest, chunk.ticket)
  end
  reopen(run)
  local order = redis.call('HINCRBY', K.state, 'declared', 1)
  redis.call('ZADD', K.backlog, -tonumber(args[4]) * PRIORITY_STEP + order, name)
  tell(run, 'declared', name)
  return 1
end

-- args: name chunk digest reason. Marks a waiting chunk with this content as unreadable. 1 if it was marked.
local function reject(keys, args)
  local run = open_run(keys)
  local name, number, digest, reason = unpack(args)
  local chunk = chunk_of(run, name, number)
  if chunk.state ~= 'waiting' or chunk.digest ~= digest then return 0 end
  mark_chunk(run, name, number, 'failed', chunk.first, chunk.count, chunk.digest, reason:sub(1, REASON_MAX_BYTES))
  redis.call('HINCRBY', run.K['set:' .. name], 'failed', 1)
  tell(run, 'rejected', name .. ' chunk ' .. number)
  return 1
end

-- Stores the buckets of a chunk's prompts, a byte each; an empty string if no prompt has a bucket.
local function note_buckets(run, name, first, size, buckets)
  if buckets == '' or first + size > STRING_MAX_BYTES then return end
  if #buckets ~= tonumber(size) then
    fail_with('EQSET', name .. ': ' .. #buckets .. ' buckets for ' .. size .. ' prompts')
  end
  redis.call('SETRANGE', run.K['lengths:' .. name], first, buckets)
end

-- args: name chunk first count object buckets. 1 if the chunk's prompts are new.
local function submit(keys, args)
  local run = open_run(keys)
  local K, name, chunk, first, size, object, buckets = run.K, unpack(args)
  local was = chunk_of(run, name, chunk)
  if was.first ~= first or was.count ~= size then
    fail_with('EQSET', name .. ': chunk ' .. chunk .. ' is ' .. was.first .. ' + ' .. was.count .. ', not ' .. first .. ' + ' .. size)
  end
  if was.state == 'done' then return 0 end
  note_buckets(run, name, first, size, buckets)
  local set = load_set(run, name)
  local base = set.order == 'shuffled' and tonumber(first) or set.count
  redis.call('ZADD', K['shards:' .. name], base + size - 1, first .. ' ' .. size .. ' ' .. object)
  mark_chunk(run, name, chunk, 'done', first, size, was.digest, object)
  if was.state == 'failed' then redis.call('HINCRBY', K['set:' .. name], 'failed', -1) end
  redis.call('HSET', K['set:' .. name], 'arrived', set.arrived + 1, 'count', set.count + size)
  reopen(run)
  count(run, 'submitted', size * set.epochs)
  tell(run, 'submitted', name .. ' chunk ' .. chunk)
  admit(run)
  return 1
end

register('declare', declare)
register('submit', submit)
register('reject', reject)
register('admit', function(keys)
  local admitted, more = admit(open_run(keys))
  return { admitted, more and 1 or 0 }
end)
