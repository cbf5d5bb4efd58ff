-- The moves of the learner. Every move except `resume` carries its lineage, and is refused if a newer lineage exists. A move
-- that may find much to do does one step of it, so that Redis never serves one caller for long.

-- Groups that one step hands out; groups that it sends back, each with its payload; tasks in flight that it sends back.
local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = 64, 16, 32

local function too_late(run, group)
  return run.v - group.oldest > run.s
end

-- Sends back a group in replay that may not be trained; `refs` collects the object that it leaves in the object store.
-- Returns whether it was too late, rather than abandoned.
local function return_group(run, id, entry, group, refs)
  local late = too_late(run, group)
  refs[#refs + 1] = send_back(run, id, 'replay', entry, { too_late = late })
  count(run, late and 'late' or 'abandoned')
  return late
end

local function unfit(run, group)
  return too_late(run, group) or abandoned(run, group.lineage, group.newest)
end

-- Returns the number of seats kept for groups in flight that would be too late after the next update and must be waited
-- for. They are kept from the time when the learner first wanted one for that update until the deadline.
local function seats(run)
  local oldest = run.v - run.s
  local kept = redis.call('ZCOUNT', run.late == 'wait' and run.K.in_flight or run.K.awaited, oldest, oldest)
  if kept == 0 then return 0 end
  local clock, update = clock_of(run), run.lineage .. '.' .. run.v
  local wanted, since = (run.state.wanted or ''):match('^(%S+) (%d+)$')
  if wanted ~= update then
    redis.call('HSET', run.K.state, 'wanted', update .. ' ' .. string.format('%d', clock))
    since = clock
  end
  return clock - since < run.late_deadline_ms and kept or 0
end

-- Returns the fields of the group at that entry of replay, of whose task `open` said `text`; nil if it is not the task's:
-- somebody's words, and no group. Where other words stand in `open` in place of the group's, they are mended.
local function group_at(run, id, entry, text)
  local stream, place, _, known = place_in(text)
  if known and place == entry then return known end
  stream, place = place_of(run, id) -- another entry of the same task may have changed it since
  if redis.call('HEXISTS', run.K.open, id) == 0 or is_at_home(run, id, stream, place) then return nil end
  local group = restore_group(run, id, entry)
  if group then note_forged(run) end
  return group
end

-- Returns {entry, id, what `open` says of it, member} of each of these members of `ready` or `in_hand`, of which there are at
-- most SLICE, with one reading of `open`. Members of another form, which a worker's user has made up, have neither entry nor id.
local function with_places(run, members)
  local rows, ids = {}, {}
  for place, member in ipairs(members) do
    local entry, id = member:match('^(%S+) (.+)$')
    rows[place], ids[place] = { entry, id, false, member }, id or ''
  end
  if #ids > 0 then
    for place, text in ipairs(redis.call('HMGET', run.K.open, unpack(ids))) do rows[place][3] = text end
  end
  return rows
end

-- Returns the entry, the id and the versions of a group that `ready` or `in_hand` lists, which `with_places` has read. One that
-- a worker's user has made up is struck off the list, and counted.
local function listed(run, list, row)
  local entry, id, text, member = unpack(row, 1, 4)
  local group = entry and group_at(run, id, entry, text)
  if group and group.oldest then return entry, id, group end
  redis.call('ZREM', run.K[list], member)
  note_forged(run)
end

-- Hands out the first `most` ready groups of these versions, from the ready list into the learner's hands, or sends them
-- back. `taken` collects {id, entry} of those that were handed out. Returns whether there were as many.
local function hand_out_range(run, low, high, most, taken, refs, back)
  local members = redis.call('ZRANGEBYSCORE', run.K.ready, low, high, 'LIMIT', 0, most)
  local held, passed, full = {}, {}, #members == most
  for place, row in ipairs(with_places(run, members)) do
    if back.late + back.abandoned == RETURN_MAX then
      full = true
      break
    end
    local member, entry, id, group = members[place], listed(run, 'ready', row)
    if entry and unfit(run, group) then
      local cause = return_group(run, id, entry, group, refs) and 'late' or 'abandoned'
      back[cause] = back[cause] + 1
    elseif entry then
      held[#held + 1], held[#held + 2] = group.oldest, member
      passed[#passed + 1], taken[#taken + 1] = member, { id, entry }
    end
  end
  call_for_all('ZADD', run.K.in_hand, held)
  call_for_all('ZREM', run.K.ready, passed)
  return full
end

-- The oldest versions first (earliest deadline first), then in order of completion. What is too late is left to others.
local function fresh_drain(run, need, turn, refs, back)
  local taken, oldest = {}, run.v - run.s
  need = math.min(need, DRAIN_MAX)
  while #taken < need and back.late + back.abandoned < RETURN_MAX do
    if not hand_out_range(run, oldest, '+inf', need - #taken, taken, refs, back) then break end
  end
  local ids = {}
  for place = 1, #taken do ids[place] = taken[place][1] end
  redis.call('SET', run.K.drained, turn .. ' ' .. table.concat(ids, ' '))
  return taken
end

-- Returns {id, entry} of what the drain of this turn handed out, as far as it still lies in replay; nil if there was none.
local function repeat_drain(run, turn)
  local known = redis.call('GET', run.K.drained)
  if not known or known:match('^%S+') ~= turn then return nil end
  local taken = {}
  for id in known:gmatch(' (%S+)') do
    local stream, entry = place_of(run, id)
    if stream == 'replay' then taken[#taken + 1] = { id, entry } end
  end
  return taken
end

-- Notes when the learner, which still needs that many groups, is to be told again: once half of what it lacks is ready. It
-- then reads and checks them while it waits for the others, and wakes about log2(B) times for a batch. Groups for which
-- seats are kept have to come before those that are ready can be handed out.
local function await(run, needed, seats_kept)
  local ready = redis.call('ZCARD', run.K.ready)
  local lacking = math.max(needed - ready, math.min(needed, seats_kept))
  if needed <= 0 then
    redis.call('HDEL', run.K.state, 'enough')
  else
    redis.call('HSET', run.K.state, 'enough', ready + math.max(1, math.ceil(lacking / 2)))
  end
end

-- args: lineage turn need. One step: at most DRAIN_MAX groups are handed out and RETURN_MAX sent back; the answer says whether
-- there may be more of them. Payloads are not read here: the caller fetches the entries it is given.
local function drain(keys, args)
  local run = open_run(keys)
  local turn = args[2]
  take_turn(run, args[1], turn, 'drain')
  local K, refs, back = run.K, {}, { late = 0, abandoned = 0 }
  hand_out_range(run, '-inf', '(' .. (run.v - run.s), RETURN_MAX, {}, refs, back)
  local kept = seats(run)
  local need = math.max(0, tonumber(args[3]) - kept)
  local taken = repeat_drain(run, turn) or fresh_drain(run, need, turn, refs, back)
  await(run, tonumber(args[3]) - #taken, kept)
  tell_returned(run, back.late + back.abandoned)
  admit(run)
  local left = outside(run)
  local exhausted = left == 0 and run.state.declared
  local more = #taken == DRAIN_MAX or back.late + back.abandoned == RETURN_MAX
  return { taken, kept, back.late, back.abandoned, redis.call('ZCARD', K.ready),
           redis.call('ZCARD', K.in_flight), left, exhausted and 1 or 0, more and 1 or 0, refs }
end

-- args: lineage place. One step through the groups drained and not committed, oldest first, from that place on. Those that
-- may no longer be trained go back. Returns the others, the objects that may be removed, and how many were looked at.
local function pending(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local groups, refs, returned, looked = {}, {}, 0, 0
  local members = redis.call('ZRANGE', run.K.in_hand, args[2], args[2] + DRAIN_MAX - 1)
  for _, row in ipairs(with_places(run, members)) do
    if returned == RETURN_MAX then break end
    local entry, id, group = listed(run, 'in_hand', row)
    if entry and unfit(run, group) then
      return_group(run, id, entry, group, refs)
      returned = returned + 1
    elseif entry then
      groups[#groups + 1] = { id, entry }
    end
    looked = looked + 1
  end
  tell_returned(run, returned)
  return { groups, refs, looked }
end

-- args: lineage. One step of what `resume` leaves to be done, before the learner advances: tasks in flight by versions that the
-- new lineage has not reached go back, because those weights are abandoned. Returns how many went, 0 after the last step.
local function cancel(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local cancelled = send_back_range(run, '(' .. run.v, '+inf', CANCEL_MAX, false)
  tell_returned(run, cancelled)
  return cancelled
end

-- args: lineage turn version trained window. Returns how many groups in flight were cancelled; `reclaim` cancels what is too
-- late beyond CANCEL_MAX.
local function advance(keys, args)
  local run = open_run(keys)
  take_turn(run, args[1], args[2], 'advance')
  local version = tonumber(args[3])
  if version <= run.v then return 0 end
  run.v, run.uncommitted = version, run.uncommitted + tonumber(args[4])
  run.window = tonumber(args[5])
  redis.call('HSET', run.K.state, 'v', version, 'uncommitted', run.uncommitted, 'window', args[5])
  local cancelled = cancel_late(run, CANCEL_MAX)
  tell(run, 'advanced', version)
  admit(run)
  return cancelled
end

-- args: lineage turn groups. The learner has found that so many groups in its hands teach nothing, and takes others into the
-- same update: they count as trained for bound and pace, so that other prompts are admitted meanwhile. A drain that had
-- filled the update awaits nothing, so this move does. Returns how many groups count so.
local function skip(keys, args)
  local run = open_run(keys)
  local repeated = run.state.turn == args[2] .. ' skip'
  take_turn(run, args[1], args[2], 'skip')
  if not repeated then
    run.uncommitted = run.uncommitted + tonumber(args[3])
    redis.call('HSET', run.K.state, 'uncommitted', run.uncommitted)
    admit(run)
    if not run.enough then await(run, tonumber(args[3]), 0) end
  end
  return run.uncommitted
end

-- Returns the place that `open` says each of these tasks has, at most SLICE, as `place_in` does, but as a table. `in_hand`:
-- whether the learner has the group there in hand.
local function told_places(run, ids, texts)
  local places, members, asked = {}, {}, {}
  for at, id in ipairs(ids) do
    local stream, entry, rest, group = place_in(texts[at] or '')
    places[at] = { stream = stream, entry = entry, rest = rest, group = group }
    if group then members[#members + 1], asked[#asked + 1] = entry .. ' ' .. id, places[at] end
  end
  if #members > 0 then
    for at, score in ipairs(redis.call('ZMSCORE', run.K.in_hand, unpack(members))) do asked[at].in_hand = score end
  end
  return places
end

-- Returns the place of an open task, which `told_places` has read, as `place_of` does, but not at a worker's word alone: the
-- learner's own account of what it has in hand is believed, then `open` if the task lies there. Returns nil if it lies at
-- neither.
local function true_place(run, id, told)
  local stream, entry, rest, group = told.stream, told.entry, told.rest, told.group
  if told.in_hand then return stream, entry, rest, group end
  if is_at_home(run, id, stream, entry) then return stream, entry, rest, group end
  note_forged(run)
  for _, member in ipairs(redis.call('ZRANGE', run.K.in_hand, 0, -1)) do
    if member:sub(-#id - 1) == ' ' .. id and restore_group(run, id, member:match('^%S+')) then return place_of(run, id) end
  end
end

-- Drops the partial rollouts of these tasks, at most SLICE, as far as they have any.
local function drop_partials(run, ids)
  if #ids == 0 then return end
  for place, text in ipairs(redis.call('HMGET', run.K.partials, unpack(ids))) do
    if text then drop_partial(run, ids[place]) end
  end
end

-- Moves at most SLICE ids to trained, wherever they are: the checkpoint that holds them is the last authority. An id that is
-- not open has not been admitted, in a Redis that was set back; its bit in `settled` is set, and it counts as trained on
-- admission. Returns how many were open.
local function settle(run, ids, refs)
  local K, texts = run.K, redis.call('HMGET', run.K.open, unpack(ids))
  local told = told_places(run, ids, texts)
  local opened, entries, members, elsewhere, ahead = {}, {}, {}, {}, {}
  for at, id in ipairs(ids) do
    if not texts[at] then
      note_index(ahead, prompt_of(id))
    else
      local stream, entry, _, group = true_place(run, id, told[at])
      opened[#opened + 1] = id
      if group then
        if group.in_store then refs[#refs + 1] = ref_of(id, read(run, stream, entry) or {}) end
        entries[#entries + 1], members[#members + 1] = entry, entry .. ' ' .. id
      elseif stream then
        elsewhere[#elsewhere + 1] = { stream, entry, id }
      end
    end
  end
  for epoch, indices in pairs(ahead) do set_bits(run, epoch, indices, 1) end
  local settled = call_for_all('HDEL', K.open, opened)
  count(run, 'trained', settled)
  call_for_all('HDEL', K.failures, opened)
  for _, place in ipairs(elsewhere) do clear(run, unpack(place)) end
  call_for_all('ZREM', K.ready, members)
  call_for_all('ZREM', K.in_hand, members)
  call_for_all('XDEL', K.replay, entries)
  drop_partials(run, opened)
  return settled
end

-- args: lineage turn standing id… ; the ids are the next that the checkpoint holds and its parent does not. `standing` is
-- the checkpoint, followed by the number of its ids that are settled then unless they are all. Returns how many were in
-- the queue, and the objects that may be removed from the object store.
local function commit(keys, args)
  local run = open_run(keys)
  take_turn(run, args[1], args[2], 'commit')
  local refs = {}
  if run.state.committed == args[3] then return { 0, refs } end
  local settled = 0
  for place = 4, #args, SLICE do
    settled = settled + settle(run, { unpack(args, place, math.min(place + SLICE - 1, #args)) }, refs)
  end
  redis.call('HSET', run.K.state, 'committed', args[3], 'uncommitted', math.max(0, run.uncommitted - settled))
  tell(run, 'committed', settled)
  return { settled, refs }
end

-- args: lineage turn standing before id… ; undoes the step of a commit that led from `before` to `standing`: the checkpoint
-- is in no surviving history, so its ids are to be trained again. Returns how many went back to the backlog.
local function uncommit(keys, args)
  local run = open_run(keys)
  take_turn(run, args[1], args[2], 'uncommit')
  if run.state.committed ~= args[3] then return 0 end
  local undone, ahead = 0, {}
  for place = #args, 5, -1 do
    local epoch, index = prompt_of(args[place])
    if holds(run, epoch, index) then
      note_index(ahead, epoch, index)
    else
      redis.call('LPUSH', run.K.redo, args[place])
      undone = undone + 1
    end
  end
  for epoch, indices in pairs(ahead) do set_bits(run, epoch, indices, 0) end
  redis.call('HSET', run.K.state, 'committed', args[4])
  count(run, 'trained', -undone)
  count(run, 'undone', undone)
  tell(run, 'undone', undone)
  return undone
end

-- args: lineage turn standing, then the name of an epoch and the bits of its prompts, as in `settled`, for each epoch of which
-- checkpoints up to `standing` hold any. Returns 0 and changes nothing unless this queue knows of no prompt that is trained or
-- was admitted, as after a loss of Redis: a million ids, for which `commit` takes thousands of steps, are one call.
local function restore(keys, args)
  local run = open_run(keys)
  take_turn(run, args[1], args[2], 'restore')
  if run.state.committed == args[3] then return 1 end
  local trained = redis.call('HGET', run.K.stats, 'trained') or '0'
  local known = redis.call('HLEN', run.K.open) + redis.call('LLEN', run.K.redo)
  if (run.state.committed or '') ~= '' or trained ~= '0' or known > 0 then return 0 end
  for place = 4, #args, 2 do
    local key = run.K['settled:' .. args[place]]
    redis.call('SET', key, args[place + 1])
    redis.call('HSET', run.K.settled, args[place], redis.call('BITCOUNT', key))
  end
  redis.call('HSET', run.K.state, 'committed', args[3])
  if #args > 3 then tell(run, 'restored', args[3]) end
  return 1
end

local ANNOUNCED_KEPT = 256
local RECORDS_KEPT, RECORD_MAX_BYTES = 10000, 16384
local ANNOUNCED_WAKES_PER_S = 2000
local DOCUMENT_MAX_BYTES = 65536

-- Returns whether the pointer is at that version or a newer one.
local function stands(run, lineage, number)
  local before = tonumber(redis.call('HGET', run.K.published, 'lineage'))
  return before and (before > lineage or (before == lineage and run.published >= number))
end

-- Tells workers of announced parts, but not of each: all workers together wake for them at most ANNOUNCED_WAKES_PER_S times
-- a second. The publication, which follows, tells of the last ones.
local function tell_announced(run, route, place)
  local told_ms = tonumber(redis.call('HGET', run.K.coming, 'told_ms') or 0)
  local workers = redis.call('ZCARD', run.K.workers)
  if run.now >= told_ms and run.now - told_ms < 1000 * workers / ANNOUNCED_WAKES_PER_S then return end
  redis.call('HSET', run.K.coming, 'told_ms', run.now)
  tell_workers(run, 'announced', route .. ' ' .. place)
end

-- args: lineage number route place document. Parts of a route are announced in order and replace those of another route.
-- Returns 1 if it was announced; 0 if the version is published already, or the document too large.
local function announce(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local coming, route, place = run.K.coming, args[3], tonumber(args[4])
  if #args[5] > DOCUMENT_MAX_BYTES or stands(run, tonumber(args[1]), tonumber(args[2])) then return 0 end
  if redis.call('HGET', coming, 'route') ~= route then redis.call('DEL', coming) end
  redis.call('HSET', coming, 'route', route, 'last', place, place, args[5])
  redis.call('HDEL', coming, place - ANNOUNCED_KEPT)
  tell_announced(run, route, place)
  return 1
end

-- args: lineage number manifest digest. The pointer only moves forward; 1 if it moved.
local function publish(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local lineage, number = tonumber(args[1]), tonumber(args[2])
  if stands(run, lineage, number) then return 0 end
  local withheld = not run.published -- without weights nobody could lease what there is
  redis.call('HSET', run.K.published, 'lineage', lineage, 'number', number, 'manifest', args[3], 'digest', args[4],
    'ms', run.now)
  redis.call('DEL', run.K.coming)
  if withheld then offer(run, redis.call('XLEN', run.K.tasks) + redis.call('XLEN', run.K.retry)) end
  run.published = number
  tell(run, 'published', lineage .. '.' .. number)
  tell_workers(run, 'published', lineage .. '.' .. number)
  admit(run)
  return 1
end

-- args: lineage id release task line. Keeps what an update reported about itself, for people. `id` is the version that it made,
-- "<lineage>-<number>", by which the records are in order. Returns 1 if it was kept, 0 if it, or a later one, is there.
local function record(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  if #args[5] > RECORD_MAX_BYTES then return 0 end
  local kept = redis.pcall('XADD', run.K.updates, 'MAXLEN', '~', RECORDS_KEPT, args[2], 'release', args[3], 'task', args[4],
    'line', args[5])
  if not kept.err then return 1 end
  if not kept.err:find('equal or smaller', 1, true) then error(kept) end
  return 0
end

-- args: lineage public_key token_secret chunk_key.
local function publish_keys(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  redis.call('HSET', secrets_of(keys, 'run_keys'), 'public_key', args[2], 'token_secret', args[3], 'chunk_key', args[4])
  tell(run, 'keys_published', args[2])
  return 1
end

-- Notes the digests of the sets that checkpoints hold ids of: names and digests, from args[first] on. Of two lists for one
-- set, the newer one begins with a digest that the other lacks. Refuses a set of other prompts that was declared under such
-- a name while nobody remembered it, before anything changes.
local function know_sets(run, args, first)
  local newer = {}
  for place = first, #args, 2 do
    local name, stored = args[place], args[place + 1]
    local known = digests_of(run, name)
    if not known or lists(stored, known:match('^%S+')) then
      newer[name] = stored
    elseif not lists(known, stored:match('^%S+')) then
      fail_with('EQNAME', name .. ': it was declared with other prompts than those that checkpoints hold as trained')
    end
  end
  for name, stored in pairs(newer) do redis.call('HSET', run.K.digests, name, stored) end
end

-- Refuses rules of a mixture without the component of a set to train, which is known here or to the checkpoints whose sets
-- follow the rules, at args[sets]: its prompts would never be served. Rules without a mixture serve every set.
local function check_mixture(run, args, sets)
  local words = value_of({ unpack(args, 6, sets - 1) }, 'mixture')
  local components, known = mixture.parse(words), redis.call('HKEYS', run.K.digests)
  if #components == 0 then return end
  for place = sets, #args, 2 do known[#known + 1] = args[place] end
  for _, name in ipairs(known) do
    if not mixture.find(components, name) and redis.call('HGET', run.K['set:' .. name], 'order') ~= 'held_out' then
      fail_with('EQMIXTURE', name .. ': this run has prompts of it, and the mixture (' .. words .. ') has no component '
        .. mixture.name_of(name))
    end
  end
end

-- args: parent version floor token n, then n words of the rules, then name and digests of each set that the checkpoint or
-- an ancestor holds ids of. Begins a new lineage, above `floor`, at the parent lineage's checkpoint of that version; the
-- rules are the lineage's own; `cancel` follows. Returns it, where the queue stands (`commit`), and how many tasks are
-- open. A floor above today's lineage means that Redis was set back: lineages whose forks it has forgotten have no
-- ancestors.
local function resume(keys, args)
  local run = open_run(keys)
  local K, version = run.K, tonumber(args[2])
  if run.state.resume_token ~= args[4] then
    local sets = 6 + tonumber(args[5])
    check_mixture(run, args, sets)
    know_sets(run, args, sets)
    redis.call('HSET', K.rules, unpack(args, 6, sets - 1))
    run = open_run(keys)
    local floor = tonumber(args[3])
    local set_back = floor > run.lineage
    run.lineage, run.v = math.max(run.lineage, floor) + 1, version
    note_fork(run, args[1], version)
    redis.call('HSET', K.state, 'lineage', run.lineage, 'v', version, 'uncommitted', 0, 'turn', '0 resume',
      'resume_token', args[4])
    redis.call('HDEL', K.state, 'finished', 'reopened')
    redis.call('DEL', K.drained, K.coming, K.suspended)
    if set_back or (run.published and run.published > version) then
      redis.call('DEL', K.published)
      run.published = nil
    end
    tell(run, 'resumed', run.lineage .. '.' .. version)
    tell_workers(run, 'resumed', run.lineage .. '.' .. version)
  end
  return { run.lineage, run.state.committed or '' }
end

-- Returns who completed the group at that entry of replay: the worker that it names, if that has noted it under its own name,
-- else ''.
local function sender_of(run, entry, group)
  return redis.call('XRANGE', run.K['sent:' .. group.worker], entry, entry)[1] and group.worker or ''
end

-- args: lineage id entry reason cause. The learner rejects a bad group at that entry of replay or scored, or one whose object is missing:
-- that costs the task an attempt, since another worker may do better, and with the last one it is buried with the reason. A
-- group of a worker that is suspended costs none. Returns {1, its sender, its object-store key if it had one}, the sender ''
-- where nobody is to blame for it: its object is missing, who sent it is not known, or it is suspended already. A group that
-- is no longer there has been generated again, or is buried already.
local function reject_group(keys, args)
  local run, id, reason = open_run(keys), args[2], args[4]:sub(-REASON_MAX_BYTES)
  fence(run, args[1])
  local stream, entry, _, group = place_of(run, id)
  if not group or entry ~= args[3] then return { 0 } end
  local missing, sender = args[5] == 'missing', sender_of(run, entry, group)
  count(run, missing and 'missing' or 'bad_' .. args[5])
  local suspended = sender ~= '' and is_suspended(run, sender)
  local failed = (tonumber((read(run, stream, entry) or {}).attempt) or 0)
  local attempt, blamed, ref = suspended and failed or failed + 1, sender, nil
  if missing or suspended then blamed = '' end
  if suspended or attempt < run.max_attempts then
    local by = sender ~= '' and sender or 'an unknown worker'
    if not missing then redis.call('HSET', run.K.failures, id, 'attempt ' .. failed .. ' by ' .. by .. ': ' .. reason) end
    tell_returned(run, 1)
    ref = send_back(run, id, stream, entry, { attempt = attempt })
  else
    ref = bury_task(run, id, stream, entry, attempt, reason, sender)
  end
  return { 1, blamed, ref }
end

-- args: lineage id entry. Sends back the group at that entry of replay or scored, which was made under limits that the run no longer
-- has. Returns as `reject_group`.
local function return_unfit(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local stream, entry, _, group = place_of(run, args[2])
  if not group or entry ~= args[3] then return { 0 } end
  count(run, 'unfit')
  tell_returned(run, 1)
  return { 1, send_back(run, args[2], stream, entry, {}) }
end

-- args: lineage name… ; returns the digests of these sets' prompts. It is fenced, so that a Redis that has lost the sets,
-- and may have others of these names by now, cannot answer.
local function set_digests(keys, args)
  local run = open_run(keys)
  fence(run, args[1])
  local digests = {}
  for place = 2, #args do digests[place - 1] = digests_of(run, args[place]) or '' end
  return digests
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
  wake(run, redis.call('ZCARD', run.K.idle)) -- idle workers have something to learn as well
  return 1
end

-- args: padding. Changes nothing: a server that is full refuses the call, and workers' completions of that size.
local function probe_room(keys)
  return 1
end

register('probe_room', probe_room)
register('drain', drain, 'allow-oom')
register('pending', pending, 'allow-oom')
register('advance', advance, 'allow-oom')
register('skip', skip, 'allow-oom')
register('cancel', cancel, 'allow-oom')
register('commit', commit, 'allow-oom')
register('uncommit', uncommit, 'allow-oom')
register('restore', restore, 'allow-oom')
register('announce', announce)
register('publish', publish, 'allow-oom')
register('publish_keys', publish_keys, 'allow-oom')
register('record', record, 'allow-oom')
register('resume', resume, 'allow-oom')
register('reject_group', reject_group, 'allow-oom')
register('return_unfit', return_unfit, 'allow-oom')
register('set_digests', set_digests, 'allow-oom')
register('finish', finish, 'allow-oom')
