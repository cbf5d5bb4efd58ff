-- What the moves of workers share: the checks of their words, and leases that end. Other roles read a worker's arguments later,
-- so each argument must have the form that our own code gives it.

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

-- Returns a value of `partials` as {oldest, newest, lineage, tokens, mark, segments, bytes, stored}; nil if it is malformed or
-- claims more tokens than `most`.
local function read_partial(text, most)
  local words = { text:match('^(%d+) (%d+) (%d+) (%d+) (%x+) (%d+) (%d+) (%d+)$') }
  if not words[1] or tonumber(words[4]) > most then return nil end
  for place, word in ipairs(words) do words[place] = place == 5 and word or tonumber(word) end
  return words
end
