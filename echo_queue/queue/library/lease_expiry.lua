-- The move `reclaim`, which the learner's housekeeper makes: it ends the leases that have run out, so that their tasks go to
-- retry or to dead, and forgets workers that have long been silent.

local FORGET_WORKER_MS = 3600000

-- Returns the tokens in a task's stored partial; 0 if there is none.
local function tokens_kept(run, id)
  local text = redis.call('HGET', run.K.partials, id)
  local partial = text and read_partial(text, run.group_max_tokens)
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

-- args: limit. One step of a sweep over expired leases: at most `limit` of them. The last step of a sweep, which finds fewer,
-- does the rest as well.
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
  if left > 0 then
    forget_workers(run)
    admit(run)
  end
  return { causes.expired, causes.failed, causes.released, causes.late, causes.dead, causes.lost }
end

register('reclaim', reclaim, 'allow-oom')
