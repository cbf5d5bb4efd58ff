-- The moves of an operator, and of the roles that begin a run: the run rules, and tasks that are buried or revived.

-- args: id reason. Returns {1 if it was buried, its object-store key if it had one}. A group in the learner's hands is not
-- buried, because it may be in an update already. A worker that has the task in hand cannot complete it any more.
local function bury(keys, args)
  local run = open_run(keys)
  local stream, entry, rest = place_of(run, args[1])
  if not stream or stream == 'dead' then return { 0 } end
  if stream == 'replay' and not redis.call('ZSCORE', run.K.ready, entry .. ' ' .. args[1]) then return { 0 } end
  local sender = stream == 'replay' and made(rest).worker or ''
  local ref = bury_task(run, args[1], stream, entry, nil, args[2]:sub(-REASON_MAX_BYTES), sender)
  local now, place = place_of(run, args[1])
  if now == 'dead' then redis.call('HSET', run.K.open, args[1], 'dead ' .. place .. BY_HAND) end
  return { 1, ref }
end

-- args: id… ; tasks that are dead, or of which attempts have failed so far, get all attempts again. A worker that has such a
-- task in hand may still complete it. Returns how many there were.
local function revive(keys, args)
  local run = open_run(keys)
  local revived = 0
  for _, id in ipairs(args) do
    local stream, entry = place_of(run, id)
    if stream == 'dead' or is_task(stream) and redis.call('HEXISTS', run.K.failures, id) == 1 then
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

-- args: field value… of the rules. Creates the run with these rules. A run that has rules keeps them, because they are
-- those of its learner, which only `resume` changes. Returns the rules.
local function configure(keys, args)
  local K = keys_under(keys[1])
  make_group(K.tasks, 'workers')
  make_group(K.retry, 'workers')
  for field, value in pairs({ lineage = 0, v = 0, window = 2, uncommitted = 0 }) do
    redis.call('HSETNX', K.state, field, value)
  end
  if redis.call('EXISTS', K.rules) == 0 then redis.call('HSET', K.rules, unpack(args)) end
  return redis.call('HGETALL', K.rules)
end

register('configure', configure)
register('bury', bury, 'allow-oom')
register('revive', revive)
