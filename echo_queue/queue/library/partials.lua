-- Partial rollouts: how far a leased task is, stored by its worker for the one that leases the task next.
--
-- A worker sends what is new since its last call, as one segment. `partials` says in a few words what the segments amount to;
-- their mark identifies the content of all of them. A call names the mark that it continues and the mark that follows, so a
-- call whose reply was lost appends nothing twice, and a gap is noticed: the worker then sends everything.
--
-- Other roles read a worker's arguments later, so each argument must have the form that our own code gives it.

local UNWANTED_AT_ONCE = 1000
local WORDS = 10

-- A segment lies in Redis, within the size cap, or in the object store, in the folder of its own task.
local function check_segment(run, id, kind, payload, cap)
  refuse_unless(kind == 'segment' or kind == 'ref', 'the payload is neither segment nor ref')
  refuse_unless(#payload <= cap, 'a segment of ' .. #payload .. ' bytes; queue.group_max_bytes is ' .. cap)
  refuse_unless(kind == 'segment' or (#payload <= WORD_MAX_BYTES and stored_segment(id, 'ref ' .. payload)),
    'the ref is no segment of its task')
end

-- Gives up a segment that was not taken: its object is unwanted, unless an earlier try of the same call has brought it in.
local function give_up(run, id, element)
  local object = stored_segment(id, element)
  if object and not redis.call('LPOS', run.K['segments:' .. id], element) then unwant(run, { object }) end
end

-- Removes all segments but the first `keep`. Returns their bytes, and how many of them lay in the store.
local function trim(run, id, keep)
  local key, bytes, objects = run.K['segments:' .. id], 0, {}
  for _, element in ipairs(redis.call('LRANGE', key, keep, -1)) do
    bytes = bytes + #element
    objects[#objects + 1] = stored_segment(id, element)
  end
  redis.call('LTRIM', key, 0, keep - 1)
  unwant(run, objects)
  return bytes, #objects
end

-- Keeps the first `keep` segments, which are a part of what `after` identifies, and appends one. Returns {segments, bytes,
-- stored}; nil if something else is stored than the worker says, or too much.
local function append(run, id, known, after, keep, element, cap)
  if not known or known[5] ~= after or known[6] < keep or keep >= SEGMENTS_MAX then return nil end
  local bytes, stored = known[7] + #element, known[8] + (stored_segment(id, element) and 1 or 0)
  if bytes > cap then return nil end
  if keep < known[6] then
    local less, objects = trim(run, id, keep)
    bytes, stored = bytes - less, stored - objects
  end
  if redis.call('RPUSH', run.K['segments:' .. id], element) ~= keep + 1 then return nil end
  return { keep + 1, bytes, stored }
end

local function begin(run, id, element)
  drop_partial(run, id)
  redis.call('DEL', run.K['segments:' .. id])
  redis.call('RPUSH', run.K['segments:' .. id], element)
  return { 1, #element, stored_segment(id, element) and 1 or 0 }
end

-- Stores what ten words tell of one task. Returns 1; 0 if the worker does not hold the task; 2 if it has to send everything.
local function store(run, worker, cap, id, oldest, newest, lineage, tokens, mark, after, keep, kind, payload)
  local words = { whole(oldest, 'oldest'), whole(newest, 'newest'), whole(lineage, 'the lineage'), whole(tokens, 'tokens') }
  for place, word in ipairs(words) do words[place] = string.format('%d', word) end
  refuse_unless(#mark == 32 and mark:match('^%x+$'), 'that is no mark')
  keep = whole(keep, 'keep')
  check_segment(run, id, kind, payload, cap)
  local stream, entry = place_of(run, id)
  local element = kind .. ' ' .. payload
  if not is_task(stream) or not held_by(run, stream, entry, worker) then
    give_up(run, id, element)
    return 0
  end
  if words[4] == '0' then
    drop_partial(run, id)
    return 1
  end
  local text = redis.call('HGET', run.K.partials, id)
  local known = text and read_partial(text, math.huge)
  if known and known[5] == mark then return 1 end
  local sizes
  if keep == 0 then sizes = begin(run, id, element) else sizes = append(run, id, known, after, keep, element, cap) end
  if not sizes then
    give_up(run, id, element)
    return 2
  end
  redis.call('HSET', run.K.partials, id, table.concat(words, ' ') .. ' ' .. mark .. ' ' .. table.concat(sizes, ' '))
  return 1
end

-- args: worker id oldest newest lineage tokens mark after keep segment|ref payload, the last ten for each task. Appends a
-- segment behind the first `keep` ones of the partial that `after` identifies; with keep 0, the segment is all of it. With 0
-- tokens, drops what is stored. Returns what `store` says of each task.
local function progress(keys, args)
  local run = { K = keys_under(keys[1]) }
  local worker, answers = own_name(run, args[1]), {}
  local cap = tonumber(redis.call('HGET', run.K.rules, 'group_max_bytes'))
  refuse_unless((#args - 1) % WORDS == 0, 'these are not ' .. WORDS .. ' words a task')
  for place = 2, #args, WORDS do
    answers[#answers + 1] = store(run, worker, cap, unpack(args, place, place + WORDS - 1))
  end
  return answers
end

-- args: worker id… ; drops the bad partials of these tasks, as far as the worker holds them. Returns how many there were.
local function discard(keys, args)
  local run = open_run(keys)
  local worker, bad = own_name(run, args[1]), 0
  for place = 2, #args do
    local stream, entry = place_of(run, args[place])
    if is_task(stream) and held_by(run, stream, entry, worker) then bad = bad + drop_partial(run, args[place]) end
  end
  tally(run, 'bad_partial', bad)
  return bad
end

-- args: key… ; these objects have been removed from the store. Returns the keys of further ones that nothing points to.
local function unwanted(keys, args)
  local run = open_run(keys)
  for _, key in ipairs(args) do redis.call('SREM', run.K.unwanted, key) end
  return redis.call('SRANDMEMBER', run.K.unwanted, UNWANTED_AT_ONCE)
end

register('progress', progress)
register('discard', discard, 'allow-oom')
register('unwanted', unwanted, 'allow-oom')
