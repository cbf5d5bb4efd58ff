-- The moves of housekeepers and operators: run rules, expired leases, dead tasks; and the queries audit and status.

local FORGET_WORKER_MS = 3600000

local function bury_task(run, id, stream, entry, attempt, reason, worker)
  local task = read_open(run, id, stream, entry)
  if not task then return nil end
  if attempt then task.attempt = attempt end
  put(run, 'dead', task, 'reason', reason, 'worker', worker, 'died', run.now)
  clear(run, stream, entry, id)
  drop_partial(run, id)
  count(run, 'buried')
  tell(run, 'buried', id)
  return task.ref
end

-- Returns the tokens in a task's stored partial; 0 if there is none.
local function tokens_kept(run, id)
  local text = redis.call('HGET', run.K.partials, id)
  local partial = text and read_partial(run, text)
  return partial and partial[4] or 0
end

-- Moves the task of a lease that has run out to retry or dead, and returns the cause. This costs no attempt if the task's
-- partial has more tokens than when a lease last ran out: a task that makes progress never dies from preemptions. The limit
-- on a group's tokens bounds how often that can happen.
local function end_lease(run, stream, entry, worker, deliveries)
  local task = read(run, stream, entry)
  if not task then
    redis.call('XACK', run.K[stream], 'workers', entry)
    count(run, 'lost')
    return 'lost'
  end
  local id = task.id
  local failure = redis.call('HGET', run.K.failures, id)
  local failed = failure and failure:match('^attempt (%d+) ') == task.attempt
  if deliveries == 0 then
    local late = tonumber(redis.call('ZSCORE', run.K.in_flight, id) or run.v) < run.v - run.s
    send_back(run, id, stream, entry, { too_late = late })
    return late and 'late' or 'released'
  end
  local tokens = tokens_kept(run, id)
  local gets_on = not failed and tokens > (tonumber(task.kept) or 0)
  local attempt = gets_on and tonumber(task.attempt) or task.attempt + 1
  if attempt < run.max_attempts then
    send_back(run, id, stream, entry, { attempt = attempt, kept = tokens })
    return failed and 'failed' or 'expired'
  end
  local reason = failed and failure or 'the lease ran out: worker ' .. worker .. ' went silent'
  bury_task(run, id, stream, entry, attempt, reason, worker)
  return 'dead'
end

-- Returns whether expired leases are spared for now. They are for a while if a sweep comes so long after the one before
-- (housekeepers sweep four times a lease) that Redis or the housekeeper was away: leases ran out meanwhile that living
-- workers, which renew at least twice a lease, are about to renew. A short gap gives no grace twice in a row, because a
-- housekeeper may simply be slow.
local function in_grace(run)
  local swept = tonumber(run.state.swept_ms)
  local grace = tonumber(run.state.grace_ms or 0)
  local gap = swept and run.now - swept or 0
  if gap > 2 * run.lease_ms or (gap > run.lease_ms / 2 and swept >= grace) then
    grace = run.now + math.floor(run.lease_ms / 2)
    redis.call('HSET', run.K.state, 'grace_ms', grace)
  end
  redis.call('HSET', run.K.state, 'swept_ms', run.now)
  return run.now < grace
end

-- Removes consumers that hold nothing and have long been silent, so that short-lived spot workers do not pile up.
local function forget_workers(run)
  for _, stream in ipairs({ 'tasks', 'retry' }) do
    for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', run.K[stream], 'workers')) do
      local consumer = pairs_of(row)
      if consumer.pending == 0 and consumer.idle > FORGET_WORKER_MS then
        redis.call('XGROUP', 'DELCONSUMER', run.K[stream], 'workers', consumer.name)
      end
    end
  end
  redis.call('ZREMRANGEBYSCORE', run.K.workers, '-inf', run.now - FORGET_WORKER_MS)
end

-- args: limit. One sweep over expired leases, at most `limit` of them.
local function reclaim(keys, args)
  local run = open_run(keys)
  local left = tonumber(args[1])
  local grace = in_grace(run)
  local causes = { expired = 0, failed = 0, released = 0, late = 0, dead = 0, lost = 0 }
  for _, stream in ipairs({ 'retry', 'tasks' }) do
    local rows = left > 0
      and redis.call('XPENDING', run.K[stream], 'workers', 'IDLE', run.lease_ms, '-', '+', left) or {}
    for _, row in ipairs(rows) do
      if row[4] == 0 or not grace then
        local cause = end_lease(run, stream, row[1], row[2], row[4])
        causes[cause] = causes[cause] + 1
        left = left - 1
      end
    end
  end
  for _, cause in ipairs({ 'expired', 'failed', 'released' }) do count(run, cause, causes[cause]) end
  tell_returned(run, causes.expired + causes.failed + causes.released + causes.late)
  forget_workers(run)
  admit(run)
  return { causes.expired, causes.failed, causes.released, causes.late, causes.dead }
end

-- args: id reason. Returns {1 if it was buried, its object-store key if it had one}. A group in the learner's hands is not
-- buried, because it may be in an update already.
local function bury(keys, args)
  local run = open_run(keys)
  local stream, entry, rest = place_of(run, args[1])
  if not stream or stream == 'dead' then return { 0 } end
  if stream == 'replay' and not redis.call('ZSCORE', run.K.ready, entry .. ' ' .. args[1]) then return { 0 } end
  local sender = stream == 'replay' and made(rest).worker or ''
  return { 1, bury_task(run, args[1], stream, entry, nil, args[2]:sub(-REASON_MAX_BYTES), sender) }
end

-- args: lineage id entry reason cause. The learner buries a bad group at that entry of replay, with the reason. Returns as
-- `bury`; a group that is no longer there has been generated again, or is buried already.
local function bury_bad_group(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local stream, entry, rest = place_of(run, args[2])
  if stream ~= 'replay' or entry ~= args[3] then return { 0 } end
  count(run, 'bad_' .. args[5])
  return { 1, bury_task(run, args[2], stream, entry, nil, args[4]:sub(-REASON_MAX_BYTES), made(rest).worker) }
end

-- args: id… ; dead tasks start from scratch. Returns how many were dead.
local function revive(keys, args)
  local run = open_run(keys)
  local revived = 0
  for _, id in ipairs(args) do
    local stream, entry = place_of(run, id)
    if stream == 'dead' then
      redis.call('HDEL', run.K.failures, id)
      send_back(run, id, stream, entry, { attempt = 0, late = 0, kept = 0 })
      revived = revived + 1
    end
  end
  count(run, 'revived', revived)
  if revived > 0 then
    reopen(run)
    tell(run, 'revived', revived)
  end
  return revived
end

local function make_group(key, name)
  local made_it = redis.pcall('XGROUP', 'CREATE', key, name, '0', 'MKSTREAM')
  if made_it.err and not made_it.err:match('BUSYGROUP') then error(made_it) end
end

-- args: field value… of the rules. Creates the run, or changes its rules.
local function configure(keys, args)
  local K = keys_under(keys[1])
  make_group(K.tasks, 'workers')
  make_group(K.retry, 'workers')
  make_group(K.replay, 'learner')
  for field, value in pairs({ lineage = 0, v = 0, window = 2, uncommitted = 0 }) do
    redis.call('HSETNX', K.state, field, value)
  end
  redis.call('HSET', K.rules, unpack(args))
  return 1
end

-- args: lineage force. Marks the run finished. Returns 0 if there is anything left to train, unless force is '1'.
local function finish(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  if is_finished(run) then return 1 end
  if args[2] ~= '1' and outside(run) > 0 then return 0 end
  redis.call('HDEL', run.K.state, 'reopened')
  redis.call('HSET', run.K.state, 'finished', run.now)
  tell(run, 'finished', run.v)
  return 1
end

local function leased(run, stream)
  return redis.call('XPENDING', run.K[stream], 'workers')[1]
end

local function audit(keys)
  local run = open_run(keys)
  local K, stats = run.K, hash(run.K.stats)
  local found = {
    submitted = tonumber(stats.submitted or 0), backlog = (backlog_left(run)),
    tasks = redis.call('XLEN', K.tasks) + redis.call('XLEN', K.retry), replay = redis.call('XLEN', K.replay),
    trained = tonumber(stats.trained or 0), dead = redis.call('XLEN', K.dead),
    open = redis.call('HLEN', K.open), in_flight = redis.call('ZCARD', K.in_flight),
    leased = leased(run, 'tasks') + leased(run, 'retry'), lost = tonumber(stats.lost or 0),
  }
  found.difference = found.submitted - found.backlog - found.tasks - found.replay - found.trained - found.dead
  found.misplaced = found.open - found.tasks - found.replay - found.dead
  local kept = found.difference == 0 and found.misplaced == 0 and found.in_flight == found.leased and found.lost == 0
  local answer = {}
  for _, name in ipairs({ 'submitted', 'backlog', 'tasks', 'replay', 'trained', 'dead', 'difference', 'open', 'misplaced',
                          'in_flight', 'leased', 'lost' }) do
    answer[#answer + 1], answer[#answer + 2] = name, found[name]
  end
  answer[#answer + 1], answer[#answer + 2] = 'verdict', kept and 'OK' or 'BROKEN'
  return answer
end

-- Makes a write for WAIT to wait for, if the move to be confirmed was made by an earlier try.
local function confirm(keys)
  redis.call('SET', keys[1] .. 'confirmed', '1')
end

-- Returns how many tasks each consumer holds, including consumers without a heartbeat or with a very old one.
local function held_tasks(run)
  local held = {}
  for _, stream in ipairs({ 'tasks', 'retry' }) do
    for _, row in ipairs(redis.call('XPENDING', run.K[stream], 'workers')[4] or {}) do
      held[row[1]] = (held[row[1]] or 0) + row[2]
    end
  end
  return held
end

local function beats(run)
  local answer, held = {}, held_tasks(run)
  local known = redis.call('ZRANGE', run.K.workers, 0, -1, 'WITHSCORES')
  for place = 1, #known, 2 do
    local name = known[place]
    answer[#answer + 1] = { name, run.now - known[place + 1], redis.call('HGETALL', run.K['worker:' .. name]), held[name] or 0 }
    held[name] = nil
  end
  for name, count in pairs(held) do answer[#answer + 1] = { name, -1, {}, count } end
  return answer
end

local function counters(run)
  local answer = redis.call('HGETALL', run.K.stats)
  local tallies = hash(run.K.tallies)
  for _, name in ipairs(TALLIES) do
    if tallies[name] then answer[#answer + 1], answer[#answer + 2] = name, tallies[name] end
  end
  return answer
end

local function status(keys)
  local run = open_run(keys)
  local K = run.K
  local ready, replay = redis.call('ZCARD', K.ready), redis.call('XLEN', K.replay)
  return {
    redis.call('HGETALL', K.state), redis.call('HGETALL', K.rules), redis.call('HGETALL', K.published),
    counters(run),
    { 'backlog', (backlog_left(run)), 'tasks', redis.call('XLEN', K.tasks), 'retry', redis.call('XLEN', K.retry),
      'in_flight', redis.call('ZCARD', K.in_flight), 'ready', ready, 'drained', replay - ready, 'replay', replay,
      'dead', redis.call('XLEN', K.dead),
      'finished', is_finished(run) and 1 or 0,
      'learner_silent_ms', run.state.swept_ms and run.now - run.state.swept_ms or -1 },
    beats(run),
  }
end

-- A full server refuses functions without 'allow-oom' before they start. Functions that drain the server, or keep leases
-- alive, must still run.
local function register(name, callback, ...)
  redis.register_function({ function_name = 'eq1_' .. name, callback = callback, flags = { ... } })
end

register('configure', configure)
register('declare', declare)
register('submit', submit)
register('reject', reject)
register('admit', function(keys) return admit(open_run(keys)) end)
register('lease', lease)
register('renew', renew, 'allow-oom')
register('release', release, 'allow-oom')
register('fail', fail, 'allow-oom')
register('progress', progress)
register('discard', discard, 'allow-oom')
register('complete', complete)
register('heartbeat', heartbeat, 'allow-oom')
register('leave', leave, 'allow-oom')
register('join', join)
register('report', report, 'allow-oom')
register('withdraw', withdraw, 'allow-oom')
register('drain', drain, 'allow-oom')
register('pending', pending, 'allow-oom')
register('advance', advance, 'allow-oom')
register('commit', commit, 'allow-oom')
register('uncommit', uncommit, 'allow-oom')
register('announce', announce)
register('publish', publish, 'allow-oom')
register('publish_keys', publish_keys, 'allow-oom')
register('resume', resume, 'allow-oom')
register('reclaim', reclaim, 'allow-oom')
register('bury', bury, 'allow-oom')
register('bury_bad_group', bury_bad_group, 'allow-oom')
register('revive', revive)
register('finish', finish, 'allow-oom')
register('confirm', confirm, 'allow-oom')
register('audit', audit, 'no-writes')
register('status', status, 'no-writes')
