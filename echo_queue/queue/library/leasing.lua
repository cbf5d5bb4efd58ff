-- The moves of a worker: it leases, renews and hands back tasks; `completion.lua` has how it completes them. It needs no right
-- to add a task.

-- Returns until when a task that is leased now is leased, by the queue's clock.
local function lease_end(run)
  return clock_of(run) + run.lease_ms
end

-- Returns the tasks of the worker's last lease that it still holds, if that lease has this token; nil otherwise.
local function repeat_lease(run, worker, token)
  local known = redis.call('GET', run.K['token:' .. worker])
  if not known or known:match('^%S+') ~= token then return nil end
  local tasks = {}
  for stream, entry in known:gmatch(' (%a+) (%S+)') do
    local rows = held_by(run, stream, entry, worker) and redis.call('XRANGE', run.K[stream], entry, entry) or {}
    if rows[1] then tasks[#tasks + 1] = { stream, entry, rows[1][2] } end
  end
  return tasks
end

-- Leases the next task of a stream to the worker and returns it; nil if none waits there.
local function next_task(run, worker, stream)
  local read = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', 1, 'STREAMS', run.K[stream], '>')
  local row = read and read[1][2][1]
  return row and { stream, row[1], row[2] }
end

-- Leases up to `size` tasks of these streams, of which only the last may be a long one: the next long one goes to the next
-- worker that asks. Several of them at one worker would slow one another down while other workers have nothing left to do.
-- Returns as well whether there may be more.
local function fresh_lease(run, worker, size, token, streams)
  local tasks, note, full = {}, { token }, size == 0
  for _, stream in ipairs(streams) do
    while not full do
      local task = next_task(run, worker, stream)
      if not task then break end
      tasks[#tasks + 1], note[#note + 1] = task, stream .. ' ' .. task[2]
      full = #tasks == size or value_of(task[3], 'long') == '1'
    end
  end
  if #tasks > 0 then
    redis.call('SET', run.K['token:' .. worker], table.concat(note, ' '), 'PX', run.lease_ms)
    redis.call('ZADD', run.K.consumers, clock_of(run), worker)
  else
    redis.call('ZADD', run.K.consumers, 'NX', clock_of(run), worker)
  end
  return tasks, full
end

-- Offers what a lease of so many tasks left to one more worker, and to two if those that OFFERED_AT_ONCE workers lease at
-- once are not all of it. So a few tasks wake few workers, and many wake all of them within a few steps.
local function offer_on(run, taken)
  local left = 0
  for _, stream in ipairs(LEASED) do left = left + redis.call('XLEN', run.K[stream]) - leased_of(run, stream) end
  if left > 0 then offer(run, left > OFFERED_AT_ONCE * taken and 2 or 1) end
end

-- Returns {oldest, newest, lineage, tokens, mark, segments} of the partial that the worker continues when it leases this task,
-- of which `partials` says `text`; {} if there is none. A partial that no worker may continue is dropped: it is too old by now,
-- was made by weights since left behind, or is malformed. `only`: the only version that may generate the task, if there is one.
local function partial_to_continue(run, id, text, only)
  if not text then return {} end
  local partial = read_partial(text, run.group_max_tokens)
  if not partial then
    drop_partial(run, id)
    tally(run, 'bad_partial')
    return {}
  end
  local oldest, newest, lineage, tokens, mark = unpack(partial)
  local unfit
  if only then
    unfit = oldest ~= only.version or newest ~= only.version or lineage ~= only.lineage
  else
    unfit = run.v - oldest > run.s or newest > run.published or oldest > newest or abandoned(run, lineage, newest)
  end
  if unfit then
    drop_partial(run, id)
    tally(run, 'tokens_discarded', tokens)
    return {}
  end
  tally(run, 'tokens_continued', tokens)
  return { oldest, newest, lineage, tokens, mark, redis.call('LRANGE', run.K['segments:' .. id], 0, SEGMENTS_MAX) }
end

local TRAINING, TRAINING_FIRST = { 'retry', 'tasks' }, { 'retry', 'tasks', 'evaluation' }
local EVALUATION_FIRST, EVALUATION_ALONE = { 'evaluation', 'retry', 'tasks' }, { 'evaluation' }

-- Returns whether a worker that serves the round's version keeps it until the round is answered. A few workers do: those that
-- leased first. One that has not been seen for a lease's time is replaced by another that serves the version still.
local function is_keeper(run, worker)
  local clock = clock_of(run)
  redis.call('ZREMRANGEBYSCORE', run.K.keepers, '-inf', clock - run.lease_ms)
  local most = math.max(1, math.floor(run.evaluation_share * redis.call('ZCARD', run.K.workers)))
  if not redis.call('ZSCORE', run.K.keepers, worker) and redis.call('ZCARD', run.K.keepers) >= most then return false end
  redis.call('ZADD', run.K.keepers, clock, worker)
  return true
end

-- Returns the streams from which the worker leases, in this order, and whether it keeps its version. Who serves the round's
-- version may answer the round: while that is the newest one, all may, with the seats that training leaves free; a keeper
-- answers first, and once there are newer versions does nothing else. Only what one of them is running may come back.
local function streams_for(run, worker, lineage, version, newest)
  local round = redis.call('HMGET', run.K.round, 'lineage', 'version')
  if not round[1] or redis.call('XLEN', run.K.evaluation) == 0 then return TRAINING, false end
  if tonumber(round[1]) ~= lineage or tonumber(round[2]) ~= version then
    redis.call('ZREM', run.K.keepers, worker)
    return TRAINING, false
  end
  if is_keeper(run, worker) then return newest and EVALUATION_FIRST or EVALUATION_ALONE, true end
  return newest and TRAINING_FIRST or TRAINING, false
end

-- Notes a worker that asked for tasks and found none, which waits to be offered one. An offer that is there already is of a
-- task that others have leased.
local function note_idle(run, worker)
  redis.call('ZADD', run.K.idle, run.now, worker)
  redis.call('DEL', run.K['offer:' .. worker])
end

-- Returns the ids of leased tasks, and what `partials` says of each, false where it says nothing.
local function ids_and_partials(run, tasks)
  local ids = {}
  for place, task in ipairs(tasks) do ids[place] = value_of(task[3], 'id') end
  return ids, #ids > 0 and redis.call('HMGET', run.K.partials, unpack(ids)) or {}
end

-- Returns the version that a leased task needs, its partial that is continued, and the version of its oldest token: nil for a
-- task that is asked for an evaluation, which no bound concerns. `begins`: the version with which the worker would begin it.
local function terms_of(run, task, id, text, begins)
  local words = task[3]
  if task[1] == 'evaluation' then
    local only = { lineage = tonumber(value_of(words, 'lineage')), version = tonumber(value_of(words, 'pv')) }
    return only.version, partial_to_continue(run, id, text, only), nil
  end
  -- Weights older than v − S are too late by now; newer ones than published cannot be had, which matters
  -- when the learner restarted at an older version than the one this task was tagged for.
  local needs = math.min(run.published, math.max(tonumber(value_of(words, 'min_pv')), run.v - run.s))
  local partial = partial_to_continue(run, id, text)
  local oldest, newest = partial[1], partial[2]
  -- No worker may continue a partial with weights older than its newest token.
  return math.max(needs, newest or 0), partial, oldest or math.max(begins, needs)
end

-- args: worker lineage version size token
local function lease(keys, args)
  local run = open_run(keys)
  local worker, token = own_name(run, args[1]), args[5]
  local lineage, version, size = whole(args[2], 'the lineage'), whole(args[3], 'the version'), whole(args[4], 'the count')
  refuse_unless(#token <= WORD_MAX_BYTES, 'the token is too long')
  local published = redis.call('HMGET', run.K.published, 'lineage', 'number', 'manifest', 'digest')
  run.published = tonumber(published[2])
  local left_behind = abandoned(run, lineage, version)
  local tasks, more, keeps, suspended = {}, false, false, redis.call('HGET', run.K.suspended, worker)
  if run.published and not suspended and not is_finished(run) then
    local streams, newest = TRAINING, tonumber(published[1]) == lineage and run.published == version
    if not left_behind then streams, keeps = streams_for(run, worker, lineage, version, newest) end
    tasks = repeat_lease(run, worker, token)
    if not tasks then tasks, more = fresh_lease(run, worker, size, token, streams) end
  end
  local ends, versions, awaited, ends_at = {}, {}, {}, lease_end(run)
  local begins = left_behind and run.published or version
  local ids, texts = ids_and_partials(run, tasks)
  for place, task in ipairs(tasks) do
    local id, oldest = ids[place], nil
    task[4], task[5], oldest = terms_of(run, task, id, texts[place], begins)
    ends[2 * place - 1], ends[2 * place] = ends_at, id
    if oldest then versions[#versions + 1], versions[#versions + 2] = oldest, id end
    if oldest and tonumber(value_of(task[3], 'late')) > 0 then
      awaited[#awaited + 1], awaited[#awaited + 2] = oldest, id
    end
  end
  call_for_all('ZADD', run.K.leases, ends)
  call_for_all('ZADD', run.K.in_flight, versions)
  call_for_all('ZADD', run.K.awaited, awaited)
  if #tasks > 0 then
    redis.call('ZREM', run.K.idle, worker)
  elseif size > 0 and not suspended then
    note_idle(run, worker)
  end
  if more and #tasks > 0 then offer_on(run, #tasks) end
  tally(run, 'leased', #tasks)
  return { published, left_behind and 1 or 0, is_finished(run) and 1 or 0, run.lineage, run.v, suspended or '', keeps and 1 or 0,
           tasks }
end

-- args: worker, then id version… ; returns the ids that the worker no longer holds, or has handed back.
local function renew(keys, args)
  local run = open_run(keys)
  local worker = own_name(run, args[1])
  local lost = {}
  for place = 2, #args, 2 do
    local id, version = args[place], whole(args[place + 1] or '', 'the version')
    local stream, entry = place_of(run, id)
    if is_task(stream) and held_by(run, stream, entry, worker) and not is_over(run, id) then
      redis.call('ZADD', run.K.leases, lease_end(run), id)
      if stream == 'evaluation' then
        redis.call('ZADD', run.K.keepers, 'XX', clock_of(run), worker)
      else
        note_version(run, id, version)
      end
    else
      lost[#lost + 1] = id
    end
  end
  return lost
end

-- args: worker id… ; returns how many it held.
local function release(keys, args)
  local run = open_run(keys)
  local worker, released = own_name(run, args[1]), 0
  for place = 2, #args do
    local stream, entry = place_of(run, args[place])
    if is_task(stream) and held_by(run, stream, entry, worker) then
      expire(run, args[place], HANDED_BACK)
      released = released + 1
    end
  end
  return released
end

-- args: worker id reason. Gives up one attempt. Returns 0 if the worker does not hold the task, or is suspended.
local function fail(keys, args)
  local run = open_run(keys)
  local worker, id, reason = own_name(run, args[1]), args[2], args[3]
  local stream, entry = place_of(run, id)
  if not is_task(stream) or not held_by(run, stream, entry, worker) or is_suspended(run, worker) then return 0 end
  local task = read(run, stream, entry)
  if not task then return 0 end
  local attempt = task.attempt
  drop_partial(run, id)
  redis.call('HSET', run.K.failures, id, 'attempt ' .. attempt .. ' by ' .. worker .. ': ' .. reason:sub(-REASON_MAX_BYTES))
  expire(run, id, GIVEN_UP)
  return 1
end

-- Returns the time since publication, from the first heartbeat that names a version; nil for any other heartbeat.
local function since_publication(run, words)
  local published = tonumber(words.published_ms)
  return published and published > 0 and published <= run.now and string.format('%d', run.now - published) or nil
end

-- args: worker expire_ms, then field value… Returns the controller's order to this worker, or ''.
local function heartbeat(keys, args)
  local run = open_run(keys)
  local key = run.K['worker:' .. check_worker(args[1])]
  refuse_unless(#args <= 48, 'a heartbeat of ' .. #args .. ' words')
  whole(args[2], 'the time until it expires')
  for place = 3, #args do refuse_unless(#args[place] <= WORD_MAX_BYTES, 'a word of the heartbeat is too long') end
  local arrived_ms = since_publication(run, pairs_of({ unpack(args, 3) }))
  redis.call('HSET', key, unpack(args, 3))
  if arrived_ms then redis.call('HSET', key, 'arrived_ms', arrived_ms) end
  redis.call('PEXPIRE', key, args[2])
  redis.call('ZADD', run.K.workers, run.now, args[1])
  return redis.call('GET', run.K['order:' .. args[1]]) or ''
end

-- Why a worker leaves, and what the tallies call it.
local DEPARTURES = { finished = 'left_finished', preempted = 'left_preempted', rest = 'left_rest', dismissed = 'left_dismissed',
  stopped = 'left_stopped', error = 'left_error' }

-- args: worker why. Removes a worker that ends from the list, and counts it once.
local function leave(keys, args)
  local run, worker, why = open_run(keys), check_worker(args[1]), DEPARTURES[args[2]]
  refuse_unless(why, 'that is no reason to leave')
  redis.call('PEXPIRE', run.K['worker:' .. worker], 0)
  redis.call('ZREM', run.K.idle, worker)
  local listed = redis.call('ZREM', run.K.workers, worker)
  tally(run, why, listed)
  return listed
end

register('lease', lease)
register('renew', renew, 'allow-oom')
register('release', release, 'allow-oom')
register('fail', fail, 'allow-oom')
register('heartbeat', heartbeat, 'allow-oom')
register('leave', leave, 'allow-oom')
