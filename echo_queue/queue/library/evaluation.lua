-- Rounds of evaluation: the learner asks all prompts of some held-out sets of one version, and concludes the round once they are
-- answered, or gives it up. `lease` says who answers, `complete` refuses what another version has drawn.

local CONCLUDED_MAX, ROUNDS_KEPT, LINE_MAX_BYTES = 64, 10000, 16384

-- Returns the number of prompts of these sets together; nil unless all of them are held out and have arrived whole.
local function prompts_of(run, names)
  local prompts = 0
  for _, name in ipairs(names) do
    local set = load_set(run, name)
    if set.order ~= HELD_OUT or set.arrived ~= set.chunks then return nil end
    prompts = prompts + set.count
  end
  return prompts
end

-- Begins a round and returns its fields; nil if a set is missing.
local function begin_round(run, lineage, version, names)
  local prompts = prompts_of(run, names)
  if not prompts then return nil end
  local round = { number = redis.call('HINCRBY', run.K.state, 'rounds', 1), lineage = lineage, version = version,
                  sets = table.concat(names, ' '), prompts = prompts, put = 0 }
  for name, value in pairs(round) do redis.call('HSET', run.K.round, name, value) end
  tell(run, 'evaluated', lineage .. '.' .. version)
  return hash(run.K.round)
end

-- Returns the tasks of the round from the prompt at `first` on, at most ADMIT_MAX, in the order of its sets.
local function tasks_of(run, round, names, first)
  local tasks, before, version = {}, 0, round.version
  for _, name in ipairs(names) do
    local size = load_set(run, name).count
    for index = math.max(0, first - before), size - 1 do
      if #tasks == ADMIT_MAX then return tasks end
      local id, shard = string.format('%s/%d/%d', name, round.number, index), shard_of(run, name, index)
      tasks[#tasks + 1] = fresh_task(run, id, name, round.number, index, shard, version, version, round.lineage)
    end
    before = before + size
  end
  return tasks
end

-- args: lineage, lineage and number of the version, set… ; begins a round, or goes on with the same one: each call asks at most
-- ADMIT_MAX prompts. Returns its number, how many prompts were asked so far, and of how many; nothing if another round is under
-- way, or a set has not arrived whole.
local function evaluate(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local names, round = { unpack(args, 4) }, hash(run.K.round)
  if not round.number then
    round = begin_round(run, args[2], args[3], names)
    if not round then return {} end
  elseif round.lineage ~= args[2] or round.version ~= args[3] or round.sets ~= table.concat(names, ' ') then
    return {}
  end
  local tasks = tasks_of(run, round, names, tonumber(round.put))
  put_all(run, 'evaluation', tasks)
  count(run, 'asked', #tasks)
  return { tonumber(round.number), redis.call('HINCRBY', run.K.round, 'put', #tasks), tonumber(round.prompts) }
end

-- Removes some tasks of a stream, at most CONCLUDED_MAX; `refs` collects the objects that they leave in the object store.
-- Returns how many entries were there.
local function remove_tasks(run, stream, refs)
  local rows = redis.call('XRANGE', run.K[stream], '-', '+', 'COUNT', CONCLUDED_MAX)
  for _, row in ipairs(rows) do
    local task = pairs_of(row[2])
    local id = task.id or ''
    local found, entry = place_of(run, id)
    if found == stream and entry == row[1] then
      refs[#refs + 1] = ref_of(id, task)
      clear(run, stream, entry, id)
      drop_partial(run, id)
      redis.call('HDEL', run.K.failures, id)
      redis.call('HDEL', run.K.open, id)
      count(run, 'concluded')
    else -- a worker's user has made it up, or written another place for it
      redis.call('XACK', run.K[stream], 'workers', row[1])
      redis.call('XDEL', run.K[stream], row[1])
      note_forged(run)
    end
  end
  return #rows
end

-- args: lineage number line… ; one step of the end of a round: some of its tasks are removed, those that nobody
-- has answered as well, whose workers learn it when they renew. The last step keeps the lines. Returns whether there is more to
-- remove, and the objects that may be removed.
local function conclude(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local refs, round = {}, hash(run.K.round)
  if round.number ~= args[2] then return { 0, refs } end
  for _, stream in ipairs({ 'scored', 'evaluation' }) do
    if remove_tasks(run, stream, refs) == CONCLUDED_MAX then return { 1, refs } end
  end
  for place = 3, #args do
    redis.call('XADD', run.K.evaluations, 'MAXLEN', '~', ROUNDS_KEPT, '*', 'line', args[place]:sub(1, LINE_MAX_BYTES))
  end
  redis.call('DEL', run.K.round, run.K.keepers)
  tell(run, 'concluded', round.lineage .. '.' .. round.version)
  return { 0, refs }
end

register('evaluate', evaluate)
register('conclude', conclude, 'allow-oom')
