-- The moves of an operator, and of the roles that begin a run: the run rules, tasks that are buried or revived, and workers
-- that are evicted or, by the learner, suspended.

-- args: id reason. Returns {1 if it was buried, its object-store key if it had one}. A group in the learner's hands is not
-- buried, because it may be in an update already. A worker that has the task in hand cannot complete it any more.
local function bury(keys, args)
  local run = open_run(keys)
  local stream, entry, _, group = place_of(run, args[1])
  if not stream or stream == 'dead' or stream == 'scored' then return { 0 } end
  if group and not redis.call('ZSCORE', run.K.ready, entry .. ' ' .. args[1]) then return { 0 } end
  local sender = group and group.worker or ''
  local ref = bury_task(run, args[1], stream, entry, nil, args[2]:sub(-REASON_MAX_BYTES), sender)
  local now, place = place_of(run, args[1])
  if now == 'dead' then redis.call('HSET', run.K.open, args[1], 'dead ' .. place .. BY_HAND) end
  return { 1, ref }
end

-- Gives a task that is dead, that was to answer an evaluation and failed, or of which attempts have failed so far, all attempts
-- again. Returns 1, 0 for any other task.
local function revive_one(run, id, stream, entry, group)
  local failed = stream == 'dead' or (stream == 'scored' and not group)
  if not failed and not (is_task(stream) and redis.call('HEXISTS', run.K.failures, id) == 1) then return 0 end
  redis.call('HDEL', run.K.failures, id)
  send_back(run, id, stream, entry, { attempt = 0, late = 0, kept = 0 })
  return 1
end

-- args: id… ; tasks that are dead, or of which attempts have failed so far, get all attempts again. A worker that has such a
-- task in hand may still complete it. Returns how many there were.
local function revive(keys, args)
  local run = open_run(keys)
  local revived = 0
  for _, id in ipairs(args) do
    local stream, entry, _, group = place_of(run, id)
    revived = revived + revive_one(run, id, stream, entry, group)
  end
  count(run, 'revived', revived)
  if revived > 0 then
    reopen(run)
    tell(run, 'revived', revived)
  end
  return revived
end

-- Returns the workers that have ever asked for tasks here, or that show that they live, and whose names begin so.
local function workers_named(run, beginning)
  local names = {}
  local function look(name)
    if name:sub(1, #beginning) == beginning then names[name] = true end
  end
  for _, stream in ipairs(LEASED) do
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', run.K[stream], 'workers')) do look(pairs_of(consumer).name) end
  end
  for _, name in ipairs(redis.call('ZRANGE', run.K.workers, 0, -1)) do look(name) end
  return names
end

-- Hands back what the worker has leased of a stream and not given up itself. Returns how many tasks.
local function hand_back(run, worker, stream)
  local held, from = 0, '-'
  repeat
    local rows = redis.call('XPENDING', run.K[stream], 'workers', from, '+', SLICE, worker)
    for _, row in ipairs(rows) do
      local task = read(run, stream, row[1])
      if task and tonumber(redis.call('ZSCORE', run.K.leases, task.id) or 0) ~= GIVEN_UP then
        expire(run, task.id, HANDED_BACK)
        held = held + 1
      end
      from = '(' .. row[1]
    end
  until #rows < SLICE
  return held
end

-- args: the beginning of workers' names. What these workers hold is handed back, for the next sweep, and they are offered and
-- shown no more; an offer that one of them did not take goes to another worker. Their user must be gone, else they go on.
-- Returns how many tasks they held.
local function evict(keys, args)
  local run, beginning = open_run(keys), check_worker(args[1])
  local names, held, untaken = workers_named(run, beginning), 0, 0
  for name in pairs(names) do
    for _, set in ipairs({ 'idle', 'workers' }) do redis.call('ZREM', run.K[set], name) end
  end
  for name in pairs(names) do
    for _, stream in ipairs(LEASED) do held = held + hand_back(run, name, stream) end
    untaken = untaken + redis.call('DEL', run.K['offer:' .. name])
    for _, key in ipairs({ 'worker:', 'order:', 'token:' }) do redis.call('DEL', run.K[key .. name]) end
  end
  offer(run, untaken)
  return held
end

-- args: lineage worker reason id… ; the learner suspends a worker: it leases nothing more, and what it completes is refused,
-- until the next lineage or `reinstate`. What it holds is handed back, for the next sweep. These tasks, of which it sent bad
-- groups, get all attempts again, but those that an operator buried or that are leased. Returns how many of them did.
local function suspend(keys, args)
  local run, worker = open_run(keys), check_worker(args[2])
  fence(run, args[1])
  if redis.call('HSETNX', run.K.suspended, worker, string.format('%d %s', run.now, args[3]:sub(1, REASON_SHORT_BYTES))) == 1 then
    tell(run, 'suspended', worker .. ': ' .. args[3]:sub(1, REASON_SHORT_BYTES))
  end
  for _, stream in ipairs(LEASED) do hand_back(run, worker, stream) end
  redis.call('ZREM', run.K.idle, worker)
  offer(run, redis.call('DEL', run.K['offer:' .. worker]))
  local revived = 0
  for place = 4, #args do
    local stream, entry, rest, group = place_of(run, args[place])
    if rest ~= BY_HAND and not redis.call('ZSCORE', run.K.leases, args[place]) then
      revived = revived + revive_one(run, args[place], stream, entry, group)
    end
  end
  count(run, 'revived', revived)
  return revived
end

-- args: worker… ; these workers are suspended no more. Returns how many were.
local function reinstate(keys, args)
  local run, lifted = open_run(keys), 0
  for _, worker in ipairs(args) do
    if redis.call('HDEL', run.K.suspended, worker) == 1 then
      tell(run, 'reinstated', worker)
      lifted = lifted + 1
    end
  end
  return lifted
end

local function make_group(key, name)
  local made_it = redis.pcall('XGROUP', 'CREATE', key, name, '0', 'MKSTREAM')
  if made_it.err and not made_it.err:match('BUSYGROUP') then error(made_it) end
end

-- args: field value… of the rules. Creates the run with these rules. A run that has rules keeps them, because they are
-- those of its learner, which only `resume` changes. Returns the rules.
local function configure(keys, args)
  local K = keys_under(keys[1])
  for _, stream in ipairs(LEASED) do make_group(K[stream], 'workers') end
  for field, value in pairs({ lineage = 0, v = 0, window = 2, uncommitted = 0 }) do
    redis.call('HSETNX', K.state, field, value)
  end
  if redis.call('EXISTS', K.rules) == 0 then redis.call('HSET', K.rules, unpack(args)) end
  return redis.call('HGETALL', K.rules)
end

register('configure', configure)
register('bury', bury, 'allow-oom')
register('revive', revive)
register('evict', evict, 'allow-oom')
register('suspend', suspend, 'allow-oom')
register('reinstate', reinstate, 'allow-oom')
