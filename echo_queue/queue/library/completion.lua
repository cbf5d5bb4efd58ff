-- The completion of tasks by a worker: each group is checked word by word, and the first one of a task wins.

local SENT_LEAST, SENT_BATCHES, SENT_KEPT_MS = 256, 2, 86400000

-- A payload lies in the entry, within the size cap, or in the object store, in the folder of its own task.
local function check_payload(run, id, kind, payload)
  refuse_unless(kind == 'group' or kind == 'ref', 'the payload is neither group nor ref')
  if kind == 'group' then
    local cap = run.group_max_bytes
    refuse_unless(#payload <= cap, 'a group of ' .. #payload .. ' bytes; queue.group_max_bytes is ' .. cap)
  else
    local folder = folder_of(id)
    local hash, lot = payload:sub(#folder + 1):match('^([0-9a-f]+)%-([0-9a-f]+)$')
    local fine = payload:sub(1, #folder) == folder and hash and #hash == 64 and #lot == 16
    refuse_unless(fine, 'the ref is no payload of its task')
  end
end

-- Adds a group to its bucket. The mean follows recent groups, because the sums are halved now and then.
local function note_bucket(run, name, bucket, tokens)
  local key = run.K['buckets:' .. name]
  local groups, sum = read_bucket(redis.call('HGET', key, bucket))
  if groups >= BUCKET_GROUPS_MAX then groups, sum = math.floor(groups / 2), math.floor(sum / 2) end
  redis.call('HSET', key, bucket, string.format('%d %d', groups + 1, sum + tokens))
end

-- Records the length of a prompt's group: its next group is likely to be as long, and so are those of similar prompts.
local function note_length(run, task, tokens)
  local key, index = run.K['lengths:' .. task.set], tonumber(task.index)
  if index >= STRING_MAX_BYTES then return end
  local before = redis.call('BITFIELD', key, 'SET', 'u8', '#' .. task.index, length_byte(tokens))[1]
  if before > 0 and before <= BUCKETS then note_bucket(run, task.set, before, tokens) end
end

-- Returns a group as its worker reports it, by the ten words from args[at] on.
local function reported_group(run, args, at)
  local id, attempt, oldest, newest, lineage, samples, tokens, reward, kind, payload = unpack(args, at, at + 9)
  local group = { id = id, attempt = attempt, samples = samples, tokens = tokens, reward = reward, kind = kind, payload = payload }
  group.oldest, group.newest, group.lineage = whole(oldest, 'oldest'), whole(newest, 'newest'), whole(lineage, 'the lineage')
  refuse_unless(group.oldest <= group.newest, 'oldest is newer than newest')
  whole(attempt, 'the attempt')
  whole(samples, 'samples')
  whole(tokens, 'tokens')
  finite(reward, 'the reward')
  check_payload(run, id, kind, payload)
  return group
end

-- Notes under the worker's own name that it sent the group at that entry of replay, the newest SENT_BATCHES batches of it.
-- Only then is the worker to blame for the group: its name alone anybody could write.
local function note_sent(run, worker, place)
  local kept = math.max(SENT_LEAST, SENT_BATCHES * run.batch)
  redis.pcall('XADD', run.K['sent:' .. worker], 'MAXLEN', '~', kept, place, 'g', '')
end

-- Moves a task to the stream of those that are done, with what its worker reports, and notes its new place. Returns that.
local function move_done(run, stream, task, worker, group)
  local place = enter(run, stream, task, 'worker', worker, 'oldest', group.oldest, 'newest', group.newest,
    'samples', group.samples, 'tokens', group.tokens, 'reward', group.reward, group.kind, group.payload)
  local made_by = ' by ' .. worker .. ' attempt ' .. group.attempt
  local versions = ' versions ' .. group.oldest .. '..' .. group.newest .. ' lineage ' .. group.lineage
  local words = stream == 'scored' and made_by or versions .. made_by .. (group.kind == 'ref' and ' in store' or '')
  redis.call('HSET', run.K.open, task.id, stream .. ' ' .. place .. words)
  return place
end

-- Returns the outcome of a group that answers a task of the round under way. Only the round's version may have drawn it.
local function answer(run, worker, group, entry)
  local task = read(run, 'evaluation', entry)
  if not task or task.id ~= group.id then return 'unknown' end
  local version, lineage = tonumber(task.pv), tonumber(task.lineage)
  if group.oldest ~= version or group.newest ~= version or group.lineage ~= lineage then
    if held_by(run, 'evaluation', entry, worker) then expire(run, group.id, HANDED_BACK) end
    return 'mixed'
  end
  note_sent(run, worker, move_done(run, 'scored', task, worker, group))
  clear(run, 'evaluation', entry, group.id, true)
  drop_partial(run, group.id)
  return 'answered'
end

local function complete_one(run, worker, group, suspended)
  local id, oldest, newest, lineage = group.id, group.oldest, group.newest, group.lineage
  local stream, entry, rest, first = place_of(run, id)
  if not stream then return 'unknown' end
  if first then
    return first.worker == worker and first.attempt == group.attempt and 'repeated' or 'duplicate'
  end
  if stream == 'scored' then return 'duplicate' end -- it has failed in all attempts
  if stream == 'dead' and rest == BY_HAND then return 'dead' end
  if suspended then return 'suspended' end
  if stream == 'evaluation' then return answer(run, worker, group, entry) end
  if run.v - oldest > run.s or abandoned(run, lineage, newest) then
    if is_task(stream) and held_by(run, stream, entry, worker) then
      note_version(run, id, oldest)
      expire(run, id, HANDED_BACK)
    end
    return 'late'
  end
  local task = read(run, stream, entry)
  if not task or task.id ~= id then -- somebody deleted its entry, or wrote another place for it
    tally(run, 'unknown')
    return 'unknown'
  end
  task.lineage = lineage
  local place = move_done(run, 'replay', task, worker, group)
  redis.call('ZADD', run.K.ready, oldest, place .. ' ' .. id)
  note_sent(run, worker, place)
  clear(run, stream, entry, id, task.late == '0')
  drop_partial(run, id)
  note_length(run, task, math.min(tonumber(group.tokens), run.group_max_tokens))
  curriculum.note(run, task, tonumber(group.samples), tonumber(group.reward))
  return 'accepted'
end

-- Tells the learner, if it waits, once enough groups are ready. `added`: those of this call.
local function tell_arrived(run, added)
  if added == 0 or not run.enough then return end
  local ready = redis.call('ZCARD', run.K.ready)
  if ready >= run.enough and ready - added < run.enough then tell_learner(run, 'ready', ready) end
end

-- What the tallies call the outcome of a completion; `repeated` is accepted already, and counted.
local OUTCOMES = { accepted = 'completed', answered = 'answered', mixed = 'mixed_completion', spilled = 'spilled', duplicate = 'duplicate', late = 'late_completion',
  dead = 'dead_completion', unknown = 'unknown', suspended = 'suspended_completion' }

-- args: worker id attempt oldest newest lineage samples tokens reward group|ref payload, and the same of each further group.
-- Returns the outcomes in the same order. All groups are checked before the first one is moved.
local function complete(keys, args)
  local run = open_run(keys)
  local worker = own_name(run, args[1])
  local suspended = is_suspended(run, worker)
  refuse_unless(#args % 10 == 1, 'a group is told of in ten words')
  local groups, outcomes, counts = {}, {}, { accepted = 0, answered = 0, spilled = 0 }
  for at = 2, #args, 10 do groups[#groups + 1] = reported_group(run, args, at) end
  for place, group in ipairs(groups) do
    local outcome = complete_one(run, worker, group, suspended)
    counts[outcome] = (counts[outcome] or 0) + 1
    if (outcome == 'accepted' or outcome == 'answered') and group.kind == 'ref' then counts.spilled = counts.spilled + 1 end
    outcomes[place] = (outcome == 'repeated' or outcome == 'answered') and 'accepted' or outcome
  end
  for outcome, times in pairs(counts) do
    if OUTCOMES[outcome] then tally(run, OUTCOMES[outcome], times) end
  end
  if counts.accepted + counts.answered > 0 then redis.call('PEXPIRE', run.K['sent:' .. worker], SENT_KEPT_MS) end
  tell_arrived(run, counts.accepted)
  return outcomes
end

register('complete', complete)
