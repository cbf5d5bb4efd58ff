-- The moves of a worker: it leases, renews and hands back tasks; `completion.lua` has how it completes them. It needs no right
-- to add a task. Other roles read its arguments later, so each argument must have the form that our own code gives it.

local WORD_MAX_BYTES = 200

local function refuse_unless(fine, what)
  if not fine then fail_with('EQREFUSED', what) end
end

local function check_worker(name)
  refuse_unless(#name <= WORD_MAX_BYTES and name:match('^[%w_.:-]+$'), 'that is no name of a worker')
  return name
end

-- Returns the name of the worker that calls, having read a key under it before anything is moved: where a user may go by some
-- names only, Redis refuses all others here.
local function own_name(run, name)
  redis.call('GET', run.K['token:' .. check_worker(name)])
  return name
end

-- Whether the learner has suspended this worker.
local function is_suspended(run, worker)
  return redis.call('HEXISTS', run.K.suspended, worker) == 1
end

-- Returns a number written in decimal digits: `tonumber` takes hexadecimal ones, nan and inf as well.
local function finite(text, what)
  local number = #text <= 40 and text:match('^%-?%d[%d.eE+-]*$') and tonumber(text)
  refuse_unless(number and math.abs(number) < 1e15, what .. ' is no finite number')
  return number
end

local function whole(text, what)
  refuse_unless(#text <= 15 and text:match('^%d+$'), what .. ' is no whole number')
  return tonumber(text)
end

local function held_by(run, stream, entry, worker)
  return redis.call('XPENDING', run.K[stream], 'workers', entry, entry, 1, worker)[1] ~= nil
end

local function is_task(stream)
  return stream == 'tasks' or stream == 'retry'
end

-- A lease that is over before its time: the task costs no attempt, or one.
local HANDED_BACK, GIVEN_UP = -2, -1

-- Ends a lease before its time (HANDED_BACK or GIVEN_UP): the next sweep finds it first.
local function expire(run, id, how)
  redis.call('ZADD', run.K.leases, how, id)
end

local function is_over(run, id)
  return tonumber(redis.call('ZSCORE', run.K.leases, id) or 0) < 0
end

-- Notes the version of the oldest token of a leased task.
local function note_version(run, id, version)
  redis.call('ZADD', run.K.in_flight, version, id)
  redis.call('ZADD', run.K.awaited, 'XX', version, id)
end

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

-- Leases up to `size` tasks, of which only the last may be a long one: the next long one goes to the next worker that asks.
-- Several of them at one worker would slow one another down while other workers have nothing left to do. Returns as well
-- whether there may be more.
local function fresh_lease(run, worker, size, token)
  local tasks, note, full = {}, { token }, size == 0
  for _, stream in ipairs({ 'retry', 'tasks' }) do
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
  local left = redis.call('XLEN', run.K.tasks) + redis.call('XLEN', run.K.retry) - leased(run)
  if left > 0 then offer(run, left > OFFERED_AT_ONCE * taken and 2 or 1) end
end

-- Returns a value of `partials` as {oldest, newest, lineage, tokens, mark, segments, bytes, stored}; nil if it is malformed or
-- claims more tokens than `most`.
local function read_partial(text, most)
  local words = { text:match('^(%d+) (%d+) (%d+) (%d+) (%x+) (%d+) (%d+) (%d+)$') }
  if not words[1] or tonumber(words[4]) > most then return nil end
  for place, word in ipairs(words) do words[place] = place == 5 and word or tonumber(word) end
  return words
end

-- Returns {oldest, newest, lineage, tokens, mark, segments} of the partial that the worker continues when it leases this task,
-- of which `partials` says `text`; {} if there is none. A partial that no worker may continue is dropped: it is too old by now,
-- was made by weights since left behind, or is malformed.
local function partial_to_continue(run, id, text)
  if not text then return {} end
  local partial = read_partial(text, run.group_max_tokens)
  if not partial then
    drop_partial(run, id)
    tally(run, 'bad_partial')
    return {}
  end
  local oldest, newest, lineage, tokens, mark = unpack(partial)
  if run.v - oldest > run.s or newest > run.published or oldest > newest or abandoned(run, lineage, newest) then
    drop_partial(run, id)
    tally(run, 'tokens_discarded', tokens)
    return {}
  end
  tally(run, 'tokens_continued', tokens)
  return { oldest, newest, lineage, tokens, mark, redis.call('LRANGE', run.K['segments:' .. id], 0, SEGMENTS_MAX) }
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

-- args: worker lineage version size token
local function lease(keys, args)
  local run = open_run(keys)
  local worker, token = own_name(run, args[1]), args[5]
  local lineage, version, size = whole(args[2], 'the lineage'), whole(args[3], 'the version'), whole(args[4], 'the count')
  refuse_unless(#token <= WORD_MAX_BYTES, 'the token is too long')
  local published = redis.call('HMGET', run.K.published, 'lineage', 'number', 'manifest', 'digest')
  run.published = tonumber(published[2])
  local left_behind = abandoned(run, lineage, version)
  local tasks, more, suspended = {}, false, redis.call('HGET', run.K.suspended, worker)
  if run.published and not suspended and not is_finished(run) then
    tasks = repeat_lease(run, worker, token)
    if not tasks then tasks, more = fresh_lease(run, worker, size, token) end
  end
  local ends, versions, awaited, ends_at = {}, {}, {}, lease_end(run)
  local ids, texts = ids_and_partials(run, tasks)
  for place, task in ipairs(tasks) do
    local words, id = task[3], ids[place]
    -- Weights older than v − S are too late by now; newer ones than published cannot be had, which matters
    -- when the learner restarted at an older version than the one this task was tagged for.
    local needs = math.min(run.published, math.max(tonumber(value_of(words, 'min_pv')), run.v - run.s))
    local partial = partial_to_continue(run, id, texts[place])
    local oldest, newest = partial[1], partial[2]
    -- No worker may continue a partial with weights older than its newest token.
    task[4], task[5] = math.max(needs, newest or 0), partial
    local begins = left_behind and run.published or math.max(version, needs)
    ends[2 * place - 1], ends[2 * place] = ends_at, id
    versions[2 * place - 1], versions[2 * place] = oldest or begins, id
    if tonumber(value_of(words, 'late')) > 0 then
      awaited[#awaited + 1], awaited[#awaited + 2] = oldest or begins, id
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
  return { published, left_behind and 1 or 0, is_finished(run) and 1 or 0, run.lineage, run.v, suspended or '', tasks }
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
      note_version(run, id, version)
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
