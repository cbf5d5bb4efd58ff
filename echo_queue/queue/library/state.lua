#!lua name=echo_queue_1
--[[
The queue of one run, as Redis Functions. Floor: Redis 7.0; also Valkey. The files of this folder are
installed as one library, in the order that `__init__.py` states; this one comes first. It holds what the moves share;
each other file holds the moves that its name says, and registers them at its end.

Every function takes one key, the run's prefix `eq:{run}:`, and derives all others from it: the braces put
them into one Cluster slot. Every function may be called again after a lost reply: it checks the present state before
it moves anything, or recognizes the call by its token. A task's new place is written before its old one is removed.

  submitted = backlog + tasks + replay + trained + dead
  asked = evaluation + scored + concluded, of prompts that are asked for an evaluation and never trained

KEYS
  state          hash    lineage, v (the learner's version), window (w, batches), uncommitted (groups trained, or
                         taken into the next update without a gradient, and not yet committed), declared (number of
                         sets to train), rounds (of evaluation that were begun), finished (ms) and reopened (how often new work came after that); clock_ms (the queue's
                         clock, see `clock_of`) and swept_ms (Redis' own) at the last reclaim; wanted ("<lineage>.<v> <clock>": since when the
                         learner keeps seats for the update after v), enough (ready groups at which the learner, which
                         waits, is told; absent while it does not wait), mended ("<stream> <entry>": `find_leases`),
                         turn ("<n> <move>": the learner's last numbered one), resume_token,
                         committed: the newest checkpoint that `trained` and `settled` agree with, and the number
                         of its ids that do while a commit is between its steps
  rules          hash    those of the newest lineage, by their names in `run_rules.py`
  published      hash    lineage number manifest digest ms (when): the newest weights that workers may fetch
  coming         hash    the announced route to the version under way: route (its name), last (place of its newest part),
                         told_ms (when workers last were told), and place -> the signed document of that part, which is
                         stored already; the last few parts. Gone once the version is published
  forks          hash    lineage -> "<lineage> <version>" of the checkpoint at which it began; the base is "0 0". The newest
                         `FORKS_KEPT` lineages have one
  stats          hash    counters: submitted, trained, asked, concluded, and one for each cause
  tallies        hash    the counters that workers raise, apart from those that the identity is checked with
  backlog        zset    set name -> order of service (−priority·10⁹ + order of declaration), while prompts are left
  redo           list    ids once trained by a checkpoint that was left behind: part of the backlog, served first
  set:<name>     hash    source epochs priority order seed feature chunks prompts (as declared);
                         arrived (chunks), count (prompts) so far, failed (chunks); epoch, next: the cursor
  digests        hash    set name -> digest of its prompts; behind it those of earlier declarations, in which chunks failed.
                         Also of sets that only checkpoints know
  chunks:<name>  hash    chunk -> "waiting <first> <count> <digest> <ticket>" | "failed <first> <count> <digest> <reason>" |
                         "done <first> <count> <digest> <object>"; ticket: how its source is read, JSON
  shards:<name>  zset    "<first> <count> <object>" -> last position it serves: by prompt index if shuffled, else by arrival
  lengths:<name> string  a byte for each prompt: 64 … 255, the length of its last group (`length_byte`); before it has one,
                         1 … 63, its bucket of prompts that were alike at submission; 0: no bucket
  mixture        hash    component -> "<credit> <admitted>": the prompts that it is owed, and how many were admitted (`mixture.lua`)
  successes:<name> string two bytes for each prompt: what its groups earned lately (`curriculum.lua`)
  candidates:<name> zset "<epoch>/<index>/<position>" -> 0: prompts that the cursor has passed and that are not admitted yet;
                         part of the backlog
  buckets:<name> hash    bucket -> "<groups> <tokens>" of prompts' first groups, lately
  tasks          stream  new tasks;          group workers. Fields: id set epoch index shard first count (its shard),
  retry          stream  tasks that came     attempt (those that failed before) late (how often too old) kept (tokens
                         back, leased first  in `partials` when its lease last ran out) long (1: handed out alone) pv
                                             min_pv lineage at (ms of first admission)
  replay         stream  scored groups. The task's fields, worker oldest newest lineage samples tokens reward (mean) and
                         `group` (bytes) or `ref` (key in the object store)
  dead           stream  tasks given up: the task's fields, reason (short once there are `DEAD_WHOLE`) worker died (ms)
  round          hash    the round of evaluation under way: number lineage version (the only one that may answer it) sets
                         (names) prompts (of them together) put (how many of these have been asked); absent between rounds
  evaluation     stream  its tasks;          group workers. The fields of tasks; pv and lineage are the round's version
  scored         stream  its tasks that are answered, with the fields of replay, or that failed, with those of dead
  keepers        zset    worker -> the queue's clock when it last was seen at work on the round, whose version it keeps
  evaluations    stream  line (JSON): what a round found out about one of its sets; informational, the newest 10,000
  open           hash    task id -> its one place while it is not trained:
                         "tasks|retry|evaluation|dead <entry>", with " by hand" if an operator buried it, or
                         "replay <entry> versions <oldest>..<newest> lineage <l> by <worker> attempt <n>[ in store]", or
                         "scored <entry>[ by <worker> attempt <n>]"
  leases         zset    task id -> when its lease runs out, by the queue's clock; negative: `HANDED_BACK` or `GIVEN_UP`
  in_flight      zset    task id -> version of its oldest token, or the one that will make it, while it is leased
  awaited        zset    the part of in_flight that was too late before: the learner keeps seats for it
  consumers      zset    worker -> the queue's clock when it last leased: a consumer of tasks and retry
  partials       hash    task id -> "<oldest> <newest> <lineage> <tokens> <mark> <segments> <bytes> <of them in the object
                         store>" of its partial rollout, while the task is in tasks or retry; the mark identifies its content
  segments:<id>  list    the segments of a task's partial rollout: "segment <bytes>", or "ref <key> <digest>" of an object
  unwanted       set     objects of partial rollouts that nothing points to any more; the housekeeper removes them
  ready          zset    "<entry> <task id>" -> oldest version, for what is in replay and not yet drained
  in_hand        zset    the same for what is in replay and drained: it is in the learner's hands
  failures       hash    task id -> "attempt <n> by <worker>: <reason>", until it is trained or dead
  settled:<name>/<epoch> string  a bit for each prompt: 1 if checkpoints up to `committed` hold it and it is not counted as
                         trained yet, because Redis was set back or lost
  settled        hash    "<name>/<epoch>" -> how many of these bits are 1, while there are any
  token:<worker> string  the worker's last lease, so that a lost reply can be repeated
  sent:<worker>  stream  the entries of replay that the worker completed, under the same ids, the newest ones; expires
  suspended      hash    worker -> "<ms> <reason>": the learner has found too many bad groups of it in a row; it leases nothing
                         and completes nothing, until the next lineage or `reinstate`
  drained        string  "<turn> <task id>…": the learner's last drain, so that a lost reply can be repeated
  worker:<name>  hash    heartbeat: engine version state tokens_per_s groups_per_s groups pause_ms store_bytes peer_bytes release
                         pool machine generation ("<first bucket>:<groups>,…": times from lease to acceptance), and
                         arrived_ms: from a version's publication until it was served; expires by itself
  workers        zset    worker -> ms of its last heartbeat
  order:<worker> string  "rest|leave <within ms>": the controller's order to this worker; expires
  fleet          hash    leader (a controller's name), term (how often another one came to lead), until_ms (when another one
                         may lead), plan (JSON: what the leader is about to do), paused (ms)
  fleet_wanted   hash    pool -> machines that the leader wants of it
  peer:<name>    hash    region address rate (bytes/s, 0: unknown) leaf (why no worker fetches from it, or empty)
                         usd_per_gb; expires
  chain:<region>:<route>  zset  worker that fetches this route -> its place, in the order in which they joined; expires
  feeds:<region>:<route>  hash  worker -> "<upstream> <its place> <highest place above>" it was sent to first, or "store"; expires
  fed:<region>:<route>    hash  "<upstream> <its place>" -> how many workers were sent to it first; expires
  rates:<region> zset    worker -> its rate, of every peer of the region; expires
  reports:<name> hash    "bad|unreachable|dry <reporting worker>" -> ms; expires
  blamed:<region> zset   worker -> ms until which no other fetches from it, because several reported it; expires
  run_keys       hash    under `eqs:{run}:`, for learner and workers alone: public_key of the learner, token_secret for
                         requests between workers, chunk_key of encrypted weights (all hexadecimal)
  confirmed      string  written before each WAIT, if moves wait for replicas
  idle           zset    worker whose last lease found no task -> ms of that lease, until it is offered one
  offer:<worker> list    an element wakes that worker, which waits for it (BLPOP), because a task came; expires
  weight_events  stream  what concerns workers' weights: published, resumed, announced; trimmed
  arrivals       stream  what the learner waits for: as many groups are ready as it awaits, or a task was buried; trimmed
  events         stream  events of the run, for people; informational, trimmed
  updates        stream  "<lineage>-<number>" of each update's version -> release of its learner, task (one of those that it
                         trained), line (JSON: its metrics without the tasks' ids); informational, the newest 10,000
--]]

local ADMIT_MAX = 500
-- Prompts that one call passes because checkpoints hold them.
local SETTLED_MAX = 2000
local SLICE = 1000
local EVENTS_KEPT = 1000
local WAKES_KEPT = 100
local IDLE_GONE_MS = 15000
-- The most workers that are woken for the tasks of one move.
local OFFERED_AT_ONCE = 32
local REASON_MAX_BYTES = 8192
local DEAD_WHOLE, REASON_SHORT_BYTES = 1000, 256
local FORKS_KEPT = 1000
local STRING_MAX_BYTES = 536870912
local BUCKETS = 63
local LONG_STEPS = 8
local SEGMENTS_MAX = 1024
local UNWANTED_MAX = 100000
local BUCKET_GROUPS_MAX = 64
local BY_HAND = ' by hand'
local CLOCK_STEPS_PER_LEASE = 4

local function fail_with(code, text)
  error({ err = code .. ' ' .. text })
end

local function pairs_of(flat)
  local fields = {}
  for place = 1, #flat, 2 do fields[flat[place]] = flat[place + 1] end
  return fields
end

-- Returns one value of such a flat list, without a table of all of them; nil if there is none of that name.
local function value_of(flat, name)
  for place = 1, #flat, 2 do
    if flat[place] == name then return flat[place + 1] end
  end
end

local function hash(key)
  return pairs_of(redis.call('HGETALL', key))
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The keys that most moves use. They are joined once for the run that was served last, because a move names 20 of them. No
-- other key is remembered, since a worker's words are in some.
local REMEMBERED = { 'state', 'rules', 'published', 'stats', 'tallies', 'tasks', 'retry', 'replay', 'evaluation', 'scored', 'round',
  'open', 'leases', 'in_flight', 'awaited', 'consumers', 'partials', 'ready', 'in_hand', 'failures', 'settled', 'idle' }
local last_keys, last_prefix

-- K.tasks is the key of `tasks`, K['set:a'] that of `set:a`.
local function keys_under(prefix)
  if prefix ~= last_prefix then
    last_keys, last_prefix = setmetatable({}, { __index = function(_, name) return prefix .. name end }), prefix
    for _, name in ipairs(REMEMBERED) do last_keys[name] = prefix .. name end
  end
  return last_keys
end

-- A key outside the run's prefix, so that a role that may read everything under the prefix cannot read it.
local function secrets_of(keys, name)
  return keys[1]:gsub('^eq:', 'eqs:') .. name
end

-- Fields of the hashes `rules` and `state`, in the groups in which they are read. The first group is read with each call,
-- the others when a move first asks for one of their fields: most moves need only a few. Every other rule is read, with
-- all of them, when a move first asks for one.
local RULES = { hash = 'rules', 's', 'batch', 'pace', 'lease_ms', 'group_max_bytes', 'group_max_tokens', 'curriculum', 'mixture' }
local GROUPS = {
  { hash = 'state', 'lineage', 'v', 'enough' },
  { hash = 'state', 'finished', 'reopened', 'window', 'uncommitted', 'swept_ms', 'clock_ms' },
}
local GROUP_OF = {}
for place = 1, #GROUPS do
  for field = 1, #GROUPS[place] do GROUP_OF[GROUPS[place][field]] = GROUPS[place] end
end

-- Returns what the word of a field (false: there is none) means.
local function meaning_of(word)
  if word == 'true' then return true end
  if not word or word == 'false' then return false end
  return tonumber(word) or word
end

-- The other fields of a run that are made when a move first asks for one of them.
local READ_LATER = {
  now = now_ms,
  state = function(run) return hash(run.K.state) end,
  forks = function(run) return hash(run.K.forks) end,
  published = function(run) return tonumber(redis.call('HGET', run.K.published, 'number')) end,
  shards = function() return {} end,
  buckets = function() return {} end,
  admitted = function() return {} end,
  settled = function(run) return hash(run.K.settled) end,
  passed = function() return {} end,
  to_pass = function() return SETTLED_MAX end,
}

local function read_group(run, group)
  local words = redis.call('HMGET', run.K[group.hash], unpack(group))
  for place = 1, #group do
    local field, word = group[place], words[place]
    if rawget(run, field) == nil then run[field] = meaning_of(word) end
  end
end

local function read_later(run, name)
  if READ_LATER[name] then
    run[name] = READ_LATER[name](run)
  elseif GROUP_OF[name] then
    read_group(run, GROUP_OF[name])
  elseif not rawget(run, 'has_rules') then
    run.has_rules = true
    for rule, word in pairs(hash(run.K.rules)) do run[rule] = meaning_of(word) end
  end
  return rawget(run, name)
end
local RUN = { __index = read_later }

-- The run during one call: K (keys), the rules, and what GROUPS and READ_LATER name.
local function open_run(keys)
  local run = setmetatable({ K = keys_under(keys[1]), offered = 0 }, RUN)
  read_group(run, RULES)
  if not run.s then fail_with('EQNORUN', 'no rules at ' .. run.K.rules) end
  return run
end

-- Returns the queue's clock in ms, by which leases run out. It never goes back: a wall clock that was set back stands
-- still for one sweep. And it goes on by at most a quarter of a lease between two sweeps: a longer gap means that the wall
-- clock was set forward, or that nobody could renew meanwhile because Redis was away, and costs living workers no lease.
local function clock_of(run)
  local since = run.now - (run.swept_ms or run.now)
  local step = math.min(since, math.ceil(run.lease_ms / CLOCK_STEPS_PER_LEASE))
  return (run.clock_ms or 0) + math.max(0, step)
end

-- Only the learner that resumed last may move the learner's state.
local function fence(run, lineage)
  lineage = tonumber(lineage)
  if lineage < run.lineage then
    fail_with('EQFENCED', 'lineage ' .. lineage .. ' was taken over by ' .. run.lineage)
  elseif lineage > run.lineage then
    fail_with('EQAHEAD', 'lineage ' .. lineage .. ' is unknown here; the queue is at ' .. run.lineage)
  end
end

-- A finished run is open again once new work arrives.
local function is_finished(run)
  return run.finished and not run.reopened
end

-- HINCRBY is the only write to `state` that a submitter's user may make.
local function reopen(run)
  if is_finished(run) then redis.call('HINCRBY', run.K.state, 'reopened', 1) end
end

-- Checks and stores the number of a learner's move. A number above the next one means that this server has forgotten
-- moves that it acknowledged, as after a fail-over to a replica that lagged. A lower one means that the learner never heard
-- the answer to its last move, which this server has made.
local function take_turn(run, lineage, turn, move)
  fence(run, lineage)
  local last, before = (run.state.turn or '0 resume'):match('^(%d+) (%a+)$')
  local repeated = turn == last and move == before
  if not repeated and tonumber(turn) ~= tonumber(last) + 1 then
    if tonumber(turn) <= tonumber(last) then
      fail_with('EQUNHEARD', 'move ' .. last .. ' of lineage ' .. lineage .. ' (' .. before .. ') was made, but its answer was lost')
    end
    fail_with('EQAHEAD', 'move ' .. turn .. ' of lineage ' .. lineage .. ' came after ' .. last .. ' (' .. before .. ')')
  end
  redis.call('HSET', run.K.state, 'turn', turn .. ' ' .. move)
end

-- Calls a command that takes any number of words and returns how much it changed, if there are any words, in slices for which
-- Lua's stack has room. Returns the sum.
local function call_for_all(command, key, words)
  local changed = 0
  for place = 1, #words, SLICE do
    changed = changed + redis.call(command, key, unpack(words, place, math.min(place + SLICE - 1, #words)))
  end
  return changed
end

local function count(run, name, by)
  if by ~= 0 then redis.call('HINCRBY', run.K.stats, name, by or 1) end
end

-- The counters of a worker's own calls, kept apart because its user may not write to `stats`.
local TALLIES = { 'leased', 'completed', 'spilled', 'duplicate', 'late_completion', 'dead_completion', 'unknown', 'peer_bad',
  'peer_unreachable', 'peer_dry', 'tokens_continued', 'tokens_discarded', 'bad_partial', 'left_finished', 'left_preempted',
  'left_rest', 'left_dismissed', 'left_stopped', 'left_error', 'suspended_completion', 'answered', 'mixed_completion' }

-- A worker's user may have raised a counter to its limit: it then stays there.
local function tally(run, name, by)
  if by ~= 0 then redis.pcall('HINCRBY', run.K.tallies, name, by or 1) end
end

-- Appends to a stream of events. If a worker's user has used up the entry ids of one, the learner begins it anew; until then
-- nobody is told, and whoever waits looks again by itself.
local function note(run, stream, kept, kind, what)
  local noted = redis.pcall('XADD', run.K[stream], 'MAXLEN', '~', kept, '*', 'kind', kind, 'what', what)
  if noted.err then redis.pcall('DEL', run.K[stream]) end
end

-- Reports an event to people. It wakes nobody.
local function tell(run, kind, what)
  note(run, 'events', EVENTS_KEPT, kind, what)
end

local function tell_returned(run, tasks)
  if tasks > 0 then tell(run, 'returned', tasks) end
end

-- Wakes all workers, whose weights this concerns.
local function tell_workers(run, kind, what)
  note(run, 'weight_events', WAKES_KEPT, kind, what)
end

-- Wakes the learner, if it waits for groups.
local function tell_learner(run, kind, what)
  note(run, 'arrivals', WAKES_KEPT, kind, what)
end

-- Wakes so many idle workers, those that have waited longest first. Each waits at a key of its own: a server looks at all
-- who wait at a key whenever it wakes one of them, 2,000 in 20 ms. One that has not looked for IDLE_GONE_MS is gone.
local function wake(run, workers)
  while workers > 0 do
    local found = redis.call('ZPOPMIN', run.K.idle, math.min(workers, SLICE))
    if not found[1] then return end
    for place = 1, #found, 2 do
      if tonumber(found[place + 1]) > run.now - IDLE_GONE_MS then
        local key = run.K['offer:' .. found[place]]
        redis.call('RPUSH', key, '1')
        redis.call('PEXPIRE', key, IDLE_GONE_MS)
        workers = workers - 1
      end
    end
  end
end

-- Offers tasks that came: wakes one idle worker for each of them, but OFFERED_AT_ONCE in one move, since a worker may lease
-- several. A lease offers what it left.
local function offer(run, tasks)
  local workers = math.min(tasks, OFFERED_AT_ONCE - run.offered)
  run.offered = run.offered + workers
  wake(run, workers)
end

-- Returns the lineage and version at which a lineage began; nil if that was forgotten, or it is the base.
local function fork_of(run, lineage)
  local parent, began = (run.forks[tostring(lineage)] or ''):match('^(%d+) (%d+)$')
  return tonumber(parent), tonumber(began)
end

-- Notes where the run's new lineage began, and forgets where lineages long before it began. What is still left of these
-- has no ancestors, so it counts as abandoned and is generated again.
local function note_fork(run, parent, version)
  redis.call('HSET', run.K.forks, run.lineage, parent .. ' ' .. version)
  if redis.call('HLEN', run.K.forks) <= FORKS_KEPT then return end
  for _, lineage in ipairs(redis.call('HKEYS', run.K.forks)) do
    if tonumber(lineage) <= run.lineage - FORKS_KEPT then redis.call('HDEL', run.K.forks, lineage) end
  end
end

-- Returns whether today's weights do not descend from these. The weights at which a lineage began count as its parent's;
-- a lineage whose fork was forgotten has no ancestors.
local function abandoned(run, lineage, version)
  if lineage == run.lineage then return false end
  local parent, began = fork_of(run, lineage)
  while began and version <= began do
    lineage = parent
    parent, began = fork_of(run, lineage)
  end
  local line, bound = run.lineage, math.huge
  while line > lineage do
    parent, began = fork_of(run, line)
    if not began then return true end
    line, bound = parent, math.min(bound, began)
  end
  return line ~= lineage or version > bound
end

local STREAMS = { tasks = true, retry = true, replay = true, dead = true, evaluation = true, scored = true }
-- The streams whose tasks workers lease.
local LEASED = { 'tasks', 'retry', 'evaluation' }
local NUMBERS = { 'epoch', 'index', 'first', 'count', 'attempt', 'late', 'kept', 'long', 'pv', 'min_pv', 'lineage', 'at' }

-- Returns whether this is an entry's id in a stream, rather than any words.
local function is_entry(text)
  local ms, number = text:match('^(%d+)-(%d+)$')
  return ms ~= nil and #ms <= 18 and #number <= 18
end

-- Returns the fields that `open` holds of a group in replay; nil if it holds none.
local function made(rest)
  local oldest, newest, lineage, worker, attempt, store =
    rest:match('^ versions (%d+)%.%.(%d+) lineage (%d+) by (.-) attempt (%d+)(.*)$')
  if not store or #oldest > 15 or #newest > 15 or #lineage > 15 then return nil end
  return {
    oldest = tonumber(oldest), newest = tonumber(newest), lineage = tonumber(lineage),
    worker = worker, attempt = attempt, in_store = store ~= '',
  }
end

-- Returns the place that a text of `open` names: stream, entry, the text behind it, and what that says of a group in replay;
-- nil if it names none. A worker's user may write any words into `open`: those of another form are no place.
local function place_in(text)
  local stream, entry, rest = (text or ''):match('^(%a+) (%S+)(.*)$')
  if not stream or not STREAMS[stream] or not is_entry(entry) then return nil end
  if stream == 'scored' then
    local worker, attempt = rest:match('^ by (.-) attempt (%d+)$')
    return stream, entry, rest, worker and { worker = worker, attempt = attempt }
  end
  if stream ~= 'replay' then return stream, entry, rest end
  local group = made(rest)
  if group then return stream, entry, rest, group end
end

-- Returns the place of an open task as `place_in` does; nil if it is not open.
local function place_of(run, id)
  return place_in(redis.call('HGET', run.K.open, id))
end

local function read(run, stream, entry)
  local rows = redis.call('XRANGE', run.K[stream], entry, entry)
  if rows[1] then return pairs_of(rows[1][2]) end
end

-- Notes that words of a worker's user were found where our own code writes others.
local function note_forged(run, times)
  count(run, 'forged', times)
end

-- Notes a group in replay in `open` as its completion did, because other words stand there. Returns its fields; nil if there is
-- no such group at that entry.
local function restore_group(run, id, entry)
  local group = is_entry(entry) and read(run, 'replay', entry)
  if not group or group.id ~= id then return nil end
  local rest = ' versions ' .. (group.oldest or '') .. '..' .. (group.newest or '') .. ' lineage ' .. (group.lineage or '')
    .. ' by ' .. (group.worker or '') .. ' attempt ' .. (group.attempt or '') .. (group.ref and ' in store' or '')
  local found = made(rest)
  if found then redis.call('HSET', run.K.open, id, 'replay ' .. entry .. rest) end
  return found
end

-- Returns whether workers lease what lies in this stream.
local function is_task(stream)
  return stream == 'tasks' or stream == 'retry' or stream == 'evaluation'
end

-- Returns whether what lies in this stream is asked for an evaluation, and never trained.
local function is_asked(stream)
  return stream == 'evaluation' or stream == 'scored'
end

-- Returns whether a task lies where `open` says.
local function is_at_home(run, id, stream, entry)
  local task = stream and read(run, stream, entry)
  return task ~= nil and task ~= false and task.id == id
end

-- Appends the task to a stream: its own fields, then those that follow here. Its place is to be noted.
local function enter(run, stream, task, ...)
  local entry = redis.pcall('XADD', run.K[stream], '*',
    'id', task.id or '', 'set', task.set or '', 'epoch', task.epoch or '', 'index', task.index or '',
    'shard', task.shard or '', 'first', task.first or '', 'count', task.count or '', 'attempt', task.attempt or '',
    'late', task.late or '', 'kept', task.kept or '', 'long', task.long or '', 'pv', task.pv or '',
    'min_pv', task.min_pv or '', 'lineage', task.lineage or '', 'at', task.at or '', ...)
  if entry.err then
    tally(run, 'exhausted')
    fail_with('EQMEND', stream .. ' takes no entry until the learner has mended it: ' .. entry.err)
  end
  return entry
end

-- Appends the task to a stream, notes its new place, and offers it to an idle worker if one may lease it there.
local function put(run, stream, task, ...)
  redis.call('HSET', run.K.open, task.id, stream .. ' ' .. enter(run, stream, task, ...))
  if is_task(stream) then offer(run, 1) end
end

-- Does to each of these tasks what `put` does, and notes all places at once. Those of the tasks before one that the stream
-- does not take are noted all the same.
local function put_all(run, stream, tasks)
  local places, failure = {}, nil
  for _, task in ipairs(tasks) do
    local fine, entry = pcall(enter, run, stream, task)
    if not fine then
      failure = entry
      break
    end
    places[#places + 1], places[#places + 2] = task.id, stream .. ' ' .. entry
  end
  call_for_all('HSET', run.K.open, places)
  offer(run, #places / 2)
  if failure then error(failure) end
end

-- Returns the object of a segment of this task that lies in the store; nil for any other text.
local function stored_segment(id, element)
  local object, sha1 = element:match('^ref (partials/(%x+)/%x+) %x+$')
  if sha1 == redis.sha1hex(id) then return object end
end

-- Notes objects that nothing points to any more, for the housekeeper to remove. The sweep for orphans finds what is too much.
local function unwant(run, objects)
  if #objects == 0 or redis.call('SCARD', run.K.unwanted) >= UNWANTED_MAX then return end
  for _, object in ipairs(objects) do redis.call('SADD', run.K.unwanted, object) end
end

-- Drops the partial rollout of a task that has left tasks and retry, or that starts from scratch. Returns 1 if it had one.
local function drop_partial(run, id)
  local text = redis.call('HGET', run.K.partials, id)
  if not text then return 0 end
  local key = run.K['segments:' .. id]
  if text:sub(-2) ~= ' 0' then
    local objects = {}
    for _, element in ipairs(redis.call('LRANGE', key, 0, SEGMENTS_MAX)) do
      objects[#objects + 1] = stored_segment(id, element)
    end
    unwant(run, objects)
  end
  redis.call('DEL', key)
  return redis.call('HDEL', run.K.partials, id)
end

-- Returns the number of leased tasks of a stream, by its own account. XPENDING would list all workers for it.
local function leased_of(run, stream)
  return pairs_of(redis.call('XINFO', 'GROUPS', run.K[stream])[1]).pending
end

local function leased(run)
  local sum = 0
  for _, stream in ipairs(LEASED) do sum = sum + leased_of(run, stream) end
  return sum
end

-- Removes all that is noted of a task's lease. Seats are kept for no task that was never late.
local function forget_lease(run, id, never_late)
  redis.call('ZREM', run.K.leases, id)
  redis.call('ZREM', run.K.in_flight, id)
  if not never_late then redis.call('ZREM', run.K.awaited, id) end
end

-- Removes a place that its task has left.
local function clear(run, stream, entry, id, never_late)
  if stream == 'replay' then
    for _, name in ipairs({ 'ready', 'in_hand' }) do redis.call('ZREM', run.K[name], entry .. ' ' .. id) end
  elseif is_task(stream) then
    redis.call('XACK', run.K[stream], 'workers', entry)
    forget_lease(run, id, never_late)
  end
  redis.call('XDEL', run.K[stream], entry)
end

-- The folder of a task's payloads in the object store.
local function folder_of(id)
  return 'replay/' .. redis.sha1hex(id) .. '/'
end

-- Returns the object-store key that an entry names, if it is one of the task's own. A worker's entry can then never
-- cause the removal of anything else.
local function ref_of(id, task)
  local ref, folder = task.ref or '', folder_of(id)
  if ref:sub(1, #folder) == folder then return ref end
end

-- Returns the entry of an open task. An entry that vanished although no move removed it is counted as lost, and the audit
-- then fails.
local function read_open(run, id, stream, entry)
  local task = read(run, stream, entry)
  if not task then
    count(run, 'lost')
    clear(run, stream, entry, id)
    redis.call('HDEL', run.K.open, id)
    return nil
  elseif task.id and task.id ~= id then -- the place is another task's, and is left alone; this one's is mended elsewhere
    note_forged(run)
    forget_lease(run, id)
    redis.call('HSET', run.K.open, id, '')
    return nil
  end
  task.id, task.ref = id, ref_of(id, task)
  for _, name in ipairs(NUMBERS) do
    if not tostring(task[name]):match('^%d+$') or #task[name] > 15 then task[name] = '0' end
  end
  return task
end

-- Moves a task from any place to retry with a fresh tag. One that is asked for an evaluation is asked again, of the same
-- version. Returns the object-store key of its group, if it has one.
local function send_back(run, id, stream, entry, changes)
  local task = read_open(run, id, stream, entry)
  if not task then return nil end
  task.attempt, task.kept = changes.attempt or task.attempt, changes.kept or task.kept
  task.late = changes.late or (task.late + (changes.too_late and 1 or 0))
  if is_asked(stream) then
    put(run, 'evaluation', task)
  else
    task.pv, task.min_pv, task.lineage = run.v, run.published or run.v, run.lineage
    put(run, 'retry', task)
  end
  clear(run, stream, entry, id)
  return task.ref
end

-- Moves a task from any place to dead, with the reason, or to scored if it is asked for an evaluation. Returns the
-- object-store key of its group, if it has one.
local function bury_task(run, id, stream, entry, attempt, reason, worker)
  local task = read_open(run, id, stream, entry)
  if not task then return nil end
  if attempt then task.attempt = attempt end
  -- A broken environment kills every task that is submitted: the first reasons say why, and the others may not fill memory.
  if redis.call('XLEN', run.K.dead) >= DEAD_WHOLE then reason = reason:sub(-REASON_SHORT_BYTES) end
  local asked = is_asked(stream)
  put(run, asked and 'scored' or 'dead', task, 'reason', reason, 'worker', worker, 'died', run.now)
  clear(run, stream, entry, id)
  drop_partial(run, id)
  redis.call('HDEL', run.K.failures, id)
  count(run, asked and 'unanswered' or 'buried')
  tell(run, asked and 'unanswered' or 'buried', id)
  if not asked then tell_learner(run, 'buried', id) end
  return task.ref
end

-- A full server refuses functions without 'allow-oom' before they start. Functions that drain the server, or keep leases
-- alive, must still run.
local function register(name, callback, ...)
  redis.register_function({ function_name = 'eq1_' .. name, callback = callback, flags = { ... } })
end

-- Makes a write for WAIT to wait for, if the move to be confirmed was made by an earlier try.
local function confirm(keys)
  redis.call('SET', keys[1] .. 'confirmed', '1')
end

register('confirm', confirm, 'allow-oom')
