-- The move `reclaim`, which the learner's housekeeper makes: it moves the queue's clock on, ends the leases that have run
-- out, so that their tasks go to retry or to dead, sends back what is in flight and too late, and forgets workers that have
-- long been silent. It reads only what it moves, so its cost does not grow with what is in flight.

local FORGET_WORKER_MS = 3600000
local FORGET_MAX = 64
local MEND_MAX = 256
local REPLAY_MAX = 32

-- Moves the queue's clock on, and returns it. No other move does.
local function tick(run)
  local clock = clock_of(run)
  redis.call('HSET', run.K.state, 'clock_ms', clock, 'swept_ms', run.now)
  return clock
end

-- Returns the tokens in a task's stored partial; 0 if there is none.
local function tokens_kept(run, id)
  local text = redis.call('HGET', run.K.partials, id)
  local partial = text and read_partial(text, run.group_max_tokens)
  return partial and partial[4] or 0
end

local function holder_of(run, stream, entry)
  local row = redis.call('XPENDING', run.K[stream], 'workers', entry, entry, 1)[1]
  return row and row[2] or 'unknown'
end

-- Moves a task whose lease has run out to retry or dead, and returns the cause. This costs no attempt if the task's
-- partial has more tokens than when a lease last ran out: a task that makes progress never dies from preemptions. The limit
-- on a group's tokens bounds how often that can happen.
local function end_attempt(run, task, stream, entry)
  local id = task.id
  local failure = redis.call('HGET', run.K.failures, id)
  local failed = failure and failure:match('^attempt (%d+) ') == task.attempt
  local tokens = tokens_kept(run, id)
  local gets_on = not failed and tokens > (tonumber(task.kept) or 0)
  local attempt = gets_on and tonumber(task.attempt) or task.attempt + 1
  if attempt < run.max_attempts then
    send_back(run, id, stream, entry, { attempt = attempt, kept = tokens })
    return failed and 'failed' or 'expired'
  end
  local holder = holder_of(run, stream, entry)
  local reason = failed and failure or 'the lease ran out: worker ' .. holder .. ' went silent'
  bury_task(run, id, stream, entry, attempt, reason, holder)
  return 'dead'
end

-- Ends a lease that is over, and returns the cause. `ended`: its score in `leases`.
local function end_lease(run, id, ended)
  local stream, entry = place_of(run, id)
  if not is_task(stream) then
    forget_lease(run, id)
    return 'lost'
  end
  if ended == HANDED_BACK then
    local late = tonumber(redis.call('ZSCORE', run.K.in_flight, id) or run.v) < run.v - run.s
    send_back(run, id, stream, entry, { too_late = late })
    return late and 'late' or 'released'
  end
  local task = read_open(run, id, stream, entry)
  return task and end_attempt(run, task, stream, entry) or 'lost'
end

-- Forgets some workers that have long been silent, so that short-lived spot workers do not pile up: their consumers, unless
-- these hold something, and their heartbeats.
local function forget_workers(run, clock)
  local K = run.K
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', K.consumers, '-inf', clock - FORGET_WORKER_MS, 'LIMIT', 0, FORGET_MAX)) do
    local held = 0
    for _, stream in ipairs(LEASED) do
      held = held + #redis.call('XPENDING', K[stream], 'workers', '-', '+', 1, worker)
    end
    if held == 0 then
      for _, stream in ipairs(LEASED) do redis.call('XGROUP', 'DELCONSUMER', K[stream], 'workers', worker) end
      redis.call('ZREM', K.consumers, worker)
    else
      redis.call('ZADD', K.consumers, clock, worker)
    end
  end
  redis.call('ZREMRANGEBYSCORE', K.idle, '-inf', run.now - FORGET_WORKER_MS)
  local silent = redis.call('ZRANGEBYSCORE', K.workers, '-inf', run.now - FORGET_WORKER_MS, 'LIMIT', 0, FORGET_MAX)
  if #silent > 0 then redis.call('ZREM', K.workers, unpack(silent)) end
end

-- Notes the place of a task in `open`, if other words stand there. No worker's user can add an entry to tasks or retry, and a
-- move removes a task's entry with its place, so the task is where its entry is.
local function mend_place(run, id, stream, entry)
  local place = stream .. ' ' .. entry
  if redis.call('HGET', run.K.open, id) == place then return end
  note_forged(run)
  redis.call('HSET', run.K.open, id, place)
end

-- Hands out again what no worker was given, or what somebody has acknowledged or skipped for the others: tasks that the group
-- has passed, and of which nobody holds a lease. All leases of the stream begin anew then.
local function mend_streams(run)
  for _, stream in ipairs(LEASED) do
    local key = run.K[stream]
    local group = pairs_of(redis.call('XINFO', 'GROUPS', key)[1])
    local waiting = redis.call('XLEN', key) - group.pending
    if waiting > 0 then
      if not redis.call('XREAD', 'COUNT', 1, 'STREAMS', key, group['last-delivered-id']) then
        redis.call('XGROUP', 'SETID', key, 'workers', '0')
        note_forged(run, waiting)
      end
    end
  end
end

-- Makes room for completions again, in steps, where a worker has used up the entry ids of replay: its groups go back to retry,
-- and once it is empty the stream begins anew. Nothing else makes a smaller id the next one.
local function renew_replay(run)
  for _, row in ipairs(redis.call('XRANGE', run.K.replay, '-', '+', 'COUNT', REPLAY_MAX)) do
    local id = pairs_of(row[2]).id or ''
    local stream, entry = place_of(run, id)
    if stream == 'replay' and entry == row[1] then
      send_back(run, id, stream, entry, {})
    else
      redis.call('XDEL', run.K.replay, row[1])
    end
    note_forged(run)
  end
  if redis.call('XLEN', run.K.replay) == 0 then
    redis.call('DEL', run.K.replay)
    redis.call('HDEL', run.K.tallies, 'exhausted')
  end
end

-- One step of a walk through replay: removes entries that are neither ready nor in hand. They would count as groups that are to
-- be trained, and hold up admission.
local function remove_strays(run)
  local K = run.K
  local rows = redis.call('XRANGE', K.replay, run.state.strays or '-', '+', 'COUNT', REPLAY_MAX)
  for _, row in ipairs(rows) do
    local member = row[1] .. ' ' .. (pairs_of(row[2]).id or '')
    if not redis.call('ZSCORE', K.ready, member) and not redis.call('ZSCORE', K.in_hand, member) then
      redis.call('XDEL', K.replay, row[1])
      note_forged(run)
    end
  end
  redis.call('HSET', K.state, 'strays', #rows == REPLAY_MAX and '(' .. rows[#rows][1] or '-')
end

local function mend_replay(run)
  local K = run.K
  if redis.call('HGET', K.tallies, 'exhausted') then
    renew_replay(run)
  elseif redis.call('XLEN', K.replay) > redis.call('ZCARD', K.ready) + redis.call('ZCARD', K.in_hand) then
    remove_strays(run)
  end
end

local WALKED_NEXT = { tasks = 'retry', retry = 'evaluation', evaluation = 'tasks' }

-- One step of a walk through the streams' own accounts of what is leased: notes leases that are not noted in `leases`.
local function find_leases(run, ends)
  local stream, from = (run.state.mended or 'tasks -'):match('^(%a+) (%S+)$')
  local rows = redis.call('XPENDING', run.K[stream], 'workers', from, '+', MEND_MAX)
  for _, row in ipairs(rows) do
    local task = read(run, stream, row[1])
    if not task then
      redis.call('XACK', run.K[stream], 'workers', row[1])
      count(run, 'lost')
    else
      mend_place(run, task.id, stream, row[1])
      redis.call('ZADD', run.K.leases, 'NX', ends, task.id)
      if not is_asked(stream) then redis.call('ZADD', run.K.in_flight, 'NX', run.v, task.id) end
    end
  end
  local further = #rows == MEND_MAX and stream .. ' (' .. rows[#rows][1] or WALKED_NEXT[stream] .. ' -'
  redis.call('HSET', run.K.state, 'mended', further)
end

-- Makes leases that no move has noted so run out as others do. Only a worker's user who changes keys by hand leaves any.
local function mend_leases(run, clock)
  local ends = clock + run.lease_ms
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', run.K.leases, '(' .. ends, '+inf', 'LIMIT', 0, MEND_MAX)) do
    redis.call('ZADD', run.K.leases, ends, id)
  end
  if leased(run) ~= redis.call('ZCARD', run.K.leases) then find_leases(run, ends) end
end

-- args: limit. One step of a sweep: at most `limit` tasks are moved. The last step of a sweep, which finds fewer, does the
-- rest as well.
local function reclaim(keys, args)
  local run = open_run(keys)
  local clock, limit = tick(run), tonumber(args[1])
  local causes = { expired = 0, failed = 0, released = 0, late = 0, dead = 0, lost = 0 }
  local due = redis.call('ZRANGEBYSCORE', run.K.leases, '-inf', clock, 'WITHSCORES', 'LIMIT', 0, limit)
  for place = 1, #due, 2 do
    local cause = end_lease(run, due[place], tonumber(due[place + 1]))
    causes[cause] = causes[cause] + 1
  end
  local left = limit - #due / 2
  local cancelled = cancel_late(run, left)
  for _, cause in ipairs({ 'expired', 'failed', 'released' }) do count(run, cause, causes[cause]) end
  tell_returned(run, causes.expired + causes.failed + causes.released + causes.late + cancelled)
  if left > cancelled then
    mend_leases(run, clock)
    mend_streams(run)
    mend_replay(run)
    forget_workers(run, clock)
    admit(run)
  end
  return { causes.expired, causes.failed, causes.released, causes.late, causes.dead, causes.lost, cancelled }
end

register('reclaim', reclaim, 'allow-oom')
