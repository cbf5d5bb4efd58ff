-- The moves that bring sets of prompts into the backlog, chunk by chunk. A set that is held out comes to no backlog: it is
-- there for evaluations alone.

local SET_NAME, SET_NAME_MAX = '^[a-z0-9][a-z0-9_.-]*$', 64
local PRIORITY_STEP = 1000000000

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

-- Refuses a set to train that is of no component of the mixture: nothing would ever serve it. A run that a learner has
-- finished takes it: the next learner may bring its component, or is refused.
local function check_component(run, name, order)
  if order == HELD_OUT or not mixture.is_set(run) or run.finished then return end
  local components, names = mixture.parse(run.mixture), {}
  if mixture.find(components, name) then return end
  for place, component in ipairs(components) do names[place] = component.name end
  fail_with('EQCOMPONENT', name .. ': the mixture has no component ' .. mixture.name_of(name) .. ', only '
    .. table.concat(names, ', '))
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
    if known.order ~= HELD_OUT then reopen(run) end
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
  check_component(run, name, declared.order)
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
  if args[5] ~= HELD_OUT then
    reopen(run)
    local order = redis.call('HINCRBY', K.state, 'declared', 1)
    redis.call('ZADD', K.backlog, -tonumber(args[4]) * PRIORITY_STEP + order, name)
  end
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
  tell(run, 'submitted', name .. ' chunk ' .. chunk)
  if set.order ~= HELD_OUT then
    reopen(run)
    count(run, 'submitted', size * set.epochs)
    admit(run)
  end
  return 1
end

register('declare', declare)
register('submit', submit)
register('reject', reject)
